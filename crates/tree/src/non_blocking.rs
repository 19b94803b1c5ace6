//! Looking without reading: for callers that hold a lock which must not be held while a device is waited for.
//!
//! While a [`NonBlocking`] is held, reading a block on its thread gives blocks that are in the cache, and for others the
//! error [`Cause::WouldBlock`] at once. Whoever gets it releases the lock, reads the block with
//! [`Forest::read_block`](crate::Forest::read_block), and is retried.
//!
//! Invariant: nothing is changed by a look that ends in that error; it is for look-ups and for
//! [`EditableTree::reach`](crate::EditableTree::reach), not for edits: one of these that ended half-way with that error, and
//! was retried, would have copied a block twice and let go of it once.

use crate::error::{Cause, Error, Result};
use crate::pointer::BlockPointer;
use buttress_exact::Exact as _;
use core::cell::Cell;
use core::marker::PhantomData;

buttress_locks::thread_local! {
    /// How many of them the thread holds.
    static HELD: Cell<usize> = const { Cell::new(0) };
}

/// While it is held, the thread reads no blocks from devices. See the module.
#[derive(Debug)]
pub struct NonBlocking {
    /// It counts for the thread that made it.
    stays_on_its_thread: PhantomData<*const ()>,
}

impl NonBlocking {
    /// From now on, until it is dropped, only blocks that are in the cache are given.
    #[must_use]
    pub fn hold() -> Self {
        HELD.with(|held| held.set(held.get().exact_add(1)));
        Self {
            stays_on_its_thread: PhantomData,
        }
    }

    /// Runs `body` as if none were held: for edits, which must not end half-way.
    pub fn lifted<T>(body: impl FnOnce() -> T) -> T {
        let _restored = Self::lift();
        body()
    }

    /// As if none were held, until what it gives is dropped.
    #[must_use]
    pub fn lift() -> Blocking {
        Blocking(HELD.with(|held| held.replace(0)))
    }

    /// Whether the thread holds one.
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

/// Puts back how many are held, also when what runs meanwhile panics.
#[derive(Debug)]
pub struct Blocking(usize);

impl Drop for Blocking {
    fn drop(&mut self) {
        HELD.with(|held| held.set(self.0));
    }
}

/// The answer for a block that is not in the cache.
pub(crate) fn would_block<T>(pointer: &BlockPointer) -> Result<T> {
    Err(Error::new(pointer, Cause::WouldBlock))
}

impl Error {
    /// The block that is to be read before a look that was to do without reading can be had.
    #[must_use]
    pub fn would_block(&self) -> Option<&BlockPointer> {
        matches!(self.cause(), Cause::WouldBlock).then(|| self.pointer())
    }
}
