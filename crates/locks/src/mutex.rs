//! Mutexes, and condition variables.

use crate::class::LockClass;
use crate::figures::{Mode, is_measured};
use crate::held::{Held, Identity, Place, check};
use crate::raw;
use crate::stopwatch::Stopwatch;
use core::fmt;
use core::marker::PhantomData;
use core::ops::{Deref, DerefMut};
use core::time::Duration;

/// A mutex of a class.
pub struct Mutex<T, C: LockClass> {
    place: Place,
    class: PhantomData<fn() -> C>,
    inner: raw::Mutex<T>,
}

/// The guard of a held mutex.
pub struct MutexGuard<'a, T, C: LockClass> {
    // The mutex guard is dropped first, so that the lock is released before its entry.
    inner: raw::MutexGuard<'a, T>,
    _held: Held<C>,
}

impl<T, C: LockClass> Mutex<T, C> {
    /// Makes a mutex.
    pub const fn new(value: T) -> Self {
        Self {
            place: Place::NONE,
            class: PhantomData,
            inner: raw::Mutex::new(value),
        }
    }

    /// Makes a mutex of a class of which [several](crate::Rank::several) may be held together.
    /// Mutexes of such a class are acquired in ascending order of their places.
    pub const fn with_place(value: T, place: u128) -> Self {
        Self {
            place: Place::new(place),
            class: PhantomData,
            inner: raw::Mutex::new(value),
        }
    }

    /// Returns the protected value.
    pub fn into_inner(self) -> T {
        self.inner.into_inner()
    }

    /// Returns the protected value of a mutex without other users.
    pub fn get_mut(&mut self) -> &mut T {
        self.inner.get_mut()
    }

    fn identity(&self) -> Identity {
        Identity::of(self, self.place)
    }

    #[inline]
    #[cfg_attr(debug_assertions, track_caller)]
    fn held<'a>(&self, inner: raw::MutexGuard<'a, T>) -> MutexGuard<'a, T, C> {
        MutexGuard {
            inner,
            _held: Held::new(&self.identity(), Mode::Exclusive),
        }
    }

    /// Acquires the mutex. Waits while another thread holds the mutex.
    #[inline]
    #[cfg_attr(debug_assertions, track_caller)]
    pub fn lock(&self) -> MutexGuard<'_, T, C> {
        check(C::CLASS, &self.identity());
        let inner = if is_measured(C::CLASS) {
            self.inner.try_lock().unwrap_or_else(|| {
                let start = Stopwatch::start();
                let inner = self.inner.lock();
                C::figures().add_wait(start.taken());
                inner
            })
        } else {
            self.inner.lock()
        };
        self.held(inner)
    }

    /// Returns true if a thread holds the mutex.
    #[inline]
    pub fn is_locked(&self) -> bool {
        self.inner.is_locked()
    }

    /// Acquires the mutex if it is free.
    #[inline]
    #[cfg_attr(debug_assertions, track_caller)]
    pub fn try_lock(&self) -> Option<MutexGuard<'_, T, C>> {
        let inner = self.inner.try_lock()?;
        Some(self.held(inner))
    }

    /// Acquires the mutex if it becomes free within this time.
    #[inline]
    #[cfg_attr(debug_assertions, track_caller)]
    pub fn try_lock_for(&self, time: Duration) -> Option<MutexGuard<'_, T, C>> {
        check(C::CLASS, &self.identity());
        let inner = self.inner.try_lock_for(time)?;
        Some(self.held(inner))
    }
}

impl<T: Default, C: LockClass> Default for Mutex<T, C> {
    fn default() -> Self {
        Self::new(T::default())
    }
}

impl<T: fmt::Debug, C: LockClass> fmt::Debug for Mutex<T, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.fmt(f)
    }
}

impl<T, C: LockClass> Deref for MutexGuard<'_, T, C> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        &self.inner
    }
}

impl<T, C: LockClass> DerefMut for MutexGuard<'_, T, C> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        &mut self.inner
    }
}

impl<T: fmt::Debug, C: LockClass> fmt::Debug for MutexGuard<'_, T, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.fmt(f)
    }
}

/// A condition variable for holders of a [`Mutex`]. The mutex counts as held during the wait, which
/// is harmless, because a waiting thread acquires no other lock.
#[derive(Debug, Default)]
pub struct Condvar(raw::Condvar);

impl Condvar {
    /// Makes a condition variable.
    #[must_use]
    pub const fn new() -> Self {
        Self(raw::Condvar::new())
    }

    /// Waits until the condition is notified.
    pub fn wait<T, C: LockClass>(&self, guard: &mut MutexGuard<'_, T, C>) {
        self.0.wait(&mut guard.inner);
    }

    /// Waits until the condition is notified, at most for the given time.
    pub fn wait_for<T, C: LockClass>(&self, guard: &mut MutexGuard<'_, T, C>, time: Duration) {
        let _ = self.0.wait_for(&mut guard.inner, time);
    }

    /// Wakes one of the waiting threads.
    pub fn notify_one(&self) {
        self.0.notify_one();
    }

    /// Wakes all waiting threads.
    pub fn notify_all(&self) {
        self.0.notify_all();
    }
}
