//! Operations are seen whole: the lock that they hold from their first edit to their end.
//!
//! Live look-ups share it. One that looks at a single thing in memory does without it, and looks whether an operation was
//! under way meanwhile: operations are counted as they begin. Such a look may well be of an operation half done (a rename
//! over a name changes the size of its directory twice), and is thrown away then.
//!
//! Invariants: the count changes only under the exclusive lock, before the operation's first edit; so whoever sees an edit by
//! way of the lock of what was edited sees the count with it.

use buttress_locks::atomic::{AtomicU64, Ordering};
use buttress_locks::{Rank, RwLock, RwLockReadGuard, RwLockWriteGuard, lock_class};

lock_class!(pub StepsLock, "steps", Rank::new(43));

/// See the module.
#[derive(Debug, Default)]
pub struct Steps {
    steps: RwLock<(), StepsLock>,
    /// How many operations began.
    begun: AtomicU64,
}

impl Steps {
    /// Begins the edits of an operation, which end when the guard is dropped.
    pub fn write(&self) -> RwLockWriteGuard<'_, (), StepsLock> {
        let guard = self.steps.write();
        // Nobody else changes it meanwhile.
        let begun = self.begun.load(Ordering::Relaxed);
        // Released: who sees this count sees the lock held too.
        self.begun.store(begun.wrapping_add(1), Ordering::Release);
        guard
    }

    /// Keeps operations from editing: for looks at several things.
    pub fn read(&self) -> RwLockReadGuard<'_, (), StepsLock> {
        self.steps.read()
    }

    /// Looks at one thing in memory, which has a lock of its own, between two operations. `look` may be run twice.
    pub fn look_once<T>(&self, look: impl Fn() -> T) -> T {
        let before = self.begun.load(Ordering::Acquire);
        // Who begins to look while an operation is half done waits for its end: else his next look could be at what it has
        // not come to. An operation that begins later is seen whole by all who look after this.
        if !self.steps.is_locked_exclusive() {
            let found = look();
            let is_whole = self.begun.load(Ordering::Acquire) == before;
            if is_whole || buttress_faults::on("live-look-of-half-an-operation") {
                return found;
            }
        }
        let _whole = self.read();
        look()
    }
}
