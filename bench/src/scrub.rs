//! Scrubs of volumes, cold and warm, against the kernel's scrub of the same images on loop devices.
//! A table shows the queue's figures under each shape of reads, beside the figures of the kernel
//! change.
//!
//! Our side is a whole process on the image files: `buttress scrub start -B -r`. The kernel's side
//! is `btrfs scrub start -B -r` on a read-only mount, which is mounted before the clock starts.
//! Read-only runs leave the kept volumes unchanged.
//!
//! Replacements: [`replacing`]. Arguments choose rows, so that each can be measured on a quiet
//! machine: `scrub raid1 raid6`. Each row adds its medians to a list below the volumes' folder,
//! from which `scrub plot` draws.
//!
//! A cold scrub cannot be faster than the disk, so each round also measures a read of the same
//! bytes in order.

mod plots;
pub(crate) mod replacing;

use crate::Scale;
use crate::cache::Cache;
use crate::images;
use crate::measure::{self, Run};
use crate::report::{Pairs, median, sorted};
use anyhow::{Context, Result, ensure};
use buttress::Progress;
use buttress::scrub::{Options, Scrub, Shape};
use buttress::unstable::fs::OpenOptions;
use buttress_device::{Buffer, Device, OpenOptions as DeviceOptions, QueueStatistics, VirtualClock};
use buttress_lab::Model;
use buttress_oracle::content::Random;
use buttress_oracle::loop_device::{LoopDevice, Mount};
use buttress_oracle::tools::{buttress, newest, run};
use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

/// The largest ratios of our time to the kernel's: cold, and warm.
const GOALS: [f64; 2] = [1.0, 0.6];

/// The largest ratio of our time to the kernel's for several devices.
const GOAL_OF_SEVERAL: f64 = 0.8;

/// The divisor of the file's bytes in volumes of several devices, and in the volume whose queue is
/// measured.
const SMALLER_BY: u64 = 8;

/// The number of the files in the volume with duplicated metadata: a ratio, times the files of the
/// original script.
const DUP_FILES_MORE: (u64, u64) = (128, 100);

/// Runs all jobs (the pairs, the replacements and the table of shapes) or the named ones, including
/// rows of the pairs. `make` makes the volumes of the named rows and measures nothing.
pub(crate) fn run_all(scale: Scale, words: &[&str]) -> Result<()> {
    let wants = |name: &str| words.is_empty() || words.contains(&name);
    for word in words {
        let is_known = ["pairs", "replace", "shapes", "plot", "make"].contains(word);
        ensure!(
            is_known || ROWS.iter().any(|row| row.name == *word),
            "scrub has no {word}"
        );
    }
    let wanted = |row: &&Row| wants("pairs") || words.contains(&row.name);
    let rows: Vec<&Row> = ROWS.iter().filter(wanted).collect();
    if words.contains(&"make") {
        for row in rows {
            (row.make)(scale)?;
        }
        if words.contains(&"replace") {
            replacing::make(scale)?;
        }
        return Ok(());
    }
    if !rows.is_empty() {
        pairs(scale, &rows)?;
    }
    if wants("replace") {
        replacing::run(scale)?;
    }
    if wants("shapes") {
        shapes(scale)?;
    }
    if wants("plot") && scale.draws {
        plots::draw()?;
    }
    Ok(())
}

/// A scrubbed volume, and its goals, cold and warm.
struct Row {
    /// The name on the command line.
    name: &'static str,
    job: &'static str,
    make: fn(Scale) -> Result<Vec<PathBuf>>,
    goals: [f64; 2],
}

const ROWS: [Row; 10] = [
    Row {
        name: "plain",
        job: "data, single, crc32c",
        make: |scale| Ok(vec![images::large_file(scale, "plain", "")?]),
        goals: GOALS,
    },
    Row {
        name: "zstd",
        job: "data, single, zstd",
        make: |scale| {
            let image = images::large_file(scale, "zstd", "compress-force=zstd")?;
            Ok(vec![image])
        },
        goals: GOALS,
    },
    Row {
        name: "dup",
        job: "metadata, DUP",
        make: |scale| {
            let (more, of) = DUP_FILES_MORE;
            let inline_files = scale.inline_files * more / of;
            Ok(vec![images::inline_files(Scale {
                inline_files,
                ..scale
            })?])
        },
        goals: [0.3, GOALS[1]],
    },
    Row {
        name: "source",
        job: "a source tree",
        make: |scale| Ok(vec![images::source_tree(scale)?]),
        goals: [GOAL_OF_SEVERAL; 2],
    },
    Row {
        name: "aged",
        job: "aged small files, snapshots",
        make: |scale| Ok(vec![images::aged(scale)?]),
        goals: [GOAL_OF_SEVERAL; 2],
    },
    Row {
        name: "raid1",
        job: "RAID1 of two",
        make: |scale| pool(scale, "scrub", "raid1", 2, "crc32c"),
        goals: [GOAL_OF_SEVERAL; 2],
    },
    Row {
        name: "raid6",
        job: "RAID6 of six",
        make: |scale| pool(scale, "scrub", "raid6", 6, "crc32c"),
        goals: [GOAL_OF_SEVERAL; 2],
    },
    Row {
        name: "xxhash64",
        job: "data, single, xxhash64",
        make: |scale| pool(scale, "scrub", "single", 1, "xxhash"),
        goals: GOALS,
    },
    Row {
        name: "sha256",
        job: "data, single, sha256",
        make: |scale| pool(scale, "scrub", "single", 1, "sha256"),
        goals: GOALS,
    },
    Row {
        name: "blake2b",
        job: "data, single, blake2b",
        make: |scale| pool(scale, "scrub", "single", 1, "blake2"),
        goals: GOALS,
    },
];

/// The bytes of each device of a pool.
const DEVICE_BYTES: u64 = 4 << 30;

/// Returns a volume of several devices with one file, made once.
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

/// Returns the bytes that a scrub reads, by its own count, without parity.
fn scrubbed_bytes(images: &[PathBuf]) -> Result<u64> {
    let devices = images
        .iter()
        .map(|image| Device::open(image, &DeviceOptions::default()));
    let filesystem = OpenOptions::new(devices.collect::<Result<Vec<_>, _>>()?).open()?;
    let scrub = Scrub::new(&filesystem, Options::default(), Progress::new())?;
    Ok(scrub.report().to_scrub())
}

/// Returns the disk's seconds for this many bytes of the images, read in order around the page
/// cache, 16 requests of 512 KiB at a time.
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

fn pairs(scale: Scale, rows: &[&Row]) -> Result<()> {
    let status = images::folder()?.join("scrub-status");
    println!("\n{}", Pairs::head());
    let (mut floors, mut processor) = (Vec::new(), Vec::new());
    for row in rows {
        let images = (row.make)(scale)?;
        let bytes = scrubbed_bytes(&images)?;
        for (cache, goal) in Cache::BOTH.into_iter().zip(row.goals) {
            let mut pairs = Pairs {
                job: row.job.to_owned(),
                cache: cache.name(),
                ours: Vec::new(),
                theirs: Vec::new(),
                goal,
            };
            let mut disk = Vec::new();
            for _ in 0..scale.rounds {
                prepare(cache, &images)?;
                let before = match cache {
                    Cache::Cold => floor(&images, bytes)?,
                    Cache::Warm => f64::INFINITY,
                };
                prepare(cache, &images)?;
                pairs.ours.push(ours(&images, &status)?);
                if cache == Cache::Cold {
                    // A layer below a virtual disk may cache reads, which would favour the second
                    // side.
                    prepare(cache, &images)?;
                    disk.push(before.min(floor(&images, bytes)?));
                }
                pairs.theirs.push(theirs(&images, cache)?);
            }
            println!("{}", pairs.row());
            plots::note(scale, row.name, &pairs)?;
            let [own, machine, kernel] = [
                pairs.cpu_seconds(),
                pairs.machine_seconds()[0],
                pairs.machine_seconds()[1],
            ];
            processor.push(format!(
                "| {} | {} | {own:.2} | {machine:.2} | {kernel:.2} | {:.2} |",
                row.job,
                cache.name(),
                machine / kernel
            ));
            if cache == Cache::Cold {
                // Each scrub is compared with the faster of the ordered reads before and after it.
                let rates = disk.iter().zip(&pairs.ours).map(|(disk, run)| disk / run.seconds);
                let rates = sorted(rates.collect());
                floors.push(format!(
                    "| {} | {} | {:.3} | {:.3} | {:.2} | {:.2} | {:.2} |",
                    row.job,
                    bytes / 1_000_000,
                    median(&sorted(disk.clone())),
                    pairs.seconds()[0],
                    rates.first().copied().unwrap_or(f64::NAN),
                    median(&rates),
                    rates.last().copied().unwrap_or(f64::NAN),
                ));
            }
        }
    }
    println!("\ncold, beside the disk: as many bytes read in order, 16 requests of 512 KiB at a time");
    println!(
        "| job | MB | disk s | buttress s | of its rate min | median | max |\n|---|---|---|---|---|---|---|"
    );
    println!("{}", floors.join("\n"));
    println!("\nprocessor seconds: of our process; of the whole machine during ours and theirs");
    println!(
        "| job | cache | process | machine, ours | machine, theirs | ratio |\n|---|---|---|---|---|---|"
    );
    println!("{}", processor.join("\n"));
    Ok(())
}

/// Returns the shapes of reads, from the kernel change's starting point to Buttress's.
fn all_shapes() -> [(&'static str, Shape); 4] {
    let ours = Shape::default();
    [
        (
            "single stripes in turn",
            Shape {
                stripes: 1,
                groups: 1,
                ..ours
            },
        ),
        ("groups of 8, waiting for each", Shape { groups: 1, ..ours }),
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

/// Scrubs a device in a shape. Returns the counts of the device's queue.
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
    println!("| Linux's NVMe | before | 20666 | 1318240 | 0.05 | 63.8 | 1.63 |");
    println!("| Linux's NVMe | after | 5165 | 2278304 | 85.54 | 441.1 | 2.81 |");
    let below = Device::open(&image, &DeviceOptions::default())?;
    for (name, model) in [
        ("simulated NVMe SSD", Model::nvme_ssd()),
        ("simulated SATA SSD", Model::sata_ssd()),
        ("simulated 7200 rpm disk", Model::spinning_7200()),
    ] {
        for (what, shape) in all_shapes() {
            let device = buttress_lab::as_if_on(&below, &model, &VirtualClock::new());
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
