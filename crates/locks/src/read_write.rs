//! Read-write locks.

use crate::class::LockClass;
use crate::figures::{Mode, is_measured};
use crate::held::{Held, Identity, Place, check};
use crate::raw;
use crate::stopwatch::Stopwatch;
use core::fmt;
use core::marker::PhantomData;
use core::ops::{Deref, DerefMut};

/// A read-write lock of a class.
pub struct RwLock<T, C: LockClass> {
    place: Place,
    class: PhantomData<fn() -> C>,
    inner: raw::RwLock<T>,
}

/// The guard of a lock that is held shared.
pub struct RwLockReadGuard<'a, T, C: LockClass> {
    // The inner guard is declared first, so that the lock is released before its entry is removed.
    inner: raw::RwLockReadGuard<'a, T>,
    _held: Held<C>,
}

/// The guard of a lock that is held exclusively.
pub struct RwLockWriteGuard<'a, T, C: LockClass> {
    // Dropped first, so that the lock is released before its entry.
    inner: raw::RwLockWriteGuard<'a, T>,
    _held: Held<C>,
}

impl<T, C: LockClass> RwLock<T, C> {
    /// Makes a lock.
    pub const fn new(value: T) -> Self {
        Self {
            place: Place::NONE,
            class: PhantomData,
            inner: raw::RwLock::new(value),
        }
    }

    /// Makes a lock of a class of which [several](crate::Rank::several) may be held together. Such
    /// locks are acquired in ascending order of their places.
    pub const fn with_place(value: T, place: u128) -> Self {
        Self {
            place: Place::new(place),
            class: PhantomData,
            inner: raw::RwLock::new(value),
        }
    }

    /// Returns the protected value.
    pub fn into_inner(self) -> T {
        self.inner.into_inner()
    }

    /// Returns the protected value of a lock without other users.
    pub fn get_mut(&mut self) -> &mut T {
        self.inner.get_mut()
    }

    fn identity(&self) -> Identity {
        Identity::of(self, self.place)
    }

    /// Acquires the lock shared. Waits while another thread holds the lock exclusively, or waits to
    /// hold it exclusively.
    #[inline]
    #[cfg_attr(debug_assertions, track_caller)]
    pub fn read(&self) -> RwLockReadGuard<'_, T, C> {
        check(C::CLASS, &self.identity());
        let inner = if is_measured(C::CLASS) {
            self.inner.try_read().unwrap_or_else(|| {
                let start = Stopwatch::start();
                let inner = self.inner.read();
                C::figures().add_wait(start.taken());
                inner
            })
        } else {
            self.inner.read()
        };
        RwLockReadGuard {
            inner,
            _held: Held::new(&self.identity(), Mode::Shared),
        }
    }

    /// Acquires the lock exclusively. Waits while another thread holds the lock.
    #[inline]
    #[cfg_attr(debug_assertions, track_caller)]
    pub fn write(&self) -> RwLockWriteGuard<'_, T, C> {
        check(C::CLASS, &self.identity());
        let inner = if is_measured(C::CLASS) {
            self.inner.try_write().unwrap_or_else(|| {
                let start = Stopwatch::start();
                let inner = self.inner.write();
                C::figures().add_wait(start.taken());
                inner
            })
        } else {
            self.inner.write()
        };
        RwLockWriteGuard {
            inner,
            _held: Held::new(&self.identity(), Mode::Exclusive),
        }
    }

    /// Returns true if a thread holds the lock exclusively. A caller that saw a holder's change
    /// sees true until the holder releases the lock.
    #[inline]
    pub fn is_locked_exclusive(&self) -> bool {
        self.inner.is_locked_exclusive()
    }

    /// Acquires the lock shared, if no thread holds it exclusively.
    #[inline]
    #[cfg_attr(debug_assertions, track_caller)]
    pub fn try_read(&self) -> Option<RwLockReadGuard<'_, T, C>> {
        let inner = self.inner.try_read()?;
        Some(RwLockReadGuard {
            inner,
            _held: Held::new(&self.identity(), Mode::Shared),
        })
    }

    /// Acquires the lock exclusively, if it is free.
    #[inline]
    #[cfg_attr(debug_assertions, track_caller)]
    pub fn try_write(&self) -> Option<RwLockWriteGuard<'_, T, C>> {
        let inner = self.inner.try_write()?;
        Some(RwLockWriteGuard {
            inner,
            _held: Held::new(&self.identity(), Mode::Exclusive),
        })
    }
}

impl<T: Default, C: LockClass> Default for RwLock<T, C> {
    fn default() -> Self {
        Self::new(T::default())
    }
}

impl<T: fmt::Debug, C: LockClass> fmt::Debug for RwLock<T, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.fmt(f)
    }
}

impl<T, C: LockClass> Deref for RwLockReadGuard<'_, T, C> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        &self.inner
    }
}

impl<T, C: LockClass> Deref for RwLockWriteGuard<'_, T, C> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        &self.inner
    }
}

impl<T, C: LockClass> DerefMut for RwLockWriteGuard<'_, T, C> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        &mut self.inner
    }
}

impl<T: fmt::Debug, C: LockClass> fmt::Debug for RwLockReadGuard<'_, T, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.fmt(f)
    }
}

impl<T: fmt::Debug, C: LockClass> fmt::Debug for RwLockWriteGuard<'_, T, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.fmt(f)
    }
}
