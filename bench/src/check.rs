//! Checks of volumes, cold and warm, against `btrfs check`.
//!
//! Both sides are whole processes with their default options, and read no file data. A cold check
//! cannot be faster than the disk, so the benchmark also measures the disk. The volumes are those
//! of the other benchmarks: 500,000 inline files, a source tree, a large file plain and compressed.

use crate::Scale;
use crate::cache::Cache;
use crate::images;
use crate::measure::{self, Run};
use crate::report::Pairs;
use anyhow::{Context, Result};
use buttress_device::Buffer;
use buttress_oracle::tools::{buttress, newest};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

/// The largest ratio of our time to the time of `btrfs check` for a large volume. A slow disk may
/// prevent this ratio: see [`floor`].
const GOAL: f64 = 0.06;

/// The largest ratio for a volume that both sides check in a fraction of a second, mostly process
/// start on our side.
const GOAL_OF_SMALL: f64 = 0.25;

/// The largest ratio for a volume on which both sides do little more than start.
const GOAL_OF_EMPTY: f64 = 1.5;

/// The largest ratio of a cold check to the disk's time for the tree blocks.
const NEAR_FLOOR: f64 = 1.1;

/// The bytes of each read that measures the disk.
const FLOOR_STEP: usize = 1 << 20;

fn ours(image: &Path) -> Result<Run> {
    measure::run(Command::new(buttress()?).args(["-q", "check"]).arg(image))
}

fn theirs(image: &Path) -> Result<Run> {
    measure::run(Command::new(newest("btrfs")).arg("check").arg(image))
}

/// Returns the bytes of all tree blocks, as counted by a check.
fn tree_bytes(image: &Path) -> Result<u64> {
    let output = Command::new(buttress()?).args(["check"]).arg(image).output()?;
    let text = String::from_utf8_lossy(&output.stdout);
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix("total tree bytes: "));
    Ok(line.context("a check that counts tree bytes")?.parse()?)
}

/// Returns the disk's seconds for this many bytes of the image, read in order around the page
/// cache.
fn floor(image: &Path, bytes: u64) -> Result<f64> {
    use rustix::fs::{Mode, OFlags, SeekFrom};
    let file = rustix::fs::open(image, OFlags::RDONLY | OFlags::DIRECT, Mode::empty())?;
    let mut buffer = Buffer::zeroed(FLOOR_STEP);
    let (mut left, mut position) = (bytes, 0);
    let begin = Instant::now();
    while left > 0 {
        let Ok(start) = rustix::fs::seek(&file, SeekFrom::Data(position)) else {
            break;
        };
        let aligned = start - start % FLOOR_STEP as u64;
        position = aligned.max(position);
        let read = rustix::io::pread(&file, &mut buffer[..], position)?;
        if read == 0 {
            break;
        }
        position += read as u64;
        left = left.saturating_sub(read as u64);
    }
    Ok(begin.elapsed().as_secs_f64())
}

/// Prints a table of pairs.
pub(crate) fn run(scale: Scale) -> Result<()> {
    let volumes: [(&str, PathBuf, f64); 4] = [
        ("check of inline files", images::inline_files(scale)?, GOAL),
        (
            "check of a source tree",
            images::source_tree(scale)?,
            GOAL_OF_SMALL,
        ),
        (
            "check of a large file, zstd",
            images::large_file(scale, "zstd", "compress-force=zstd")?,
            GOAL_OF_SMALL,
        ),
        (
            "check of a large file, plain",
            images::large_file(scale, "plain", "")?,
            GOAL_OF_EMPTY,
        ),
    ];
    println!("\n{}", Pairs::head());
    let mut floors = Vec::new();
    for (job, image, goal) in volumes {
        let bytes = tree_bytes(&image)?;
        for cache in Cache::BOTH {
            let mut pairs = Pairs {
                job: job.to_owned(),
                cache: cache.name(),
                ours: Vec::new(),
                theirs: Vec::new(),
                goal,
            };
            let mut disk = f64::INFINITY;
            for _ in 0..scale.rounds {
                if cache == Cache::Cold {
                    cache.prepare(&image)?;
                    disk = disk.min(floor(&image, bytes)?);
                }
                cache.prepare(&image)?;
                pairs.ours.push(ours(&image)?);
                cache.prepare(&image)?;
                pairs.theirs.push(theirs(&image)?);
            }
            if cache == Cache::Cold {
                let [_, other] = pairs.seconds();
                pairs.goal = goal.max(NEAR_FLOOR * disk / other);
                floors.push(format!(
                    "{job}: {} MB of tree blocks, for which the disk takes {disk:.3} s",
                    bytes / 1_000_000
                ));
            }
            println!("{}", pairs.row());
        }
    }
    println!("\n{}", floors.join("\n"));
    Ok(())
}
