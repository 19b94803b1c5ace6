//! Conversions of ext4 in place, against btrfs-convert.
//!
//! Both sides are whole processes on a fresh copy of the same image, with an empty page cache. The
//! time includes a sync of the image. After our run, off the clock, a check of the volume must find
//! nothing, and a roll back must bring an intact ext4 back.
//!
//! - `tree`: a source tree;
//! - `large`: one large file.
//!
//! Left out: the time of roll backs. Ours verifies all content, and btrfs-convert verifies nothing.

use crate::Scale;
use crate::cache::Cache;
use crate::images;
use crate::measure::{self, Run};
use crate::report::Pairs;
use anyhow::{Result, bail};
use buttress_oracle::content::Random;
use buttress_oracle::loop_device::LoopDevice;
use buttress_oracle::tools::{buttress, run};
use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

/// The largest ratio of our time to that of btrfs-convert.
const GOAL: f64 = 0.3;

/// A measured command of both sides.
struct Job {
    /// The name on the command line.
    name: &'static str,
    /// The name in the table.
    label: &'static str,
    make: fn(Scale) -> Result<PathBuf>,
}

const JOBS: [Job; 2] = [
    Job {
        name: "tree",
        label: "conversion of a source tree",
        make: tree,
    },
    Job {
        name: "large",
        label: "conversion of a large file",
        make: large,
    },
];

/// Returns the ext4 image `name`. If it does not exist, `fill` makes its files on a mount.
fn kept(name: &str, scale: Scale, gib: u64, fill: impl FnOnce(&Path) -> Result<()>) -> Result<PathBuf> {
    let path = images::folder()?.join(format!("{name}-{}.img", scale.name));
    if path.exists() {
        return Ok(path);
    }
    eprintln!("making {}", path.display());
    let unfinished = path.with_extension("unfinished");
    File::create(&unfinished)?.set_len(gib << 30)?;
    let words = ["-q", "-F", "-t", "ext4", "-b", "4096"];
    run(Command::new("mke2fs").args(words).arg(&unfinished))?;
    let device = LoopDevice::attach(&unfinished)?;
    let folder = tempfile::tempdir()?;
    let mut mount = Command::new("mount");
    run(mount.args(["-t", "ext4"]).arg(device.path()).arg(folder.path()))?;
    let filled = fill(folder.path());
    run(Command::new("umount").arg(folder.path()))?;
    filled?;
    drop(device);
    std::fs::rename(&unfinished, &path)?;
    Ok(path)
}

fn tree(scale: Scale) -> Result<PathBuf> {
    kept("ext4-source", scale, 8, |top| {
        images::fill_source_tree(scale, &top.join("source"))
    })
}

fn large(scale: Scale) -> Result<PathBuf> {
    kept("ext4-large", scale, 12, |top| {
        let block = Random::new(2).bytes(64 << 20, false);
        let mut file = File::create(top.join("large"))?;
        let mut left = scale.large_bytes;
        while left > 0 {
            let length = left.min(block.len() as u64);
            file.write_all(&block[..length as usize])?;
            left -= length;
        }
        Ok(file.sync_all()?)
    })
}

/// Runs a converter on an image, and syncs the image.
fn converted(program: &Path, words: &[&str], image: &Path) -> Result<Run> {
    let mut measured = measure::run(Command::new(program).args(words).arg(image))?;
    let begin = Instant::now();
    File::open(image)?.sync_all()?;
    measured.seconds += begin.elapsed().as_secs_f64();
    Ok(measured)
}

/// Runs a side on a copy of the image.
fn side(image: &Path, program: &Path, words: &[&str]) -> Result<Run> {
    let copy = image.with_extension("copy");
    let faithful = ["--sparse=always", "--reflink=auto"];
    run(Command::new("cp").args(faithful).arg(image).arg(&copy))?;
    Cache::Cold.prepare(&copy)?;
    let measured = converted(program, words, &copy)?;
    if words.first() == Some(&"convert") {
        run(Command::new(program).args(["-q", "check"]).arg(&copy))?;
        run(Command::new(program).args(["-q", "convert", "-r"]).arg(&copy))?;
        run(Command::new("e2fsck").arg("-fn").arg(&copy))?;
    }
    std::fs::remove_file(&copy)?;
    Ok(measured)
}

/// Prints a table of pairs of the named jobs, or of all.
pub(crate) fn run_all(scale: Scale, names: &[&str]) -> Result<()> {
    if let Some(unknown) = names
        .iter()
        .find(|name| JOBS.iter().all(|job| job.name != **name))
    {
        bail!("unknown job {unknown}");
    }
    println!("\n{}", Pairs::head());
    for job in JOBS {
        if !names.is_empty() && !names.contains(&job.name) {
            continue;
        }
        let image = (job.make)(scale)?;
        let mut pairs = Pairs {
            job: job.label.to_owned(),
            cache: Cache::Cold.name(),
            ours: Vec::new(),
            theirs: Vec::new(),
            goal: GOAL,
        };
        for _ in 0..scale.rounds {
            pairs.ours.push(side(&image, &buttress()?, &["convert"])?);
            let theirs = side(&image, Path::new("btrfs-convert"), &["--no-progress"])?;
            pairs.theirs.push(theirs);
        }
        println!("{}", pairs.row());
    }
    Ok(())
}
