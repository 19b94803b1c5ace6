//! A count that many threads add to and few ask for.
//!
//! Each thread adds to one of several parts, each in a cache line of its own: threads on different cores seldom write to the
//! same line. The sum is that of the parts, looked at one after another: of what was added before it was asked for, nothing
//! is left out; of what is added meanwhile, some may be in it.

use core::cell::Cell;
use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

const PARTS: usize = 16;

/// Two lines: processors fetch them in pairs.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Part(AtomicU64);

/// A count that only grows. See the module.
#[derive(Debug, Default)]
pub struct Counter([Part; PARTS]);

std::thread_local! {
    static PART: Cell<usize> = const { Cell::new(usize::MAX) };
}

/// Which part the thread adds to: the next one at its first time.
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
    /// Adds to it; beyond 2^64 it begins anew.
    pub fn add(&self, count: u64) {
        if let Some(part) = self.0.get(part_of_thread()) {
            part.0.fetch_add(count, Ordering::SeqCst);
        }
    }

    /// All that was added.
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
    fn what_threads_add_is_in_the_sum() {
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
