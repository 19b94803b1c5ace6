//! Interrupted requests: a signal to the caller cancels its request.
//!
//! When a caller of a request gets a signal, the kernel sends `INTERRUPT` with the number of the
//! request, and still waits for the answer. Only control commands can take long enough to matter,
//! so only these register here. All other requests ignore interruptions.
//!
//! Another thread may read the interruption before the request has begun. The numbers of such early
//! interruptions are kept, and the request begins cancelled. The kernel never uses a number twice.
//! An interruption of a request that registers nothing, or has ended, leaves its number behind, so
//! only the latest numbers are kept.

use buttress::Progress;
use parking_lot::Mutex;
use std::collections::VecDeque;

/// The most early interruptions that are kept.
const EARLY_MAX: usize = 64;

/// The requests that can be cancelled. Leaf lock.
#[derive(Debug, Default)]
pub(super) struct Interrupts(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    running: Vec<(u64, Progress)>,
    early: VecDeque<u64>,
}

/// A request that can be cancelled, until this value is dropped.
#[derive(Debug)]
pub(super) struct Interruptible<'a> {
    interrupts: &'a Interrupts,
    unique: u64,
    pub(super) progress: Progress,
}

impl Interrupts {
    /// Registers a request by its number.
    pub(super) fn begin(&self, unique: u64) -> Interruptible<'_> {
        let progress = Progress::new();
        let mut state = self.0.lock();
        if let Some(at) = state.early.iter().position(|early| *early == unique) {
            state.early.remove(at);
            progress.cancel();
        }
        state.running.push((unique, progress.clone()));
        Interruptible {
            interrupts: self,
            unique,
            progress,
        }
    }

    /// Cancels the request with this number.
    pub(super) fn interrupt(&self, unique: u64) {
        let mut state = self.0.lock();
        if let Some((_, progress)) = state.running.iter().find(|(other, _)| *other == unique) {
            progress.cancel();
            return;
        }
        if state.early.len() >= EARLY_MAX {
            state.early.pop_front();
        }
        state.early.push_back(unique);
    }
}

impl Drop for Interruptible<'_> {
    fn drop(&mut self) {
        let mut state = self.interrupts.0.lock();
        state.running.retain(|(other, _)| *other != self.unique);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn interruption_cancels_its_request_even_if_it_comes_first() {
        let interrupts = Interrupts::default();
        let (first, second) = (interrupts.begin(2), interrupts.begin(4));
        interrupts.interrupt(4);
        assert!(!first.progress.is_cancelled() && second.progress.is_cancelled());
        drop((first, second));
        interrupts.interrupt(6);
        assert!(interrupts.begin(6).progress.is_cancelled());
        assert!(!interrupts.begin(6).progress.is_cancelled());
        for unique in 0..1000 {
            interrupts.interrupt(unique);
        }
        assert!(interrupts.0.lock().early.len() <= EARLY_MAX);
        assert!(interrupts.begin(999).progress.is_cancelled());
    }
}
