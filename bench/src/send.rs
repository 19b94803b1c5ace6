//! `buttress send` against the kernel's `btrfs send` of the same image, into a drained pipe.
//!
//! Both sides are whole processes and send read-only snapshots. Cold and warm are as in
//! [`crate::read`]. Our side's time includes opening the volume; the kernel's excludes mounting it.
//!
//! The row "plain read" reads a file with as many bytes as the snapshot's tree, from end to end. A
//! program that must inspect each of those bytes cannot be much faster.

use crate::Scale;
use crate::cache::Cache;
use crate::images;
use crate::measure::run;
use crate::plot::{Group, rows};
use crate::read::{command, measured, target};
use crate::report::Pairs;
use anyhow::{Context, Result, bail, ensure};
use buttress::unstable::fs::OpenOptions;
use buttress::{ByteCount, Follow, Location, SubvolumeId};
use buttress_device::Device;
use buttress_oracle::tools::newest;
use buttress_tree::{Forest, ReadAhead};
use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

type Job = fn(Scale) -> Result<Vec<Pairs>>;

/// Runs the named jobs, or all.
pub(crate) fn run_all(scale: Scale, wanted: &[&str]) -> Result<()> {
    let all: [(&str, Job); 4] = [
        ("full", full),
        ("incremental", incremental),
        ("plain-read", plain_read),
        ("large", large),
    ];
    if let Some(unknown) = wanted
        .iter()
        .find(|word| !all.iter().any(|(name, _)| name == *word))
    {
        bail!("no job {unknown}; there are full, incremental, plain-read, large");
    }
    println!("{}", Pairs::head());
    let mut measured = Vec::new();
    for (name, job) in all {
        if wanted.is_empty() || wanted.contains(&name) {
            measured.extend(job(scale)?);
        }
    }
    if scale.draws && wanted.is_empty() {
        draw(&measured)?;
    }
    Ok(())
}

/// Draws the seconds of both sides, a group of bars for each row of the table.
fn draw(measured: &[Pairs]) -> Result<()> {
    let groups: Vec<Group> = measured
        .iter()
        .map(|pairs| Group {
            label: format!("{}, {}", pairs.job, pairs.cache),
            values: pairs.seconds().into_iter().map(Some).collect(),
        })
        .collect();
    let svg = rows(
        "Sending, beside the kernel",
        "seconds",
        &["buttress", "the other side"],
        &groups,
    );
    let path = images::plots()?.join("send-against-the-kernel.svg");
    std::fs::write(&path, svg).with_context(|| path.display().to_string())
}

/// Runs both sides' commands in pairs: options, parent, snapshot.
fn send_pairs(
    scale: Scale,
    job: &str,
    image: &Path,
    goals: [f64; 2],
    options: &[&str],
    parent: Option<&str>,
    snapshot: &str,
) -> Result<Vec<Pairs>> {
    let ours = || {
        let mut ours = command(&["send", "-q"])?;
        ours.args(options);
        if let Some(parent) = parent {
            ours.arg("-p").arg(target(image, &format!("/{parent}")));
        }
        ours.arg(target(image, &format!("/{snapshot}")));
        Ok(ours)
    };
    let theirs = |top: &Path| {
        let mut theirs = Command::new(newest("btrfs"));
        theirs.args(["send", "-q"]).args(options);
        if let Some(parent) = parent {
            theirs.arg("-p").arg(top.join(parent));
        }
        theirs.arg(top.join(snapshot));
        theirs
    };
    let measured = measured(scale, job, image, goals, &ours, &theirs)?;
    let runs = measured
        .iter()
        .flat_map(|pairs| pairs.ours.iter().zip(&pairs.theirs));
    let mut bytes = (0, 0);
    for (ours, theirs) in runs {
        bytes = (ours.output_bytes, theirs.output_bytes);
        ensure!(bytes.0 <= bytes.1, "{job}: a larger stream than the kernel's");
    }
    println!(
        "\n{job}: streams of {} bytes, the kernel's of {}\n",
        bytes.0, bytes.1
    );
    Ok(measured)
}

fn full(scale: Scale) -> Result<Vec<Pairs>> {
    let image = images::inline_files(scale)?;
    let job = format!("full send, {} inline files", scale.inline_files);
    send_pairs(scale, &job, &image, [0.08, 0.05], &[], None, "snap1")
}

fn incremental(scale: Scale) -> Result<Vec<Pairs>> {
    let image = images::inline_files(scale)?;
    let job = "incremental send, a quarter new, every 50th changed";
    send_pairs(scale, job, &image, [0.05, 0.05], &[], Some("snap1"), "snap2")
}

fn large(scale: Scale) -> Result<Vec<Pairs>> {
    let mut measured = Vec::new();
    let compressed: &[&str] = &["--proto", "2", "--compressed-data"];
    for (name, mount, options) in [
        ("plain", "", &[][..]),
        ("zstd", "compress-force=zstd", compressed),
    ] {
        let image = images::large_file(scale, name, mount)?;
        images::add_snapshot(&image)?;
        let job = ["full send of a large file, ", name, " ", &options.join(" ")].concat();
        let job = job.trim_end();
        measured.extend(send_pairs(scale, job, &image, [0.9, 0.9], options, None, "snap")?);
    }
    Ok(measured)
}

/// Compares a cold full send with a plain read of as many bytes as its tree has.
fn plain_read(scale: Scale) -> Result<Vec<Pairs>> {
    let image = images::inline_files(scale)?;
    let flat = flat_file(&image, "/snap1")?;
    let mut pairs = Pairs {
        job: format!(
            "full send beside a plain read of {} MiB",
            flat.metadata()?.len() >> 20
        ),
        cache: Cache::Cold.name(),
        ours: Vec::new(),
        theirs: Vec::new(),
        goal: 1.3,
    };
    for _ in 0..scale.rounds {
        Cache::Cold.prepare(&image)?;
        pairs
            .ours
            .push(run(command(&["send", "-q"])?.arg(target(&image, "/snap1")))?);
        Cache::Cold.prepare(&flat)?;
        pairs.theirs.push(run(Command::new("cat").arg(&flat))?);
    }
    println!("{}", pairs.row());
    std::fs::remove_file(flat)?;
    Ok(vec![pairs])
}

/// Returns a file beside `image` with as many bytes as the tree of the snapshot `path`.
pub(crate) fn flat_file(image: &Path, path: &str) -> Result<PathBuf> {
    let flat = image.with_extension("flat");
    let device = Device::open(image, &buttress_device::OpenOptions::default())?;
    let filesystem = OpenOptions::new(vec![device]).open()?;
    let top = Location::root_of(SubvolumeId::TOP_LEVEL);
    let snapshot = filesystem.resolve(top, path.as_bytes(), Follow::All)?.subvolume;
    let root = *filesystem.subvolume_tree(snapshot)?.root();
    let forest = Forest::new(Arc::clone(filesystem.volume()), ByteCount::new(64 << 20));
    let blocks = forest.tree(root).blocks(ReadAhead::sweep()).count();
    let block = vec![0x5a; filesystem.volume().block_format().node_bytes as usize];
    let mut file = File::create(&flat).with_context(|| format!("making {}", flat.display()))?;
    for _ in 0..blocks {
        file.write_all(&block)?;
    }
    file.sync_all()?;
    Ok(flat)
}
