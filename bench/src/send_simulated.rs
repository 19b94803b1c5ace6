//! A full send under each read-ahead mode, in the virtual time of simulated disks, beside the
//! seeds' tables.
//!
//! The volumes are those of the original script (500,000 and 200,000 files). As in the script, the
//! send is of the first snapshot. The drives were fixed before the first table
//! (docs/internals/simulated-disks.md). The only charged CPU time is that of checking blocks (2 us
//! for 4 KiB). The row "one sequential read" reads as many bytes as the send under `sweep`, from
//! one place on. The sweep leaves out blocks that a send does not need. The row "address order"
//! reads all of the tree's blocks, sorted by address.

use crate::Scale;
use crate::images;
use crate::plot::{Group, bars};
use anyhow::{Context, Result, ensure};
use buttress::unstable::fs::{Filesystem, OpenOptions};
use buttress::{ByteCount, Follow, Location, Progress, ReadAhead, SubvolumeId};
use buttress_device::{Device, VirtualClock};
use buttress_lab::Model;
use buttress_stream::send::{self, Options, Snapshot};
use buttress_tree::measure;
use std::path::Path;
use std::time::Duration;

/// The largest ratio of `sweep` to the drive's time for the same bytes in sequence.
const GOAL: f64 = 1.3;

/// The measurements of the kernel changes' authors on their spinning disk: whole seconds of a full
/// send.
struct Seed {
    files: u64,
    none: u32,
    forward: u32,
    /// The gain of forward-always over forward, from another run of these authors with different
    /// times throughout.
    forward_always_gain_percent: Option<f64>,
    /// The number of lines that `dump-tree` printed: two for each node and leaf.
    lines: u64,
}

const SEEDS: [Seed; 2] = [
    Seed {
        files: 500_000,
        none: 407,
        forward: 353,
        forward_always_gain_percent: Some(5.7),
        lines: 152_476,
    },
    Seed {
        files: 200_000,
        none: 165,
        forward: 149,
        forward_always_gain_percent: None,
        lines: 62_600,
    },
];

/// A read-ahead mode, and its cost.
#[derive(Clone, Debug, PartialEq)]
struct Row {
    name: &'static str,
    elapsed: Duration,
    requests: u64,
    request_bytes: u64,
}

/// Prints a table for each drive and number of files, and draws the spinning disk's.
pub(crate) fn run(scale: Scale) -> Result<()> {
    let drives = [
        ("7200 rpm spinning disk", "spinning-disk", Model::spinning_7200()),
        ("SATA SSD", "sata-ssd", Model::sata_ssd()),
        ("NVMe SSD", "nvme-ssd", Model::nvme_ssd()),
    ];
    for (name, file, model) in drives {
        let mut groups = Vec::new();
        let mut series = Vec::new();
        for seed in &SEEDS {
            let files = seed.files * scale.inline_files / 500_000;
            let image = images::inline_files(Scale {
                inline_files: files,
                ..scale
            })?;
            let rows = rows(&image, &model)?;
            if matches!(model, Model::Spinning(_)) {
                ensure!(
                    rows == self::rows(&image, &model)?,
                    "two runs on the {name} differ"
                );
            }
            print(name, files, seed, &image, &rows)?;
            series = rows.iter().map(|row| row.name).collect();
            groups.push(Group {
                label: format!("{files} files"),
                values: rows.iter().map(|row| Some(row.elapsed.as_secs_f64())).collect(),
            });
        }
        if scale.draws {
            let title = format!("Full send on a simulated {name}");
            let svg = bars(&title, "virtual seconds", &series, &groups);
            let path = images::plots()?.join(format!("send-{file}.svg"));
            std::fs::write(&path, svg).with_context(|| path.display().to_string())?;
        }
    }
    Ok(())
}

fn open(image: &Path, model: &Model) -> Result<Filesystem> {
    let backend = Device::open_backend(image, &buttress_device::OpenOptions::default())?;
    let device = buttress_lab::simulated(backend, model, &VirtualClock::new());
    Ok(OpenOptions::new(vec![device]).open()?)
}

fn snapshot_id(filesystem: &Filesystem) -> Result<SubvolumeId> {
    let top = Location::root_of(SubvolumeId::TOP_LEVEL);
    Ok(filesystem.resolve(top, b"/snap1", Follow::All)?.subvolume)
}

/// Returns a sweep with this window instead of the default window.
fn window(mebibytes: u64) -> ReadAhead {
    ReadAhead::Sweep {
        window_bytes: ByteCount::new(mebibytes << 20),
    }
}

/// Each row has a new drive, so that the drive's cache does not help the next row.
fn rows(image: &Path, model: &Model) -> Result<Vec<Row>> {
    let modes = [
        ("none", ReadAhead::None),
        ("forward", ReadAhead::Forward),
        ("forward-always as posted", ReadAhead::ForwardOnMiss),
        ("forward-always", ReadAhead::ForwardAlways),
        ("sweep", ReadAhead::sweep()),
        ("sweep, 64 MiB", window(64)),
        ("sweep, 192 MiB", window(192)),
    ];
    let mut rows = Vec::new();
    for (name, read_ahead) in modes {
        let filesystem = open(image, model)?;
        let snapshot = Snapshot::open(&filesystem, snapshot_id(&filesystem)?)?;
        let options = Options {
            read_ahead,
            ..Options::default()
        };
        rows.push(measured(name, &filesystem, || {
            send::send(&snapshot, &options, &mut std::io::sink(), &Progress::new())?;
            Ok(())
        })?);
    }
    let filesystem = open(image, model)?;
    let root = *filesystem.subvolume_tree(snapshot_id(&filesystem)?)?.root();
    let pointers = measure::pointers_by_address(filesystem.volume(), root, ByteCount::new(256 << 20))?;
    let filesystem = open(image, model)?;
    rows.push(measured("address order", &filesystem, || {
        measure::read_in_order(filesystem.volume(), &pointers)?;
        Ok(())
    })?);
    let swept = rows.iter().find(|row| row.name == "sweep");
    let swept_bytes = swept.context("a row of sweep")?.request_bytes;
    let filesystem = open(image, model)?;
    rows.push(measured("a single sequential read", &filesystem, || {
        read_in_sequence(&filesystem, swept_bytes)
    })?);
    Ok(rows)
}

fn measured(name: &'static str, filesystem: &Filesystem, job: impl FnOnce() -> Result<()>) -> Result<Row> {
    let slots = filesystem.volume().devices();
    let slot = slots.first().context("a device")?;
    let device = slot.device().context("a device that is there")?;
    let before = device.statistics();
    job()?;
    let during = device.statistics().since(&before);
    Ok(Row {
        name,
        elapsed: during.elapsed,
        requests: during.reads.requests,
        request_bytes: during.reads.bytes,
    })
}

fn read_in_sequence(filesystem: &Filesystem, bytes: u64) -> Result<()> {
    const PART_BYTES: u64 = 1 << 20;
    let slots = filesystem.volume().devices();
    let slot = slots.first().context("a device")?;
    let device = slot.device().context("a device that is there")?;
    for start in (0..bytes).step_by(PART_BYTES as usize) {
        device.read(start, usize::try_from(PART_BYTES.min(bytes - start))?)?;
    }
    Ok(())
}

fn print(drive: &str, files: u64, seed: &Seed, image: &Path, rows: &[Row]) -> Result<()> {
    let find = |name: &str| {
        let found = rows.iter().find(|row| row.name == name);
        found.with_context(|| format!("a row {name}"))
    };
    let seconds = |name: &str| -> Result<f64> { Ok(find(name)?.elapsed.as_secs_f64()) };
    let filesystem = open(image, &Model::Null)?;
    let root = *filesystem.subvolume_tree(snapshot_id(&filesystem)?)?.root();
    let blocks = measure::walk(
        filesystem.volume(),
        root,
        ByteCount::new(64 << 20),
        ReadAhead::None,
    )
    .blocks;
    println!(
        "\nFull send of the first snapshot, {files} files, on a simulated {drive}, virtual time; the tree has {blocks} \
         nodes and leaves (the seed's {}, from {} lines)\n",
        seed.lines / 2,
        seed.lines
    );
    println!(
        "| read-ahead | seconds | less than before | kernel change: seconds | kernel change: gain | requests | mean KiB |"
    );
    println!("|---|---|---|---|---|---|---|");
    let seed_gain = 100.0 * f64::from(seed.none - seed.forward) / f64::from(seed.none);
    let mut before: Option<f64> = None;
    for row in rows {
        let time = row.elapsed.as_secs_f64();
        if row.name == "forward-always" {
            // Both forms of the change replaced `forward`.
            before = Some(seconds("forward")?);
        }
        let gain = before.map_or(String::new(), |before| {
            format!("{:.1} %", 100.0 * (before - time) / before)
        });
        let (seed_seconds, seed_gain) = match row.name {
            "none" => (seed.none.to_string(), String::new()),
            "forward" => (seed.forward.to_string(), format!("{seed_gain:.1} %")),
            // The authors measured the kernel change as it was posted.
            "forward-always as posted" => (
                String::new(),
                seed.forward_always_gain_percent
                    .map_or(String::new(), |gain| format!("{gain:.1} %")),
            ),
            _ => (String::new(), String::new()),
        };
        let mean = row.request_bytes as f64 / 1024.0 / row.requests.max(1) as f64;
        println!(
            "| {} | {time:.2} | {gain} | {seed_seconds} | {seed_gain} | {} | {mean:.1} |",
            row.name, row.requests
        );
        before = Some(time);
    }
    let ratio = seconds("sweep")? / seconds("a single sequential read")?;
    let met = if ratio <= GOAL { "met" } else { "missed" };
    println!("\nSweep takes {ratio:.2} times one sequential read (goal {GOAL}, {met}).");
    Ok(())
}
