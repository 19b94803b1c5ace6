//! Locks that a model checker does not schedule: the locks of devices, below the layers under test.
//! The model checker schedules at each lock, and with these locks its runs would hardly get beyond
//! the requests.
//!
//! In builds without the model checker, these are the locks of this crate. With the model checker,
//! these are plain locks without classes. No scheduled lock may be acquired under one.

#[cfg(not(buttress_shuttle))]
pub use crate::{Condvar, Mutex, MutexGuard, RwLock};
#[cfg(buttress_shuttle)]
pub use plain::{Condvar, Mutex, MutexGuard, RwLock};

#[cfg(buttress_shuttle)]
mod plain {
    use crate::LockClass;
    use core::fmt;
    use core::marker::PhantomData;
    use core::ops::{Deref, DerefMut};

    /// A mutex.
    pub struct Mutex<T, C: LockClass> {
        inner: parking_lot::Mutex<T>,
        class: PhantomData<fn() -> C>,
    }

    /// The guard of a held mutex.
    pub struct MutexGuard<'a, T, C: LockClass> {
        inner: parking_lot::MutexGuard<'a, T>,
        class: PhantomData<fn() -> C>,
    }

    /// A read-write lock.
    pub struct RwLock<T, C: LockClass> {
        inner: parking_lot::RwLock<T>,
        class: PhantomData<fn() -> C>,
    }

    /// A condition variable.
    #[derive(Debug, Default)]
    pub struct Condvar(parking_lot::Condvar);

    impl<T, C: LockClass> Mutex<T, C> {
        /// Makes a mutex.
        pub const fn new(value: T) -> Self {
            Self {
                inner: parking_lot::Mutex::new(value),
                class: PhantomData,
            }
        }

        /// Returns the protected value of a mutex without other users.
        pub fn get_mut(&mut self) -> &mut T {
            self.inner.get_mut()
        }

        /// Acquires the mutex.
        pub fn lock(&self) -> MutexGuard<'_, T, C> {
            MutexGuard {
                inner: self.inner.lock(),
                class: PhantomData,
            }
        }
    }

    impl<T, C: LockClass> RwLock<T, C> {
        /// Makes a lock.
        pub const fn new(value: T) -> Self {
            Self {
                inner: parking_lot::RwLock::new(value),
                class: PhantomData,
            }
        }

        /// Makes a lock. An unscheduled lock ignores its place in the lock order.
        pub const fn with_place(value: T, _: u128) -> Self {
            Self::new(value)
        }

        /// Acquires the lock shared.
        pub fn read(&self) -> parking_lot::RwLockReadGuard<'_, T> {
            self.inner.read()
        }

        /// Acquires the lock exclusively.
        pub fn write(&self) -> parking_lot::RwLockWriteGuard<'_, T> {
            self.inner.write()
        }
    }

    impl Condvar {
        /// Makes a condition variable.
        #[must_use]
        pub const fn new() -> Self {
            Self(parking_lot::Condvar::new())
        }

        /// Waits until the condition is notified.
        pub fn wait<T, C: LockClass>(&self, guard: &mut MutexGuard<'_, T, C>) {
            self.0.wait(&mut guard.inner);
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

    impl<T: Default, C: LockClass> Default for Mutex<T, C> {
        fn default() -> Self {
            Self::new(T::default())
        }
    }

    impl<T: Default, C: LockClass> Default for RwLock<T, C> {
        fn default() -> Self {
            Self::new(T::default())
        }
    }

    impl<T: fmt::Debug, C: LockClass> fmt::Debug for Mutex<T, C> {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            self.inner.fmt(f)
        }
    }

    impl<T: fmt::Debug, C: LockClass> fmt::Debug for RwLock<T, C> {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            self.inner.fmt(f)
        }
    }

    impl<T, C: LockClass> Deref for MutexGuard<'_, T, C> {
        type Target = T;

        fn deref(&self) -> &T {
            &self.inner
        }
    }

    impl<T, C: LockClass> DerefMut for MutexGuard<'_, T, C> {
        fn deref_mut(&mut self) -> &mut T {
            &mut self.inner
        }
    }
}
