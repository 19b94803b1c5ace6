//! A scrub of one volume: begin, run, report, position.

use crate::error::Error;
use crate::expected::bytes_to_scrub;
use crate::filling::Trees;
use crate::filling_target::Replacing;
use crate::group::group_number;
use crate::job::{DeviceState, Job};
use crate::limit::Limiter;
use crate::options::Options;
use crate::position::{Position, Running};
use crate::report::{DeviceReport, Report, joined};
use crate::schedule::Schedule;
use crate::superblocks;
use buttress_exact::Exact as _;
use buttress_format::{ByteCount, Incompat, Logical};
use buttress_fs::{Filesystem, Progress};
use buttress_locks::Mutex;
use buttress_volume::{DeviceSlot, Notice, Volume};
use std::collections::BTreeSet;
use std::sync::Arc;

pub use crate::job::{IsWritten, Views};

/// A scrub of one volume.
pub struct Scrub<'a> {
    pub(crate) job: Job<'a>,
}

impl core::fmt::Debug for Scrub<'_> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Scrub")
            .field("options", &self.job.options)
            .finish_non_exhaustive()
    }
}

impl<'a> Scrub<'a> {
    /// Prepares the scrub of a volume. For repairs, the volume's devices must be open for writing,
    /// and no other thread may write to it.
    ///
    /// # Errors
    /// Fails with [`Error::Unsupported`], with [`Error::OlderState`] for repairs of an older state, or
    /// with an error if the volume has no extent tree.
    pub fn new(filesystem: &Filesystem, options: Options, progress: Progress) -> Result<Self, Error> {
        Self::make(filesystem, options, progress, None)
    }

    /// Prepares a scrub as [`Scrub::new`] does, or a copy to a replacement's target.
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
        if !options.read_only {
            require_newest(&volume)?;
        }
        let trees = Trees::of(filesystem)?;
        let source = replaces
            .as_ref()
            .map(|replacing| replacing.copying.replacement.source().uuid());
        let to_scrub = bytes_to_scrub(filesystem, &volume, source);
        let all: u64 = to_scrub.values().fold(0, |sum, bytes| sum.exact_add(*bytes));
        progress.expect(ByteCount::new(all));
        let limit = options.limit.map(ByteCount::get);
        let state = |slot: Arc<DeviceSlot>| {
            let uuid = slot.uuid();
            let state = DeviceState {
                // Clamp: a device without chunks has no bytes to scrub.
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
                trees: Some(trees),
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

    /// Sets a function that finds out which preallocated data was ever written, in the scrub's
    /// state. If copies of data without checksums differ, the scrub calls this function, because
    /// copies of preallocated space may differ. Without this function, all data counts as written.
    /// No lock of the scrub or of the volume is held during the call.
    #[must_use]
    pub fn asking(mut self, is_written: &'a IsWritten<'a>) -> Self {
        self.job.is_written = Some(is_written);
        self
    }

    /// Makes the scrub work beside writers on the same volume. The scrub reads each chunk in the
    /// state of the last commit before that chunk begins. If a read shows errors, the scrub reads
    /// the group again with its rows locked. Data that is overwritten in place is also compared
    /// with its rows locked.
    #[must_use]
    pub fn beside(mut self, views: &'a Views<'a>) -> Self {
        self.job.guard = Some(self.job.volume.guard_rows());
        self.job.views = Some(views);
        self.job.trees = None;
        self
    }

    /// Returns the report so far, at any time, on any thread.
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

    /// Returns the position of everything that is certainly done.
    #[must_use]
    pub fn position(&self) -> Position {
        self.job.running.lock().position()
    }

    /// Scrubs the groups that contain some addresses, on the caller's thread.
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

    /// Scrubs until everything is done, or its progress is cancelled. [`Scrub::position`] then
    /// returns where to continue.
    ///
    /// # Errors
    /// Fails with [`buttress_fs::Error::Cancelled`], after all groups in flight are done.
    /// [`Scrub::report`] has the errors of the volume.
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

/// Fails if the volume was opened at an older state: its copies count as damaged after later commits.
fn require_newest(volume: &Volume) -> Result<(), Error> {
    match volume.notices().into_iter().find_map(|notice| match notice {
        Notice::OlderState { shown, newest } => Some((shown, newest)),
        _ => None,
    }) {
        Some((shown, newest)) => Err(Error::OlderState { shown, newest }),
        None => Ok(()),
    }
}
