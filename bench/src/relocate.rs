//! Relocations: balances, conversions and removed devices on image files, against the kernel on a
//! mount of loop devices.
//!
//! Both sides work on a fresh copy of the same volume, with an empty page cache. Our side is a
//! whole process on the image files. The kernel's side is a command of btrfs-progs on a volume that
//! was mounted before the clock started. Both sides flush the devices before they end: the kernel's
//! relocation ends each block group with a commit. After each run, off the clock, the job checks
//! the volume and what the run was to change ([`results`]).
//!
//! - `data`: a full balance of one large file, also against a copy of the image in order;
//! - `inline`: a full balance of small files in the leaves, with 2 snapshots;
//! - `snapshots`: the same files with many snapshots, and the growth of the time;
//! - `raid1`: a source tree on two devices, from single and DUP to RAID1;
//! - `single`: metadata of the same tree from DUP to single;
//! - `remove`: one of three devices;
//! - `shrink`: an aged volume to its smallest size. Linux has no command for this. The kernel's side
//!   is what its users do: a full balance, then a resize to the smallest size that the kernel
//!   accepts. Both sizes are printed;
//! - `rescan`: quotas of a volume with many snapshots, counted again. The counts must be equal.
//!
//! A balance of the kernel alone takes minutes on the larger volumes, so arguments choose jobs.

mod results;
mod volumes;

use crate::Scale;
use crate::cache::Cache;
use crate::images;
use crate::measure::{self, Run};
use crate::report::{Pairs, median, sorted};
use crate::scrub::replacing;
use anyhow::{Context, Result, ensure};
use buttress_oracle::loop_device::{LoopDevice, Mount};
use buttress_oracle::tools::{buttress, newest, run};
use results::{Change, Layout};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The largest ratio of our time to the kernel's.
const GOAL: f64 = 0.4;
/// The largest ratio of our time to a copy of the image.
const GOAL_OF_A_COPY: f64 = 1.2;
/// The largest ratio of our time with many snapshots to our time with two.
const GOAL_OF_GROWTH: f64 = 1.3;

/// A measured command of both sides.
struct Job {
    /// The name on the command line.
    name: &'static str,
    /// The name in the table.
    label: &'static str,
    /// Makes the volume, or finds it.
    make: fn(Scale) -> Result<Vec<PathBuf>>,
    /// The words of our command. `DEVICE` stands for the last device, and the image follows.
    words: &'static [&'static str],
    theirs: Theirs,
    /// The change that the command makes.
    change: Change,
}

/// The kernel's side of a job.
enum Theirs {
    /// Btrfs-progs gets the same words, and the mount.
    Same,
    /// Other words, and the mount.
    Words(&'static [&'static str]),
    /// A script of a shell: `$0` is btrfs-progs' command, and `$1` is the mount.
    Script(&'static str),
}

/// Packs a volume, and cuts it at the smallest size that the kernel accepts.
const PACK: &str = r#"set -e
"$0" -q balance start --full-balance "$1"
size=$("$0" inspect-internal min-dev-size "$1" | cut -d' ' -f1)
for _ in 1 2 3 4 5 6 7 8; do
    if "$0" -q filesystem resize "$size" "$1"; then exit 0; fi
    size=$((size + (64 << 20)))
done
exit 1"#;

const FULL_BALANCE: &[&str] = &["balance", "start", "--full-balance"];

const JOBS: [Job; 8] = [
    Job {
        name: "data",
        label: "full balance, one file",
        make: |scale| Ok(vec![images::large_file(scale, "plain", "")?]),
        words: FULL_BALANCE,
        theirs: Theirs::Same,
        change: Change::AllChunksAreNew,
    },
    Job {
        name: "inline",
        label: "full balance, inline files, 2 snapshots",
        make: |scale| Ok(vec![images::inline_files(scale)?]),
        words: FULL_BALANCE,
        theirs: Theirs::Same,
        change: Change::AllChunksAreNew,
    },
    Job {
        name: "snapshots",
        label: "full balance, inline files, 100 snapshots",
        make: |scale| Ok(vec![volumes::many_snapshots(scale)?]),
        words: FULL_BALANCE,
        theirs: Theirs::Same,
        change: Change::AllChunksAreNew,
    },
    Job {
        name: "raid1",
        label: "single and DUP to RAID1, two devices",
        make: |scale| volumes::pool(scale, 2),
        words: &["balance", "start", "-dconvert=raid1", "-mconvert=raid1"],
        theirs: Theirs::Same,
        change: Change::AllIsRaid1,
    },
    Job {
        name: "single",
        label: "metadata from DUP to single",
        make: |scale| volumes::pool(scale, 2),
        words: &["balance", "start", "-f", "-mconvert=single"],
        theirs: Theirs::Same,
        change: Change::MetadataIsSingle,
    },
    Job {
        name: "remove",
        label: "removal of one of three devices",
        make: |scale| volumes::pool(scale, 3),
        words: &["device", "remove", "DEVICE"],
        theirs: Theirs::Same,
        change: Change::DeviceIsGone,
    },
    Job {
        name: "shrink",
        label: "shrink of an aged volume, full balance and resize",
        make: |scale| Ok(vec![images::aged(scale)?]),
        words: &["filesystem", "shrink"],
        theirs: Theirs::Script(PACK),
        change: Change::DeviceIsSmaller,
    },
    Job {
        name: "rescan",
        label: "quota rescan, many snapshots",
        make: |scale| Ok(vec![volumes::with_quotas(scale)?]),
        words: &["quota", "rescan"],
        theirs: Theirs::Words(&["quota", "rescan", "-w"]),
        change: Change::Nothing,
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
    let mut sizes = None;
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
        let before = Layout::of(&volume)?;
        for _ in 0..scale.rounds {
            let mut results = Vec::new();
            for (side, runs) in [(ours as Side, &mut pairs.ours), (theirs, &mut pairs.theirs)] {
                let (run, result) = on_a_copy(&volume, |images| {
                    let run = side(job, images)?;
                    Ok((run, results::verified(job.change, &before, images, scale)?))
                })?;
                runs.push(run);
                results.push(result);
            }
            results::compare(job.change, &results)?;
            sizes = results::sizes(job.change, &results).or(sizes);
            if job.name == "data" {
                copies.push(copied(&volume)?);
            }
        }
        println!("{}", pairs.row());
        seconds_of_ours.push((job.name, pairs.seconds()[0]));
    }
    report_ratios(&seconds_of_ours, copies);
    if let Some([ours, theirs]) = sizes {
        println!("\n| shrunk volume | buttress MiB | other MiB |\n|---|---|---|");
        println!("| aged volume | {ours} | {theirs} |");
    }
    Ok(())
}

/// Runs one side of a job on these images.
type Side = fn(&Job, &[PathBuf]) -> Result<Run>;

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
    let progs = newest("btrfs");
    let mut command = match job.theirs {
        Theirs::Script(script) => {
            let mut shell = Command::new("sh");
            shell.args(["-c", script]).arg(progs);
            shell
        }
        Theirs::Same | Theirs::Words(_) => {
            let mut command = Command::new(progs);
            command.arg("-q");
            command
        }
    };
    match job.theirs {
        Theirs::Same => add_words(&mut command, job.words, &device),
        Theirs::Words(words) => add_words(&mut command, words, &device),
        Theirs::Script(_) => {}
    }
    let measured = measure::run(command.arg(mount.path()))?;
    mount.close()?;
    Ok(measured)
}
