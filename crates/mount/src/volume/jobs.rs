//! Long changes of the volume that the end of the service cancels: defragmentation, removal of a
//! device, counts of quotas.
//!
//! Invariants:
//! - After [`Jobs::end`] returns, no job runs and none begins.
//! - A job checks its progress often, so the end of the service waits briefly.

use buttress::Progress;
use parking_lot::{Condvar, Mutex};
use std::sync::Arc;

/// The running jobs of a volume.
#[derive(Debug, Default)]
pub struct Jobs {
    state: Mutex<State>,
    ended: Condvar,
}

#[derive(Debug, Default)]
struct State {
    is_over: bool,
    running: Vec<Progress>,
}

/// A running job. When this value is dropped, the job has ended.
#[derive(Debug)]
pub struct Job {
    jobs: Arc<Jobs>,
    progress: Progress,
}

impl Jobs {
    /// Begins a job, unless the service is ending.
    #[must_use]
    pub fn begin(self: &Arc<Self>, progress: &Progress) -> Option<Job> {
        let mut state = self.state.lock();
        if state.is_over {
            return None;
        }
        state.running.push(progress.clone());
        Some(Job {
            jobs: Arc::clone(self),
            progress: progress.clone(),
        })
    }

    /// Cancels all jobs, and prevents further ones.
    pub fn cancel(&self) {
        let mut state = self.state.lock();
        state.is_over = true;
        state.running.iter().for_each(Progress::cancel);
    }

    /// Cancels all jobs, prevents further ones, and waits for their ends.
    pub fn end(&self) {
        self.cancel();
        let mut state = self.state.lock();
        while !state.running.is_empty() {
            self.ended.wait(&mut state);
        }
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        let mut state = self.jobs.state.lock();
        let own = self.progress.cancellation();
        let is_own = |other: &Progress| Arc::ptr_eq(&other.cancellation(), &own);
        if let Some(at) = state.running.iter().position(is_own) {
            state.running.swap_remove(at);
        }
        self.jobs.ended.notify_all();
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a panic is how a test fails")]
mod tests {
    use super::*;

    #[test]
    fn end_cancels_jobs_and_waits_for_them() {
        let jobs = Arc::new(Jobs::default());
        let (first, second) = (Progress::new(), Progress::new());
        let ended = jobs.begin(&first).unwrap();
        let running = jobs.begin(&second).unwrap();
        drop(ended);
        let job = std::thread::spawn(move || {
            while !second.is_cancelled() {
                std::thread::yield_now();
            }
            drop(running);
        });
        jobs.end();
        job.join().unwrap();
        assert!(!first.is_cancelled());
        assert!(jobs.begin(&first).is_none());
    }
}
