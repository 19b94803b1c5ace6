//! Aligned buffers that reads fill, and the pool that keeps their memory warm.
//!
//! O_DIRECT wants memory aligned to the device's sector; every buffer is aligned to [`ALIGNMENT_BYTES`], which
//! serves all of them. Memory from the system arrives as untouched pages, and touching one costs about as much
//! as copying it: so a dropped buffer's memory goes back to a process-wide pool, and a sequential reader runs in
//! the same few megabytes for as long as it reads.
//!
//! Invariants:
//! - a buffer's memory is always initialised: zeroed when it comes from the system, and since then only
//!   written to. A buffer taken from the pool holds bytes of an earlier read until it is filled; a
//!   [`Buffer`] only leaves this crate when a read has filled all of it, or through [`Buffer::zeroed`];
//! - the pool never holds more than [`POOL_BYTES`], and no block larger than [`POOLED_BLOCK_BYTES`].
//!
//! This is one of the two places of the crate with `unsafe` (the other is the io_uring engine): the allocation
//! itself, and seeing it as a slice.

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::collections::BTreeMap;
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;

use bytes::Bytes;
use parking_lot::Mutex;

/// Every buffer's address is a multiple of this.
pub const ALIGNMENT_BYTES: usize = 4096;

/// The pool's budget: idle memory beyond it goes back to the system.
pub(crate) const POOL_BYTES: usize = 16 << 20;

/// Larger blocks are never pooled.
pub(crate) const POOLED_BLOCK_BYTES: usize = 4 << 20;

/// An owned run of bytes whose address is a multiple of [`ALIGNMENT_BYTES`].
///
/// Its memory returns to a pool when it is dropped. [`Buffer::into_bytes`] turns it into reference-counted
/// [`Bytes`] without a copy.
pub struct Buffer {
    block: Option<Block>,
    length: usize,
}

impl Buffer {
    /// A buffer of `length` zero bytes.
    #[must_use]
    pub fn zeroed(length: usize) -> Self {
        let mut buffer = Self::uncleared(length);
        buffer.fill(0);
        buffer
    }

    /// A buffer of `length` bytes with unspecified (but initialised) content, to be filled by a read.
    pub(crate) fn uncleared(length: usize) -> Self {
        if length == 0 {
            return Self {
                block: None,
                length: 0,
            };
        }
        let capacity = length.checked_next_multiple_of(ALIGNMENT_BYTES).unwrap_or(length);
        Self {
            block: Some(POOL.take(capacity).unwrap_or_else(|| Block::allocate(capacity))),
            length,
        }
    }

    /// Forgets all bytes from `length` on; does nothing when the buffer is not longer than that.
    pub fn truncate(&mut self, length: usize) {
        self.length = self.length.min(length);
    }

    /// The same memory as reference-counted bytes. It returns to the pool when the last reference goes.
    #[must_use]
    pub fn into_bytes(self) -> Bytes {
        Bytes::from_owner(self)
    }
}

impl From<&[u8]> for Buffer {
    fn from(bytes: &[u8]) -> Self {
        let mut buffer = Self::uncleared(bytes.len());
        buffer.copy_from_slice(bytes);
        buffer
    }
}

impl Deref for Buffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match &self.block {
            // SAFETY: `block` points to `capacity >= length` initialised bytes that this buffer alone owns,
            // and the slice borrows `self`, so they are neither freed nor written to while it lives.
            Some(block) => unsafe { std::slice::from_raw_parts(block.start.as_ptr(), self.length) },
            None => &[],
        }
    }
}

impl DerefMut for Buffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        match &mut self.block {
            // SAFETY: as in `deref`; the borrow of `self` is exclusive, so this is the only slice.
            Some(block) => unsafe { std::slice::from_raw_parts_mut(block.start.as_ptr(), self.length) },
            None => &mut [],
        }
    }
}

impl AsRef<[u8]> for Buffer {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl AsMut<[u8]> for Buffer {
    fn as_mut(&mut self) -> &mut [u8] {
        self
    }
}

impl fmt::Debug for Buffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Buffer")
            .field("length", &self.length)
            .finish_non_exhaustive()
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        if let Some(block) = self.block.take() {
            POOL.put(block);
        }
    }
}

/// One allocation. Invariant: `start` comes from the global allocator with `layout(capacity)`, is owned by this
/// value alone, and all `capacity` bytes are initialised.
struct Block {
    start: NonNull<u8>,
    capacity: usize,
}

// SAFETY: a `Block` owns its memory exclusively, as a `Vec<u8>` does; nothing in it is tied to a thread.
unsafe impl Send for Block {}
// SAFETY: a shared `&Block` gives no access to the memory by itself; `Buffer` hands out `&[u8]` for `&self` and
// `&mut [u8]` only for `&mut self`.
unsafe impl Sync for Block {}

impl Block {
    fn layout(capacity: usize) -> Option<Layout> {
        Layout::from_size_align(capacity, ALIGNMENT_BYTES).ok()
    }

    fn allocate(capacity: usize) -> Self {
        let Some(layout) = Self::layout(capacity) else {
            // More than `isize::MAX` bytes: what `Vec` treats as running out of memory.
            handle_alloc_error(Layout::new::<u8>())
        };
        // SAFETY: `capacity` is not zero (`Buffer::uncleared` handles that case), so the layout has a size.
        let start = unsafe { alloc_zeroed(layout) };
        match NonNull::new(start) {
            Some(start) => Self { start, capacity },
            None => handle_alloc_error(layout),
        }
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        if let Some(layout) = Self::layout(self.capacity) {
            // SAFETY: `start` was allocated in `allocate` with this very layout and is freed only here.
            unsafe { dealloc(self.start.as_ptr(), layout) }
        }
    }
}

/// Idle blocks by capacity. Sizes repeat (a node, a stripe, a request), so exact fits are found.
struct Pool {
    idle: Mutex<Idle>,
}

struct Idle {
    blocks: BTreeMap<usize, Vec<Block>>,
    bytes: usize,
}

static POOL: Pool = Pool {
    idle: Mutex::new(Idle {
        blocks: BTreeMap::new(),
        bytes: 0,
    }),
};

impl Pool {
    fn take(&self, capacity: usize) -> Option<Block> {
        if capacity > POOLED_BLOCK_BYTES {
            return None;
        }
        let mut idle = self.idle.lock();
        let block = idle.blocks.get_mut(&capacity)?.pop()?;
        idle.bytes = idle.bytes.saturating_sub(capacity);
        Some(block)
    }

    fn put(&self, block: Block) {
        let capacity = block.capacity;
        if capacity > POOLED_BLOCK_BYTES {
            return;
        }
        let mut idle = self.idle.lock();
        let bytes = idle.bytes.saturating_add(capacity);
        if bytes <= POOL_BYTES {
            idle.bytes = bytes;
            idle.blocks.entry(capacity).or_default().push(block);
        } else if let Some(other) = idle.other_size_than(capacity) {
            // The budget is full of sizes that were wanted earlier: one of those makes place, so that a
            // change of request size does not leave the pool useless.
            idle.bytes = idle.bytes.saturating_sub(other.capacity);
            let bytes = idle.bytes.saturating_add(capacity);
            if bytes <= POOL_BYTES {
                idle.bytes = bytes;
                idle.blocks.entry(capacity).or_default().push(block);
            }
            drop(idle);
            drop(other);
        } else {
            // Unlock first: giving memory back to the system takes time.
            drop(idle);
            drop(block);
        }
    }
}

impl Idle {
    fn other_size_than(&mut self, capacity: usize) -> Option<Block> {
        let size = *self
            .blocks
            .iter()
            .find(|(size, blocks)| **size != capacity && !blocks.is_empty())?
            .0;
        let block = self.blocks.get_mut(&size)?.pop();
        if self.blocks.get(&size).is_some_and(Vec::is_empty) {
            self.blocks.remove(&size);
        }
        block
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_are_aligned_and_of_the_asked_length() {
        for length in [1, 511, 4096, 4097, 65536, 1 << 20, (5 << 20) + 3] {
            let buffer = Buffer::zeroed(length);
            assert_eq!(buffer.len(), length);
            assert_eq!(buffer.as_ptr().addr() % ALIGNMENT_BYTES, 0);
            assert!(buffer.iter().all(|byte| *byte == 0));
        }
        assert!(Buffer::zeroed(0).is_empty());
    }

    #[test]
    fn zeroed_clears_what_an_earlier_buffer_left() {
        for _ in 0..100 {
            let mut buffer = Buffer::zeroed(12_288);
            assert!(buffer.iter().all(|byte| *byte == 0));
            buffer.fill(0xff);
        }
    }

    #[test]
    fn bytes_keep_the_memory_alive_and_share_it() {
        let buffer = Buffer::from(&b"superblock"[..]);
        let address = buffer.as_ptr().addr();
        let bytes = buffer.into_bytes();
        let part = bytes.slice(5..);
        drop(bytes);
        assert_eq!(&part[..], b"block");
        assert_eq!(part.as_ptr().addr(), address + 5);
    }

    #[test]
    fn truncate_only_shortens() {
        let mut buffer = Buffer::from(&[1, 2, 3, 4][..]);
        buffer.truncate(9);
        assert_eq!(&buffer[..], [1, 2, 3, 4]);
        buffer.truncate(2);
        assert_eq!(&buffer[..], [1, 2]);
    }

    #[test]
    fn the_pool_stays_within_its_budget() {
        let buffers: Vec<Buffer> = (0..40).map(|_| Buffer::uncleared(1 << 20)).collect();
        drop(buffers);
        let small: Vec<Buffer> = (0..100).map(|_| Buffer::uncleared(16 << 10)).collect();
        drop(small);
        let idle = POOL.idle.lock();
        let held: usize = idle.blocks.iter().map(|(size, blocks)| size * blocks.len()).sum();
        assert_eq!(held, idle.bytes);
        assert!(held <= POOL_BYTES, "{held}");
    }
}
