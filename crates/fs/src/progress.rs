//! Progress: the interface by which long jobs report their progress and learn that they were
//! cancelled.
//!
//! A job receives a [`Progress`], adds to its counters, and calls [`Progress::check`] at least once
//! for each batch of work. Another thread reads a [`Snapshot`] at any time, and calls
//! [`Progress::cancel`] to stop the job. The counters of a job only grow. Progress uses no clock.

use crate::error::{Error, Result};
use buttress_format::ByteCount;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// A handle on the progress of one job. All clones of this handle belong to the same job.
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

/// The progress of a job at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Snapshot {
    /// The number of files, blocks, or other items that the job counts.
    pub items: u64,
    /// The number of processed bytes.
    pub bytes: ByteCount,
    /// The expected total of bytes, as far as the job knows it; otherwise zero.
    pub expected: ByteCount,
    /// The number of errors found so far.
    pub errors: u64,
}

impl Progress {
    /// Makes the progress of a job that has not begun.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Makes the progress of a job that ends when `cancelled` is set.
    #[must_use]
    pub fn cancelled_by(cancelled: Arc<AtomicBool>) -> Self {
        Self {
            cancelled,
            ..Self::default()
        }
    }

    /// Cancels the job. The cancelled job ends with [`Error::Cancelled`] at its next check.
    pub fn cancel(&self) {
        self.cancelled.store(true, Ordering::Relaxed);
    }

    /// Returns the flag that [`Progress::cancel`] sets, for signal handlers, which can only set a
    /// flag.
    #[must_use]
    pub fn cancellation(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.cancelled)
    }

    /// Returns true if the job was cancelled.
    #[must_use]
    pub fn is_cancelled(&self) -> bool {
        self.cancelled.load(Ordering::Relaxed)
    }

    /// Checks that the job was not cancelled.
    ///
    /// # Errors
    /// Returns [`Error::Cancelled`] if the job was cancelled.
    pub fn check(&self) -> Result<()> {
        if self.is_cancelled() {
            Err(Error::Cancelled)
        } else {
            Ok(())
        }
    }

    /// Adds `items` items with a total of `bytes`.
    pub fn advance(&self, items: u64, bytes: ByteCount) {
        self.counters.items.fetch_add(items, Ordering::Relaxed);
        self.counters.bytes.fetch_add(bytes.get(), Ordering::Relaxed);
    }

    /// Counts one error.
    pub fn count_error(&self) {
        self.counters.errors.fetch_add(1, Ordering::Relaxed);
    }

    /// Sets the expected total of bytes.
    pub fn expect(&self, bytes: ByteCount) {
        self.counters.expected_bytes.store(bytes.get(), Ordering::Relaxed);
    }

    /// Returns the current progress.
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
