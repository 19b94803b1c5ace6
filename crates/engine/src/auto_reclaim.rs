//! Automatic reclaim: a background thread moves the content of little used data block groups
//! together, so that their space is unallocated again and metadata can use it.
//!
//! The model is Linux's `bg_reclaim_threshold`: a block group is a candidate once its use fell below
//! the threshold. If unallocated space is scarce, block groups count that were below it from the
//! beginning. The thread relocates one block group at a time, the least used first, at a limited
//! rate.
//!
//! # Invariants
//!
//! - A block group moves only if other block groups have free space for its content, so a reclaim
//!   needs no new chunk.
//! - A block group whose use grows stays.
//! - No reclaim runs beside a balance, a replacement, or another job that relocates: these jobs
//!   cancel it by `ReclaimState::give_way`, and it ends after its
//!   batch.
//! - After [`AutoReclaiming`] is dropped, or the last handle of the volume, no reclaim runs.
//!
//! Left out: block groups of metadata, and mixed ones.

use crate::block_groups::Purpose;
use crate::engine::{Engine, Shared};
use crate::relocation::{RelocationOptions, Removal};
use crate::running_parts::RelocationStep;
use crate::workers::Worker;
use buttress_exact::Exact as _;
use buttress_format::{BlockGroupFlags, ByteCount, Logical};
use buttress_fs::error::{Error, Result};
use buttress_fs::progress::Progress;
use core::time::Duration;
use crossbeam_channel::{Receiver, RecvTimeoutError};
use std::collections::BTreeMap;
use std::sync::{Arc, Weak};
use std::time::Instant;

/// How often the thread inspects the block groups.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// How long a block group stays after its reclaim failed, and how long scarcity does not count after
/// a reclaim that gained nothing.
const AVOIDED_FOR: Duration = Duration::from_mins(5);

/// Unallocated space for fewer chunks of metadata than this is scarce.
const CHUNKS_SCARCE: u64 = 2;

/// The options of an automatic reclaim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AutoReclaim {
    /// The threshold: the use of a block group in percent, from 1 to 99.
    pub percent: u8,
    /// The most bytes that a reclaim moves in a second.
    pub bytes_per_second: u64,
}

impl Default for AutoReclaim {
    fn default() -> Self {
        Self {
            percent: 30,
            bytes_per_second: 64 << 20,
        }
    }
}

/// The outcome of the reclaim of a block group.
#[derive(Clone, Debug)]
pub struct Reclaimed {
    /// The start of the block group.
    pub group: Logical,
    /// The bytes of its content.
    pub used: ByteCount,
    /// The length of the block group.
    pub length: ByteCount,
    /// Whether the block group still exists, until readers of its old content end.
    pub is_left: bool,
    /// Why the content could not be moved; `None` if it moved.
    pub failure: Option<String>,
}

/// An automatic reclaim. Dropping this value ends it, after its current batch.
#[derive(Debug)]
pub struct AutoReclaiming {
    shared: Weak<Shared>,
    worker: Option<Worker>,
}

impl Drop for AutoReclaiming {
    fn drop(&mut self) {
        let shared = self.shared.upgrade();
        if let Some(shared) = &shared {
            shared.reclaim.end();
        }
        drop(self.worker.take());
        if let Some(shared) = &shared {
            shared.reclaim.may_start_again();
        }
    }
}

/// A block group as the thread saw it.
#[derive(Clone, Copy, Debug, Default)]
struct Seen {
    /// The highest use so far, in bytes.
    highest: u64,
    /// The use at the last inspection, in bytes.
    last: u64,
    /// When an inspection last found that the use had grown.
    grown_at: Option<Instant>,
    avoided_until: Option<Instant>,
}

/// The thread's knowledge about the block groups.
#[derive(Debug, Default)]
struct Watched {
    groups: BTreeMap<u64, Seen>,
    /// Until this moment, scarcity does not count.
    gained_nothing_until: Option<Instant>,
}

fn is_before(moment: Option<Instant>) -> bool {
    moment.is_some_and(|moment| Instant::now() < moment)
}

/// A block group to reclaim.
#[derive(Clone, Copy, Debug)]
struct Candidate {
    start: u64,
    used: u64,
    length: u64,
}

impl Engine {
    /// Starts an automatic reclaim in a thread of its own. The thread calls `report` after each
    /// block group. At most one reclaim of a volume runs.
    ///
    /// # Errors
    /// Fails with [`Error::Invalid`] for a threshold that is no percentage from 1 to 99, if a reclaim
    /// is running, or if the system starts no thread.
    pub fn start_auto_reclaim(
        &self,
        options: AutoReclaim,
        report: impl Fn(&Reclaimed) + Send + 'static,
    ) -> Result<AutoReclaiming> {
        if !(1..100).contains(&options.percent) {
            return Err(Error::Invalid {
                what: "the threshold of a reclaim is not from 1 to 99 percent",
            });
        }
        let state = &self.shared.reclaim;
        if !state.start() {
            return Err(Error::Invalid {
                what: "an automatic reclaim is running",
            });
        }
        let shared = Arc::downgrade(&self.shared);
        let of_thread = Weak::clone(&shared);
        let worker = Worker::start("buttress-reclaim", move |woken| {
            run(&of_thread, woken, options, &report);
        });
        if worker.is_none() {
            state.may_start_again();
            return Err(Error::Invalid {
                what: "the system starts no thread for an automatic reclaim",
            });
        }
        Ok(AutoReclaiming { shared, worker })
    }

    /// Chooses a block group, and relocates it. Returns the outcome, if there was a candidate.
    fn reclaim_one(&self, watched: &mut Watched, options: AutoReclaim) -> Result<Option<Reclaimed>> {
        let Some(run) = self.shared.reclaim.begin() else {
            return Ok(None);
        };
        let Some((candidate, is_scarce)) = self
            .shared
            .running
            .lock()
            .relocation_step()
            .candidate(watched, options)
        else {
            return Ok(None);
        };
        let relocation = RelocationOptions {
            progress: Progress::cancelled_by(self.shared.reclaim.cancellation()),
            bytes_per_second: Some(options.bytes_per_second),
            removal: Removal::Left,
        };
        let chunks = || self.forest().volume().chunk_map().chunks().len();
        let before = chunks();
        let moved = self
            .relocations()
            .relocate_now(&[Logical::new(candidate.start)], &relocation);
        drop(run);
        let later = Instant::now().checked_add(AVOIDED_FOR);
        if is_scarce && chunks() >= before {
            watched.gained_nothing_until = later;
        }
        let (is_left, failure) = match moved {
            Ok(moved) => (moved.left_groups > 0, None),
            Err(Error::Cancelled) => return Ok(None),
            Err(error) => {
                // The volume records an error that stopped writing, and the next edit returns it.
                self.require_writing()?;
                (true, Some(error.to_string()))
            }
        };
        if is_left {
            watched.groups.entry(candidate.start).or_default().avoided_until = later;
        }
        Ok(Some(Reclaimed {
            group: Logical::new(candidate.start),
            used: ByteCount::new(candidate.used),
            length: ByteCount::new(candidate.length),
            is_left,
            failure,
        }))
    }
}

fn run(
    shared: &Weak<Shared>,
    woken: &Receiver<()>,
    options: AutoReclaim,
    report: &(impl Fn(&Reclaimed) + Send),
) {
    let mut watched = Watched::default();
    let mut pause = LOOK_EVERY;
    loop {
        if woken.recv_timeout(pause) == Err(RecvTimeoutError::Disconnected) {
            return;
        }
        let Some(shared) = shared.upgrade() else {
            return;
        };
        let engine = Engine {
            shared,
            holders: None,
        };
        if engine.require_writing().is_err() || engine.shared.account.is_abandoned() {
            return;
        }
        match engine.reclaim_one(&mut watched, options) {
            Ok(None) => pause = LOOK_EVERY,
            Ok(Some(reclaimed)) => {
                report(&reclaimed);
                pause = Duration::ZERO;
            }
            Err(_) => return,
        }
    }
}

impl RelocationStep<'_> {
    /// Returns the least used block group to reclaim, and whether it is one for scarce space only.
    fn candidate(&mut self, watched: &mut Watched, options: AutoReclaim) -> Option<(Candidate, bool)> {
        let candidates = self.below_threshold(watched, options);
        if self.running.core.balancing.is_some() || self.running.core.replacing.is_some() {
            return None;
        }
        let counts_scarcity = !is_before(watched.gained_nothing_until)
            && !self
                .running
                .core
                .chunk_planner()
                .has_space_for(Purpose::Metadata, CHUNKS_SCARCE);
        let mut candidates: Vec<(Candidate, bool)> = candidates
            .into_iter()
            .filter(|(_, fell)| *fell || counts_scarcity)
            .collect();
        candidates.sort_unstable_by_key(|(candidate, _)| candidate.used);
        let fits = |(candidate, _): &(Candidate, bool)| {
            let group = [Logical::new(candidate.start)];
            self.free_outside(&group, Purpose::Data) >= self.wanted_for(&group, Purpose::Data)
        };
        let found = candidates.into_iter().find(fits);
        found.map(|(candidate, fell)| (candidate, !fell))
    }

    /// Returns the block groups below the threshold that are in no use by writers, and whether each
    /// of them was above the threshold earlier.
    fn below_threshold(&self, watched: &mut Watched, options: AutoReclaim) -> Vec<(Candidate, bool)> {
        let mut seen_before = core::mem::take(&mut watched.groups);
        let now = Instant::now();
        let mut found = Vec::new();
        for group in self.running.core.groups.iter() {
            let is_plain = group.serves(Purpose::Data) && !group.flags.contains(BlockGroupFlags::METADATA);
            if !is_plain || group.read_only {
                continue;
            }
            let threshold = group.length.quotient(100).exact_mul(u64::from(options.percent));
            let used = group.used;
            let new = Seen {
                highest: used,
                last: used,
                ..Seen::default()
            };
            // Clamp: a group that was not seen yet begins with its present use.
            let mut seen = seen_before.remove(&group.start).unwrap_or(new);
            if used > seen.last {
                seen.grown_at = Some(now);
            }
            // Clamp: the moment of growth is not after this one.
            let grew = |moment: Instant| now.saturating_duration_since(moment) < LOOK_EVERY;
            let is_quiet = !seen.grown_at.is_some_and(grew) && group.allocated_bytes == 0;
            seen.highest = seen.highest.max(used);
            seen.last = used;
            watched.groups.insert(group.start, seen);
            if used > 0 && used < threshold && is_quiet && !is_before(seen.avoided_until) {
                let candidate = Candidate {
                    start: group.start,
                    used,
                    length: group.length,
                };
                found.push((candidate, seen.highest >= threshold));
            }
        }
        found
    }
}
