//! Non-blocking lookups, for callers with a lock that must not be held during device I/O.
//!
//! While a thread holds a [`NonBlocking`], reads on this thread return cached blocks only. For
//! blocks that are not cached, these reads return the error [`Cause::WouldBlock`] at once. The
//! caller then releases the lock, reads the block with
//! [`Forest::read_block`](crate::Forest::read_block), and retries.
//!
//! Invariant: a lookup that ends with this error has changed nothing. Non-blocking mode is for
//! lookups and for [`EditableTree::reach`](crate::EditableTree::reach), not for edits. An edit that
//! failed half-way with a missing block and was retried would copy a block twice, and release it
//! once.

use crate::error::{Cause, Error, Result};
use crate::pointer::BlockPointer;
use buttress_exact::Exact as _;
use core::cell::Cell;
use core::marker::PhantomData;

buttress_locks::thread_local! {
    /// The number of `NonBlocking` values that the thread holds.
    static HELD: Cell<usize> = const { Cell::new(0) };
}

/// While a thread holds this value, it reads no blocks from devices; see the module's
/// documentation.
#[derive(Debug)]
pub struct NonBlocking {
    /// Keeps this value on the thread that made it.
    stays_on_its_thread: PhantomData<*const ()>,
}

impl NonBlocking {
    /// Makes this thread's reads return only cached blocks, until the result is dropped.
    #[must_use]
    pub fn hold() -> Self {
        HELD.with(|held| held.set(held.get().exact_add(1)));
        Self {
            stays_on_its_thread: PhantomData,
        }
    }

    /// Runs `body` with blocking reads. Edits need blocking reads, because edits must not end
    /// half-way.
    pub fn lifted<T>(body: impl FnOnce() -> T) -> T {
        let _restored = Self::lift();
        body()
    }

    /// Restores blocking reads, until the result is dropped.
    #[must_use]
    pub fn lift() -> Blocking {
        Blocking(HELD.with(|held| held.replace(0)))
    }

    /// Returns true if the thread holds a `NonBlocking`.
    #[must_use]
    pub fn is_held() -> bool {
        HELD.with(Cell::get) > 0
    }
}

impl Drop for NonBlocking {
    fn drop(&mut self) {
        HELD.with(|held| held.set(held.get().exact_sub(1)));
    }
}

/// Restores the thread's count of `NonBlocking` values when dropped, even after a panic.
#[derive(Debug)]
pub struct Blocking(usize);

impl Drop for Blocking {
    fn drop(&mut self) {
        HELD.with(|held| held.set(self.0));
    }
}

/// Returns the error for a block that is not in the cache.
pub(crate) fn would_block<T>(pointer: &BlockPointer) -> Result<T> {
    Err(Error::new(pointer, Cause::WouldBlock))
}

impl Error {
    /// Returns the block to read before a failed non-blocking lookup is retried.
    #[must_use]
    pub fn would_block(&self) -> Option<&BlockPointer> {
        matches!(self.cause(), Cause::WouldBlock).then(|| self.pointer())
    }
}
