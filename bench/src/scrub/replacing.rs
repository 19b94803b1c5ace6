//! Replacements of a device: `buttress replace start -B` on image files, and `btrfs replace start
//! -B` on a mount of loop devices.
//!
//! Both run in turn on the same volume: a replaced device is the next run's target. Each round also
//! measures a copy of the device's content in order, around the page cache, with a flush at the
//! end. A replacement that reads one device and writes another cannot be faster than this copy.

use super::{DEVICE_BYTES, pool, prepare};
use crate::Scale;
use crate::cache::Cache;
use crate::images;
use crate::measure::{self, Run};
use crate::report::{Pairs, median, sorted};
use anyhow::{Context, Result};
use buttress_device::Buffer;
use buttress_oracle::loop_device::{LoopDevice, Mount};
use buttress_oracle::tools::{buttress, newest};
use rustix::fs::{Mode, OFlags, SeekFrom};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

/// Profiles with their numbers of devices.
const JOBS: [(&str, &str, usize); 3] = [
    ("1 GiB of data, single", "single", 1),
    ("1 GiB on RAID1 of two", "raid1", 2),
    ("1 GiB on RAID6 of six", "raid6", 6),
];

/// Makes the volumes for the replacement benchmark.
pub(super) fn make(scale: Scale) -> Result<()> {
    for (_, profile, devices) in JOBS {
        pool(scale, "replace", profile, devices, "crc32c")?;
    }
    Ok(())
}

/// Replaces device 1 in turn, with Buttress and with the kernel.
pub(super) fn run(scale: Scale) -> Result<()> {
    println!("\nreplacing device 1\n{}", Pairs::head());
    let mut more = Vec::new();
    for (job, profile, devices) in JOBS {
        let mut images = pool(scale, "replace", profile, devices, "crc32c")?;
        let mut spare = images::folder()?.join(format!("replace-{profile}-{}-spare.img", scale.name));
        for cache in Cache::BOTH {
            let mut pairs = Pairs {
                job: job.to_owned(),
                cache: cache.name(),
                ours: Vec::new(),
                theirs: Vec::new(),
                goal: 1.0,
            };
            let mut copies = Vec::new();
            for _ in 0..scale.rounds {
                File::create(&spare)?.set_len(DEVICE_BYTES)?;
                prepare(cache, &images)?;
                copies.push(copy(images.first().context("an image")?, &spare)?);
                for by_kernel in [false, true] {
                    File::create(&spare)?.set_len(DEVICE_BYTES)?;
                    prepare(cache, &images)?;
                    match by_kernel {
                        true => pairs.theirs.push(their_replace(&images, &spare)?),
                        false => pairs.ours.push(our_replace(&images, &spare)?),
                    }
                    std::mem::swap(images.first_mut().context("an image")?, &mut spare);
                }
            }
            println!("{}", pairs.row());
            let rates = copies
                .iter()
                .zip(&pairs.ours)
                .map(|(copy, run)| copy / run.seconds);
            more.push(format!(
                "| {job} | {} | {:.3} | {:.3} | {:.2} | {:.2} | {:.2} |",
                cache.name(),
                median(&sorted(copies.clone())),
                pairs.seconds()[0],
                median(&sorted(rates.collect())),
                pairs.machine_seconds()[0],
                pairs.machine_seconds()[1],
            ));
        }
        // The next run expects the device under this name.
        let first = pool_image(scale, profile)?;
        if images.first() != Some(&first) {
            std::fs::rename(images.first().context("an image")?, &first)?;
        }
    }
    println!(
        "\nbeside a copy of what the device holds, in order, and flushed; processor seconds of the whole machine"
    );
    println!(
        "| job | cache | copy s | buttress s | of its rate | processors, ours | theirs |\n|---|---|---|---|---|---|---|"
    );
    println!("{}", more.join("\n"));
    Ok(())
}

/// The number of copied parts in flight, and their bytes.
const AT_ONCE: usize = 16;
const PART: usize = 1 << 20;

/// Returns the seconds of copying a file without its holes, in order, around the page cache, and of
/// a flush.
pub(crate) fn copy(from: &Path, to: &Path) -> Result<f64> {
    let from = rustix::fs::open(from, OFlags::RDONLY | OFlags::DIRECT, Mode::empty())?;
    let to = rustix::fs::open(to, OFlags::WRONLY | OFlags::DIRECT, Mode::empty())?;
    let mut places = Vec::new();
    let mut position = 0;
    while let Ok(start) = rustix::fs::seek(&from, SeekFrom::Data(position)) {
        position = rustix::fs::seek(&from, SeekFrom::Hole(start))?;
        places.extend((start..position).step_by(PART).map(|at| (at, position - at)));
    }
    let begin = Instant::now();
    let next = AtomicUsize::new(0);
    let copy_parts = || -> Result<()> {
        let mut buffer = Buffer::zeroed(PART);
        while let Some((at, left)) = places.get(next.fetch_add(1, Ordering::Relaxed)) {
            let length = PART.min(*left as usize);
            let read = rustix::io::pread(&from, &mut buffer[..length], *at)?;
            rustix::io::pwrite(&to, &buffer[..read], *at)?;
        }
        Ok(())
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..AT_ONCE).map(|_| scope.spawn(copy_parts)).collect();
        for thread in threads {
            thread
                .join()
                .map_err(|_| anyhow::anyhow!("a thread of the copy panicked"))??;
        }
        anyhow::Ok(())
    })?;
    rustix::fs::fdatasync(&to)?;
    Ok(begin.elapsed().as_secs_f64())
}

/// Returns the path of the first device of a pool for replacements.
fn pool_image(scale: Scale, profile: &str) -> Result<PathBuf> {
    Ok(images::folder()?.join(format!("replace-{profile}-{}-0.img", scale.name)))
}

fn our_replace(images: &[PathBuf], spare: &Path) -> Result<Run> {
    let mut command = Command::new(buttress()?);
    command.args(["-q", "replace", "start", "-Bf", "1"]).arg(spare);
    for image in images.iter().skip(1) {
        command.arg("--device").arg(image);
    }
    measure::run(command.arg(images.first().context("an image")?))
}

fn their_replace(images: &[PathBuf], spare: &Path) -> Result<Run> {
    let mount = Mount::new(images, "noatime")?;
    let target = LoopDevice::attach(spare)?;
    let done = measure::run(
        Command::new(newest("btrfs"))
            .args(["replace", "start", "-Bf", "1"])
            .arg(target.path())
            .arg(mount.path()),
    )?;
    mount.close()?;
    Ok(done)
}
