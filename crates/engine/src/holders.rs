//! How often the edit lock passes from one thread to another.
//!
//! A long job measures with this count whether other threads edit beside it. If none does, it works
//! in larger parts.

use buttress_exact::Exact as _;
use core::sync::atomic::{AtomicU64, Ordering};

/// The number of threads that have acquired an edit lock.
static THREADS: AtomicU64 = AtomicU64::new(0);

std::thread_local! {
    /// This thread's number. Threads never share a number.
    static THREAD: u64 = THREADS.fetch_add(1, Ordering::Relaxed).exact_add(1);
}

/// The last holder of an edit lock, and the number of changes to another thread.
#[derive(Debug, Default)]
pub(crate) struct Holders {
    /// The number of the last thread; 0 before the first.
    last: u64,
    changes: u64,
}

impl Holders {
    /// Notes that the current thread has acquired the edit lock.
    pub(crate) fn note(&mut self) {
        // Clamp: a thread that ends has no number, and counts as another thread.
        let thread = THREAD.try_with(|thread| *thread).unwrap_or(0);
        if self.last != thread {
            self.last = thread;
            self.changes = self.changes.exact_add(1);
        }
    }

    /// Returns the number of acquisitions after which another thread was the holder than before.
    pub(crate) const fn changes(&self) -> u64 {
        self.changes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_changes_to_another_thread_count() {
        let mut holders = Holders::default();
        holders.note();
        holders.note();
        assert_eq!(holders.changes(), 1);
        std::thread::scope(|scope| scope.spawn(|| holders.note()).join().unwrap());
        assert_eq!(holders.changes(), 2);
        holders.note();
        assert_eq!(holders.changes(), 3);
    }
}
