//! A volume in memory with its model and a clock.

use super::model::{Model, whole};
use super::operation::{Operation, copies_no_file, has_room};
use super::renames::names_placeholder;
use super::volume::devices;
use crate::library;
use anyhow::{Context, Result, ensure};
use buttress::check::{Options, Report, check};
use buttress::device::{Backend, MemoryBackend};
use buttress::fs::mkfs;
use buttress::fs::{DataOptions, Environment, WritableFilesystem, WriteOptions};
use buttress::{Filesystem, Location, OpenOptions, Progress, SubvolumeId, Timestamp};
use buttress_oracle::btrfs_check::btrfs_check;
use buttress_oracle::content::Random;
use buttress_oracle::loop_device::Mount;
use buttress_oracle::manifest::{Manifest, expect_equal, of_directory_by};
use buttress_oracle::volumes::scratch;
use std::fmt;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};

/// The second at which volumes are made; each change is a second later.
const BEGIN: i64 = 1_000_000;

/// A clock that a test moves.
#[derive(Debug)]
struct Clock {
    seconds: AtomicI64,
    uuids: AtomicU64,
}

impl Environment for Clock {
    fn now(&self) -> Timestamp {
        Timestamp {
            seconds: self.seconds.load(Ordering::Relaxed),
            nanoseconds: 0,
        }
    }

    fn new_uuid(&self) -> uuid::Uuid {
        let number = self.uuids.fetch_add(1, Ordering::Relaxed);
        uuid::Uuid::from_u128(0xfeed_0000 << 64 | u128::from(number))
    }
}

/// What a run is like.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Seed of all changes.
    pub seed: u64,
    /// How many changes there are.
    pub operations: u64,
    /// There is a commit after this many changes, on average.
    pub commit_every: u64,
    /// After so many commits `btrfs check` and the kernel look at the volume, too. `None`: never.
    pub kernel_every: Option<u64>,
    /// How the volume is made.
    pub mkfs: mkfs::Options,
    /// Sizes of the devices.
    pub devices: Vec<u64>,
    /// How content is written.
    pub data: DataOptions,
}

impl Plan {
    /// A volume on one device of 512 MiB, as mkfs makes it.
    #[must_use]
    pub fn new(seed: u64, operations: u64) -> Self {
        Self {
            seed,
            operations,
            commit_every: 40,
            kernel_every: None,
            mkfs: mkfs::Options::default(),
            devices: vec![512 << 20],
            data: DataOptions::default(),
        }
    }
}

/// A volume, its model, its clock.
pub struct World {
    backends: Vec<Arc<dyn Backend>>,
    filesystem: WritableFilesystem,
    /// What the volume must hold now.
    pub model: Model,
    clock: Arc<Clock>,
    data: DataOptions,
    random: Random,
    /// The last changes, for a failure's message.
    recent: Vec<Operation>,
    done: u64,
    /// How many commits there were.
    pub commits: u64,
}

impl fmt::Debug for World {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "a world after {} changes and {} commits",
            self.done, self.commits
        )
    }
}

fn open(backends: &[Arc<dyn Backend>]) -> Result<Filesystem> {
    Ok(OpenOptions::new(devices(backends)).open()?)
}

fn writable(
    backends: &[Arc<dyn Backend>],
    clock: &Arc<Clock>,
    data: DataOptions,
) -> Result<WritableFilesystem> {
    let options = WriteOptions {
        environment: Arc::clone(clock) as Arc<dyn Environment>,
        data,
        ..WriteOptions::default()
    };
    Ok(WritableFilesystem::new(open(backends)?, options)?)
}

impl World {
    /// Makes a volume on devices in memory.
    pub fn new(plan: &Plan) -> Result<Self> {
        let backends: Vec<Arc<dyn Backend>> = plan
            .devices
            .iter()
            .enumerate()
            .map(|(number, size)| {
                let bytes = vec![0; usize::try_from(*size).unwrap_or(0)];
                Arc::new(MemoryBackend::new(format!("device-{number}"), bytes)) as Arc<dyn Backend>
            })
            .collect();
        Self::on(plan, backends)
    }

    /// Makes a volume on these devices.
    pub fn on(plan: &Plan, backends: Vec<Arc<dyn Backend>>) -> Result<Self> {
        let clock = Arc::new(Clock {
            seconds: AtomicI64::new(BEGIN),
            uuids: AtomicU64::new(plan.seed << 32),
        });
        let identity = mkfs::Identity {
            fsid: clock.new_uuid(),
            chunk_tree: clock.new_uuid(),
            top_level: clock.new_uuid(),
            devices: backends.iter().map(|_| clock.new_uuid()).collect(),
            time: clock.now(),
        };
        mkfs::make(&devices(&backends), &plan.mkfs, &identity)?;
        Ok(Self {
            filesystem: writable(&backends, &clock, plan.data)?,
            data: plan.data,
            model: Model::new(BEGIN),
            backends,
            clock,
            random: Random::new(plan.seed),
            recent: Vec::new(),
            done: 0,
            commits: 0,
        })
    }

    /// The volume that is written.
    #[must_use]
    pub const fn filesystem(&self) -> &WritableFilesystem {
        &self.filesystem
    }

    /// The devices.
    #[must_use]
    pub fn backends(&self) -> &[Arc<dyn Backend>] {
        &self.backends
    }

    /// Makes one change on both sides.
    pub fn step(&mut self) -> Result<()> {
        let now = self.clock.seconds.fetch_add(1, Ordering::Relaxed) + 1;
        let operation = loop {
            let operation = Operation::draw(&self.model, &mut self.random);
            let makes_subvolume = matches!(
                operation,
                Operation::CreateSubvolume(..) | Operation::Snapshot(..)
            );
            if (!makes_subvolume || has_room(&self.model))
                && !names_placeholder(&self.model, &operation)
                && !copies_no_file(&self.model, &operation)
            {
                break operation;
            }
        };
        if self.recent.len() >= 60 {
            self.recent.remove(0);
        }
        self.recent.push(operation.clone());
        self.done += 1;
        operation
            .apply(&mut self.model, &self.filesystem, now)
            .with_context(|| self.told())
    }

    fn told(&self) -> String {
        let last = self.recent.len().saturating_sub(12);
        let lines: Vec<String> = self.recent[last..]
            .iter()
            .map(|operation| format!("\n    {operation}"))
            .collect();
        format!("change {}, after{}", self.done, lines.concat())
    }

    /// Commits, opens the volume anew, checks it and compares it with the model.
    pub fn commit(&mut self) -> Result<()> {
        self.filesystem.commit().with_context(|| self.told())?;
        self.commits += 1;
        self.compare().with_context(|| self.told())
    }

    /// Compares what lies on the devices with the model.
    pub fn compare(&self) -> Result<()> {
        expect_sound(&self.backends)?;
        let filesystem = open(&self.backends)?;
        expect_equal("the volume", &self.model.manifest(), &manifest(&filesystem)?)
    }

    /// Compares the live view with the model, nothing committed.
    pub fn compare_live(&self) -> Result<()> {
        self.filesystem.write_back()?;
        let view = self.filesystem.view();
        expect_equal("the live view", &self.model.manifest(), &manifest(&view)?).with_context(|| self.told())
    }

    /// Drops the writer, and opens the volume for writing again. What was not committed is gone.
    pub fn reopen(self) -> Result<Self> {
        let Self {
            backends,
            filesystem,
            model,
            clock,
            data,
            random,
            recent,
            done,
            commits,
        } = self;
        drop(filesystem);
        Ok(Self {
            filesystem: writable(&backends, &clock, data)?,
            backends,
            model,
            clock,
            data,
            random,
            recent,
            done,
            commits,
        })
    }

    /// Writes the devices to image files in `folder`.
    pub fn images(&self, folder: &Path) -> Result<Vec<PathBuf>> {
        let mut images = Vec::new();
        for (number, backend) in self.backends.iter().enumerate() {
            let path = folder.join(format!("device-{number}"));
            let file = File::create(&path)?;
            file.set_len(backend.size_bytes())?;
            let mut block = vec![0; 1 << 20];
            for offset in (0..backend.size_bytes()).step_by(block.len()) {
                let length = usize::try_from(backend.size_bytes() - offset)?.min(block.len());
                let part = &mut block[..length];
                backend.read_vectored_at(offset, &mut [&mut *part])?;
                if part.iter().any(|byte| *byte != 0) {
                    file.write_all_at(part, offset)?;
                }
            }
            images.push(path);
        }
        Ok(images)
    }

    /// Has `btrfs check` look at the volume, mounts it with the kernel, and compares what that shows with the model.
    pub fn compare_kernel(&self) -> Result<()> {
        let folder = scratch()?;
        let images = self.images(folder.path())?;
        btrfs_check(&images)?;
        let mount = Mount::new(&images, "ro,noatime")?;
        let shown = of_directory_by(mount.path(), |_, file, entry| {
            let mut content = vec![0; usize::try_from(entry.size)?];
            file.read_exact_at(&mut content, 0)?;
            entry.data = whole(&content);
            Ok(())
        });
        let shown = shown?;
        mount.close()?;
        expect_equal("the kernel's view", &self.model.manifest(), &shown)
    }

    /// Runs a plan to its end, with commits and reopening in between.
    pub fn run(plan: &Plan) -> Result<Self> {
        let mut world = Self::new(plan).context("making the volume")?;
        world.compare().context("the volume as it was made")?;
        for _ in 0..plan.operations {
            world.step()?;
            let committed = match world.random.below(plan.commit_every * 20) {
                0 => {
                    world.commit()?;
                    world = world.reopen()?;
                    true
                }
                1..20 => {
                    world.commit()?;
                    true
                }
                20 => {
                    world.compare_live()?;
                    false
                }
                _ => false,
            };
            let is_due = |every| world.commits.is_multiple_of(every);
            if committed && plan.kernel_every.is_some_and(is_due) {
                world.compare_kernel().with_context(|| world.told())?;
            }
        }
        world.commit()?;
        if plan.kernel_every.is_some() {
            world.compare_kernel().with_context(|| world.told())?;
        }
        Ok(world)
    }
}

/// Checks the volume on these devices, all data included.
pub fn expect_sound(backends: &[Arc<dyn Backend>]) -> Result<Report> {
    expect_nothing_found(&open(backends)?)
}

/// Checks a volume, all data included.
pub fn expect_nothing_found(filesystem: &Filesystem) -> Result<Report> {
    let options = Options {
        data_checksums: true,
        cache: buttress::ByteCount::new(16 << 20),
        ..Options::default()
    };
    let report = check(filesystem, &options, &Progress::new())?;
    let lines: Vec<String> = report
        .findings
        .iter()
        .take(20)
        .map(|reported| format!("{}: {}", reported.finding.code(), reported.finding))
        .collect();
    ensure!(
        report.is_clean(),
        "the check finds:\n    {}",
        lines.join("\n    ")
    );
    Ok(report)
}

/// What a volume holds, files whole.
pub fn manifest(filesystem: &Filesystem) -> Result<Manifest> {
    let top = Location::root_of(SubvolumeId::TOP_LEVEL);
    library::manifest_by(filesystem, top, |location, entry| {
        let mut content = Vec::new();
        std::io::copy(&mut filesystem.open_file(location)?.reader(), &mut content)?;
        entry.data = whole(&content);
        Ok(())
    })
}
