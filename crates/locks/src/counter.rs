//! A counter for many writing threads and few readers.
//!
//! Each thread adds to one of several parts of the counter; parts have separate cache lines, so
//! threads on different cores seldom share one. The sum of the counter reads the parts one after
//! another. The counter's sum includes every addition made before the call, and may include some
//! additions made during the call.

use core::cell::Cell;
use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

const PARTS: usize = 16;

/// The parts are two cache lines apart, because processors fetch lines in pairs.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Part(AtomicU64);

/// A counter that only grows; see the module's documentation.
#[derive(Debug, Default)]
pub struct Counter([Part; PARTS]);

std::thread_local! {
    static PART: Cell<usize> = const { Cell::new(usize::MAX) };
}

/// Returns the part of the calling thread. A counter's parts are assigned to threads in turn, at
/// each thread's first call.
fn part_of_thread() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    PART.with(|part| {
        if part.get() == usize::MAX {
            part.set(NEXT.fetch_add(1, Ordering::Relaxed) % PARTS);
        }
        part.get()
    })
}

impl Counter {
    /// Adds to the counter, which wraps at 2^64.
    pub fn add(&self, count: u64) {
        if let Some(part) = self.0.get(part_of_thread()) {
            part.0.fetch_add(count, Ordering::SeqCst);
        }
    }

    /// Returns the sum of all additions.
    #[must_use]
    pub fn sum(&self) -> u64 {
        self.0
            .iter()
            .fold(0_u64, |sum, part| sum.wrapping_add(part.0.load(Ordering::SeqCst)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sum_includes_additions_of_all_threads() {
        let counter = Counter::default();
        std::thread::scope(|scope| {
            for thread in 0..40_u64 {
                let counter = &counter;
                scope.spawn(move || (0..1000).for_each(|_| counter.add(thread)));
            }
        });
        assert_eq!(counter.sum(), 1000 * (0..40).sum::<u64>());
    }
}
