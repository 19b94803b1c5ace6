//! The one interface by which long jobs report how far they are and learn that they should stop.
//!
//! A job takes a [`Progress`], adds to its counters as it goes, and calls [`Progress::check`] at least once
//! for each batch of work. Whoever waits reads a [`Snapshot`] as often as it likes, from another thread, and
//! calls [`Progress::cancel`] to stop the job. Counters only grow. No clock is involved.

use crate::error::{Error, Result};
use buttress_format::ByteCount;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// A handle on the progress of one job; clones are the same job.
#[derive(Clone, Debug, Default)]
pub struct Progress {
    cancelled: Arc<AtomicBool>,
    counters: Arc<Counters>,
}

#[derive(Debug, Default)]
struct Counters {
    items: AtomicU64,
    bytes: AtomicU64,
    expected_bytes: AtomicU64,
    errors: AtomicU64,
}

/// How far a job is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Snapshot {
    /// Files, blocks, or whatever the job counts.
    pub items: u64,
    /// Bytes that were handled.
    pub bytes: ByteCount,
    /// Bytes that will have been handled at the end, as far as the job knows; zero when it does not.
    pub expected: ByteCount,
    /// Faults that were found on the way.
    pub errors: u64,
}

impl Progress {
    /// A job that has not begun.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// A job that is asked to stop by setting this flag.
    #[must_use]
    pub fn cancelled_by(cancelled: Arc<AtomicBool>) -> Self {
        Self {
            cancelled,
            ..Self::default()
        }
    }

    /// Asks the job to stop. It ends with [`Error::Cancelled`] at its next check.
    pub fn cancel(&self) {
        self.cancelled.store(true, Ordering::Relaxed);
    }

    /// What [`Progress::cancel`] sets, for those who can do nothing but set a flag, such as signal handlers.
    #[must_use]
    pub fn cancellation(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.cancelled)
    }

    /// Whether the job was asked to stop.
    #[must_use]
    pub fn is_cancelled(&self) -> bool {
        self.cancelled.load(Ordering::Relaxed)
    }

    /// # Errors
    /// [`Error::Cancelled`] once the job was asked to stop.
    pub fn check(&self) -> Result<()> {
        if self.is_cancelled() {
            Err(Error::Cancelled)
        } else {
            Ok(())
        }
    }

    /// Counts `items` more, of `bytes` in all.
    pub fn advance(&self, items: u64, bytes: ByteCount) {
        self.counters.items.fetch_add(items, Ordering::Relaxed);
        self.counters.bytes.fetch_add(bytes.get(), Ordering::Relaxed);
    }

    /// Counts one fault.
    pub fn count_error(&self) {
        self.counters.errors.fetch_add(1, Ordering::Relaxed);
    }

    /// States how many bytes the whole job is about.
    pub fn expect(&self, bytes: ByteCount) {
        self.counters.expected_bytes.store(bytes.get(), Ordering::Relaxed);
    }

    /// How far the job is now.
    #[must_use]
    pub fn snapshot(&self) -> Snapshot {
        let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Snapshot {
            items: load(&self.counters.items),
            bytes: ByteCount::new(load(&self.counters.bytes)),
            expected: ByteCount::new(load(&self.counters.expected_bytes)),
            errors: load(&self.counters.errors),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clones_share_counters_and_cancellation() {
        let job = Progress::new();
        let watcher = job.clone();
        job.advance(2, ByteCount::new(100));
        job.count_error();
        assert_eq!(watcher.snapshot().items, 2);
        assert_eq!(watcher.snapshot().errors, 1);
        assert!(job.check().is_ok());
        watcher.cancel();
        assert!(matches!(job.check(), Err(Error::Cancelled)));
    }
}
