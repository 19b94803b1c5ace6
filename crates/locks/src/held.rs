//! The locks that a thread holds, and the check of each further lock against them.
//!
//! The list of held locks exists only in builds with debug assertions. In builds with debug
//! assertions, dropping [`Held`] removes a lock from the list.

use crate::class::{Class, LockClass};
use crate::figures::{Mode, stopwatch};
use crate::stopwatch::Stopwatch;
use core::marker::PhantomData;

/// An entry for one held lock. The entry is dropped after the lock itself is released.
#[derive(Debug)]
pub(crate) struct Held<C: LockClass> {
    mode: Mode,
    since: Option<Stopwatch>,
    #[cfg(debug_assertions)]
    lock: usize,
    class: PhantomData<C>,
}

impl<C: LockClass> Held<C> {
    /// Records an acquired lock.
    #[inline]
    #[cfg_attr(debug_assertions, track_caller)]
    pub(crate) fn new(lock: &Identity, mode: Mode) -> Self {
        #[cfg(debug_assertions)]
        list::push(C::CLASS, lock, mode);
        #[cfg(not(debug_assertions))]
        let _ = lock;
        Self {
            mode,
            since: stopwatch(C::CLASS),
            #[cfg(debug_assertions)]
            lock: lock.address,
            class: PhantomData,
        }
    }
}

impl<C: LockClass> Drop for Held<C> {
    #[inline]
    fn drop(&mut self) {
        #[cfg(debug_assertions)]
        list::remove(self.lock);
        if let Some(since) = self.since {
            C::figures().add_hold(self.mode, since.taken());
        }
    }
}

/// The identity of a lock within its class.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Identity {
    #[cfg(debug_assertions)]
    address: usize,
    #[cfg(debug_assertions)]
    place: Place,
}

/// The place of a lock among the locks of its class, kept in builds that check the order.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Place {
    #[cfg(debug_assertions)]
    number: Option<u128>,
}

impl Place {
    pub(crate) const NONE: Self = Self {
        #[cfg(debug_assertions)]
        number: None,
    };

    pub(crate) const fn new(number: u128) -> Self {
        #[cfg(not(debug_assertions))]
        let _ = number;
        Self {
            #[cfg(debug_assertions)]
            number: Some(number),
        }
    }
}

impl Identity {
    #[inline]
    pub(crate) fn of<T>(lock: &T, place: Place) -> Self {
        #[cfg(not(debug_assertions))]
        let _ = (lock, place);
        Self {
            #[cfg(debug_assertions)]
            address: core::ptr::from_ref(lock).addr(),
            #[cfg(debug_assertions)]
            place,
        }
    }
}

/// Checks a lock before its acquisition, which may wait.
#[inline]
#[cfg_attr(debug_assertions, track_caller)]
pub(crate) fn check(class: &'static Class, lock: &Identity) {
    #[cfg(debug_assertions)]
    list::check(class, lock);
    #[cfg(not(debug_assertions))]
    let _ = (class, lock);
}

/// Declares that the thread is about to wait for a device: for a request, or for a flush.
///
/// In builds with debug assertions, this fails if the thread holds a lock that must not be held
/// during device I/O.
#[inline]
#[cfg_attr(debug_assertions, track_caller)]
pub fn waits_for_device() {
    #[cfg(debug_assertions)]
    list::check_device();
}

/// An excuse from the device rule: while it exists, the thread may wait for devices under any lock.
/// The caller must state the reason in a comment.
#[derive(Debug)]
pub struct Excused {
    stays_on_its_thread: PhantomData<*const ()>,
}

impl Excused {
    /// Makes an excuse that is valid until it is dropped.
    #[must_use]
    pub fn from_device_rule() -> Self {
        #[cfg(debug_assertions)]
        list::excuse(1);
        Self {
            stays_on_its_thread: PhantomData,
        }
    }
}

impl Drop for Excused {
    fn drop(&mut self) {
        #[cfg(debug_assertions)]
        list::excuse(-1);
    }
}

#[cfg(debug_assertions)]
mod list {
    use super::Identity;
    use crate::class::Class;
    use crate::figures::Mode;
    use core::cell::{Cell, RefCell};
    use core::panic::Location;

    struct Entry {
        class: &'static Class,
        lock: Identity,
        mode: Mode,
        taken_at: &'static Location<'static>,
    }

    crate::thread_local! {
        static HELD: RefCell<Vec<Entry>> = const { RefCell::new(Vec::new()) };
        static EXCUSED: Cell<isize> = const { Cell::new(0) };
    }

    #[track_caller]
    pub(super) fn push(class: &'static Class, lock: &Identity, mode: Mode) {
        let entry = Entry {
            class,
            lock: *lock,
            mode,
            taken_at: Location::caller(),
        };
        // If the thread is ending, it has no list any more, and acquires no lock out of order.
        let _ = HELD.try_with(|held| held.borrow_mut().push(entry));
    }

    pub(super) fn remove(lock: usize) {
        let _ = HELD.try_with(|held| {
            let mut held = held.borrow_mut();
            if let Some(at) = held.iter().rposition(|entry| entry.lock.address == lock) {
                held.remove(at);
            }
        });
    }

    /// Returns the violated rule of lock order if the lock is acquired while `held` is held.
    fn problem(held: &Entry, class: &'static Class, lock: &Identity) -> Option<&'static str> {
        if held.lock.address == lock.address {
            return Some("the same lock is taken again");
        }
        let Some(held_rank) = held.class.rank.number() else {
            return Some("nothing is taken under a leaf");
        };
        let rank = class.rank.number()?;
        if held_rank != rank {
            return (held_rank > rank).then_some("locks are taken in rising rank");
        }
        if !class.rank.is_several() || !held.class.rank.is_several() {
            return Some("of locks of one rank one is held");
        }
        match (held.lock.place.number, lock.place.number) {
            (Some(before), Some(after)) if before >= after => {
                Some("locks of one rank are taken in order of place")
            }
            _ => None,
        }
    }

    #[track_caller]
    pub(super) fn check(class: &'static Class, lock: &Identity) {
        let found = HELD.try_with(|held| {
            let held = held.borrow();
            held.iter().find_map(|entry| {
                let why = problem(entry, class, lock)?;
                let (places, taken_at) = ((entry.lock.place.number, lock.place.number), entry.taken_at);
                Some(format!(
                    "lock order: {class} is taken while {} is held, which was taken at {taken_at}: {why} \
                     (places {places:?}; docs/internals/locking.md)",
                    entry.class
                ))
            })
        });
        let found = found.unwrap_or_default();
        debug_assert!(found.is_none(), "{}", found.unwrap_or_default());
    }

    #[track_caller]
    pub(super) fn check_device() {
        if EXCUSED.with(Cell::get) > 0 || std::thread::panicking() {
            return;
        }
        let found = HELD.try_with(|held| {
            let held = held.borrow();
            let entry = held.iter().find(|entry| !entry.class.rank.is_over_device(entry.mode))?;
            Some(format!(
                "a device is waited for while {} is held, which was taken at {}, and must not be held over a device \
                 (docs/internals/locking.md)",
                entry.class, entry.taken_at
            ))
        });
        let found = found.unwrap_or_default();
        debug_assert!(found.is_none(), "{}", found.unwrap_or_default());
    }

    pub(super) fn excuse(by: isize) {
        EXCUSED.with(|excused| excused.set(excused.get().saturating_add(by)));
    }
}
