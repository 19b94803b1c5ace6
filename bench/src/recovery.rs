//! Recovery of damaged volumes, against btrfs-progs.
//!
//! Both sides are whole processes on a fresh copy of the same image, with an empty page cache.
//!
//! - `restore`: the root of the root tree is lost. Our command searches the roots by itself. The
//!   other side runs `btrfs-find-root`, and `btrfs restore` on the first root that it can read.
//!   Snapshots are left out, and both sides must restore all files.
//! - `scan`: all tree blocks of a sparse image of 100 GiB, against a plain read of its data.
//! - `rebuild`: the root of the extent tree is lost. Our time includes the check before, the check
//!   after and the commit of the overlay; `btrfs check --init-extent-tree` checks nothing before.
//!   After our run, off the clock, a check must find nothing.

use crate::Scale;
use crate::cache::Cache;
use crate::images;
use crate::measure::{self, Run};
use crate::report::Pairs;
use anyhow::{Context, Result, bail, ensure};
use buttress::unstable::device::{Device, OpenOptions as DeviceOptions};
use buttress::unstable::format::{ByteCount, TreeId};
use buttress::unstable::fs::OpenOptions;
use buttress_oracle::manifest::data_ranges;
use buttress_oracle::tools::{buttress, newest, run};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

/// The size of the sparse image of `scan`, in GiB.
const SPARSE_GIB: u64 = 100;

/// A measured job of both sides.
struct Job {
    /// The name on the command line.
    name: &'static str,
    /// The name in the table.
    label: &'static str,
    /// The largest ratio of our time to the other side's.
    goal: f64,
    ours: fn(&Path, Scale) -> Result<Run>,
    theirs: fn(&Path, Scale) -> Result<Run>,
}

const JOBS: [Job; 3] = [
    Job {
        name: "restore",
        label: "restore without the root tree",
        goal: 0.2,
        ours: our_restore,
        theirs: their_restore,
    },
    Job {
        name: "scan",
        label: "scan of a sparse image, against a read of its data",
        goal: 1.2,
        ours: our_scan,
        theirs: plain_read,
    },
    Job {
        name: "rebuild",
        label: "rebuild of the extent tree",
        goal: 0.2,
        ours: our_rebuild,
        theirs: their_rebuild,
    },
];

/// A copy of an image, which is deleted with its companions.
struct Copied {
    folder: tempfile::TempDir,
    image: PathBuf,
}

impl Copied {
    /// Copies an image to the folder of images.
    fn of(image: &Path) -> Result<Self> {
        let folder = tempfile::tempdir_in(images::folder()?)?;
        let copy = folder.path().join("copy.img");
        let faithful = ["--sparse=always", "--reflink=auto"];
        run(Command::new("cp").args(faithful).arg(image).arg(&copy))?;
        Ok(Self { folder, image: copy })
    }

    /// Copies an image, and replaces the root of a tree by zeros, in all copies.
    fn without(image: &Path, tree: TreeId) -> Result<Self> {
        let copied = Self::of(image)?;
        let device = Device::open(&copied.image, &DeviceOptions::default())?;
        let filesystem = OpenOptions::new(vec![device]).open()?;
        let root = match tree {
            TreeId::ROOT => filesystem.root_tree().root().logical,
            _ => filesystem.tree(tree)?.root().logical,
        };
        let node_bytes = filesystem.superblock().node_bytes;
        let mappings = filesystem.volume().map(root, ByteCount::new(node_bytes.into()))?;
        let file = File::options().write(true).open(&copied.image)?;
        for mapping in mappings {
            file.write_all_at(&vec![0; node_bytes as usize], mapping.physical.get())?;
        }
        drop(filesystem);
        Cache::Cold.prepare(&copied.image)?;
        Ok(copied)
    }

    fn beside(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }
}

/// Requires that a restored directory has all files of the volume's top level.
fn expect_all_files(directory: &Path, scale: Scale) -> Result<()> {
    let entries = std::fs::read_dir(directory)?;
    let names = entries.map(|entry| Ok(entry?.file_name()));
    let names = names.collect::<std::io::Result<Vec<_>>>()?;
    let files = names
        .iter()
        .filter(|name| name.to_string_lossy().starts_with("file_"));
    // Four jobs make each part of the files.
    let in_parts = |total: u64| total / 4 * 4;
    let expected = in_parts(scale.inline_files) + in_parts(scale.inline_files / 4);
    let found = files.count() as u64;
    ensure!(
        found == expected,
        "{found} of {expected} files in {}",
        directory.display()
    );
    Ok(())
}

fn our_restore(image: &Path, scale: Scale) -> Result<Run> {
    let copied = Copied::without(image, TreeId::ROOT)?;
    let out = copied.beside("out");
    let mut command = Command::new(buttress()?);
    command.args(["-q", "restore"]).arg(&copied.image).arg(&out);
    // The exit code 1 says that an older state was restored.
    let measured = measure::run_accepting(&mut command, Stdio::null(), &[0, 1])?;
    expect_all_files(&out, scale)?;
    Ok(measured)
}

fn their_restore(image: &Path, scale: Scale) -> Result<Run> {
    // The program asks for consent to continue in a large directory.
    const SCRIPT: &str = r#"
        image=$1; out=$2; mkdir -p "$out"
        for root in $("$FIND_ROOT" "$image" 2> /dev/null | sed -n 's/^Well block \([0-9]*\)(.*/\1/p'); do
            yes | "$0" restore -i -t "$root" "$image" "$out" > /dev/null 2>&1
            test -n "$(ls -U "$out" | head -1)" && exit 0
        done
        exit 1"#;
    let copied = Copied::without(image, TreeId::ROOT)?;
    let out = copied.beside("out");
    let mut command = Command::new("sh");
    command.args(["-c", SCRIPT]).arg(newest("btrfs"));
    command.env("FIND_ROOT", newest("btrfs-find-root"));
    let measured = measure::run(command.arg(&copied.image).arg(&out))?;
    expect_all_files(&out, scale)?;
    Ok(measured)
}

/// Returns a sparse copy of an image with the size of `scan`.
fn sparse(image: &Path) -> Result<Copied> {
    let copied = Copied::of(image)?;
    let file = File::options().write(true).open(&copied.image)?;
    file.set_len(SPARSE_GIB << 30)?;
    Cache::Cold.prepare(&copied.image)?;
    Ok(copied)
}

fn our_scan(image: &Path, _: Scale) -> Result<Run> {
    let copied = sparse(image)?;
    let index = copied.beside("index");
    let mut command = Command::new(buttress()?);
    command.args(["-q", "rescue", "scan", "--index"]);
    measure::run(command.arg(index).arg(&copied.image))
}

/// Reads all data of the sparse image in order, without its holes.
fn plain_read(image: &Path, _: Scale) -> Result<Run> {
    const PIECE: usize = 1 << 20;
    let copied = sparse(image)?;
    let begin = Instant::now();
    let file = File::open(&copied.image)?;
    let mut buffer = vec![0; PIECE];
    let mut read_bytes = 0;
    for (start, end) in data_ranges(&file, SPARSE_GIB << 30)? {
        let mut at = start;
        while at < end {
            let length = (end - at).min(PIECE as u64);
            file.read_exact_at(&mut buffer[..length as usize], at)?;
            at += length;
        }
        read_bytes += end - start;
    }
    Ok(Run {
        seconds: begin.elapsed().as_secs_f64(),
        peak_kib: 0,
        output_bytes: read_bytes,
        cpu_seconds: 0.0,
        machine_seconds: 0.0,
    })
}

fn our_rebuild(image: &Path, _: Scale) -> Result<Run> {
    let copied = Copied::without(image, TreeId::EXTENT)?;
    let mut command = Command::new(buttress()?);
    command.args(["-q", "check", "--repair", "--commit"]);
    let measured = measure::run(command.arg(&copied.image))?;
    let mut check = Command::new(buttress()?);
    run(check.args(["-q", "check"]).arg(&copied.image)).context("the rebuilt volume")?;
    Ok(measured)
}

fn their_rebuild(image: &Path, _: Scale) -> Result<Run> {
    let copied = Copied::without(image, TreeId::EXTENT)?;
    // The program asks for consent, and its exit status counts what it repaired as errors.
    let script = r#"yes | "$0" check --init-extent-tree --force "$1" > /dev/null 2>&1; sync "$1""#;
    let mut command = Command::new("sh");
    measure::run(
        command
            .args(["-c", script])
            .arg(newest("btrfs"))
            .arg(&copied.image),
    )
}

/// Prints a table of pairs of the named jobs, or of all.
pub(crate) fn run_all(scale: Scale, names: &[&str]) -> Result<()> {
    let is_known = |name: &&str| JOBS.iter().any(|job| job.name == *name);
    if let Some(unknown) = names.iter().find(|name| !is_known(name)) {
        bail!("unknown job {unknown}");
    }
    println!("\n{}", Pairs::head());
    let image = images::inline_files(scale)?;
    for job in JOBS {
        if !names.is_empty() && !names.contains(&job.name) {
            continue;
        }
        let mut pairs = Pairs {
            job: job.label.to_owned(),
            cache: Cache::Cold.name(),
            ours: Vec::new(),
            theirs: Vec::new(),
            goal: job.goal,
        };
        for _ in 0..scale.rounds {
            pairs.ours.push((job.ours)(&image, scale)?);
            pairs.theirs.push((job.theirs)(&image, scale)?);
        }
        println!("{}", pairs.row());
    }
    Ok(())
}
