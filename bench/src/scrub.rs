//! Scrubbing volumes, cold and warm, against the kernel's scrub of the same images on loop devices; and what the queue does
//! under each shape of reading, beside the seed's table.
//!
//! Ours is a whole process on the image files: `buttress scrub start -B -r`. The kernel's is `btrfs scrub start -B -r` on a
//! read-only mount, which is made before the clock starts: volumes are kept, and stay as they are.
//!
//! Replacing ([`replace`]): `buttress replace start -B` on image files, and `btrfs replace start -B` on loop devices with a mount.
//! Both by turns on the same volume: the device that was replaced is the next one's target.
//!
//! Cold, a scrub can be no faster than the disk: how fast that hands over the same
//! bytes in order is measured in the same round.

use crate::Scale;
use crate::cache::Cache;
use crate::images;
use crate::measure::{self, Run};
use crate::report::Pairs;
use anyhow::{Context, Result, ensure};
use buttress::fs::{OpenOptions, Progress};
use buttress::scrub::{Options, Scrub, Shape};
use buttress_device::{Buffer, Device, Model, OpenOptions as DeviceOptions, QueueStatistics, VirtualClock};
use buttress_oracle::content::Random;
use buttress_oracle::loop_device::{LoopDevice, Mount};
use buttress_oracle::tools::{buttress, newest, run};
use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

/// What our time may be of the kernel's: cold, and warm.
const GOALS: [f64; 2] = [1.0, 0.6];

/// The same where several devices are read.
const GOAL_OF_SEVERAL: f64 = 0.8;

/// Bytes of the file in the volumes of several devices, and in the one whose queue is looked at.
const SMALLER_BY: u64 = 8;

/// Runs all: the pairs, replacing, and the table of shapes.
pub(crate) fn run_all(scale: Scale, words: &[&str]) -> Result<()> {
    let wants = |name: &str| words.is_empty() || words.contains(&name);
    if wants("pairs") {
        pairs(scale)?;
    }
    if wants("replace") {
        replace(scale)?;
    }
    if wants("shapes") {
        shapes(scale)?;
    }
    Ok(())
}

/// A volume and its goals, cold and warm.
struct Volume {
    job: &'static str,
    images: Vec<PathBuf>,
    goals: [f64; 2],
}

fn volumes(scale: Scale) -> Result<Vec<Volume>> {
    let one = |job, image, goals| Volume {
        job,
        images: vec![image],
        goals,
    };
    let several = |job, profile, devices| -> Result<Volume> {
        Ok(Volume {
            job,
            images: pool(scale, "scrub", profile, devices, "crc32c")?,
            goals: [GOAL_OF_SEVERAL; 2],
        })
    };
    let summed = |job, checksum| -> Result<Volume> {
        Ok(Volume {
            job,
            images: pool(scale, "scrub", "single", 1, checksum)?,
            goals: GOALS,
        })
    };
    Ok(vec![
        one(
            "data, single, crc32c",
            images::large_file(scale, "plain", "")?,
            GOALS,
        ),
        one(
            "data, single, zstd",
            images::large_file(scale, "zstd", "compress-force=zstd")?,
            GOALS,
        ),
        one("metadata, DUP", images::inline_files(scale)?, [0.3, GOALS[1]]),
        one("a source tree", images::source_tree(scale)?, [GOAL_OF_SEVERAL; 2]),
        several("RAID1 of two", "raid1", 2)?,
        several("RAID6 of six", "raid6", 6)?,
        summed("data, single, xxhash64", "xxhash")?,
        summed("data, single, sha256", "sha256")?,
        summed("data, single, blake2b", "blake2")?,
    ])
}

/// The bytes of each device of a pool.
const DEVICE_BYTES: u64 = 4 << 30;

/// A volume of some devices with one file in it, made once.
fn pool(scale: Scale, purpose: &str, profile: &str, devices: usize, checksum: &str) -> Result<Vec<PathBuf>> {
    let folder = images::folder()?;
    let name = |number: usize, end: &str| {
        let sums = if checksum == "crc32c" {
            String::new()
        } else {
            format!("-{checksum}")
        };
        folder.join(format!("{purpose}-{profile}{sums}-{}-{number}.{end}", scale.name))
    };
    let images: Vec<PathBuf> = (0..devices).map(|number| name(number, "img")).collect();
    if images.iter().all(|image| image.exists()) {
        return Ok(images);
    }
    let unfinished: Vec<PathBuf> = (0..devices).map(|number| name(number, "unfinished")).collect();
    eprintln!("making a volume of {profile} in {}", folder.display());
    for image in &unfinished {
        File::create(image)?.set_len(DEVICE_BYTES)?;
    }
    let attached = unfinished
        .iter()
        .map(|image| LoopDevice::attach(image))
        .collect::<Result<Vec<_>>>()?;
    run(Command::new(newest("mkfs.btrfs"))
        .args(["-q", "-f", "-d", profile, "-m", profile, "--csum", checksum])
        .args(attached.iter().map(LoopDevice::path)))?;
    drop(attached);
    let mount = Mount::new(&unfinished, "")?;
    write_noise(&mount.path().join("large"), scale.large_bytes / SMALLER_BY)?;
    mount.close()?;
    for (from, to) in unfinished.iter().zip(&images) {
        std::fs::rename(from, to)?;
    }
    Ok(images)
}

fn write_noise(path: &Path, bytes: u64) -> Result<()> {
    let noise = Random::new(5).bytes(8 << 20, false);
    let mut file = File::create(path)?;
    let mut left = bytes;
    while left > 0 {
        let length = left.min(noise.len() as u64);
        file.write_all(&noise[..length as usize])?;
        left -= length;
    }
    Ok(file.sync_all()?)
}

/// Replaces device 1 by turns, here and in the kernel.
fn replace(scale: Scale) -> Result<()> {
    println!("\nreplacing device 1\n{}", Pairs::head());
    let mut more = Vec::new();
    for (job, profile, devices) in [
        ("1 GiB of data, single", "single", 1),
        ("1 GiB on RAID1 of two", "raid1", 2),
        ("1 GiB on RAID6 of six", "raid6", 6),
    ] {
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
            for _ in 0..scale.rounds {
                for by_kernel in [false, true] {
                    File::create(&spare)?.set_len(DEVICE_BYTES)?;
                    prepare(cache, &images)?;
                    let run = match by_kernel {
                        true => their_replace(&images, &spare)?,
                        false => our_replace(&images, &spare)?,
                    };
                    if by_kernel {
                        &mut pairs.theirs
                    } else {
                        &mut pairs.ours
                    }
                    .push(run);
                    std::mem::swap(images.first_mut().context("an image")?, &mut spare);
                }
            }
            println!("{}", pairs.row());
            more.push(format!(
                "{job}, {}: {:.2} s of processor time",
                cache.name(),
                pairs.cpu_seconds()
            ));
        }
        // Where it is looked for the next time.
        let first = pool_image(scale, profile)?;
        if images.first() != Some(&first) {
            std::fs::rename(images.first().context("an image")?, &first)?;
        }
    }
    println!("\n{}", more.join("\n"));
    Ok(())
}

/// Where the first device of a pool for replacing is kept.
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

fn prepare(cache: Cache, images: &[PathBuf]) -> Result<()> {
    images.iter().try_for_each(|image| cache.prepare(image))
}

fn ours(images: &[PathBuf], status: &Path) -> Result<Run> {
    let mut command = Command::new(buttress()?);
    command
        .args(["-q", "scrub", "start", "-B", "-r", "-f", "--status-file"])
        .arg(status);
    for image in images.iter().skip(1) {
        command.arg("--device").arg(image);
    }
    measure::run(command.arg(images.first().context("an image")?))
}

fn theirs(images: &[PathBuf], cache: Cache) -> Result<Run> {
    if cache == Cache::Warm {
        prepare(cache, images)?;
    }
    let mount = Mount::new(images, "ro")?;
    if cache == Cache::Cold {
        prepare(cache, images)?;
    }
    let done = measure::run(
        Command::new(newest("btrfs"))
            .args(["scrub", "start", "-B", "-r"])
            .arg(mount.path()),
    )?;
    mount.close()?;
    Ok(done)
}

/// Bytes that a scrub reads, as it counts them, without parity.
fn scrubbed_bytes(images: &[PathBuf]) -> Result<u64> {
    let devices = images
        .iter()
        .map(|image| Device::open(image, &DeviceOptions::default()));
    let filesystem = OpenOptions::new(devices.collect::<Result<Vec<_>, _>>()?).open()?;
    let scrub = Scrub::new(&filesystem, Options::default(), Progress::new())?;
    Ok(scrub.report().to_scrub())
}

/// The seconds that the disk takes for so many bytes of the images, read in order, around the page cache, 16 requests of
/// 512 KiB at a time.
fn floor(images: &[PathBuf], bytes: u64) -> Result<f64> {
    const STEP: usize = 512 << 10;
    const THREADS: u64 = 16;
    let begin = Instant::now();
    for image in images {
        use rustix::fs::{Mode, OFlags, SeekFrom};
        let file = rustix::fs::open(image, OFlags::RDONLY | OFlags::DIRECT, Mode::empty())?;
        let mut places = Vec::new();
        let (mut left, mut position) = (bytes / images.len() as u64, 0);
        while let Ok(start) = rustix::fs::seek(&file, SeekFrom::Data(position)) {
            let end = rustix::fs::seek(&file, SeekFrom::Hole(start))?;
            let mut at = start;
            while at < end && left > 0 {
                places.push(at);
                at += STEP as u64;
                left = left.saturating_sub(STEP as u64);
            }
            position = end;
        }
        let next = std::sync::atomic::AtomicUsize::new(0);
        std::thread::scope(|scope| {
            for _ in 0..THREADS {
                scope.spawn(|| {
                    let mut buffer = Buffer::zeroed(STEP);
                    while let Some(at) = places.get(next.fetch_add(1, std::sync::atomic::Ordering::Relaxed)) {
                        let _ = rustix::io::pread(&file, &mut buffer[..], *at);
                    }
                });
            }
        });
    }
    Ok(begin.elapsed().as_secs_f64())
}

fn pairs(scale: Scale) -> Result<()> {
    let status = images::folder()?.join("scrub-status");
    println!("\n{}", Pairs::head());
    let (mut floors, mut processor) = (Vec::new(), Vec::new());
    for volume in volumes(scale)? {
        let bytes = scrubbed_bytes(&volume.images)?;
        for (cache, goal) in Cache::BOTH.into_iter().zip(volume.goals) {
            let mut pairs = Pairs {
                job: volume.job.to_owned(),
                cache: cache.name(),
                ours: Vec::new(),
                theirs: Vec::new(),
                goal,
            };
            let mut disk = f64::INFINITY;
            for _ in 0..scale.rounds {
                prepare(cache, &volume.images)?;
                if cache == Cache::Cold {
                    disk = disk.min(floor(&volume.images, bytes)?);
                    prepare(cache, &volume.images)?;
                }
                pairs.ours.push(ours(&volume.images, &status)?);
                pairs.theirs.push(theirs(&volume.images, cache)?);
            }
            println!("{}", pairs.row());
            processor.push(format!(
                "{}, {}: {:.2} s",
                volume.job,
                cache.name(),
                pairs.cpu_seconds()
            ));
            if cache == Cache::Cold {
                let [own, _] = pairs.seconds();
                floors.push(format!(
                    "{}: {} MB; the disk takes {disk:.3} s for as many in order: {:.2} of its rate",
                    volume.job,
                    bytes / 1_000_000,
                    disk / own
                ));
            }
        }
    }
    println!("\n{}", floors.join("\n"));
    println!("\nour processor time:\n{}", processor.join("\n"));
    Ok(())
}

/// Ways to read, from the seed's starting point to ours.
fn all_shapes() -> [(&'static str, Shape); 4] {
    let ours = Shape::default();
    [
        (
            "one stripe at a time",
            Shape {
                stripes: 1,
                groups: 1,
                ..ours
            },
        ),
        ("groups of 8 that wait", Shape { groups: 1, ..ours }),
        (
            "16 groups, not plugged",
            Shape {
                plugged: false,
                ..ours
            },
        ),
        ("16 groups, plugged", ours),
    ]
}

/// Scrubs a device in a shape; what its queue counted.
fn counted(device: &Device, shape: Shape) -> Result<QueueStatistics> {
    let filesystem = OpenOptions::new(vec![device.clone()]).open()?;
    let options = Options {
        read_only: true,
        shape,
        ..Options::default()
    };
    let scrub = Scrub::new(&filesystem, options, Progress::new())?;
    let before = device.statistics();
    scrub.run()?;
    let counted = device.statistics().since(&before);
    ensure!(scrub.report().totals().errors() == 0, "{:?}", scrub.report());
    Ok(counted)
}

fn print_row(what: &str, device: &str, counted: &QueueStatistics) {
    println!(
        "| {device} | {what} | {:.0} | {:.0} | {:.2} | {:.1} | {:.2} |",
        counted.per_second(counted.reads.requests),
        counted.kibibytes_per_second(&counted.reads),
        counted.reads.merged_percent(),
        counted.reads.request_kibibytes(),
        counted.mean_queue_depth(),
    );
}

fn shapes(scale: Scale) -> Result<()> {
    let image = images::kept("scrub", scale, 4, "", |top| {
        write_noise(&top.join("large"), scale.large_bytes / SMALLER_BY)
    })?;
    println!("\n| device | shape | r/s | rkB/s | %rrqm | rareq-sz | aqu-sz |");
    println!("|---|---|---|---|---|---|---|");
    println!("| the seed's NVMe | before | 20666 | 1318240 | 0.05 | 63.8 | 1.63 |");
    println!("| the seed's NVMe | after | 5165 | 2278304 | 85.54 | 441.1 | 2.81 |");
    let below = Device::open(&image, &DeviceOptions::default())?;
    for (name, model) in [
        ("simulated NVMe SSD", Model::nvme_ssd()),
        ("simulated SATA SSD", Model::sata_ssd()),
        ("simulated 7200 rpm disk", Model::spinning_7200()),
    ] {
        for (what, shape) in all_shapes() {
            let device = below.as_if_on(&model, &VirtualClock::new());
            print_row(what, name, &counted(&device, shape)?);
        }
    }
    for (what, shape) in all_shapes() {
        Cache::Cold.prepare(&image)?;
        let options = DeviceOptions {
            direct_when_cold: true,
            ..DeviceOptions::default()
        };
        let device = Device::open(&image, &options)?;
        print_row(what, "this machine's disk, cold", &counted(&device, shape)?);
    }
    Ok(())
}
