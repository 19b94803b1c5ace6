//! The job: its threads, what they share, and how far it is.
//!
//! Streams walk chunks and submit groups; checkers, one for each core, wait for what was submitted and check it. A stream has
//! at most [`Shape::groups`] under way. On simulated devices everything happens on the caller's thread, so that runs repeat.

use crate::copying::{Copied, Copying, Wanted};
use crate::damage::Damage;
use crate::fetched::Fetched;
use crate::filling::{Filled, Groups, Trees};
use crate::group::{Arrived, Group, Piece, StripeReads, Submitted};
use crate::limit::Limiter;
use crate::mending::Ledger;
use crate::position::{Position, Running};
use crate::report::{Counters, DeviceReport, Report};
use crate::schedule::Schedule;
use crate::verify::sector_of;
use crate::{mirrors, rows, superblocks};
use buttress_device::{IoError, PendingRead, ReadRequest};
use buttress_format::{
    BlockFormat, BlockGroupItem, ByteCount, CompatRo, ErrorKind, Incompat, ItemType, Key, Logical, ObjectId,
    Physical, STRIPE_BYTES, TreeId,
};
use buttress_fs::{Filesystem, Progress};
use buttress_volume::{DeviceErrors, DeviceSlot, MappedChunk, RowGuard, Volume};
use core::time::Duration;
use crossbeam_channel::{Receiver, Sender, bounded};
use parking_lot::{Condvar, Mutex};
use std::collections::{BTreeSet, HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::time::Instant;
use uuid::Uuid;

/// How groups are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Stripes of 64 KiB of each device in a group.
    pub stripes: u64,
    /// Groups under way in a stream.
    pub groups: usize,
    /// Whether the stripes of a group are submitted in one plug, so that neighbours merge.
    pub plugged: bool,
}

impl Default for Shape {
    fn default() -> Self {
        Self {
            stripes: 8,
            groups: 16,
            plugged: true,
        }
    }
}

/// How to scrub.
#[derive(Clone, Debug)]
pub struct Options {
    /// Only read: nothing is mended.
    pub read_only: bool,
    /// So many bytes in a second of each device at the most.
    pub limit: Option<ByteCount>,
    /// How groups are read.
    pub shape: Shape,
    /// How many damages are kept; all are counted.
    pub damages_max: usize,
    /// Where to go on.
    pub resume: Position,
}

/// Filling the target of a replacement: nothing is rewritten then.
#[derive(Clone, Debug)]
pub(crate) struct Replacing {
    pub(crate) copying: Copying,
    /// Below it the target has everything.
    pub(crate) cursor: Physical,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            read_only: false,
            limit: None,
            shape: Shape::default(),
            damages_max: 10_000,
            resume: Position::default(),
        }
    }
}

/// Why a volume is not scrubbed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A feature whose volumes are not scrubbed.
    #[error("scrub does not support volumes with {feature}")]
    Unsupported {
        /// Its name.
        feature: &'static str,
    },
    /// A tree without which nothing is known of what is in use; that the job was cancelled.
    #[error(transparent)]
    Filesystem(#[from] buttress_fs::Error),
    /// No device is being replaced.
    #[error("no device of the volume is being replaced")]
    NoReplacement,
    /// The target of a replacement failed.
    #[error("the target failed: {0}; the replacement waits, and goes on once the target is good")]
    TargetFailed(IoError),
    /// Parts of trees cannot be read: what is in use there is not known, so the target may lack it.
    #[error("the replacement waits: {}", .0.join("; "))]
    NotWalked(Vec<String>),
}

impl Error {
    /// The kind of the error.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::Unsupported { .. } => ErrorKind::Unsupported,
            Self::Filesystem(error) => error.kind(),
            Self::NoReplacement => ErrorKind::Caller,
            Self::TargetFailed(_) => ErrorKind::Io,
            Self::NotWalked(_) => ErrorKind::Corrupt,
        }
    }
}

/// Gives the state of the last commit of a volume that others write to.
pub type Views<'a> = dyn Fn() -> Filesystem + Sync + 'a;

/// What became of filling the target.
#[derive(Debug, Default)]
struct Replaced {
    /// Chunks with a stripe on the source that are to be copied, and where the first of those lies.
    chunks: Option<Vec<(Logical, Physical)>>,
    /// Bytes that no copy gave.
    lost: u64,
    /// What the target failed with.
    failure: Option<IoError>,
}

/// Tells of an address whether its data was ever written.
pub type IsWritten<'a> = dyn Fn(Logical, ByteCount) -> bool + Sync + 'a;

/// One device, and what is counted on it.
#[derive(Debug)]
struct DeviceState {
    slot: Arc<DeviceSlot>,
    counters: Mutex<Counters>,
    limiter: Limiter,
    to_scrub: u64,
}

/// What all threads of a scrub share.
pub(crate) struct Job<'a> {
    pub(crate) volume: Arc<Volume>,
    pub(crate) format: BlockFormat,
    pub(crate) options: Options,
    pub(crate) progress: Progress,
    pub(crate) ledger: Mutex<Ledger>,
    /// Devices that something was written to.
    pub(crate) written: Mutex<HashSet<Uuid>>,
    trees: Trees,
    /// Gives the state of the last commit, where others write.
    views: Option<&'a Views<'a>>,
    guard: Option<RowGuard>,
    pub(crate) replaces: Option<Replacing>,
    replaced: Mutex<Replaced>,
    devices: HashMap<Uuid, DeviceState>,
    running: Mutex<Running>,
    is_written: Option<&'a IsWritten<'a>>,
}

/// A scrub of one volume.
pub struct Scrub<'a> {
    job: Job<'a>,
}

impl core::fmt::Debug for Scrub<'_> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Scrub")
            .field("options", &self.job.options)
            .finish_non_exhaustive()
    }
}

impl<'a> Scrub<'a> {
    /// Gets ready to scrub a volume. To mend, its devices must be open for writing, and nobody else may write to it.
    ///
    /// # Errors
    /// [`Error::Unsupported`]; a volume without an extent tree.
    pub fn new(filesystem: &Filesystem, options: Options, progress: Progress) -> Result<Self, Error> {
        Self::make(filesystem, options, progress, None)
    }

    /// As [`Scrub::new`]; or to fill the target of a replacement.
    pub(crate) fn make(
        filesystem: &Filesystem,
        options: Options,
        progress: Progress,
        replaces: Option<Replacing>,
    ) -> Result<Self, Error> {
        let volume = Arc::clone(filesystem.volume());
        let superblock = filesystem.superblock();
        for (feature, name) in [
            (Incompat::RAID_STRIPE_TREE, "raid-stripe-tree"),
            (Incompat::ZONED, "zoned"),
        ] {
            if superblock.incompat.contains(feature) {
                return Err(Error::Unsupported { feature: name });
            }
        }
        let trees = Trees::of(filesystem)?;
        let source = replaces
            .as_ref()
            .map(|replacing| replacing.copying.replacement.source().uuid());
        let to_scrub = bytes_to_scrub(filesystem, &volume, source);
        let all: u64 = to_scrub.values().fold(0, |sum, bytes| sum.saturating_add(*bytes));
        progress.expect(ByteCount::new(all));
        let limit = options.limit.map(ByteCount::get);
        let state = |slot: Arc<DeviceSlot>| {
            let uuid = slot.uuid();
            let state = DeviceState {
                to_scrub: to_scrub.get(&uuid).copied().unwrap_or(0),
                slot,
                counters: Mutex::default(),
                limiter: Limiter::new(limit),
            };
            (uuid, state)
        };
        Ok(Self {
            job: Job {
                format: volume.block_format().clone(),
                trees,
                devices: volume.devices().into_iter().map(state).collect(),
                running: Mutex::new(Running::new(options.resume.clone())),
                ledger: Mutex::default(),
                written: Mutex::default(),
                is_written: None,
                views: None,
                guard: None,
                replaces,
                replaced: Mutex::default(),
                volume,
                options,
                progress,
            },
        })
    }

    /// Asks this, where copies of data without checksums differ, whether the data was ever written: what was reserved only
    /// may differ. Without it, it counts as written.
    #[must_use]
    pub fn asking(mut self, is_written: &'a IsWritten<'a>) -> Self {
        self.job.is_written = Some(is_written);
        self
    }

    /// Scrubs beside others who write through the same volume: each chunk as the last commit before it left it. What looks
    /// wrong is read again with its rows locked. Data that is overwritten in place is compared with its rows locked, too.
    #[must_use]
    pub fn beside(mut self, views: &'a Views<'a>) -> Self {
        self.job.guard = Some(self.job.volume.guard_rows());
        self.job.views = Some(views);
        self
    }

    /// Of a replacement: below it the target has everything.
    pub(crate) fn cursor(&self) -> Physical {
        let done = self.job.running.lock().position();
        let replaced = self.job.replaced.lock();
        let Some(replaces) = &self.job.replaces else {
            return Physical::MIN;
        };
        let Some(chunks) = &replaced.chunks else {
            return replaces.cursor;
        };
        let mut open = chunks.iter();
        let item = replaces.copying.replacement.source().item();
        let end = item.map_or(Physical::MAX, |item| Physical::new(item.total_bytes.get()));
        open.find(|(chunk, _)| !done.finished.contains(chunk))
            .map_or(end, |(_, physical)| *physical)
    }

    /// Of a replacement: bytes that no copy gave, and what the target failed with.
    pub(crate) fn replaced(&self) -> (u64, Option<IoError>) {
        let replaced = self.job.replaced.lock();
        (replaced.lost, replaced.failure.clone())
    }

    /// What was found so far; at any time, from any thread.
    #[must_use]
    pub fn report(&self) -> Report {
        let job = &self.job;
        let mut devices: Vec<DeviceReport> = job
            .devices
            .values()
            .map(|state| DeviceReport {
                device: state.slot.id(),
                uuid: state.slot.uuid(),
                name: Arc::clone(state.slot.name()),
                missing: state.slot.device().is_none(),
                to_scrub: state.to_scrub,
                counters: *state.counters.lock(),
            })
            .collect();
        devices.sort_by_key(|device| (device.device, device.uuid));
        let ledger = job.ledger.lock();
        Report {
            devices,
            damages: joined(ledger.damages.clone()),
            damages_unlisted: ledger.unlisted,
            unwalked: ledger.unwalked.clone(),
        }
    }

    /// What is surely done by now.
    #[must_use]
    pub fn position(&self) -> Position {
        self.job.running.lock().position()
    }

    /// Scrubs the groups that hold some addresses, on the caller's thread.
    pub(crate) fn run_around(&self, places: &BTreeSet<Logical>) {
        let job = &self.job;
        let map = job.volume.chunk_map();
        let mut done: Option<(Logical, u64)> = None;
        for place in places {
            let Some(chunk) = map.find(*place) else { continue };
            let number = group_number(chunk, *place, job.options.shape.stripes);
            if done.replace((chunk.start(), number)) != Some((chunk.start(), number)) {
                job.walk_group(chunk, number);
            }
        }
        job.flush();
    }

    /// Scrubs until all is done, or the progress it was given is cancelled: then [`Scrub::position`] says where to go on.
    ///
    /// # Errors
    /// [`buttress_fs::Error::Cancelled`], with everything that was begun done. What is wrong with the volume is in
    /// [`Scrub::report`].
    pub fn run(&self) -> Result<(), Error> {
        let job = &self.job;
        if job.replaces.is_none() && !job.running.lock().done().superblocks {
            match job.views {
                Some(_) => job.volume.while_unwritten(|| superblocks::check(job)),
                None => superblocks::check(job),
            }
            job.running.lock().superblocks_done();
        }
        let schedule = Schedule::new(job.chunks());
        if job.volume.virtual_clock().is_some() {
            job.run_inline(&schedule);
        } else {
            job.run_threads(&schedule);
        }
        job.flush();
        Ok(job.progress.check()?)
    }
}

/// The number of the group that holds an address.
fn group_number(chunk: &MappedChunk, logical: Logical, stripes: u64) -> u64 {
    let columns = ByteCount::of(chunk.layout().data_columns()).get();
    let group_bytes = stripes.saturating_mul(STRIPE_BYTES).saturating_mul(columns);
    let offset = chunk.offset_of(logical).map_or(0, |offset| offset.get());
    offset.checked_div(group_bytes.max(1)).unwrap_or(0)
}

/// Damages in order of address, neighbours of a kind as one: groups end in any order.
fn joined(mut damages: Vec<Damage>) -> Vec<Damage> {
    damages.sort_by_key(|damage| (damage.device, damage.physical));
    let mut joined: Vec<Damage> = Vec::new();
    for damage in damages {
        if !joined.last_mut().is_some_and(|last| last.absorb(&damage)) {
            joined.push(damage);
        }
    }
    joined.sort_by_key(|damage| (damage.logical, damage.device, damage.physical));
    joined
}

/// What is to be scrubbed of each device: what block groups say is used, once for each copy, and no parity. For a device that
/// is replaced, missing or not, it is what is to be copied, with parity.
fn bytes_to_scrub(filesystem: &Filesystem, volume: &Volume, replaced: Option<Uuid>) -> HashMap<Uuid, u64> {
    let has_own_tree = filesystem
        .superblock()
        .compat_ro
        .contains(CompatRo::BLOCK_GROUP_TREE);
    let tree = filesystem.tree(if has_own_tree {
        TreeId::BLOCK_GROUP
    } else {
        TreeId::EXTENT
    });
    let mut bytes: HashMap<Uuid, u64> = HashMap::new();
    let Ok(tree) = tree else {
        return bytes;
    };
    for chunk in volume.chunk_map().chunks() {
        let start = ObjectId::new(chunk.start().get());
        let key = Key::new(start, ItemType::BLOCK_GROUP_ITEM, chunk.length().get());
        let item = tree.get(&key).ok().flatten();
        let group = item.and_then(|item| BlockGroupItem::parse(&key, item.data()).ok());
        let used = group.map_or(0, |group| group.used.get());
        let layout = chunk.layout();
        let copies = match layout.has_parity() {
            true => 1,
            false => u64::from(layout.ways()),
        };
        let stripes = match layout.has_parity() && replaced.is_some() {
            true => ByteCount::of(layout.data_columns()).get(),
            false => ByteCount::of(chunk.devices().len()).get(),
        };
        let all = used.saturating_mul(copies);
        let share = all.checked_div(stripes).unwrap_or(0);
        // What does not divide is the first's.
        let mut more = all.checked_rem(stripes).unwrap_or(0);
        for slot in chunk.devices() {
            let own = share.saturating_add(core::mem::take(&mut more));
            let counts = match replaced {
                Some(replaced) => slot.uuid() == replaced,
                None => slot.device().is_some(),
            };
            if counts {
                let sum = bytes.entry(slot.uuid()).or_default();
                *sum = sum.saturating_add(own);
            }
        }
    }
    bytes
}

impl Job<'_> {
    fn first_group(&self, chunk: Logical) -> Option<u64> {
        self.running.lock().done().first_group(chunk)
    }

    /// Changes the counters of a device.
    pub(crate) fn count(&self, slot: &DeviceSlot, change: impl FnOnce(&mut Counters)) {
        if let Some(state) = self.devices.get(&slot.uuid()) {
            change(&mut state.counters.lock());
        }
    }

    pub(crate) fn is_written(&self, logical: Logical, length: ByteCount) -> bool {
        self.is_written
            .is_none_or(|is_written| is_written(logical, length))
    }

    /// Makes what was mended durable.
    fn flush(&self) {
        let written = self.written.lock();
        for state in self
            .devices
            .values()
            .filter(|state| written.contains(&state.slot.uuid()))
        {
            let flushed = state.slot.device().map(buttress_device::Device::flush);
            if let Some(Err(error)) = flushed {
                let lost = format!(
                    "what was mended on device {} may be lost: {error}",
                    state.slot.id()
                );
                self.ledger.lock().cannot_walk(lost);
            }
        }
    }

    /// Everything on this thread, a stream at a time.
    fn run_inline(&self, schedule: &Schedule) {
        while let Some(chunk) = schedule.next() {
            let mut under_way: VecDeque<Submitted> = VecDeque::new();
            self.walk(&chunk, &mut |submitted| {
                under_way.push_back(submitted);
                if under_way.len() >= self.options.shape.groups.max(1)
                    && let Some(oldest) = under_way.pop_front()
                {
                    self.check(oldest);
                }
            });
            under_way.into_iter().for_each(|submitted| self.check(submitted));
            schedule.end(&chunk);
            if self.progress.is_cancelled() {
                schedule.stop();
            }
        }
    }

    fn run_threads(&self, schedule: &Schedule) {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let streams = self.devices.len().clamp(1, STREAMS_MAX);
        let queued = streams.saturating_mul(self.options.shape.groups.max(1));
        let (submit, submitted) = bounded::<Ticket>(queued);
        std::thread::scope(|scope| {
            let checkers = (0..cores).map(|number| (format!("buttress-scrub-check-{number}"), number));
            let checkers: Vec<_> = checkers
                .filter_map(|(name, _)| {
                    let submitted = submitted.clone();
                    let work = move || self.check_all(&submitted);
                    std::thread::Builder::new()
                        .name(name)
                        .spawn_scoped(scope, work)
                        .ok()
                })
                .collect();
            drop(submitted);
            if checkers.is_empty() {
                // No thread can be had: everything is done here.
                self.run_inline(schedule);
                return;
            }
            let walkers: Vec<_> = (1..streams)
                .filter_map(|number| {
                    let submit = submit.clone();
                    std::thread::Builder::new()
                        .name(format!("buttress-scrub-walk-{number}"))
                        .spawn_scoped(scope, move || self.walk_all(schedule, &submit))
                        .ok()
                })
                .collect();
            self.walk_all(schedule, &submit);
            drop(submit);
            for thread in walkers.into_iter().chain(checkers) {
                if let Err(panic) = thread.join() {
                    std::panic::resume_unwind(panic);
                }
            }
        });
    }

    /// A stream after another, until all chunks have begun.
    fn walk_all(&self, schedule: &Schedule, submit: &Sender<Ticket>) {
        while let Some(chunk) = schedule.next() {
            let window = Arc::new(Window::default());
            self.walk(&chunk, &mut |submitted| {
                let place = Window::enter(&window, self.options.shape.groups.max(1));
                // Nobody takes it when the checkers are gone, which have panicked: that is passed on elsewhere.
                let _gone = submit.send(Ticket { submitted, place });
            });
            window.wait_until_empty();
            schedule.end(&chunk);
            if self.progress.is_cancelled() {
                schedule.stop();
            }
        }
    }

    fn check_all(&self, submitted: &Receiver<Ticket>) {
        for ticket in submitted {
            let Ticket { submitted, place } = ticket;
            self.check(submitted);
            drop(place);
        }
    }

    /// Walks a chunk from its first group that is not done, and submits group after group.
    fn walk(&self, chunk: &Arc<MappedChunk>, submit: &mut dyn FnMut(Submitted)) {
        let Some(first) = self.first_group(chunk.start()) else {
            return;
        };
        self.running.lock().begin(chunk.start(), first);
        let trees = match self.views.map(|views| Trees::of(&views())) {
            None => self.trees.clone(),
            Some(Ok(trees)) => trees,
            Some(Err(error)) => {
                self.ledger.lock().cannot_walk(error.to_string());
                return;
            }
        };
        let mut groups = Groups::new(&trees, &self.format, chunk, self.options.shape.stripes, first);
        while let Some(filled) = groups.next() {
            match filled {
                Filled::Unwalked(what) => self.ledger.lock().cannot_walk(what),
                Filled::Group(mut group) => {
                    if self.progress.is_cancelled() || self.replaced.lock().failure.is_some() {
                        return;
                    }
                    if let Some(replacing) = &self.replaces {
                        replacing.copying.keep_wanted(&mut group);
                    }
                    if group.pieces.is_empty() {
                        continue;
                    }
                    self.running.lock().submitted(chunk.start(), group.number);
                    submit(self.submit(group, &trees));
                }
            }
        }
        self.running.lock().all_submitted(chunk.start());
    }

    /// Scrubs one group, if anything of it is in use.
    fn walk_group(&self, chunk: &Arc<MappedChunk>, number: u64) {
        let trees = self
            .views
            .map_or_else(|| Ok(self.trees.clone()), |views| Trees::of(&views()));
        let Ok(trees) = trees else { return };
        let stripes = self.options.shape.stripes;
        let mut groups = Groups::new(&trees, &self.format, chunk, stripes, number);
        while let Some(filled) = groups.next() {
            match filled {
                Filled::Unwalked(_) => {}
                Filled::Group(group) if group.number == number => {
                    return self.check(self.submit(group, &trees));
                }
                Filled::Group(_) => return,
            }
        }
    }

    /// Asks all devices for what a group needs of them.
    fn submit(&self, group: Group, trees: &Trees) -> Submitted {
        let writes = self.volume.writes_to_rows(&group.chunk, group.rows());
        Submitted {
            stripes: self.submit_stripes(&group, Wanted::Few),
            trees: trees.clone(),
            group,
            writes,
        }
    }

    fn submit_stripes(&self, group: &Group, wanted: Wanted) -> Vec<StripeReads> {
        let requests = group.requests().into_iter().enumerate();
        let submitted = requests.map(|(stripe, runs)| {
            let copying = self.replaces.as_ref().map(|replacing| &replacing.copying);
            if copying.is_some_and(|copying| !copying.wants(&group.chunk, stripe, wanted)) {
                return StripeReads { runs, reads: None };
            }
            self.submit_stripe(&group.chunk, stripe, runs)
        });
        submitted.collect()
    }

    fn submit_stripe(
        &self,
        chunk: &MappedChunk,
        stripe: usize,
        runs: Vec<core::ops::Range<u64>>,
    ) -> StripeReads {
        let slot = chunk.devices().get(stripe);
        let device = slot.and_then(|slot| slot.device());
        let physical = physical_of(chunk, stripe);
        let (Some(slot), Some(device), Some(physical)) = (slot, device, physical) else {
            return StripeReads { runs, reads: None };
        };
        let requests: Vec<ReadRequest> = runs
            .iter()
            .map(|run| ReadRequest {
                offset_bytes: physical.get().saturating_add(run.start),
                length: usize::try_from(run.end.saturating_sub(run.start)).unwrap_or(usize::MAX),
            })
            .collect();
        let bytes = runs.iter().fold(0_u64, |sum, run| {
            sum.saturating_add(run.end.saturating_sub(run.start))
        });
        self.slow_down(slot, bytes);
        let reads: Vec<PendingRead> = if self.options.shape.plugged {
            device.start_reads(&requests)
        } else {
            requests
                .iter()
                .map(|request| device.start_read(*request))
                .collect()
        };
        StripeReads {
            runs,
            reads: Some(reads),
        }
    }

    /// Keeps to the limit of a device.
    fn slow_down(&self, slot: &DeviceSlot, bytes: u64) {
        let Some(state) = self.devices.get(&slot.uuid()) else {
            return;
        };
        let mut left = state.limiter.delay(bytes, Instant::now());
        while left > Duration::ZERO && !self.progress.is_cancelled() {
            let nap = left.min(NAP);
            std::thread::sleep(nap);
            left = left.saturating_sub(nap);
        }
    }

    /// Waits for a group, checks it, mends it.
    fn check(&self, submitted: Submitted) {
        let Submitted {
            group,
            stripes,
            writes,
            trees,
        } = submitted;
        self.charge_cpu(&group);
        let (chunk, number) = (group.chunk.start(), group.number);
        let arrived = self.wait(group, stripes);
        if let Some(replacing) = &self.replaces {
            self.copy(&replacing.copying, arrived, writes);
        } else if self.views.is_none() {
            self.judge(&arrived);
        } else {
            self.judge_beside_writers(arrived);
        }
        drop(trees);
        // After a failure of the target nothing more of it counts as done.
        if self.replaced.lock().failure.is_none() {
            self.running.lock().ended(chunk, number);
        }
    }

    fn wait(&self, group: Group, stripes: Vec<StripeReads>) -> Arrived {
        let sector = sector_of(&self.format);
        let fetched = stripes.into_iter().enumerate().map(|(stripe, reads)| {
            let device = group.chunk.devices().get(stripe).and_then(|slot| slot.device());
            let physical = physical_of(&group.chunk, stripe).unwrap_or(Physical::MIN);
            Fetched::wait(reads, device, physical, sector)
        });
        let stripes = fetched.collect();
        Arrived { group, stripes }
    }

    fn judge(&self, arrived: &Arrived) {
        match arrived.group.chunk.layout().has_parity() {
            true => rows::check(self, arrived),
            false => mirrors::check(self, arrived),
        }
    }

    fn count_group(&self, arrived: &Arrived) {
        match arrived.group.chunk.layout().has_parity() {
            true => rows::count(self, arrived),
            false => mirrors::count(self, arrived),
        }
    }

    /// A group of which parts may have been written while it was read: what looks wrong is read again, with its rows
    /// locked.
    fn judge_beside_writers(&self, arrived: Arrived) {
        let is_clean = match arrived.group.chunk.layout().has_parity() {
            true => rows::is_clean(self, &arrived),
            false => mirrors::is_clean(self, &arrived),
        };
        if is_clean {
            return self.count_group(&arrived);
        }
        let Arrived { group, stripes } = arrived;
        drop(stripes);
        let chunk = Arc::clone(&group.chunk);
        let _locked = (!buttress_faults::on("scrub-rows-unlocked"))
            .then(|| self.volume.lock_rows(&chunk, group.rows()));
        let stripes = self.submit_stripes(&group, Wanted::All);
        self.judge(&self.wait(group, stripes));
    }

    /// Copies a group to the target of a replacement. Its rows are locked until the target has it; what was written to them
    /// since they were read is read again.
    fn copy(&self, copying: &Copying, mut arrived: Arrived, writes: Option<u64>) {
        let chunk = Arc::clone(&arrived.group.chunk);
        let rows = arrived.group.rows();
        let _locked = self.volume.lock_rows(&chunk, rows.clone());
        let is_unwritten = writes.is_some() && self.volume.writes_to_rows(&chunk, rows) == writes;
        if !is_unwritten {
            arrived = self.fetch_again(arrived, Wanted::Few);
        }
        let copied = self.copied(copying, &arrived);
        if copied.lacking == 0 {
            self.count_group(&arrived);
            return self.write_copied(copying, copied);
        }
        drop(copied);
        let arrived = self.fetch_again(arrived, Wanted::All);
        self.judge(&arrived);
        self.write_copied(copying, self.copied(copying, &arrived));
    }

    fn write_copied(&self, copying: &Copying, copied: Copied<'_>) {
        let lacking = copied.lacking;
        let target = copying.replacement.target();
        let written = match target.device().filter(|_| target.is_written()) {
            Some(device) => copied.write(device),
            // It failed a writer.
            None => return self.fail(target.failure().cloned()),
        };
        match written {
            Ok(bytes) => self.progress.advance(0, bytes),
            Err(error) => {
                let errors = DeviceErrors {
                    writes: 1,
                    ..DeviceErrors::default()
                };
                target.count_errors(errors);
                return self.fail(Some(error));
            }
        }
        let mut replaced = self.replaced.lock();
        replaced.lost = replaced.lost.saturating_add(lacking);
    }

    fn fetch_again(&self, arrived: Arrived, wanted: Wanted) -> Arrived {
        let Arrived { group, stripes } = arrived;
        drop(stripes);
        let stripes = self.submit_stripes(&group, wanted);
        self.wait(group, stripes)
    }

    fn fail(&self, failure: Option<IoError>) {
        let mut replaced = self.replaced.lock();
        if replaced.failure.is_none() {
            replaced.failure = failure;
        }
    }

    /// The chunks that are to be gone over, in order: of their addresses, or of their places on a device that is replaced.
    fn chunks(&self) -> Vec<Arc<MappedChunk>> {
        let map = self.volume.chunk_map();
        let is_open = |chunk: &&Arc<MappedChunk>| self.first_group(chunk.start()).is_some();
        let open = map.chunks().iter().filter(is_open).cloned();
        let Some(replacing) = &self.replaces else {
            return open.collect();
        };
        let mut placed: Vec<(Physical, Arc<MappedChunk>)> = Vec::new();
        for chunk in open {
            let own = replacing.copying.stripes_on_source(&chunk);
            let starts: Vec<Physical> = own
                .iter()
                .filter_map(|stripe| physical_of(&chunk, *stripe))
                .collect();
            let length = chunk.layout().device_extent_bytes();
            if let (Some(first), Some(last)) = (starts.iter().min(), starts.iter().max())
                && last.saturating_add(length) > replacing.cursor
            {
                placed.push((*first, chunk));
            }
        }
        placed.sort_by_key(|(physical, _)| *physical);
        let listed = placed.iter().map(|(at, chunk)| (chunk.start(), *at));
        self.replaced.lock().chunks = Some(listed.collect());
        placed.into_iter().map(|(_, chunk)| chunk).collect()
    }
}

impl Job<'_> {
    /// On simulated devices the clock moves on by what checking a group takes.
    fn charge_cpu(&self, group: &Group) {
        let copies = |piece: &Piece| u64::from(u32::try_from(piece.place.copies).unwrap_or(u32::MAX));
        let bytes = group.pieces.iter().fold(0_u64, |sum, piece| {
            let bytes = ByteCount::of(piece.length).get().saturating_mul(copies(piece));
            sum.saturating_add(bytes)
        });
        let stripes = u32::try_from(bytes.div_ceil(STRIPE_BYTES)).unwrap_or(u32::MAX);
        self.volume
            .charge_cpu(CHECK_COST_PER_STRIPE.saturating_mul(stripes));
    }
}

/// The CPU time that checking 64 KiB takes, in virtual time: crc32c at some 6 GB in a second.
const CHECK_COST_PER_STRIPE: Duration = Duration::from_micros(10);

/// Where a stripe begins on its device.
fn physical_of(chunk: &MappedChunk, stripe: usize) -> Option<Physical> {
    Some(chunk.chunk().stripes.get(stripe)?.physical)
}

/// The most streams, however many devices there are.
const STREAMS_MAX: usize = 16;

/// How long a stream sleeps at a time when it keeps to a limit.
const NAP: Duration = Duration::from_millis(100);

/// A group on its way to a checker, with its place in its stream's window.
struct Ticket {
    submitted: Submitted,
    place: InWindow,
}

/// How many groups of a stream are under way.
#[derive(Debug, Default)]
struct Window {
    under_way: Mutex<usize>,
    left: Condvar,
}

/// One of them, until it is dropped.
#[derive(Debug)]
struct InWindow(Arc<Window>);

impl Window {
    fn enter(window: &Arc<Self>, most: usize) -> InWindow {
        let mut under_way = window.under_way.lock();
        while *under_way >= most {
            window.left.wait(&mut under_way);
        }
        *under_way = under_way.saturating_add(1);
        InWindow(Arc::clone(window))
    }

    fn wait_until_empty(&self) {
        let mut under_way = self.under_way.lock();
        while *under_way > 0 {
            self.left.wait(&mut under_way);
        }
    }
}

impl Drop for InWindow {
    fn drop(&mut self) {
        let mut under_way = self.0.under_way.lock();
        *under_way = under_way.saturating_sub(1);
        self.0.left.notify_all();
    }
}
