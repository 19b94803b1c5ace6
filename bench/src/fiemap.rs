//! Extents of files, against `filefrag` and the ioctl on the kernel's mount of the same image.
//!
//! - `files`: whole processes on the two kinds of file in the kernel's own fiemap benchmarks:
//!   extents of 128 KiB compressed with lzo, and a byte in every 8 KiB. Cold: caches are dropped.
//!   Warm: our side has the image in the page cache; `filefrag` runs for the second time on its
//!   mount, with metadata in memory. With `-v` both sides find shared extents.
//! - `count`: inside one process, the ioctl with `fm_extent_count` 0 against a map without
//!   sharedness; both warm.
//! - `flat`: the time for each extent with sharedness, from a thousand extents to a million, with
//!   snapshots, and with every second extent shared.
//! - `cancel`: the time from a signal halfway to the end of the command.

mod images;
mod ioctl;

use crate::Scale;
use crate::cache::Cache;
use crate::measure::{Run, run};
use crate::read::{command, target};
use crate::report::Pairs;
use anyhow::{Context, Result, bail, ensure};
use buttress::unstable::accounts::Maps as _;
use buttress::unstable::fs::{Filesystem, OpenOptions};
use buttress::{Device, DeviceOptions, FileOffset, Follow, Location, SubvolumeId};
use buttress_oracle::loop_device::Mount;
use images::NAME;
use std::fs::File;
use std::io::Read;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// The largest ratios of our time to the kernel's that meet the goals.
const GOAL_COLD: f64 = 0.6;
const GOAL_WARM: f64 = 0.3;
const GOAL_COUNT: f64 = 1.0;

/// The number of maps of a file by one process; the shortest time counts.
const REPEATS: usize = 5;

type Job = fn(Scale) -> Result<()>;

/// Runs the named jobs, or all.
pub(crate) fn run_all(scale: Scale, wanted: &[&str]) -> Result<()> {
    let all: [(&str, Job); 4] = [
        ("files", files),
        ("count", count),
        ("flat", flat),
        ("cancel", cancel),
    ];
    if let Some(unknown) = wanted
        .iter()
        .find(|word| !all.iter().any(|(name, _)| name == *word))
    {
        bail!("no job {unknown}; there are files, count, flat, cancel");
    }
    for (name, job) in all {
        if wanted.is_empty() || wanted.contains(&name) {
            job(scale)?;
        }
    }
    Ok(())
}

fn files(scale: Scale) -> Result<()> {
    println!("\n{}", Pairs::head());
    for (kind, extents) in images::of_files(scale) {
        let image = images::make(scale, kind, extents)?;
        for options in [&[][..], &["-v"][..]] {
            for cache in Cache::BOTH {
                let mut pairs = Pairs {
                    job: format!(
                        "fiemap {} of {extents} extents, {}",
                        options.concat(),
                        kind.name()
                    ),
                    cache: cache.name(),
                    ours: Vec::new(),
                    theirs: Vec::new(),
                    goal: if cache == Cache::Cold {
                        GOAL_COLD
                    } else {
                        GOAL_WARM
                    },
                };
                for _ in 0..scale.rounds {
                    cache.prepare(&image)?;
                    let mut ours = command(&["fiemap"])?;
                    pairs
                        .ours
                        .push(run(ours.args(options).arg(target(&image, &format!("/{NAME}"))))?);
                    pairs.theirs.push(filefrag(&image, options, cache)?);
                }
                println!("{}", pairs.row());
            }
        }
    }
    Ok(())
}

fn filefrag(image: &Path, options: &[&str], cache: Cache) -> Result<Run> {
    let mount = Mount::new(&[image.to_path_buf()], "ro")?;
    let mut command = Command::new("filefrag");
    command.args(options).arg(mount.path().join(NAME));
    match cache {
        Cache::Cold => cache.prepare(image)?,
        Cache::Warm => drop(run(&mut command)?),
    }
    let done = run(&mut command)?;
    mount.close()?;
    Ok(done)
}

fn open(image: &Path) -> Result<Filesystem> {
    let device = Device::open(image, &DeviceOptions::default())?;
    Ok(OpenOptions::new(vec![device]).open()?)
}

fn find(filesystem: &Filesystem, path: &str) -> Result<Location> {
    let top = Location::root_of(SubvolumeId::TOP_LEVEL);
    Ok(filesystem.resolve(top, path.as_bytes(), Follow::NotLast)?)
}

/// Returns the number of a file's extents, and the time of the map.
fn map(filesystem: &Filesystem, path: &str, sharing: bool) -> Result<(u64, Duration)> {
    let file = filesystem.open_file(find(filesystem, path)?)?;
    let start = Instant::now();
    let map = file.fiemap(FileOffset::MIN..FileOffset::new(u64::MAX))?;
    let map = if sharing { map } else { map.without_sharing() };
    let mut extents = 0;
    for extent in map {
        extent?;
        extents += 1;
    }
    Ok((extents, start.elapsed()))
}

fn count(scale: Scale) -> Result<()> {
    println!("\n| counted in one process, warm | extents | buttress ms | ioctl ms | ratio | goal |");
    println!("|---|---|---|---|---|---|");
    for (kind, extents) in images::of_files(scale) {
        let image = images::make(scale, kind, extents)?;
        let filesystem = open(&image)?;
        let mount = Mount::new(std::slice::from_ref(&image), "ro")?;
        let file = File::open(mount.path().join(NAME))?;
        let (mut ours, mut theirs) = (Duration::MAX, Duration::MAX);
        // The first round only warms the caches.
        for round in 0..=REPEATS {
            let (our_count, our_time) = map(&filesystem, NAME, false)?;
            let start = Instant::now();
            let their_count = ioctl::count_extents(&file)?;
            let their_time = start.elapsed();
            ensure!(
                our_count == u64::from(their_count),
                "{our_count} extents, by the ioctl {their_count}"
            );
            if round > 0 {
                (ours, theirs) = (ours.min(our_time), theirs.min(their_time));
            }
        }
        // An open file keeps the mount busy.
        drop(file);
        mount.close()?;
        let ratio = ours.as_secs_f64() / theirs.as_secs_f64();
        println!(
            "| {} | {extents} | {:.2} | {:.2} | {ratio:.2} | {GOAL_COUNT:.2}{} |",
            kind.name(),
            ours.as_secs_f64() * 1e3,
            theirs.as_secs_f64() * 1e3,
            if ratio <= GOAL_COUNT { "" } else { " missed" },
        );
    }
    Ok(())
}

fn flat(scale: Scale) -> Result<()> {
    println!(
        "\n| with sharedness, volume opened anew, image in the page cache | extents | ms | ns an extent |"
    );
    println!("|---|---|---|---|");
    for (kind, extents) in images::of_sizes(scale) {
        let image = images::make(scale, kind, extents)?;
        Cache::Warm.prepare(&image)?;
        let mut best = Duration::MAX;
        for _ in 0..REPEATS {
            let filesystem = open(&image)?;
            let (found, time) = map(&filesystem, &format!("{}/{NAME}", images::SUBVOLUME), true)?;
            ensure!(found == extents, "{found} extents instead of {extents}");
            best = best.min(time);
        }
        let nanoseconds = best.as_nanos() / u128::from(extents);
        println!(
            "| {} | {extents} | {:.2} | {nanoseconds} |",
            kind.name(),
            best.as_secs_f64() * 1e3
        );
    }
    Ok(())
}

/// Interrupts `fiemap -v` after half of its output.
fn cancel(scale: Scale) -> Result<()> {
    let Some((kind, extents)) = images::of_files(scale)
        .into_iter()
        .max_by_key(|(_, extents)| *extents)
    else {
        return Ok(());
    };
    let image = images::make(scale, kind, extents)?;
    let mut whole = command(&["fiemap", "-v"])?;
    whole.arg(target(&image, &format!("/{NAME}")));
    let bytes = run(&mut whole)?.output_bytes;
    let mut latest = Duration::ZERO;
    for _ in 0..scale.rounds {
        let mut child = whole.stdout(Stdio::piped()).stderr(Stdio::null()).spawn()?;
        let mut output = child.stdout.take().context("output")?;
        let mut half = (&mut output).take(bytes / 2);
        std::io::copy(&mut half, &mut std::io::sink())?;
        let start = Instant::now();
        let id = rustix::process::Pid::from_child(&child);
        rustix::process::kill_process(id, rustix::process::Signal::INT)?;
        let rest = std::io::copy(&mut output, &mut std::io::sink())?;
        let status = child.wait()?;
        latest = latest.max(start.elapsed());
        if status.success() {
            println!("it had ended before the signal came, {rest} bytes later");
        }
    }
    println!(
        "\n{extents} extents, interrupted half-way: ended within {:.1} ms",
        latest.as_secs_f64() * 1e3
    );
    Ok(())
}
