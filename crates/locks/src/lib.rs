//! Locks with ranks: the order in which they are taken is checked, and how long they are held can be measured.
//!
//! Every lock of the layers that readers and writers share belongs to a *class*, declared beside it with [`lock_class!`]:
//! its name, its rank, and whether it may be held while a device is waited for. docs/internals/locking.md has the same in a table; a
//! test of `xtask` compares them. [`Mutex`] is `parking_lot`'s and [`RwLock`] that of `std`, with the class as a type.
//!
//! In builds with debug assertions each thread keeps the list of what it holds, and these end with an assertion that names
//! both locks, their ranks, and where they were taken:
//!
//! - a lock is taken whose rank is not above that of all that are held (of a rank whose classes say so, several are held at
//!   once, in the order of the places that they were given);
//! - anything is taken while a leaf is held;
//! - a device is waited for ([`waits_for_device`]) while a lock is held that must not be held over one.
//!
//! A lock that is only tried ([`Mutex::try_lock`]) cannot deadlock: it is not checked itself, but what is taken after it is.
//! In other builds none of this is left. Threads that are not the holder's are not looked at: what is checked is order, so a
//! deadlock is found by any run that takes the locks, also when nothing else runs beside it.
//!
//! With `--cfg buttress_shuttle` the locks, [`atomic`] and [`thread_local!`] are those of a model checker, `shuttle`: then all
//! threads are its own, and it chooses who goes on at each of them (`cargo xtask schedules`).
//!
//! In every build the time for which locks with a rank are held and waited for can be measured ([`figures`]); while it is not,
//! that costs a load for each lock taken.
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

/// Atomics whose order with others matters: a model checker chooses between their loads and stores, too.
pub mod atomic {
    #[cfg(not(buttress_shuttle))]
    pub use core::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
    #[cfg(buttress_shuttle)]
    pub use shuttle::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
}

#[cfg(buttress_shuttle)]
pub use shuttle::thread_local;
/// What each thread has of its own.
#[cfg(not(buttress_shuttle))]
pub use std::thread_local;

pub use class::{Class, LockClass, Rank};
pub use counter::Counter;
pub use held::{Excused, waits_for_device};
pub use mutex::{Condvar, Mutex, MutexGuard};
pub use read_write::{RwLock, RwLockReadGuard, RwLockWriteGuard};
pub use stopwatch::{Stopwatch, Taken};
