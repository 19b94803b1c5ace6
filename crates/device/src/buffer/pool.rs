//! The pool of large idle blocks of memory.
//!
//! Sizes are rounded up to multiples of [`STEP_BYTES`], and an idle block serves the next request
//! of its size. Sizes repeat, like those of stripes and requests. The buffer pool never holds more
//! than [`POOL_BYTES`], and no block larger than [`POOLED_BLOCK_BYTES`].
//!
//! Each block consists of the system's own pages, which return to the system at once if the pool
//! has no space. A global allocator would keep them, in one arena for each writing thread. With
//! requests of many sizes, these are hundreds of MiB.

use buttress_exact::Exact as _;
use std::collections::BTreeMap;
use std::ptr::NonNull;

use parking_lot::Mutex;

use super::{ALIGNMENT_BYTES, Block, Home, pages};

/// The granularity of block sizes. Untouched pages take up no memory.
const STEP_BYTES: usize = 128 << 10;

/// The pool's budget. Idle memory beyond this budget returns to the system.
const POOL_BYTES: usize = 16 << 20;

/// Larger blocks are never pooled.
const POOLED_BLOCK_BYTES: usize = 4 << 20;

/// Idle memory, ordered by size.
#[derive(Default)]
struct Idle {
    allocations: BTreeMap<usize, Vec<Allocation>>,
    bytes: usize,
}

static IDLE: Mutex<Idle> = Mutex::new(Idle {
    allocations: BTreeMap::new(),
    bytes: 0,
});

/// Returns a block of at least `capacity` bytes; `capacity` is not zero.
pub(super) fn take(capacity: usize) -> Block {
    // Clamp: a capacity that cannot be rounded up cannot be allocated either.
    let capacity = capacity.checked_next_multiple_of(STEP_BYTES).unwrap_or(capacity);
    let idle = IDLE.lock().take(capacity);
    idle.unwrap_or_else(|| Allocation::new(capacity)).into_block()
}

/// Receives a block that [`take`] returned.
pub(super) fn put(block: Block) {
    let allocation = Allocation::from_block(&block);
    // If memory exceeds the pool's budget, it is unmapped after the lock is released, because
    // unmapping takes time.
    let surplus = IDLE.lock().put(allocation);
    drop(surplus);
}

impl Idle {
    fn take(&mut self, capacity: usize) -> Option<Allocation> {
        let allocation = self.allocations.get_mut(&capacity)?.pop()?;
        self.bytes = self.bytes.exact_sub(capacity);
        Some(allocation)
    }

    /// Keeps an allocation if the budget has space for it, or evicts one of another size. That size
    /// was used earlier, and the pool must follow a change of request size. Returns the allocations
    /// that are not kept.
    fn put(&mut self, allocation: Allocation) -> [Option<Allocation>; 2] {
        let capacity = allocation.capacity;
        if capacity > POOLED_BLOCK_BYTES {
            return [Some(allocation), None];
        }
        let mut other = None;
        if self.bytes.exact_add(capacity) > POOL_BYTES {
            other = self.take_other_size_than(capacity);
        }
        if self.bytes.exact_add(capacity) > POOL_BYTES {
            return [Some(allocation), other];
        }
        self.bytes = self.bytes.exact_add(capacity);
        self.allocations.entry(capacity).or_default().push(allocation);
        [other, None]
    }

    fn take_other_size_than(&mut self, capacity: usize) -> Option<Allocation> {
        let mut others = self
            .allocations
            .iter()
            .filter(|(size, idle)| **size != capacity && !idle.is_empty());
        let size = *others.next()?.0;
        let other = self.take(size);
        if self.allocations.get(&size).is_some_and(Vec::is_empty) {
            self.allocations.remove(&size);
        }
        other
    }
}

/// Memory pages that this process owns. Invariant: `start` was taken from [`pages`] with `capacity`
/// bytes, is owned by this value alone, and all bytes are initialised: the system's pages are zero.
struct Allocation {
    start: NonNull<u8>,
    capacity: usize,
}

// SAFETY: the memory is owned exclusively, as a `Vec<u8>`'s is, and cannot be reached through
// `&Allocation`.
unsafe impl Send for Allocation {}

impl Allocation {
    /// Makes zeroed memory. `capacity` is a multiple of [`STEP_BYTES`], and not zero.
    fn new(capacity: usize) -> Self {
        Self {
            start: pages::take(capacity, ALIGNMENT_BYTES),
            capacity,
        }
    }

    fn into_block(self) -> Block {
        let this = std::mem::ManuallyDrop::new(self);
        Block {
            start: this.start,
            capacity: this.capacity,
            home: Home::Own,
        }
    }

    /// Takes over the allocation of a block that has its own. Blocks do not free their memory, so
    /// it has one owner.
    fn from_block(block: &Block) -> Self {
        Self {
            start: block.start,
            capacity: block.capacity,
        }
    }
}

impl Drop for Allocation {
    fn drop(&mut self) {
        // SAFETY: `new` took it with this length and alignment, and this value alone owned it.
        unsafe { pages::give_back(self.start, self.capacity, ALIGNMENT_BYTES) }
    }
}

#[cfg(test)]
mod tests {
    use super::super::Buffer;
    use super::*;

    #[test]
    fn the_pool_stays_within_its_budget() {
        let buffers: Vec<Buffer> = (0..40).map(|_| Buffer::uncleared(1 << 20)).collect();
        drop(buffers);
        let small: Vec<Buffer> = (0..100).map(|_| Buffer::uncleared(128 << 10)).collect();
        drop(small);
        let idle = IDLE.lock();
        let held: usize = idle
            .allocations
            .iter()
            .map(|(size, idle)| size * idle.len())
            .sum();
        assert_eq!(held, idle.bytes);
        assert!(held <= POOL_BYTES, "{held}");
        drop(idle);
    }
}
