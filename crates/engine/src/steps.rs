//! The lock that an operation holds from its first edit to its end, so that readers see all of its
//! edits or none.
//!
//! Live lookups share this lock. A lookup that reads one object in memory does not acquire the
//! steps lock. A lookup without the lock detects an operation in progress by a count, which each
//! operation increments when it begins. A lookup during an operation may see half of its edits (a
//! rename over a name changes the directory's size twice). The lookup then discards its result.
//!
//! Invariant: the count of operations changes only under the exclusive lock, before the operation's
//! first edit. A reader that sees an edit, through the lock of the edited object, therefore also
//! sees the operation count.

use buttress_locks::atomic::{AtomicU64, Ordering};
use buttress_locks::{Rank, RwLock, RwLockReadGuard, RwLockWriteGuard, lock_class};

lock_class!(pub StepsLock, "steps", Rank::new(43));

/// The lock and the count of operations. See the module's documentation.
#[derive(Debug, Default)]
pub struct Steps {
    steps: RwLock<(), StepsLock>,
    /// The number of operations that have begun.
    begun: AtomicU64,
}

impl Steps {
    /// Begins the edits of an operation. The operation's edits end when the caller drops the guard.
    pub fn write(&self) -> RwLockWriteGuard<'_, (), StepsLock> {
        let guard = self.steps.write();
        // The exclusive lock excludes any other change of the count of begun operations.
        let begun = self.begun.load(Ordering::Relaxed);
        // Release order: a thread that sees this count also sees the lock held.
        self.begun.store(begun.wrapping_add(1), Ordering::Release);
        guard
    }

    /// Blocks the edits of operations while a reader performs several lookups.
    pub fn read(&self) -> RwLockReadGuard<'_, (), StepsLock> {
        self.steps.read()
    }

    /// Reads one object in memory with a lock of its own, between two operations. A concurrent
    /// operation can make `read` run twice.
    pub fn read_once<T>(&self, read: impl Fn() -> T) -> T {
        let before = self.begun.load(Ordering::Acquire);
        // If an operation is in progress, wait for it. Without the wait, this reader could see the
        // operation's first edit now and miss a later edit. Later lookups observe all of an
        // operation that begins after this lookup, or nothing.
        if !self.steps.is_locked_exclusive() {
            let found = read();
            let is_whole = self.begun.load(Ordering::Acquire) == before;
            if is_whole || buttress_faults::on("live-look-of-half-an-operation") {
                return found;
            }
        }
        let _whole = self.read();
        read()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::cell::Cell;

    /// The operation begins and ends between the lookup's two reads of the count.
    #[test]
    fn lookup_runs_again_if_it_overlaps_an_operation() {
        let steps = Steps::default();
        let (size, is_first) = (Cell::new(1), Cell::new(true));
        let found = steps.read_once(|| {
            if !is_first.replace(false) {
                return size.get();
            }
            let operation = steps.write();
            size.set(2);
            let half_done = size.get();
            size.set(3);
            drop(operation);
            half_done
        });
        assert_eq!(found, 3);
    }
}
