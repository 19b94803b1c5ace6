//! A balance under way: block group after block group, until its end, a pause or a cancellation.
//!
//! If no space exists for a block group, the balance skips and reports that group, as Linux does.
//! Any failure other than lack of space ends the balance. A pause keeps the balance item in the
//! root tree; the end and a cancellation remove the item. Block groups that were moved stay moved.

use super::choice::Choice;
use crate::areas::Balances;
use crate::engine::Engine;
use crate::relocation::{RelocationOptions, RelocationSummary, Removal};
use buttress_exact::{Exact as _, u64_of};
use buttress_format::{ByteCount, Logical};
use buttress_fs::error::{BalanceRefusal, Error, Result};
use buttress_fs::progress::Progress;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::Arc;

/// A handle on a balance under way: its counters, and the requests to pause or to cancel it. Clones
/// of the control belong to the same balance.
#[derive(Clone, Debug, Default)]
pub struct BalanceControl {
    progress: Progress,
    is_cancelled: Arc<AtomicBool>,
    counters: Arc<Counters>,
}

#[derive(Debug, Default)]
struct Counters {
    expected: AtomicU64,
    considered: AtomicU64,
    relocated: AtomicU64,
}

/// The progress of a balance, in block groups.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BalanceCounts {
    /// The number of block groups to move.
    pub expected: u64,
    /// The number of block groups that were compared with the filters so far.
    pub considered: u64,
    /// The number of block groups that the balance moved.
    pub relocated: u64,
}

impl BalanceControl {
    /// Returns the control of a balance that has not begun. The progress counts relocated bytes;
    /// cancelling it pauses the balance.
    #[must_use]
    pub fn new(progress: Progress) -> Self {
        Self {
            progress,
            ..Self::default()
        }
    }

    /// Returns the progress in bytes.
    #[must_use]
    pub const fn progress(&self) -> &Progress {
        &self.progress
    }

    /// Asks the balance to stop and to stay resumable.
    pub fn pause(&self) {
        self.progress.cancel();
    }

    /// Requests that the running balance ends.
    pub fn cancel(&self) {
        self.is_cancelled.store(true, Ordering::SeqCst);
        self.progress.cancel();
    }

    /// Returns the flag that makes a pause a cancellation, for callers that can only set a flag,
    /// such as signal handlers.
    #[must_use]
    pub fn cancellation(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.is_cancelled)
    }

    /// Returns how far the balance is.
    #[must_use]
    pub fn counts(&self) -> BalanceCounts {
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        BalanceCounts {
            expected: count(&self.counters.expected),
            considered: count(&self.counters.considered),
            relocated: count(&self.counters.relocated),
        }
    }
}

/// How a run of a balance ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BalanceEnd {
    /// The balance has visited all block groups.
    Finished,
    /// The balance was paused, and can be resumed.
    Paused,
    /// The balance was cancelled.
    Cancelled,
}

/// A block group that the balance did not relocate for lack of space.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NotRelocated {
    /// Its start.
    pub group: Logical,
    /// The bytes that the block group's content takes.
    pub used: ByteCount,
}

/// The result of a run of a balance.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BalanceSummary {
    /// How the run of the balance ended.
    pub end: BalanceEnd,
    /// Block groups.
    pub counts: BalanceCounts,
    /// Block groups that the balance could not relocate for lack of space.
    pub without_space: Vec<NotRelocated>,
    /// The blocks and extents that the balance has moved.
    pub moved: RelocationSummary,
}

/// When this value is dropped, the balance has stopped running.
struct Runs<'a>(&'a Engine);

impl Drop for Runs<'_> {
    fn drop(&mut self) {
        let mut running = self.0.shared.running.lock();
        if let Some(balancing) = &mut running.core.balancing {
            balancing.runs = false;
        }
    }
}

impl Balances<'_> {
    /// Runs the balance that was [started](Self::start) or [resumed](Self::resume)
    /// until its end, a pause or a cancellation. At most `bytes_per_second` bytes are moved in a
    /// second.
    ///
    /// # Errors
    /// [`BalanceRefusal::NotInProgress`], [`BalanceRefusal::Running`]; any failure of a move except
    /// lack of space, which ends the balance.
    pub fn run(
        &self,
        choice: &Choice,
        bytes_per_second: Option<u64>,
        control: &BalanceControl,
    ) -> Result<BalanceSummary> {
        let runs = self.begin_to_run()?;
        let options = RelocationOptions {
            progress: control.progress.clone(),
            bytes_per_second,
            removal: Removal::Left,
        };
        control.progress.expect(choice.bytes());
        let expected = u64_of(choice.groups.len());
        control.counters.expected.store(expected, Ordering::Relaxed);
        let mut summary = BalanceSummary {
            end: BalanceEnd::Finished,
            counts: BalanceCounts::default(),
            without_space: Vec::new(),
            moved: RelocationSummary::default(),
        };
        let moved = self.move_groups(choice, &options, control, &mut summary);
        drop(runs);
        summary.end = match &moved {
            Err(Error::Cancelled) if control.is_cancelled.load(Ordering::SeqCst) => BalanceEnd::Cancelled,
            Err(Error::Cancelled) => BalanceEnd::Paused,
            _ => BalanceEnd::Finished,
        };
        if summary.end != BalanceEnd::Paused {
            let ended = self.end();
            match moved {
                Ok(()) | Err(Error::Cancelled) => ended?,
                // The cause of the end is returned, even if the item stays.
                Err(error) => return Err(error),
            }
        }
        summary.counts = control.counts();
        Ok(summary)
    }

    fn begin_to_run(&self) -> Result<Runs<'_>> {
        let _no_change = self.engine.begin_beside_no_change()?;
        let mut running = self.engine.shared.running.lock();
        match &mut running.core.balancing {
            None => Err(BalanceRefusal::NotInProgress.into()),
            Some(balancing) if balancing.runs => Err(BalanceRefusal::Running.into()),
            Some(balancing) => {
                balancing.runs = true;
                Ok(Runs(self.engine))
            }
        }
    }

    fn move_groups(
        &self,
        choice: &Choice,
        options: &RelocationOptions,
        control: &BalanceControl,
        summary: &mut BalanceSummary,
    ) -> Result<()> {
        let mut visits = choice.visits();
        let mut later = Vec::new();
        for start in &choice.starts {
            control.progress.check()?;
            control.counters.considered.fetch_add(1, Ordering::Relaxed);
            let now = self.engine.shared.running.lock().core.candidate_at(*start)?;
            let Some(group) = now.filter(|group| visits.take(group)) else {
                continue;
            };
            if !self.move_group(group.start, options, control, summary)? {
                later.push(NotRelocated {
                    group: group.start,
                    used: group.used,
                });
            }
        }
        // Emptied block groups give their space back once their readers end.
        if later.is_empty() || !self.engine.relocations().wait_for_left(&control.progress)? {
            summary.without_space = later;
            return Ok(());
        }
        for group in later {
            control.progress.check()?;
            if !self.move_group(group.group, options, control, summary)? {
                summary.without_space.push(group);
            }
        }
        Ok(())
    }

    /// Moves a block group. Returns false if its content has no space elsewhere.
    fn move_group(
        &self,
        start: Logical,
        options: &RelocationOptions,
        control: &BalanceControl,
        summary: &mut BalanceSummary,
    ) -> Result<bool> {
        match self.engine.relocations().relocate(&[start], options) {
            Ok(moved) => {
                control.counters.relocated.fetch_add(1, Ordering::Relaxed);
                add(&mut summary.moved, &moved);
                Ok(true)
            }
            Err(Error::NoSpace { .. }) => Ok(false),
            Err(error) => Err(error),
        }
    }
}

fn add(sum: &mut RelocationSummary, more: &RelocationSummary) {
    sum.groups = sum.groups.exact_add(more.groups);
    sum.left_groups = sum.left_groups.exact_add(more.left_groups);
    sum.data_extents = sum.data_extents.exact_add(more.data_extents);
    sum.data_bytes = sum.data_bytes.exact_add(more.data_bytes);
    sum.tree_blocks = sum.tree_blocks.exact_add(more.tree_blocks);
    sum.copied_blocks = sum.copied_blocks.exact_add(more.copied_blocks);
    sum.batches = sum.batches.exact_add(more.batches);
}
