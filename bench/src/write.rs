//! `write`: changing volumes, against the kernel on a loop device.
//!
//! Both sides do the same calls in the same order from one thread, on image files of the same size that the same mkfs
//! made, and end with a sync that reached the image. Each of our steps is a process of its own, so that its peak memory is
//! its own; its seconds are those from the first call to the end of the last commit, as the kernel's are between the mount
//! and the end of `syncfs`. Snapshots are timed by themselves; dropping is timed on the kernel until
//! `btrfs subvolume sync` returns, which looks every second.

use crate::Scale;
use crate::images::folder;
use crate::measure::{self, Run};
use crate::report::Pairs;
use anyhow::{Context, Result, bail};
use buttress::format::Compression;
use buttress::format::compression::CompressionMethod;
use buttress::fs::operations::NewInode;
use buttress::fs::{DataOptions, WritableFilesystem, WriteOptions};
use buttress::{
    ByteCount, Device, DeviceOptions, FileOffset, Follow, Location, OpenOptions, Progress, SubvolumeId,
};
use buttress_oracle::content::Random;
use buttress_oracle::loop_device::Mount;
use buttress_oracle::tools::{buttress, newest, run};
use std::fs::File;
use std::io::Write as _;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

const TOP: Location = Location::root_of(SubvolumeId::TOP_LEVEL);
const INLINE_BYTES: usize = 2000;
const BLOCK_BYTES: usize = 1 << 20;

/// What one side does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    Inline,
    Unlink,
    Sequential,
    SequentialZstd,
    Overwrite,
    Snapshot,
    Drop,
}

impl Step {
    const ALL: [Self; 7] = [
        Self::Inline,
        Self::Unlink,
        Self::Sequential,
        Self::SequentialZstd,
        Self::Overwrite,
        Self::Snapshot,
        Self::Drop,
    ];

    const fn name(self) -> &'static str {
        match self {
            Self::Inline => "inline",
            Self::Unlink => "unlink",
            Self::Sequential => "sequential",
            Self::SequentialZstd => "sequential-zstd",
            Self::Overwrite => "overwrite",
            Self::Snapshot => "snapshot",
            Self::Drop => "drop",
        }
    }

    const fn compression(self) -> &'static str {
        if matches!(self, Self::SequentialZstd) {
            "compress=zstd"
        } else {
            ""
        }
    }
}

/// The content of the large file: half text, half noise.
struct Blocks {
    random: Random,
    noise: Vec<u8>,
}

impl Blocks {
    fn new() -> Self {
        let mut random = Random::new(2);
        let noise = random.bytes(16 << 20, false);
        Self { random, noise }
    }

    fn next_block(&mut self) -> Vec<u8> {
        let mut block = self.random.bytes(BLOCK_BYTES, true);
        let start = self.random.below((self.noise.len() - BLOCK_BYTES) as u64) as usize;
        for (page, part) in block.chunks_mut(8192).enumerate() {
            if page % 2 == 0 {
                let length = part.len();
                part.copy_from_slice(&self.noise[start + page * 4096..][..length]);
            }
        }
        block
    }
}

fn overwrites(scale: Scale) -> u64 {
    (scale.large_bytes / 8192).min(1_000_000)
}

fn new_image(name: &str, gib: u64) -> Result<PathBuf> {
    let path = folder()?.join(format!("write-{name}.img"));
    let _ = std::fs::remove_file(&path);
    File::create(&path)?.set_len(gib << 30)?;
    run(Command::new(newest("mkfs.btrfs")).args(["-q", "-f"]).arg(&path))?;
    Ok(path)
}

/// Our side of a step; the seconds go into `seconds_file`.
pub(crate) fn our_step(scale: Scale, step: &str, image: &str, seconds_file: &str) -> Result<()> {
    let Some(step) = Step::ALL.into_iter().find(|known| known.name() == step) else {
        bail!("no step {step}");
    };
    let options = DeviceOptions {
        write: true,
        ..DeviceOptions::default()
    };
    let device = Device::open(image, &options)?;
    let volume = OpenOptions::new(vec![device])
        .cache(ByteCount::new(128 << 20))
        .open()?;
    let mut options = WriteOptions::default();
    if step == Step::SequentialZstd {
        options.data = DataOptions {
            compression: Some(CompressionMethod::new(Compression::Zstd)),
            ..DataOptions::default()
        };
    }
    let filesystem = WritableFilesystem::new(volume, options)?;
    let mut blocks = Blocks::new();
    let start = Instant::now();
    our_calls(scale, step, &filesystem, &mut blocks)?;
    filesystem.commit()?;
    std::fs::write(seconds_file, start.elapsed().as_secs_f64().to_string())?;
    Ok(())
}

fn our_calls(scale: Scale, step: Step, filesystem: &WritableFilesystem, blocks: &mut Blocks) -> Result<()> {
    let file = NewInode::of_root(0o644);
    match step {
        Step::Inline => {
            let content = vec![b'x'; INLINE_BYTES];
            let directories = (0..4)
                .map(|job| {
                    filesystem.make_directory(TOP, format!("{job}").as_bytes(), &NewInode::of_root(0o755))
                })
                .collect::<Result<Vec<_>, _>>()?;
            for number in 0..scale.inline_files {
                let directory = directories[(number % 4) as usize];
                let made = filesystem.create(directory, format!("file_{number}").as_bytes(), &file)?;
                filesystem.write_at(made, FileOffset::new(0), &content)?;
            }
        }
        Step::Unlink => {
            let view = filesystem.view();
            let directories = (0..4)
                .map(|job| view.resolve(TOP, format!("{job}").as_bytes(), Follow::All))
                .collect::<Result<Vec<_>, _>>()?;
            drop(view);
            for number in 0..scale.inline_files {
                filesystem.unlink(
                    directories[(number % 4) as usize],
                    format!("file_{number}").as_bytes(),
                )?;
            }
        }
        Step::Sequential | Step::SequentialZstd => {
            let made = filesystem.create(TOP, b"large", &file)?;
            let mut written = 0;
            while written < scale.large_bytes {
                filesystem.write_at(made, FileOffset::new(written), &blocks.next_block())?;
                written += BLOCK_BYTES as u64;
            }
        }
        Step::Overwrite => {
            let large = filesystem.view().resolve(TOP, b"large", Follow::All)?;
            let mut random = Random::new(3);
            let content = random.bytes(4096, false);
            for _ in 0..overwrites(scale) {
                let offset = random.below(scale.large_bytes / 4096) * 4096;
                filesystem.write_at(large, FileOffset::new(offset), &content)?;
            }
        }
        Step::Snapshot => {
            filesystem.snapshot(SubvolumeId::TOP_LEVEL, TOP, b"snapshot", true)?;
        }
        Step::Drop => {
            let found = filesystem.view().resolve(TOP, b"snapshot", Follow::All)?;
            filesystem.delete_subvolume(found.subvolume)?;
            filesystem.drop_deleted_subvolumes(&Progress::new())?;
        }
    }
    Ok(())
}

/// The kernel's side, on a mount; seconds from the first call to the end of `syncfs`.
fn kernel_step(scale: Scale, step: Step, image: &Path) -> Result<Run> {
    let mount = Mount::new(&[image.to_path_buf()], step.compression())?;
    let mut blocks = Blocks::new();
    let start = Instant::now();
    kernel_calls(scale, step, mount.path(), &mut blocks)?;
    let top = File::open(mount.path())?;
    rustix::fs::syncfs(&top)?;
    drop(top);
    if step == Step::Drop {
        run(Command::new(newest("btrfs"))
            .args(["subvolume", "sync"])
            .arg(mount.path()))?;
    }
    let seconds = start.elapsed().as_secs_f64();
    mount.close()?;
    Ok(Run {
        seconds,
        peak_kib: 0,
        output_bytes: 0,
    })
}

fn kernel_calls(scale: Scale, step: Step, top: &Path, blocks: &mut Blocks) -> Result<()> {
    let snapshot = top.join("snapshot");
    match step {
        Step::Inline => {
            let content = vec![b'x'; INLINE_BYTES];
            for job in 0..4 {
                std::fs::create_dir(top.join(format!("{job}")))?;
            }
            for number in 0..scale.inline_files {
                let path = top.join(format!("{}/file_{number}", number % 4));
                File::create(path)?.write_all(&content)?;
            }
        }
        Step::Unlink => {
            for number in 0..scale.inline_files {
                std::fs::remove_file(top.join(format!("{}/file_{number}", number % 4)))?;
            }
        }
        Step::Sequential | Step::SequentialZstd => {
            let mut file = File::create(top.join("large"))?;
            let mut written = 0;
            while written < scale.large_bytes {
                file.write_all(&blocks.next_block())?;
                written += BLOCK_BYTES as u64;
            }
        }
        Step::Overwrite => {
            let file = File::options().write(true).open(top.join("large"))?;
            let mut random = Random::new(3);
            let content = random.bytes(4096, false);
            for _ in 0..overwrites(scale) {
                let offset = random.below(scale.large_bytes / 4096) * 4096;
                file.write_all_at(&content, offset)?;
            }
        }
        Step::Snapshot => {
            run(Command::new(newest("btrfs"))
                .args(["-q", "subvolume", "snapshot", "-r"])
                .args([top, snapshot.as_path()]))?;
        }
        Step::Drop => {
            run(Command::new(newest("btrfs"))
                .args(["-q", "subvolume", "delete"])
                .arg(&snapshot))?;
        }
    }
    Ok(())
}

fn timed_ours(scale: Scale, step: Step, image: &Path) -> Result<Run> {
    let seconds_file = image.with_extension("seconds");
    let mut command = Command::new(std::env::current_exe()?);
    command
        .args(["write-step", scale.name, step.name()])
        .arg(image)
        .arg(&seconds_file);
    let whole = measure::run(&mut command)?;
    let seconds = std::fs::read_to_string(&seconds_file)?
        .parse()
        .context("the seconds of a step")?;
    std::fs::remove_file(&seconds_file)?;
    Ok(Run { seconds, ..whole })
}

/// Runs the steps of a chain in pairs, each side on an image of its own.
fn chain(scale: Scale, name: &str, gib: u64, steps: &[(Step, f64)], with_check: bool) -> Result<()> {
    let pairs_of = |job: String, goal| Pairs {
        job,
        cache: "",
        ours: Vec::new(),
        theirs: Vec::new(),
        goal,
    };
    let mut table: Vec<Pairs> = steps
        .iter()
        .map(|(step, goal)| pairs_of(step.name().to_owned(), *goal))
        .collect();
    let mut checked = pairs_of(format!("check after {name}"), 0.15);
    for _ in 0..scale.rounds {
        let ours = new_image(&format!("{name}-ours"), gib)?;
        let theirs = new_image(&format!("{name}-kernel"), gib)?;
        for ((step, _), pairs) in steps.iter().zip(&mut table) {
            pairs.ours.push(timed_ours(scale, *step, &ours)?);
            pairs.theirs.push(kernel_step(scale, *step, &theirs)?);
            if with_check && *step == Step::Snapshot {
                checked.ours.push(measure::run(
                    Command::new(buttress()?).args(["check", "-q"]).arg(&ours),
                )?);
                checked.theirs.push(measure::run(
                    Command::new(newest("btrfs")).arg("check").arg(&ours),
                )?);
            }
        }
        // What we wrote must be what btrfs-progs finds clean.
        measure::run(Command::new(newest("btrfs")).arg("check").arg(&ours))?;
        std::fs::remove_file(&ours)?;
        std::fs::remove_file(&theirs)?;
    }
    for pairs in &table {
        println!("{}", pairs.row());
    }
    if with_check {
        println!("{}", checked.row());
    }
    Ok(())
}

/// Runs the jobs whose names are given, or all.
pub(crate) fn run_all(scale: Scale, wanted: &[&str]) -> Result<()> {
    let jobs = ["files", "large", "zstd"];
    if let Some(unknown) = wanted.iter().find(|word| !jobs.contains(word)) {
        bail!("no job {unknown}; there are {}", jobs.join(", "));
    }
    let is_wanted = |name| wanted.is_empty() || wanted.contains(&name);
    let large_gib = (scale.large_bytes >> 30) + 6;
    println!("{}", Pairs::head());
    if is_wanted("files") {
        chain(
            scale,
            "files",
            4,
            &[(Step::Inline, 0.4), (Step::Unlink, 0.5)],
            false,
        )?;
    }
    if is_wanted("large") {
        let steps = [
            (Step::Sequential, 1.0),
            (Step::Overwrite, 0.7),
            (Step::Snapshot, 1.0),
            (Step::Drop, 0.5),
        ];
        chain(scale, "large", large_gib, &steps, true)?;
    }
    if is_wanted("zstd") {
        chain(scale, "zstd", large_gib, &[(Step::SequentialZstd, 1.0)], false)?;
    }
    Ok(())
}
