//! Locks with ranks, whose order is checked, and whose hold times can be measured.
//!
//! Every lock that the readers' and writers' layers share belongs to a *class*. [`lock_class!`]
//! declares the class beside the lock: its name, its rank, and whether the lock may be held during
//! device I/O. docs/internals/locking.md lists the classes in a table, which a test of `xtask`
//! compares. [`Mutex`] wraps `parking_lot`'s mutex, and [`RwLock`] wraps `std`'s read-write lock.
//! The class is a type parameter.
//!
//! In builds with debug assertions, each thread keeps a list of its locks. The following end in an
//! assertion that names both locks, their ranks, and where they were acquired:
//!
//! - a lock is acquired whose rank is not above the ranks of all held locks. If the class allows
//!   several locks of one rank, they are acquired in the order of their places;
//! - any lock is acquired while a leaf lock is held;
//! - the thread waits for a device ([`waits_for_device`]) while it holds a lock that must not be
//!   held during device I/O.
//!
//! [`Mutex::try_lock`] cannot deadlock, so the check skips the lock, but it checks locks acquired
//! while that is held. Builds without debug assertions contain no lock checks. The check only
//! inspects the thread's own locks. The check tests the order, so any run that acquires the locks
//! finds a deadlock, even without a second thread.
//!
//! With `--cfg buttress_shuttle`, the locks, [`atomic`] and [`thread_local!`] are those of the
//! model checker `shuttle`. All threads are then the model checker's, and it chooses at each lock
//! which thread continues (`cargo xtask schedules`).
//!
//! In every build, the hold and wait times of locks with a rank can be measured ([`figures`]).
//! While measuring is off, it costs one load for each lock acquisition.
#![forbid(unsafe_code)]
#![cfg_attr(
    test,
    allow(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::panic,
        clippy::indexing_slicing,
        clippy::arithmetic_side_effects,
        reason = "tests"
    )
)]

mod class;
mod counter;
pub mod figures;
mod held;
mod mutex;
mod raw;
mod read_write;
mod stopwatch;
pub mod unscheduled;

/// Atomics whose order with other accesses matters. The model checker also chooses the order of
/// loads and stores of these atomics.
pub mod atomic {
    #[cfg(not(buttress_shuttle))]
    pub use core::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
    #[cfg(buttress_shuttle)]
    pub use shuttle::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
}

#[cfg(buttress_shuttle)]
pub use shuttle::thread_local;
/// Thread-local variables.
#[cfg(not(buttress_shuttle))]
pub use std::thread_local;

pub use class::{Class, LockClass, Rank};
pub use counter::Counter;
pub use held::{Excused, waits_for_device};
pub use mutex::{Condvar, Mutex, MutexGuard};
pub use read_write::{RwLock, RwLockReadGuard, RwLockWriteGuard};
pub use stopwatch::{Stopwatch, Taken};
