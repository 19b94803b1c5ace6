//! A mount under mixed load of sixteen processes, in rounds: snapshots are created and dropped
//! during a round, and each round ends in another way (unmounted, its server killed, remounted, its
//! server asked to end). The next round finds everything that a process had synced, the volume is
//! sound, and the server releases its open files.
//!
//! `BUTTRESS_MOUNT_SECONDS` sets the total time; a round takes a quarter of it, a minute at most.
//! `cargo xtask soak --mount SECONDS`.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects,
    reason = "tests state what must hold"
)]

use crate::mounting;

use buttress_oracle::content::Random;
use buttress_oracle::ioctls;
use buttress_oracle::skip::skips;
use mounting::{Mounted, buttress, no_fuse, sound, text};
use rustix::io::Errno;
use rustix::process::Signal;
use std::collections::BTreeSet;
use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

const WORKERS: u64 = 16;
const SECONDS: u64 = 8;
const ROUNDS: u64 = 4;
const ROUND_SECONDS_MAX: u64 = 60;

/// Number of files that a worker keeps.
const KEPT: u64 = 12;

/// Largest memory of the server: the budgets of its caches and of dirty data, and 128 MiB.
const PEAK_KIB_MAX: u64 = (256 + 256 + 128) << 10;

/// Exit code with which a worker reports that its mount has disappeared.
const GONE: i32 = 3;

const DIRECTORY: &str = "BUTTRESS_SOAK_DIRECTORY";
const JOURNAL: &str = "BUTTRESS_SOAK_JOURNAL";
const FOR: &str = "BUTTRESS_SOAK_FOR";

/// Returns the content of the file with this number.
fn content_of(number: u64) -> Vec<u8> {
    let mut random = Random::new(number);
    let length = match random.below(4) {
        0 => random.below(2000),
        1 | 2 => random.below(100_000),
        _ => random.below(2 << 20),
    };
    let compressible = random.one_in(2);
    random.bytes(usize::try_from(length).unwrap(), compressible)
}

/// Returns the files that a worker had synced and not removed. The worker's journal has `+N` after
/// a file's sync, `-N` before its removal.
fn durable(journal: &Path) -> BTreeSet<u64> {
    let mut numbers = BTreeSet::new();
    for line in fs::read_to_string(journal).unwrap_or_default().lines() {
        let number = |text: &str| text.parse::<u64>().unwrap();
        if let Some(text) = line.strip_prefix('+') {
            numbers.insert(number(text));
        } else if let Some(text) = line.strip_prefix('-') {
            numbers.remove(&number(text));
        }
    }
    numbers
}

fn expect_durable(directory: &Path, journal: &Path) {
    for number in durable(journal) {
        let path = directory.join(format!("d{number}"));
        let found = fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        assert!(
            found == content_of(number),
            "{}: {} bytes of something else",
            path.display(),
            found.len()
        );
    }
}

/// Makes one random step of a worker, in its own directory.
fn step(random: &mut Random, journal: &mut File, kept: &mut Vec<u64>) -> std::io::Result<()> {
    let loose = format!("l{}", random.below(30));
    match random.below(12) {
        0..=2 => {
            let number = random.number() >> 1;
            let name = format!("d{number}");
            let mut file = File::create_new(&name)?;
            let content = content_of(number);
            for part in content.chunks(70_000) {
                file.write_all(part)?;
            }
            file.sync_all()?;
            writeln!(journal, "+{number}")?;
            kept.push(number);
            if kept.len() as u64 > KEPT {
                let place = usize::try_from(random.below(KEPT)).unwrap();
                let old = kept.swap_remove(place);
                writeln!(journal, "-{old}")?;
                fs::remove_file(format!("d{old}"))?;
            }
        }
        3 if !kept.is_empty() => {
            let place = usize::try_from(random.below(kept.len() as u64)).unwrap();
            let found = fs::read(format!("d{}", kept[place]))?;
            assert!(
                found == content_of(kept[place]),
                "d{} is not as written",
                kept[place]
            );
        }
        4 | 5 => {
            let file = OpenOptions::new()
                .write(true)
                .create(true)
                .truncate(false)
                .open(&loose)?;
            let length = usize::try_from(random.below(50_000)).unwrap();
            file.write_all_at(&random.bytes(length, true), random.below(1 << 20))?;
        }
        6 => fs::rename(&loose, format!("l{}", random.below(30)))?,
        7 => fs::remove_file(&loose)?,
        8 => OpenOptions::new()
            .write(true)
            .open(&loose)?
            .set_len(random.below(1 << 20))?,
        9 => {
            fs::create_dir_all(format!("deep/{loose}"))?;
            fs::hard_link(&loose, format!("deep/{loose}/link"))?;
        }
        10 => fs::remove_dir_all("deep")?,
        _ => {
            fs::copy(&loose, format!("{loose}copy"))?;
            fs::remove_file(format!("{loose}copy"))?;
        }
    }
    Ok(())
}

fn work(journal: &Path, until: Instant) -> std::io::Result<()> {
    let mut kept: Vec<u64> = durable(journal).into_iter().collect();
    let first = buttress_oracle::seeds::seed("mount_soak", "BUTTRESS_SOAK_SEED", 1);
    let mut random = Random::new(first ^ kept.iter().fold(0, |all, one| all ^ one));
    let mut journal = OpenOptions::new().append(true).create(true).open(journal)?;
    while Instant::now() < until {
        match step(&mut random, &mut journal, &mut kept) {
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
            Err(error) if error.kind() == ErrorKind::DirectoryNotEmpty => {}
            ended => ended?,
        }
    }
    Ok(())
}

/// Runs a worker: this program again. As an ordinary test, the worker works on a host directory,
/// which verifies the test itself on another file system.
#[test]
fn a_worker_finds_what_it_wrote() {
    let Some(directory) = std::env::var_os(DIRECTORY) else {
        let folder = tempfile::tempdir().unwrap();
        let journal = folder.path().join("journal");
        let status = worker(folder.path(), &journal, 1).wait().unwrap();
        assert!(status.success(), "{status}");
        assert!(!durable(&journal).is_empty());
        expect_durable(folder.path(), &journal);
        return;
    };
    std::env::set_current_dir(directory).unwrap();
    let seconds: u64 = std::env::var(FOR).unwrap().parse().unwrap();
    let journal = PathBuf::from(std::env::var_os(JOURNAL).unwrap());
    match work(&journal, Instant::now() + Duration::from_secs(seconds)) {
        Ok(()) => {}
        Err(error) => {
            let errno = Errno::from_io_error(&error);
            let is_gone = [Errno::NOTCONN, Errno::CONNABORTED, Errno::IO]
                .map(Some)
                .contains(&errno);
            eprintln!("{error}");
            std::process::exit(if is_gone { GONE } else { 4 });
        }
    }
}

fn worker(directory: &Path, journal: &Path, seconds: u64) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "soak::a_worker_finds_what_it_wrote", "--nocapture"])
        .env(DIRECTORY, directory)
        .env(JOURNAL, journal)
        .env(FOR, seconds.to_string())
        .stdout(Stdio::null())
        .spawn()
        .unwrap()
}

/// Returns the number of open descriptors of a process, once two counts agree. On a busy machine, a
/// new server opens its last descriptor after the mount is there.
fn settled_descriptors(pid: i32) -> usize {
    loop {
        let (_, first) = used_by(pid);
        std::thread::sleep(Duration::from_millis(300));
        if used_by(pid).1 == first {
            return first;
        }
    }
}

/// Returns the peak memory and the number of descriptors of a server.
fn used_by(pid: i32) -> (u64, usize) {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let peak = status
        .lines()
        .find_map(|line| line.strip_prefix("VmHWM:"))
        .unwrap();
    let peak = peak.split_whitespace().next().unwrap().parse().unwrap();
    (peak, fs::read_dir(format!("/proc/{pid}/fd")).unwrap().count())
}

/// Creates and drops snapshots of the workers' directory until the end of the round.
fn snapshots(root: &Path, until: Instant) -> rustix::io::Result<u64> {
    let directory = File::open(root).map_err(|error| Errno::from_io_error(&error).unwrap())?;
    // If an earlier round ended differently, it may have left snapshots.
    for entry in fs::read_dir(root).unwrap() {
        let name = entry.unwrap().file_name();
        if name.as_bytes().starts_with(b"snapshot") {
            ioctls::delete_subvolume(&directory, name.as_bytes())?;
        }
    }
    let mut made = 0;
    while Instant::now() < until {
        let source = File::open(root.join(format!("w{}", made % WORKERS)));
        let source = source.map_err(|error| Errno::from_io_error(&error).unwrap())?;
        let name = format!("snapshot{made}");
        ioctls::snapshot(&source, &directory, name.as_bytes(), made % 2 == 0)?;
        made += 1;
        if made > 4 {
            ioctls::delete_subvolume(&directory, format!("snapshot{}", made - 5).as_bytes())?;
        }
        std::thread::sleep(Duration::from_millis(100));
    }
    for number in made.saturating_sub(4)..made {
        ioctls::delete_subvolume(&directory, format!("snapshot{number}").as_bytes())?;
    }
    Ok(made)
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    Unmounted,
    Killed,
    Remounted,
    Told,
}

fn round(mounted: &Mounted, journals: &Path, seconds: u64, end: End) {
    mounted.mount("rw,compress=zstd");
    let pid = mounted.server();
    let before = settled_descriptors(pid);
    let started: Vec<Child> = (0..WORKERS)
        .map(|number| {
            let (directory, journal) = (
                mounted.path(&format!("w{number}")),
                journals.join(number.to_string()),
            );
            expect_durable(&directory, &journal);
            // Workers that must see the server's end continue until it happens.
            let longer = if matches!(end, End::Killed | End::Told) {
                600
            } else {
                0
            };
            worker(&directory, &journal, seconds + longer)
        })
        .collect();
    let made = snapshots(&mounted.at, Instant::now() + Duration::from_secs(seconds)).unwrap();
    let mut peak = used_by(pid).0;
    match end {
        End::Killed => mounted.signal(Signal::KILL),
        End::Told => mounted.signal(Signal::TERM),
        End::Unmounted | End::Remounted => {}
    }
    for mut child in started {
        let status = child.wait().unwrap();
        let is_expected = match end {
            End::Killed | End::Told => status.code() == Some(GONE),
            End::Unmounted | End::Remounted => status.success(),
        };
        assert!(is_expected, "{end:?}: a worker ended with {status}");
    }
    if matches!(end, End::Unmounted | End::Remounted) {
        let (now, after) = used_by(pid);
        peak = now;
        // Files that the kernel has not released yet hold no descriptor of the server.
        assert_eq!(after, before, "descriptors of the server");
        if end == End::Remounted {
            for how in ["remount,ro", "remount,rw"] {
                sound(&["mount", "-o", how, mounted.image(), mounted.directory()]);
            }
        }
        mounted.umount();
    } else {
        mounted.wait_until_gone();
        // When the server of a mount has ended, the image is free.
        while fs::metadata(format!("/proc/{pid}")).is_ok() {
            std::thread::yield_now();
        }
    }
    assert!(peak < PEAK_KIB_MAX, "{} MiB of memory", peak >> 10);
    mounted.expect_sound();
    println!(
        "{end:?}: {made} snapshots, {} MiB, {before} descriptors",
        peak >> 10
    );
}

#[test]
fn synced_data_survives_every_end_of_a_mount() {
    if skips(no_fuse()) {
        return;
    }
    let seconds = std::env::var("BUTTRESS_MOUNT_SECONDS").map_or(SECONDS, |text| text.parse().unwrap());
    let mounted = Mounted::sized("8G");
    let journals = tempfile::tempdir().unwrap();
    mounted.mount("rw");
    for number in 0..WORKERS {
        sound(&[
            "subvolume",
            "create",
            mounted.path(&format!("w{number}")).to_str().unwrap(),
        ]);
    }
    mounted.umount();
    let round_seconds = (seconds / ROUNDS).clamp(1, ROUND_SECONDS_MAX);
    let ends = [End::Killed, End::Unmounted, End::Told, End::Remounted];
    for (number, end) in (0..seconds.div_ceil(round_seconds)).zip(ends.into_iter().cycle()) {
        println!("round {number}");
        round(&mounted, journals.path(), round_seconds, end);
    }
    mounted.mount("ro");
    for number in 0..WORKERS {
        expect_durable(
            &mounted.path(&format!("w{number}")),
            &journals.path().join(number.to_string()),
        );
    }
    mounted.umount();
    let checked = buttress(&["check", mounted.image()]);
    assert!(checked.status.success(), "{}", text(&checked.stderr));
}
