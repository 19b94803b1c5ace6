//! Tests of commands whose host becomes full at a point that a seed chooses. After the failure, the
//! error is the system's, nothing hangs, old content stays, and the volume is clean. With free
//! space, the same command succeeds.
//!
//! The variable `BUTTRESS_FULL_HOST_SEED` chooses the points at which the host becomes full.
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects,
    clippy::print_stdout,
    reason = "tests state what must hold, and print the table that they checked"
)]

use crate::mounting;

use buttress_oracle::content::Random;
use buttress_oracle::needs::Missing;
use buttress_oracle::skip::skips;
use mounting::{buttress, sound, text};
use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Output};

/// Size of a host with enough space, in bytes.
const HOST_BYTES: u64 = 600 << 20;

/// Number of full hosts that each command meets.
const ROUNDS: u64 = 3;

const NO_SPACE: &str = "No space left on device";

fn no_root() -> Option<Missing> {
    let is_root = rustix::process::geteuid().is_root();
    (!is_root).then(|| Missing::new("root", "only root mounts a file system of its own"))
}

fn run(program: &str, words: &[&str]) -> Output {
    let output = Command::new(program).args(words).output().unwrap();
    assert!(
        output.status.success(),
        "{program} {words:?}: {}",
        text(&output.stderr)
    );
    output
}

/// A file system in memory that a test can shrink. The folder `beside` is on another file system.
struct Host {
    beside: tempfile::TempDir,
    at: tempfile::TempDir,
}

impl Host {
    fn new() -> Self {
        let host = Self {
            beside: tempfile::tempdir().unwrap(),
            at: tempfile::tempdir().unwrap(),
        };
        let size = format!("size={HOST_BYTES}");
        run("mount", &["-t", "tmpfs", "-o", &size, "full-host", host.folder()]);
        host
    }

    fn folder(&self) -> &str {
        self.at.path().to_str().unwrap()
    }

    fn path(&self, name: &str) -> String {
        self.at.path().join(name).to_str().unwrap().to_owned()
    }

    fn beside(&self, name: &str) -> String {
        self.beside.path().join(name).to_str().unwrap().to_owned()
    }

    fn resize(&self, bytes: u64) {
        let size = format!("remount,size={}k", bytes.div_ceil(1024));
        run("mount", &["-o", &size, self.folder()]);
    }

    fn used(&self) -> u64 {
        let found = rustix::fs::statvfs(self.at.path()).unwrap();
        (found.f_blocks - found.f_bfree) * found.f_frsize
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        drop(Command::new("umount").arg("-l").arg(self.at.path()).output());
    }
}

/// A command on a full host.
struct Job {
    name: &'static str,
    /// Creates the command's inputs.
    prepare: fn(&Host),
    /// Command line, with `{host}` and `{beside}` for the two folders.
    words: &'static [&'static str],
    /// Image that contains `old` before and after the command, and other devices of the volume.
    image: Option<&'static str>,
    devices: &'static [&'static str],
}

fn noise(seed: u64, length: usize) -> Vec<u8> {
    Random::new(seed).bytes(length, false)
}

fn volume_with_old(host: &Host) {
    sound(&["mkfs", "-q", "-b", "400M", &host.path("v.img")]);
    fs::write(host.beside("old"), noise(1, 3 << 20)).unwrap();
    sound(&["cp", &host.beside("old"), &format!("{}:/old", host.path("v.img"))]);
    fs::write(host.beside("new"), noise(2, 20 << 20)).unwrap();
}

/// Creates a directory and an archive with the same files.
fn tree(host: &Host) {
    fs::create_dir(host.beside("tree")).unwrap();
    for number in 0..4 {
        fs::write(host.beside(&format!("tree/f{number}")), noise(number, 12 << 20)).unwrap();
    }
    run(
        "tar",
        &["-C", &host.beside("tree"), "-cf", &host.beside("tree.tar"), "."],
    );
}

fn volume_with_snapshot(host: &Host) {
    volume_with_old(host);
    let image = host.beside("s.img");
    sound(&["mkfs", "-q", "-b", "400M", &image]);
    sound(&["cp", &host.beside("new"), &format!("{image}:/new")]);
    sound(&[
        "subvolume",
        "snapshot",
        "-r",
        &format!("{image}:/"),
        &format!("{image}:/snap"),
    ]);
    sound(&["send", "-f", &host.beside("stream"), &format!("{image}:/snap")]);
}

fn mirrored(host: &Host) {
    let (first, second) = (host.path("v.img"), host.path("w.img"));
    sound(&[
        "mkfs", "-q", "-d", "raid1", "-m", "raid1", "-b", "150M", &first, &second,
    ]);
    fs::write(host.beside("old"), noise(3, 20 << 20)).unwrap();
    let target = format!("{first}:/old");
    sound(&["cp", "--device", &second, &host.beside("old"), &target]);
}

/// Creates a mirror whose second device lost most of its data: its image has holes there.
fn damaged(host: &Host) {
    mirrored(host);
    // The trimmed range is between two superblocks.
    let range = ["-p", "-o", "68M", "-l", "80M"];
    run("fallocate", &[&range[..], &[&host.path("w.img")]].concat());
}

fn with_target(host: &Host) {
    mirrored(host);
    fs::File::create(host.path("n.img"))
        .unwrap()
        .set_len(150 << 20)
        .unwrap();
}

/// Commands that write to a volume.
const WRITERS: [Job; 3] = [
    Job {
        name: "cp",
        prepare: volume_with_old,
        words: &["cp", "{beside}/new", "{host}/v.img:/new"],
        image: Some("v.img"),
        devices: &[],
    },
    Job {
        name: "shell",
        prepare: volume_with_old,
        words: &["shell", "-w", "{host}/v.img", "-c", "put {beside}/new /new"],
        image: Some("v.img"),
        devices: &[],
    },
    Job {
        name: "receive",
        prepare: volume_with_snapshot,
        words: &["receive", "-f", "{beside}/stream", "{host}/v.img:/"],
        image: Some("v.img"),
        devices: &[],
    },
];

/// Commands that create an image or a stream.
const MAKERS: [Job; 3] = [
    maker(
        "mkfs -r",
        tree,
        &[
            "mkfs",
            "-q",
            "-f",
            "-b",
            "400M",
            "-r",
            "{beside}/tree",
            "{host}/r.img",
        ],
    ),
    maker(
        "mkfs --tar",
        tree,
        &[
            "mkfs",
            "-q",
            "-f",
            "-b",
            "400M",
            "--tar",
            "{beside}/tree.tar",
            "{host}/r.img",
        ],
    ),
    maker(
        "send -f",
        volume_with_snapshot,
        &["send", "-f", "{host}/out", "{beside}/s.img:/snap"],
    ),
];

const fn maker(name: &'static str, prepare: fn(&Host), words: &'static [&'static str]) -> Job {
    Job {
        name,
        prepare,
        words,
        image: None,
        devices: &[],
    }
}

/// Commands that write to one device of a volume.
const REPAIRERS: [Job; 2] = [
    Job {
        name: "scrub",
        prepare: damaged,
        words: &["scrub", "start", "-B", "--device", "{host}/w.img", "{host}/v.img"],
        image: Some("v.img"),
        devices: &["w.img"],
    },
    Job {
        name: "replace",
        prepare: with_target,
        words: &[
            "replace",
            "start",
            "-B",
            "-f",
            "--device",
            "{host}/w.img",
            "2",
            "{host}/n.img",
            "{host}/v.img",
        ],
        image: Some("v.img"),
        devices: &["w.img"],
    },
];

impl Job {
    fn run(&self, host: &Host) -> Output {
        let (folder, beside) = (host.folder(), host.beside.path().to_str().unwrap());
        let word = |word: &&str| word.replace("{host}", folder).replace("{beside}", beside);
        let words: Vec<String> = self.words.iter().map(word).collect();
        buttress(&words.iter().map(String::as_str).collect::<Vec<_>>())
    }

    /// Asserts that the volume is clean and has its old content.
    fn expect_sound(&self, host: &Host, devices: &[&str], what: &str) {
        let Some(image) = self.image else { return };
        let devices: Vec<String> = devices.iter().map(|device| host.path(device)).collect();
        let mut more: Vec<&str> = Vec::new();
        for device in &devices {
            more.extend(["--device", device]);
        }
        let image = host.path(image);
        let checked = buttress(&[&["check", image.as_str()], &more[..]].concat());
        assert!(checked.status.success(), "{what}: {}", text(&checked.stdout));
        let old = buttress(&[&["cat", &format!("{image}:/old")], &more[..]].concat());
        assert!(old.stdout == fs::read(host.beside("old")).unwrap(), "{what}: old");
    }

    /// Runs the command on a host with limited space, then on a host with enough space.
    fn meet_full_host(&self, limit: u64) -> String {
        let host = Host::new();
        (self.prepare)(&host);
        host.resize(host.used() + limit);
        let what = format!("{} with {limit} bytes", self.name);
        let failed = self.run(&host);
        let said = text(&failed.stderr);
        assert!(!failed.status.success(), "{what}: it succeeded");
        assert!(failed.status.code().is_some(), "{what}: {:?}", failed.status);
        assert!(said.contains(NO_SPACE), "{what}: {said}");
        self.expect_sound(&host, self.devices, &what);
        host.resize(HOST_BYTES);
        let again = self.run(&host);
        let code = again.status.code().unwrap();
        assert!(code == 0, "{what}, then space: {code}: {}", text(&again.stderr));
        let devices = match self.name {
            "replace" => &["n.img"],
            _ => self.devices,
        };
        self.expect_sound(&host, devices, &what);
        format!("exit {}, then 0", failed.status.code().unwrap())
    }

    /// Returns the space that the command takes on a host with enough space.
    fn taken(&self) -> u64 {
        let host = Host::new();
        (self.prepare)(&host);
        let before = host.used();
        let done = self.run(&host);
        assert!(done.status.success(), "{}: {}", self.name, text(&done.stderr));
        host.used() - before
    }
}

fn seed() -> u64 {
    buttress_oracle::seeds::seed("full_host", "BUTTRESS_FULL_HOST_SEED", 1)
}

#[test]
fn commands_on_full_hosts_fail_in_order_and_succeed_with_space() {
    if skips(no_root()) {
        return;
    }
    let mut random = Random::new(seed());
    let jobs = WRITERS.into_iter().chain(MAKERS).chain(REPAIRERS);
    for job in jobs {
        let taken = job.taken();
        // The limit is larger than the host file system's rounding.
        assert!(taken > 1 << 20, "{} takes {taken} bytes", job.name);
        for _ in 0..ROUNDS {
            let limit = random.below(taken - (taken >> 3));
            let ended = job.meet_full_host(limit);
            println!(
                "{:<12} {taken:>10} bytes, host full after {limit:>10}: {ended}",
                job.name
            );
        }
    }
}

/// The host of a mount becomes full: writes fail, synced content stays, and deleting files frees
/// space.
#[test]
fn mount_on_full_host_keeps_synced_content_and_continues() {
    if skips(no_root().or_else(mounting::no_fuse)) {
        return;
    }
    let host = Host::new();
    let image = host.path("v.img");
    sound(&["mkfs", "-q", "-b", "1G", &image]);
    let at = host.beside("at");
    fs::create_dir(&at).unwrap();
    sound(&["mount", "-o", "rw", &image, &at]);
    let old = noise(1, 20 << 20);
    write_synced(&format!("{at}/old"), &old).unwrap();
    let limit = Random::new(seed()).below(60 << 20) + (40 << 20);
    host.resize(host.used() + limit);
    let error = (0..40).find_map(|number| {
        let bytes = noise(number, 8 << 20);
        write_synced(&format!("{at}/new{number}"), &bytes).err()
    });
    let errno = error.expect("a host that is full").raw_os_error();
    assert_eq!(errno, Some(rustix::io::Errno::NOSPC.raw_os_error()));
    assert!(fs::read(format!("{at}/old")).unwrap() == old);
    // Deleting files works, and frees space on the host.
    fs::remove_file(format!("{at}/new0")).unwrap();
    fs::remove_file(format!("{at}/new1")).unwrap();
    let more = noise(99, 4 << 20);
    // The kernel may release the removed files later than the removal returns.
    let took = (0..500).any(|_| {
        let took = write_synced(&format!("{at}/more"), &more).is_ok();
        if !took {
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
        took
    });
    assert!(took, "no space though 16 MiB were deleted");
    host.resize(HOST_BYTES);
    let last = noise(100, 30 << 20);
    write_synced(&format!("{at}/last"), &last).unwrap();
    sound(&["umount", &at]);
    sound(&["check", &image]);
    for (name, content) in [("old", &old), ("more", &more), ("last", &last)] {
        let read = sound(&["cat", &format!("{image}:/{name}")]);
        assert!(read.stdout == *content, "{name}");
    }
    assert!(Path::new(&image).exists());
}

fn write_synced(path: &str, bytes: &[u8]) -> std::io::Result<()> {
    let mut file = fs::File::create(path)?;
    file.write_all(bytes)?;
    file.sync_all()
}
