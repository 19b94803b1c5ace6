//! The calls of each side in a step, and their time.

use crate::Scale;
use crate::measure::Run;
use anyhow::{Result, bail};
use buttress::unstable::fs::OpenOptions;
use buttress::unstable::writer::{WritableFilesystem, WriteOptions};
use buttress::{
    Compression, CompressionMethod, DataOptions, Device, DeviceOptions, FileOffset, Follow, Location,
    NewInode, Progress, SubvolumeId,
};
use buttress_oracle::content::Random;
use buttress_oracle::loop_device::Mount;
use buttress_oracle::tools::{newest, run};
use std::fs::File;
use std::io::Write as _;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Command;
use std::time::Instant;

pub(super) const TOP: Location = Location::root_of(SubvolumeId::TOP_LEVEL);
const SUBVOLUME: &str = "subvolume";
const INLINE_BYTES: usize = 2000;
const BLOCK_BYTES: usize = 1 << 20;
const PAGE_BYTES: usize = 4096;

/// The bytes of content for blocks: more than the window of any compressor.
const CONTENT_BYTES: usize = 8 << 20;

/// The work of a side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    Inline,
    Unlink,
    Sequential,
    SequentialZstd,
    Overwrite,
    Snapshot,
    Drop,
    /// As `Inline`, in a separate subvolume.
    SubvolumeInline,
    /// Deletes and drops the subvolume of `SubvolumeInline`, which shares nothing.
    DropUnshared,
}

impl Step {
    const ALL: [Self; 9] = [
        Self::Inline,
        Self::Unlink,
        Self::Sequential,
        Self::SequentialZstd,
        Self::Overwrite,
        Self::Snapshot,
        Self::Drop,
        Self::SubvolumeInline,
        Self::DropUnshared,
    ];

    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Inline => "inline",
            Self::Unlink => "unlink",
            Self::Sequential => "sequential",
            Self::SequentialZstd => "sequential-zstd",
            Self::Overwrite => "overwrite",
            Self::Snapshot => "snapshot",
            Self::Drop => "drop",
            Self::SubvolumeInline => "subvolume-inline",
            Self::DropUnshared => "drop-unshared",
        }
    }

    /// Returns the name of the subvolume that the step drops.
    const fn dropped(self) -> &'static str {
        if matches!(self, Self::DropUnshared) {
            SUBVOLUME
        } else {
            "snapshot"
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

/// The content of the large file: half text, half noise, by pages. The subvolume is made before the
/// clock starts.
struct Blocks {
    random: Random,
    content: Vec<u8>,
}

impl Blocks {
    /// Makes the content of a step; empty for a step without content.
    fn of(step: Step) -> Self {
        let mut random = Random::new(2);
        if !matches!(step, Step::Sequential | Step::SequentialZstd) {
            return Self {
                random,
                content: Vec::new(),
            };
        }
        let mut content = random.bytes(CONTENT_BYTES, true);
        let noise = random.bytes(CONTENT_BYTES, false);
        for (page, part) in content.chunks_mut(2 * PAGE_BYTES).enumerate() {
            if page % 2 == 0 {
                part.copy_from_slice(&noise[page * 2 * PAGE_BYTES..][..part.len()]);
            }
        }
        Self { random, content }
    }

    /// Returns a part of the content, from any page on.
    fn next_block(&mut self) -> &[u8] {
        let pages = (CONTENT_BYTES - BLOCK_BYTES) / PAGE_BYTES;
        let start = self.random.below(pages as u64) as usize * PAGE_BYTES;
        &self.content[start..][..BLOCK_BYTES]
    }
}

fn overwrites(scale: Scale) -> u64 {
    (scale.large_bytes / 8192).min(1_000_000)
}

/// Opens an image for writing, with the options that commands have by default.
pub(super) fn open(image: &Path, options: WriteOptions) -> Result<WritableFilesystem> {
    let device_options = DeviceOptions {
        write: true,
        ..DeviceOptions::default()
    };
    let device = Device::open(image, &device_options)?;
    let volume = OpenOptions::new(vec![device]).open()?;
    Ok(WritableFilesystem::new(volume, options)?)
}

/// Runs our side of a step. Writes two times to `seconds_file`: until everything was durable, and
/// of the calls alone.
pub(crate) fn our_step(scale: Scale, step: &str, image: &str, seconds_file: &str) -> Result<()> {
    let Some(step) = Step::ALL.into_iter().find(|known| known.name() == step) else {
        bail!("no step {step}");
    };
    let mut options = WriteOptions::default();
    if step == Step::SequentialZstd {
        options.data = DataOptions {
            compression: Some(CompressionMethod::new(Compression::Zstd)),
            ..DataOptions::default()
        };
    }
    let filesystem = open(Path::new(image), options)?;
    let mut blocks = Blocks::of(step);
    let start = Instant::now();
    our_calls(scale, step, &filesystem, &mut blocks)?;
    let calls = start.elapsed().as_secs_f64();
    filesystem.commit()?;
    let whole = start.elapsed().as_secs_f64();
    std::fs::write(seconds_file, format!("{whole} {calls}"))?;
    Ok(())
}

/// Makes the files of the original script: 2,000 bytes each, in four directories in turn.
pub(super) fn make_inline_files(filesystem: &WritableFilesystem, top: Location, count: u64) -> Result<()> {
    let content = vec![b'x'; INLINE_BYTES];
    let directories = (0..4)
        .map(|job| filesystem.make_directory(top, format!("{job}").as_bytes(), &NewInode::of_root(0o755)))
        .collect::<Result<Vec<_>, _>>()?;
    for number in 0..count {
        let directory = directories[(number % 4) as usize];
        let name = format!("file_{number}");
        let made = filesystem.create(directory, name.as_bytes(), &NewInode::of_root(0o644))?;
        filesystem.write_at(made, FileOffset::new(0), &content)?;
    }
    Ok(())
}

fn our_calls(scale: Scale, step: Step, filesystem: &WritableFilesystem, blocks: &mut Blocks) -> Result<()> {
    match step {
        Step::Inline => make_inline_files(filesystem, TOP, scale.inline_files)?,
        Step::SubvolumeInline => {
            let made = filesystem.subvolumes().create(TOP, SUBVOLUME.as_bytes())?;
            make_inline_files(filesystem, Location::root_of(made), scale.inline_files)?;
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
            let made = filesystem.create(TOP, b"large", &NewInode::of_root(0o644))?;
            let mut written = 0;
            while written < scale.large_bytes {
                filesystem.write_at(made, FileOffset::new(written), blocks.next_block())?;
                written += BLOCK_BYTES as u64;
            }
        }
        Step::Overwrite => {
            let large = filesystem.view().resolve(TOP, b"large", Follow::All)?;
            let mut random = Random::new(3);
            let content = random.bytes(PAGE_BYTES, false);
            for _ in 0..overwrites(scale) {
                let offset = random.below(scale.large_bytes / 4096) * 4096;
                filesystem.write_at(large, FileOffset::new(offset), &content)?;
            }
        }
        Step::Snapshot => {
            filesystem
                .subvolumes()
                .snapshot(SubvolumeId::TOP_LEVEL, TOP, b"snapshot", true)?;
        }
        Step::Drop | Step::DropUnshared => {
            let found = filesystem
                .view()
                .resolve(TOP, step.dropped().as_bytes(), Follow::All)?;
            filesystem.subvolumes().delete(found.subvolume)?;
            filesystem.subvolumes().drop_deleted(&Progress::new())?;
        }
    }
    Ok(())
}

/// Runs the kernel's side on a mount. The seconds run from the first call to the end of `syncfs`.
pub(super) fn kernel_step(scale: Scale, step: Step, image: &Path) -> Result<Run> {
    let mount = Mount::new(&[image.to_path_buf()], step.compression())?;
    let mut blocks = Blocks::of(step);
    let idle = if step == Step::Snapshot {
        idle_process_seconds()?
    } else {
        0.0
    };
    let start = Instant::now();
    kernel_calls(scale, step, mount.path(), &mut blocks)?;
    let top = File::open(mount.path())?;
    rustix::fs::syncfs(&top)?;
    drop(top);
    if matches!(step, Step::Drop | Step::DropUnshared) {
        wait_for_cleaner(step, mount.path())?;
    }
    let seconds = (start.elapsed().as_secs_f64() - idle).max(0.0);
    mount.close()?;
    Ok(Run {
        seconds,
        peak_kib: 0,
        output_bytes: 0,
        cpu_seconds: 0.0,
        machine_seconds: 0.0,
    })
}

/// Waits until the kernel has dropped deleted subvolumes. Without the first command its cleaner
/// would sleep for half a minute. Prints the waiting time.
fn wait_for_cleaner(step: Step, top: &Path) -> Result<()> {
    run(Command::new(newest("btrfs"))
        .args(["filesystem", "sync"])
        .arg(top))?;
    let start = Instant::now();
    run(Command::new(newest("btrfs"))
        .args(["subvolume", "sync", "-s", "1"])
        .arg(top))?;
    eprintln!(
        "{}: of the kernel's time, {:.3} s until `btrfs subvolume sync`, which looks every second, saw that all was dropped",
        step.name(),
        start.elapsed().as_secs_f64()
    );
    Ok(())
}

/// Returns the seconds of an idle `btrfs` process: the least of several runs.
fn idle_process_seconds() -> Result<f64> {
    (0..9).try_fold(f64::INFINITY, |least, _| {
        let start = Instant::now();
        run(Command::new(newest("btrfs")).arg("version"))?;
        Ok(least.min(start.elapsed().as_secs_f64()))
    })
}

fn kernel_calls(scale: Scale, step: Step, top: &Path, blocks: &mut Blocks) -> Result<()> {
    let snapshot = top.join("snapshot");
    match step {
        Step::Inline => kernel_inline_files(scale, top)?,
        Step::SubvolumeInline => {
            let made = top.join(SUBVOLUME);
            run(Command::new(newest("btrfs"))
                .args(["-q", "subvolume", "create"])
                .arg(&made))?;
            kernel_inline_files(scale, &made)?;
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
                file.write_all(blocks.next_block())?;
                written += BLOCK_BYTES as u64;
            }
        }
        Step::Overwrite => {
            let file = File::options().write(true).open(top.join("large"))?;
            let mut random = Random::new(3);
            let content = random.bytes(PAGE_BYTES, false);
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
        Step::Drop | Step::DropUnshared => {
            run(Command::new(newest("btrfs"))
                .args(["-q", "subvolume", "delete"])
                .arg(top.join(step.dropped())))?;
        }
    }
    Ok(())
}

fn kernel_inline_files(scale: Scale, top: &Path) -> Result<()> {
    let content = vec![b'x'; INLINE_BYTES];
    for job in 0..4 {
        std::fs::create_dir(top.join(format!("{job}")))?;
    }
    for number in 0..scale.inline_files {
        let path = top.join(format!("{}/file_{number}", number % 4));
        File::create(path)?.write_all(&content)?;
    }
    Ok(())
}
