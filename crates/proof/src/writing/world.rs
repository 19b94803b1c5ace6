//! A volume in memory with its model and a clock and, if the plan has one, the kernel's twin of it.

use super::account::Account;
use super::comparing::{expect_kernel_sees, expect_model, expect_nothing_found, open};
use super::model::Model;
use super::operation::{Made, Operation, can_be_drawn};
use super::twin::Twin;
use super::volume::{devices, made_by_progs, write_images};
use anyhow::{Context, Result};
use buttress::unstable::device::MemoryBackend;
use buttress::unstable::fs::OpenOptions;
use buttress::unstable::writer::operations::OpenInode;
use buttress::unstable::writer::{WritableFilesystem, WriteOptions};
use buttress::{
    AttributeChanges, Backend, ByteCount, DataOptions, Environment, Location, SubvolumeId, Timestamp, mkfs,
};
use buttress_oracle::content::Random;
use buttress_oracle::volumes::scratch;
use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};

/// Number of changes in a failure's message.
const RECENT_MAX: usize = 12;

/// Number of changes between series that fill an item with names, alternately of one hash and of
/// one inode.
const SERIES_EVERY: u64 = 600;

/// Second at which volumes are created; each change is a second later.
const BEGIN: i64 = 1_000_000;

/// Environment with a clock that the test sets.
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
        // The id must differ from those of other processes that make the same changes and mount.
        let process = u128::from(std::process::id());
        uuid::Uuid::from_u128(0xfeed << 112 | process << 64 | u128::from(number))
    }
}

/// Parameters of a run.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Seed of all changes.
    pub seed: u64,
    /// Number of changes.
    pub operations: u64,
    /// Average number of changes between commits.
    pub commit_every: u64,
    /// Number of commits after which `btrfs check` and the kernel also verify the volume. `None`:
    /// never.
    pub kernel_every: Option<u64>,
    /// True if the kernel makes the same changes on a twin volume, which is compared as often as
    /// Buttress's volume. Needs root.
    pub twin: bool,
    /// Options of mkfs.
    pub mkfs: mkfs::Options,
    /// Options of mkfs.btrfs, which then creates the volume: for features that Buttress writes but
    /// mkfs lacks.
    pub progs: &'static [&'static str],
    /// Number of files created before the first change, each filling a leaf, so that trees are
    /// deep.
    pub planted: u64,
    /// Sizes of the devices in bytes.
    pub devices: Vec<u64>,
    /// Options for writing content.
    pub data: DataOptions,
    /// Cache size for trees.
    pub cache: ByteCount,
}

/// Cache size that holds all trees of these volumes.
const LARGE_CACHE: ByteCount = ByteCount::new(256 << 20);

impl Plan {
    /// Returns the plan of a volume on one device of 512 MiB, with the defaults of mkfs.
    #[must_use]
    pub fn new(seed: u64, operations: u64) -> Self {
        Self {
            seed,
            operations,
            commit_every: 40,
            kernel_every: None,
            twin: false,
            mkfs: mkfs::Options::default(),
            progs: &[],
            planted: 0,
            devices: vec![512 << 20],
            data: DataOptions::default(),
            cache: LARGE_CACHE,
        }
    }
}

/// A volume with its model and clock.
pub struct World {
    backends: Vec<Arc<dyn Backend>>,
    filesystem: WritableFilesystem,
    /// Expected content of the volume.
    pub model: Model,
    clock: Arc<Clock>,
    data: DataOptions,
    cache: ByteCount,
    random: Random,
    /// Remaining changes of the current series.
    waiting: VecDeque<Operation>,
    /// Inodes that the run holds open.
    held: BTreeMap<Location, OpenInode>,
    twin: Option<Twin>,
    /// Last changes, for a failure's message.
    recent: VecDeque<Operation>,
    done: u64,
    /// Number of series so far.
    series: u64,
    /// Number of commits so far.
    pub commits: u64,
    /// Counts of the run's events.
    pub account: Account,
}

impl fmt::Debug for World {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "a world after {} changes and {} commits: {}",
            self.done, self.commits, self.account
        )?;
        let forgotten = self.twin.as_ref().map_or(0, Twin::forgotten);
        write!(f, "; the kernel forgot the property of {forgotten} new inodes")
    }
}

fn writable(
    backends: &[Arc<dyn Backend>],
    clock: &Arc<Clock>,
    data: DataOptions,
    cache: ByteCount,
) -> Result<WritableFilesystem> {
    let options = WriteOptions {
        environment: Arc::clone(clock) as Arc<dyn Environment>,
        data,
        ..WriteOptions::default()
    };
    let filesystem = OpenOptions::new(devices(backends)).cache(cache).open()?;
    Ok(WritableFilesystem::new(filesystem, options)?)
}

impl World {
    /// Creates a volume on devices in memory.
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

    /// Creates a volume on these devices.
    pub fn on(plan: &Plan, backends: Vec<Arc<dyn Backend>>) -> Result<Self> {
        let clock = Arc::new(Clock {
            seconds: AtomicI64::new(BEGIN),
            uuids: AtomicU64::new(plan.seed << 32),
        });
        if plan.progs.is_empty() {
            let identity = mkfs::Identity {
                fsid: clock.new_uuid(),
                chunk_tree: clock.new_uuid(),
                top_level: clock.new_uuid(),
                devices: backends.iter().map(|_| clock.new_uuid()).collect(),
                time: clock.now(),
            };
            mkfs::make(&devices(&backends), &plan.mkfs, &identity)?;
        } else {
            made_by_progs(&backends, plan.progs)?;
        }
        let filesystem = writable(&backends, &clock, plan.data, plan.cache)?;
        if !plan.progs.is_empty() {
            // mkfs.btrfs uses its own clock, so set the time.
            let made = AttributeChanges {
                modified: Some(clock.now()),
                ..AttributeChanges::default()
            };
            filesystem.set_attributes(Location::root_of(SubvolumeId::TOP_LEVEL), &made)?;
            filesystem.commit()?;
        }
        let model = Model {
            label: plan.mkfs.label.clone(),
            node_bytes: filesystem.view().superblock().node_bytes.into(),
            may_give_up: plan.data.compression.is_some() && !plan.data.compress_force,
            ..Model::new(BEGIN)
        };
        Ok(Self {
            filesystem,
            data: plan.data,
            cache: plan.cache,
            model,
            backends,
            clock,
            random: Random::new(plan.seed),
            waiting: VecDeque::new(),
            held: BTreeMap::new(),
            twin: plan
                .twin
                .then(|| Twin::new(plan))
                .transpose()
                .context("the twin")?,
            recent: VecDeque::new(),
            done: 0,
            series: 0,
            commits: 0,
            account: Account::default(),
        })
    }

    /// Returns the volume under change.
    #[must_use]
    pub const fn filesystem(&self) -> &WritableFilesystem {
        &self.filesystem
    }

    /// Returns the backends of the volume's devices.
    #[must_use]
    pub fn backends(&self) -> &[Arc<dyn Backend>] {
        &self.backends
    }

    /// Makes one change on all sides: Buttress, the kernel's twin and the model.
    pub fn step(&mut self) -> Result<()> {
        let operation = self.next();
        self.change(operation).map(drop)
    }

    /// Creates files that fill a leaf each, on all sides.
    fn plant(&mut self, files: u64) -> Result<()> {
        let top = Location::root_of(SubvolumeId::TOP_LEVEL);
        let value = vec![b'd'; usize::try_from(self.model.node_bytes)? * 3 / 4];
        for number in 0..files {
            let name = format!("deep-{number}").into_bytes();
            let made = self.change(Operation::Create(top, name, 0o644))?;
            let file = made.context("a file that was planted")?;
            self.change(Operation::SetXattr(file, b"user.filler".to_vec(), value.clone()))?;
        }
        Ok(())
    }

    /// Makes a change on all sides: Buttress, the kernel's twin and the model. Returns the new
    /// inode.
    fn change(&mut self, operation: Operation) -> Result<Option<Location>> {
        let now = self.clock.seconds.fetch_add(1, Ordering::Relaxed) + 1;
        if self.recent.len() >= RECENT_MAX {
            self.recent.pop_front();
        }
        self.recent.push_back(operation.clone());
        self.done += 1;
        self.account.count_full(&self.model, &operation);
        self.make(&operation, now).with_context(|| self.told())
    }

    fn make(&mut self, operation: &Operation, now: i64) -> Result<Option<Location>> {
        let opened = match &mut self.twin {
            Some(twin) => twin.make(&self.model, operation)?,
            None => None,
        };
        let made = operation.apply(&mut self.model, &self.filesystem, now)?;
        self.account.count(operation, &made);
        let new = made.location();
        if let Made::Held(held) = made {
            self.held.insert(held.location(), held);
        }
        self.held.retain(|location, _| self.model.held.contains(location));
        if let Some(twin) = &mut self.twin {
            twin.follow(&self.model, new, opened)?;
        }
        Ok(new)
    }

    /// Returns the next change: the next of the current series, or a newly drawn change.
    fn next(&mut self) -> Operation {
        loop {
            let operation = self.waiting.pop_front();
            match operation.filter(|operation| can_be_drawn(&self.model, operation)) {
                Some(operation) => return operation,
                None if self.waiting.is_empty() => {
                    self.waiting = if self.done / SERIES_EVERY > self.series {
                        self.series += 1;
                        Operation::draw_filling(&self.model, &mut self.random, self.series)
                    } else {
                        Operation::draw(&self.model, &mut self.random)
                    };
                }
                None => {}
            }
        }
    }

    fn told(&self) -> String {
        let lines: Vec<String> = self
            .recent
            .iter()
            .map(|operation| format!("\n    {operation}"))
            .collect();
        format!("change {}, after{}", self.done, lines.concat())
    }

    /// Commits, opens the volume again, checks it and compares it with the model.
    pub fn commit(&mut self) -> Result<()> {
        self.filesystem.commit().with_context(|| self.told())?;
        if let Some(twin) = &self.twin {
            twin.commit().with_context(|| self.told())?;
        }
        self.commits += 1;
        self.account.look_at(&self.model);
        self.account.look_at_levels(&self.filesystem.view())?;
        self.compare().with_context(|| self.told())
    }

    /// Compares the content of the devices with the model.
    pub fn compare(&self) -> Result<()> {
        let filesystem = open(&self.backends)?;
        expect_nothing_found(&filesystem)?;
        expect_model("the volume", &self.model, &filesystem)
    }

    /// Compares the live view of the volume with the model, without a commit.
    pub fn compare_live(&self) -> Result<()> {
        self.filesystem.writeback().write_all()?;
        expect_model("the live view", &self.model, &self.filesystem.view()).with_context(|| self.told())
    }

    /// Drops the writer with everything that it holds, and opens the volume for writing again.
    /// After this call, uncommitted changes are lost, and inodes without names are removed.
    pub fn reopen(self) -> Result<Self> {
        let Self {
            backends,
            filesystem,
            mut model,
            clock,
            data,
            cache,
            held,
            mut twin,
            ..
        } = self;
        drop(held);
        drop(filesystem);
        model.release_all();
        if let Some(twin) = &mut twin {
            twin.reopen()?;
        }
        Ok(Self {
            filesystem: writable(&backends, &clock, data, cache)?,
            backends,
            model,
            clock,
            data,
            cache,
            held: BTreeMap::new(),
            twin,
            ..self
        })
    }

    /// Writes the devices to image files in `folder`.
    pub fn images(&self, folder: &Path) -> Result<Vec<PathBuf>> {
        write_images(&self.backends, folder)
    }

    /// Verifies the volume with `btrfs check` and the kernel, and compares it with its twin. This
    /// comparison first releases all held inodes, and removes their copies in snapshots, because
    /// `btrfs check` wrongly reports errors for these.
    pub fn compare_kernel(self) -> Result<Self> {
        let mut world = self.reopen()?;
        world.commit()?;
        world.expect_kernel_sees().with_context(|| world.told())?;
        Ok(world)
    }

    fn expect_kernel_sees(&mut self) -> Result<()> {
        let folder = scratch()?;
        let images = self.images(folder.path())?;
        expect_kernel_sees(&self.model, &images)?;
        let Some(twin) = &mut self.twin else {
            return Ok(());
        };
        twin.compare(&self.model, &open(&self.backends)?)
    }

    /// Runs a plan to its end, with commits and reopening in between.
    pub fn run(plan: &Plan) -> Result<Self> {
        let mut world = Self::new(plan).context("making the volume")?;
        world.compare().context("the volume as it was made")?;
        if plan.planted > 0 {
            world.plant(plan.planted)?;
            world.commit()?;
        }
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
                world = world.compare_kernel()?;
            }
        }
        world.commit()?;
        if plan.kernel_every.is_some() {
            world = world.compare_kernel()?;
        }
        world.account.expect_everything(plan.operations)?;
        Ok(world)
    }
}
