//! The counts of quotas that refused writes cause.
//!
//! A write that a limit refuses brings the counters up to date and is tried again. If nothing changed
//! since the last count, the next refused write counts nothing. An unmount cancels the counts.

use buttress_format::Generation;
use buttress_fs::Progress;
use buttress_locks::atomic::{AtomicU64, Ordering};

/// The counts of quotas that refused writes caused.
#[derive(Debug, Default)]
pub(crate) struct Recounts {
    progress: Progress,
    /// The generation of the commit that ended the last count; zero if there was none.
    last: AtomicU64,
}

impl Recounts {
    /// Returns the progress of all counts. A cancellation ends them for good.
    pub(crate) const fn progress(&self) -> &Progress {
        &self.progress
    }

    /// Returns the commit that ended the last count.
    pub(crate) fn last(&self) -> Option<Generation> {
        match self.last.load(Ordering::Acquire) {
            0 => None,
            last => Some(Generation::new(last)),
        }
    }

    /// Records the commit that ended a count.
    pub(crate) fn note(&self, generation: Generation) {
        self.last.store(generation.get(), Ordering::Release);
    }
}
