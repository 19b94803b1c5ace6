//! The underlying locks of this crate: from `parking_lot` and `std`, or from the model checker. In
//! builds with `--cfg buttress_shuttle`, the locks are those of `shuttle`. It runs one thread at a
//! time and switches threads at locks.
//!
//! The mutexes are those of `parking_lot`, whose fairness ensures that a long wait ends. The
//! read-write locks are those of `std`. `parking_lot` yields the processor several times before it
//! sleeps, and Linux 6.18 takes the rest of its time slice from a thread that yields. With other
//! locks, a reader that met a writer for a microsecond lost milliseconds to unrelated threads
//! (docs/decisions/0019).

#[cfg(buttress_shuttle)]
pub(crate) use checked::{Condvar, Mutex, MutexGuard};
#[cfg(not(buttress_shuttle))]
pub(crate) use parking_lot::{Condvar, Mutex, MutexGuard};
pub(crate) use shared::{RwLock, RwLockReadGuard, RwLockWriteGuard};

/// `shuttle`'s mutexes with the interface of `parking_lot`'s. A run of the checker ends with the
/// first panic, so no lock is ever poisoned.
#[cfg(buttress_shuttle)]
mod checked {
    #![allow(
        clippy::expect_used,
        reason = "a model checker's build; a guard is without its lock only while a condition is waited for"
    )]

    use core::fmt;
    use core::ops::{Deref, DerefMut};
    use core::time::Duration;
    use shuttle::sync::{self, PoisonError, TryLockError};

    #[derive(Default)]
    pub(crate) struct Mutex<T>(sync::Mutex<T>);

    pub(crate) struct MutexGuard<'a, T>(Option<sync::MutexGuard<'a, T>>);

    fn tried<G>(result: Result<G, TryLockError<G>>) -> Option<G> {
        match result {
            Ok(guard) => Some(guard),
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    impl<T> Mutex<T> {
        pub(crate) const fn new(value: T) -> Self {
            Self(sync::Mutex::new(value))
        }

        pub(crate) fn into_inner(self) -> T {
            self.0.into_inner().unwrap_or_else(PoisonError::into_inner)
        }

        pub(crate) fn get_mut(&mut self) -> &mut T {
            self.0.get_mut().unwrap_or_else(PoisonError::into_inner)
        }

        pub(crate) fn lock(&self) -> MutexGuard<'_, T> {
            MutexGuard(Some(self.0.lock().unwrap_or_else(PoisonError::into_inner)))
        }

        pub(crate) fn is_locked(&self) -> bool {
            self.try_lock().is_none()
        }

        pub(crate) fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
            tried(self.0.try_lock()).map(|guard| MutexGuard(Some(guard)))
        }

        /// The model checker has no clock. This call tries the lock once, and yields to other
        /// threads if it is not free.
        pub(crate) fn try_lock_for(&self, _: Duration) -> Option<MutexGuard<'_, T>> {
            let guard = self.try_lock();
            if guard.is_none() {
                shuttle::thread::yield_now();
            }
            guard
        }
    }

    impl<T: fmt::Debug> fmt::Debug for Mutex<T> {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("Mutex")
        }
    }

    impl<T> Deref for MutexGuard<'_, T> {
        type Target = T;

        fn deref(&self) -> &T {
            self.0.as_deref().expect("it is held")
        }
    }

    impl<T> DerefMut for MutexGuard<'_, T> {
        fn deref_mut(&mut self) -> &mut T {
            self.0.as_deref_mut().expect("it is held")
        }
    }

    impl<T: fmt::Debug> fmt::Debug for MutexGuard<'_, T> {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            (**self).fmt(f)
        }
    }

    #[derive(Debug, Default)]
    pub(crate) struct Condvar(sync::Condvar);

    impl Condvar {
        pub(crate) const fn new() -> Self {
            Self(sync::Condvar::new())
        }

        pub(crate) fn wait<T>(&self, guard: &mut MutexGuard<'_, T>) {
            let held = guard.0.take().expect("it is held");
            guard.0 = Some(self.0.wait(held).unwrap_or_else(PoisonError::into_inner));
        }

        /// The model checker has no clock: other threads run, and then the wait ends.
        pub(crate) fn wait_for<T>(&self, guard: &mut MutexGuard<'_, T>, time: Duration) {
            let held = guard.0.take().expect("it is held");
            let (held, _) = self
                .0
                .wait_timeout(held, time)
                .unwrap_or_else(PoisonError::into_inner);
            guard.0 = Some(held);
        }

        pub(crate) fn notify_one(&self) {
            self.0.notify_one();
        }

        pub(crate) fn notify_all(&self) {
            self.0.notify_all();
        }
    }
}

/// Read-write locks of `std` or of `shuttle`. A panic of the lock's holder ends the holder's job,
/// but does not poison the lock.
mod shared {
    use crate::atomic::{AtomicBool, Ordering};
    use core::fmt;
    use core::ops::{Deref, DerefMut};
    #[cfg(buttress_shuttle)]
    use shuttle::sync::{self, PoisonError, TryLockError};
    #[cfg(not(buttress_shuttle))]
    use std::sync::{self, PoisonError, TryLockError};

    #[derive(Default)]
    pub(crate) struct RwLock<T> {
        /// The exclusive holder sets this flag before it changes anything.
        is_exclusive: AtomicBool,
        inner: sync::RwLock<T>,
    }

    pub(crate) type RwLockReadGuard<'a, T> = sync::RwLockReadGuard<'a, T>;

    pub(crate) struct RwLockWriteGuard<'a, T> {
        is_exclusive: &'a AtomicBool,
        inner: sync::RwLockWriteGuard<'a, T>,
    }

    fn tried<G>(result: Result<G, TryLockError<G>>) -> Option<G> {
        match result {
            Ok(guard) => Some(guard),
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    impl<T> RwLock<T> {
        pub(crate) const fn new(value: T) -> Self {
            Self {
                is_exclusive: AtomicBool::new(false),
                inner: sync::RwLock::new(value),
            }
        }

        pub(crate) fn into_inner(self) -> T {
            self.inner.into_inner().unwrap_or_else(PoisonError::into_inner)
        }

        pub(crate) fn get_mut(&mut self) -> &mut T {
            self.inner.get_mut().unwrap_or_else(PoisonError::into_inner)
        }

        #[inline]
        fn held<'a>(&'a self, inner: sync::RwLockWriteGuard<'a, T>) -> RwLockWriteGuard<'a, T> {
            self.is_exclusive.store(true, Ordering::Release);
            RwLockWriteGuard {
                is_exclusive: &self.is_exclusive,
                inner,
            }
        }

        #[inline]
        pub(crate) fn read(&self) -> RwLockReadGuard<'_, T> {
            self.inner.read().unwrap_or_else(PoisonError::into_inner)
        }

        #[inline]
        pub(crate) fn write(&self) -> RwLockWriteGuard<'_, T> {
            self.held(self.inner.write().unwrap_or_else(PoisonError::into_inner))
        }

        pub(crate) fn try_read(&self) -> Option<RwLockReadGuard<'_, T>> {
            tried(self.inner.try_read())
        }

        pub(crate) fn try_write(&self) -> Option<RwLockWriteGuard<'_, T>> {
            tried(self.inner.try_write()).map(|inner| self.held(inner))
        }

        /// A thread that saw a lock holder's change through another lock also sees this flag set.
        #[inline]
        pub(crate) fn is_locked_exclusive(&self) -> bool {
            self.is_exclusive.load(Ordering::Acquire)
        }
    }

    impl<T: fmt::Debug> fmt::Debug for RwLock<T> {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            match self.try_read() {
                Some(value) => f.debug_tuple("RwLock").field(&&*value).finish(),
                None => f.write_str("RwLock(held)"),
            }
        }
    }

    impl<T> Drop for RwLockWriteGuard<'_, T> {
        #[inline]
        fn drop(&mut self) {
            self.is_exclusive.store(false, Ordering::Release);
        }
    }

    impl<T> Deref for RwLockWriteGuard<'_, T> {
        type Target = T;

        #[inline]
        fn deref(&self) -> &T {
            &self.inner
        }
    }

    impl<T> DerefMut for RwLockWriteGuard<'_, T> {
        #[inline]
        fn deref_mut(&mut self) -> &mut T {
            &mut self.inner
        }
    }

    impl<T: fmt::Debug> fmt::Debug for RwLockWriteGuard<'_, T> {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            self.inner.fmt(f)
        }
    }
}
