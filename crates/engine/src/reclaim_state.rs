//! The state by which other jobs and the end of the volume stop an automatic reclaim.
//!
//! Invariant: after [`ReclaimState::end`] returns, no reclaim runs. A reclaim marks itself as running
//! before it checks whether it may, so either the check fails or `end` sees the mark.

use core::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use core::time::Duration;
use std::sync::Arc;

/// How often a caller checks whether a cancelled reclaim has ended.
const END_EVERY: Duration = Duration::from_millis(2);

/// The state by which other jobs and the end of the volume stop a reclaim.
#[derive(Debug, Default)]
pub(crate) struct ReclaimState {
    /// Whether a thread exists.
    is_started: AtomicBool,
    /// Cancels the reclaim in progress.
    stop: Arc<AtomicBool>,
    /// The number of jobs that run instead.
    others: AtomicUsize,
    is_over: AtomicBool,
    runs: AtomicBool,
}

/// While this value exists, no reclaim begins.
#[derive(Debug)]
pub(crate) struct GivenWay<'a>(&'a ReclaimState);

impl Drop for GivenWay<'_> {
    fn drop(&mut self) {
        self.0.others.fetch_sub(1, Ordering::SeqCst);
    }
}

/// A reclaim in progress.
#[derive(Debug)]
pub(crate) struct Run<'a>(&'a ReclaimState);

impl Drop for Run<'_> {
    fn drop(&mut self) {
        self.0.runs.store(false, Ordering::SeqCst);
    }
}

impl ReclaimState {
    /// Cancels the reclaim in progress, which ends after its batch, and keeps another one from
    /// beginning.
    pub(crate) fn give_way(&self) -> GivenWay<'_> {
        self.others.fetch_add(1, Ordering::SeqCst);
        self.stop.store(true, Ordering::SeqCst);
        GivenWay(self)
    }

    /// Notes that a thread starts. Returns false if one exists.
    pub(crate) fn start(&self) -> bool {
        let is_new = !self.is_started.swap(true, Ordering::SeqCst);
        if is_new {
            self.is_over.store(false, Ordering::SeqCst);
        }
        is_new
    }

    /// Notes that the thread ended.
    pub(crate) fn may_start_again(&self) {
        self.is_started.store(false, Ordering::SeqCst);
    }

    /// Returns the flag that cancels the reclaim in progress.
    pub(crate) fn cancellation(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.stop)
    }

    /// Begins a reclaim, if no other job has precedence.
    pub(crate) fn begin(&self) -> Option<Run<'_>> {
        self.stop.store(false, Ordering::SeqCst);
        self.runs.store(true, Ordering::SeqCst);
        let run = Run(self);
        let is_free = self.others.load(Ordering::SeqCst) == 0 && !self.is_over.load(Ordering::SeqCst);
        is_free.then_some(run)
    }

    /// Ends reclaims for good, and waits for the reclaim in progress.
    pub(crate) fn end(&self) {
        self.is_over.store(true, Ordering::SeqCst);
        self.stop.store(true, Ordering::SeqCst);
        while self.runs.load(Ordering::SeqCst) {
            std::thread::sleep(END_EVERY);
        }
    }
}
