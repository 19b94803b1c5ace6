//! Relocations: balances, conversions and removed devices on image files, against the kernel on a
//! mount of loop devices.
//!
//! Both sides work on a fresh copy of the same volume, with an empty page cache. Our side is a
//! whole process on the image files. The kernel's side is a command of btrfs-progs on a volume that
//! was mounted before the clock started. Both sides flush the devices before they end: the kernel's
//! relocation ends each block group with a commit.
//!
//! - `data`: a full balance of one large file, also against a copy of the image in order;
//! - `inline`: a full balance of small files in the leaves, with 2 snapshots;
//! - `snapshots`: the same files with many snapshots, and the growth of the time;
//! - `raid1`: a source tree on two devices, from single and DUP to RAID1;
//! - `single`: metadata of the same tree from DUP to single;
//! - `remove`: one of three devices.
//!
//! A balance of the kernel alone takes minutes on the larger volumes, so arguments choose jobs.

use crate::Scale;
use crate::cache::Cache;
use crate::images;
use crate::measure::{self, Run};
use crate::report::{Pairs, median, sorted};
use crate::scrub::replacing;
use anyhow::{Context, Result, ensure};
use buttress_oracle::loop_device::{LoopDevice, Mount};
use buttress_oracle::tools::{buttress, newest, run};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The largest ratio of our time to the kernel's.
const GOAL: f64 = 0.4;
/// The largest ratio of our time to a copy of the image.
const GOAL_OF_A_COPY: f64 = 1.2;
/// The largest ratio of our time with many snapshots to our time with two.
const GOAL_OF_GROWTH: f64 = 1.3;
/// The size of each device of a volume of several devices, in GiB.
const DEVICE_GIB: u64 = 4;
/// The number of files that change between two snapshots.
const CHANGES: u64 = 50;

/// A measured command of both sides.
struct Job {
    /// The name on the command line.
    name: &'static str,
    /// The name in the table.
    label: &'static str,
    /// Makes the volume, or finds it.
    make: fn(Scale) -> Result<Vec<PathBuf>>,
    /// The words of our command and of btrfs-progs'. `DEVICE` stands for the last device, and the
    /// image or the mount follows.
    words: &'static [&'static str],
}

const FULL_BALANCE: &[&str] = &["balance", "start", "--full-balance"];

const JOBS: [Job; 6] = [
    Job {
        name: "data",
        label: "full balance, one file",
        make: |scale| Ok(vec![images::large_file(scale, "plain", "")?]),
        words: FULL_BALANCE,
    },
    Job {
        name: "inline",
        label: "full balance, inline files, 2 snapshots",
        make: |scale| Ok(vec![images::inline_files(scale)?]),
        words: FULL_BALANCE,
    },
    Job {
        name: "snapshots",
        label: "full balance, inline files, 100 snapshots",
        make: |scale| Ok(vec![many_snapshots(scale)?]),
        words: FULL_BALANCE,
    },
    Job {
        name: "raid1",
        label: "single and DUP to RAID1, two devices",
        make: |scale| pool(scale, 2),
        words: &["balance", "start", "-dconvert=raid1", "-mconvert=raid1"],
    },
    Job {
        name: "single",
        label: "metadata from DUP to single",
        make: |scale| pool(scale, 2),
        words: &["balance", "start", "-f", "-mconvert=single"],
    },
    Job {
        name: "remove",
        label: "removal of one of three devices",
        make: |scale| pool(scale, 3),
        words: &["device", "remove", "DEVICE"],
    },
];

/// Runs the named jobs, or all.
pub(crate) fn run_all(scale: Scale, wanted: &[&str]) -> Result<()> {
    for word in wanted {
        ensure!(JOBS.iter().any(|job| job.name == *word), "relocate has no {word}");
    }
    println!("\n{}", Pairs::head());
    let mut seconds_of_ours = Vec::new();
    let mut copies = Vec::new();
    for job in JOBS
        .iter()
        .filter(|job| wanted.is_empty() || wanted.contains(&job.name))
    {
        let volume = (job.make)(scale)?;
        let mut pairs = Pairs {
            job: job.label.to_owned(),
            cache: Cache::Cold.name(),
            ours: Vec::new(),
            theirs: Vec::new(),
            goal: GOAL,
        };
        for _ in 0..scale.rounds {
            pairs.ours.push(on_a_copy(&volume, |images| ours(job, images))?);
            pairs
                .theirs
                .push(on_a_copy(&volume, |images| theirs(job, images))?);
            if job.name == "data" {
                copies.push(copied(&volume)?);
            }
        }
        println!("{}", pairs.row());
        seconds_of_ours.push((job.name, pairs.seconds()[0]));
    }
    report_ratios(&seconds_of_ours, copies);
    Ok(())
}

/// Prints our times beside a copy of the image, and beside fewer snapshots.
fn report_ratios(seconds_of_ours: &[(&str, f64)], copies: Vec<f64>) {
    let seconds = |wanted: &str| {
        let found = seconds_of_ours.iter().find(|(name, _)| *name == wanted);
        found.map(|(_, seconds)| *seconds)
    };
    let mut rows = Vec::new();
    let mut row = |name: &str, ours: Option<f64>, other: Option<f64>, goal: f64| {
        if let Some((ours, other)) = ours.zip(other) {
            let missed = if ours / other <= goal { "" } else { " missed" };
            rows.push(format!(
                "| {name} | {ours:.3} | {other:.3} | {:.2} | {goal:.2}{missed} |",
                ours / other
            ));
        }
    };
    let copy = (!copies.is_empty()).then(|| median(&sorted(copies)));
    row(
        "balance of one file, a copy of the image",
        seconds("data"),
        copy,
        GOAL_OF_A_COPY,
    );
    row(
        "100 snapshots, 2 snapshots",
        seconds("snapshots"),
        seconds("inline"),
        GOAL_OF_GROWTH,
    );
    if !rows.is_empty() {
        println!("\n| balance, other | balance s | other s | ratio | goal |\n|---|---|---|---|---|");
        println!("{}", rows.join("\n"));
    }
}

/// Calls `measured` with copies of the images, and removes the copies.
fn on_a_copy<T>(volume: &[PathBuf], measured: impl FnOnce(&[PathBuf]) -> Result<T>) -> Result<T> {
    let copies: Vec<PathBuf> = volume.iter().map(|image| image.with_extension("copy")).collect();
    for (image, copy) in volume.iter().zip(&copies) {
        run(Command::new("cp")
            .args(["--sparse=always", "--reflink=auto"])
            .args([image, copy]))?;
    }
    let result = measured(&copies);
    for copy in &copies {
        std::fs::remove_file(copy)?;
    }
    result
}

/// Returns the seconds of a copy of the volume's images, in order, around the page cache.
fn copied(volume: &[PathBuf]) -> Result<f64> {
    let mut seconds = 0.0;
    for image in volume {
        let target = image.with_extension("copy");
        File::create(&target)?.set_len(image.metadata()?.len())?;
        Cache::Cold.prepare(image)?;
        seconds += replacing::copy(image, &target)?;
        std::fs::remove_file(target)?;
    }
    Ok(seconds)
}

fn prepare(images: &[PathBuf]) -> Result<()> {
    images.iter().try_for_each(|image| Cache::Cold.prepare(image))
}

/// Adds the words of a job to a command. `device` is the path of the last device.
fn add_words(command: &mut Command, words: &[&str], device: &Path) {
    for word in words {
        match *word {
            "DEVICE" => command.arg(device),
            word => command.arg(word),
        };
    }
}

fn ours(job: &Job, images: &[PathBuf]) -> Result<Run> {
    let (first, others) = images.split_first().context("a volume has a device")?;
    prepare(images)?;
    let mut command = Command::new(buttress()?);
    command.arg("-q");
    add_words(&mut command, job.words, others.last().unwrap_or(first));
    for image in others {
        command.arg("--device").arg(image);
    }
    measure::run(command.arg(first))
}

fn theirs(job: &Job, images: &[PathBuf]) -> Result<Run> {
    let mount = Mount::new(images, "noatime")?;
    let device = mount
        .devices()
        .last()
        .map(LoopDevice::path)
        .context("a volume has a device")?;
    let device = device.to_path_buf();
    prepare(images)?;
    let mut command = Command::new(newest("btrfs"));
    command.arg("-q");
    add_words(&mut command, job.words, &device);
    let measured = measure::run(command.arg(mount.path()))?;
    mount.close()?;
    Ok(measured)
}

/// Returns the volume of inline files with 100 snapshots at full scale. A few files change before
/// each snapshot.
fn many_snapshots(scale: Scale) -> Result<PathBuf> {
    let fewer = images::inline_files(scale)?;
    let path = images::folder()?.join(format!("inline-snapshots-{}.img", scale.name));
    if path.exists() {
        return Ok(path);
    }
    eprintln!("making {}", path.display());
    let unfinished = path.with_extension("unfinished");
    run(Command::new("cp")
        .arg("--sparse=always")
        .args([&fewer, &unfinished]))?;
    let mount = Mount::new(std::slice::from_ref(&unfinished), "noatime,max_inline=2048")?;
    let top = mount.path();
    for number in 2..scale.snapshots / 2 {
        for change in 0..CHANGES {
            let file = (number * CHANGES + change) * 97 % scale.inline_files + 1;
            let file = File::options()
                .write(true)
                .open(top.join(format!("file_{file}")))?;
            file.write_all_at(&[number as u8; 20], 0)?;
        }
        run(Command::new(newest("btrfs"))
            .args(["-q", "subvolume", "snapshot", "-r"])
            .arg(top)
            .arg(top.join(format!("more{number}"))))?;
    }
    mount.close()?;
    std::fs::rename(&unfinished, &path)?;
    Ok(path)
}

/// Returns a source tree on a volume of several devices: single data, and DUP metadata.
fn pool(scale: Scale, devices: usize) -> Result<Vec<PathBuf>> {
    let folder = images::folder()?;
    let name =
        |number: usize, end: &str| folder.join(format!("relocate-{devices}-{}-{number}.{end}", scale.name));
    let images: Vec<PathBuf> = (0..devices).map(|number| name(number, "img")).collect();
    if images.iter().all(|image| image.exists()) {
        return Ok(images);
    }
    eprintln!("making a volume of {devices} devices in {}", folder.display());
    let unfinished: Vec<PathBuf> = (0..devices).map(|number| name(number, "unfinished")).collect();
    for image in &unfinished {
        File::create(image)?.set_len(DEVICE_GIB << 30)?;
    }
    run(Command::new(newest("mkfs.btrfs"))
        .args(["-q", "-f", "-d", "single", "-m", "dup"])
        .args(&unfinished))?;
    let mount = Mount::new(&unfinished, "noatime")?;
    images::fill_source_tree(scale, &mount.path().join("source"))?;
    mount.close()?;
    for (unfinished, image) in unfinished.iter().zip(&images) {
        std::fs::rename(unfinished, image)?;
    }
    Ok(images)
}
