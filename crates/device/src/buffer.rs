//! Aligned buffers that reads fill.
//!
//! O_DIRECT requires memory aligned to the device's sector. Every buffer is aligned to
//! [`ALIGNMENT_BYTES`], which suffices for all sectors. Memory from the system arrives as untouched
//! pages, and the first touch of a page costs about as much as copying it. The pool therefore keeps
//! a dropped buffer's memory for the next buffer. A sequential reader reuses the same few megabytes
//! of buffers. [`pool`] keeps large blocks, and [`slabs`] keeps small ones.
//!
//! Invariant: a buffer's memory is always initialised. The system provides the memory zeroed, and
//! later code only writes to it. A buffer may hold bytes of an earlier read until it is filled. A
//! [`Buffer`] leaves this crate only after a read has filled all of it, through [`Buffer::zeroed`],
//! or without bytes ([`Buffer::with_capacity`]).
//!
//! This module and its submodules contain `unsafe` for the allocation and for access to it as a
//! slice. `lib.rs` names the other places of the crate with `unsafe`.

mod pages;
mod pool;
mod slabs;

use buttress_exact::Exact as _;
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;

use bytes::Bytes;

/// The alignment of every buffer's address.
pub const ALIGNMENT_BYTES: usize = 4096;

/// An owned run of bytes whose address is a multiple of [`ALIGNMENT_BYTES`].
///
/// Dropping the buffer returns its memory to a pool. [`Buffer::into_bytes`] turns the buffer into
/// reference-counted [`Bytes`] without a copy.
pub struct Buffer {
    block: Option<Block>,
    length: usize,
}

impl Buffer {
    /// Returns a buffer of `length` zero bytes.
    #[must_use]
    pub fn zeroed(length: usize) -> Self {
        let mut buffer = Self::uncleared(length);
        buffer.fill(0);
        buffer
    }

    /// Returns an empty buffer with space for `capacity` bytes, for [`push`](Self::push).
    #[must_use]
    pub fn with_capacity(capacity: usize) -> Self {
        let mut buffer = Self::uncleared(capacity);
        buffer.length = 0;
        buffer
    }

    /// Returns the minimum number of bytes that [`push`](Self::push) will accept.
    #[must_use]
    pub fn room(&self) -> usize {
        let capacity = self.block.as_ref().map_or(0, |block| block.capacity);
        capacity.exact_sub(self.length)
    }

    /// Appends as many of these bytes as fit, and returns their number.
    pub fn push(&mut self, bytes: &[u8]) -> usize {
        let taken = bytes.len().min(self.room());
        let start = self.length;
        self.length = start.exact_add(taken);
        if let (Some(place), Some(bytes)) = (self.get_mut(start..), bytes.get(..taken)) {
            place.copy_from_slice(bytes);
        }
        taken
    }

    /// Returns a buffer of `length` bytes with unspecified but initialised content, for a read to
    /// fill.
    pub(crate) fn uncleared(length: usize) -> Self {
        if length == 0 {
            return Self {
                block: None,
                length: 0,
            };
        }
        // Clamp: a capacity that cannot be rounded up cannot be allocated either.
        let capacity = length.checked_next_multiple_of(ALIGNMENT_BYTES).unwrap_or(length);
        Self {
            block: Some(Block::of(capacity)),
            length,
        }
    }

    /// Removes all bytes from `length` on. Does nothing if the buffer has at most `length` bytes.
    pub fn truncate(&mut self, length: usize) {
        self.length = self.length.min(length);
    }

    /// Returns the same memory as reference-counted bytes. Dropping the last reference returns the
    /// memory to the pool.
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
            // SAFETY: `block` points to `capacity >= length` initialised bytes of this buffer
            // alone. The slice borrows `self`, so they are neither freed nor written.
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
            block.release();
        }
    }
}

/// The memory of one buffer. Invariant: `start` points to `capacity` initialised bytes that this
/// value alone owns.
struct Block {
    start: NonNull<u8>,
    capacity: usize,
    home: Home,
}

/// The owner to which a block's memory returns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Home {
    /// The memory is a separate allocation, not from a pool.
    Own,
    /// A place in a slab.
    Slab(slabs::Place),
}

// SAFETY: a `Block` owns its memory exclusively, as a `Vec<u8>` does; nothing in it is tied to a
// thread.
unsafe impl Send for Block {}
// SAFETY: a shared `&Block` gives no access to the memory by itself; `Buffer` hands out `&[u8]` for
// `&self` and `&mut [u8]` only for `&mut self`.
unsafe impl Sync for Block {}

impl Block {
    /// Returns a block of at least `capacity` bytes; `capacity` is not zero.
    fn of(capacity: usize) -> Self {
        match slabs::class_of(capacity) {
            Some(class) => class.take(),
            None => pool::take(capacity),
        }
    }

    /// Returns the memory for reuse by a later buffer.
    fn release(self) {
        match self.home {
            Home::Own => pool::put(self),
            Home::Slab(place) => slabs::put(self.capacity, place),
        }
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
            assert_eq!(buffer[..], vec![0; length]);
        }
        assert!(Buffer::zeroed(0).is_empty());
    }

    #[test]
    fn zeroed_clears_what_an_earlier_buffer_left() {
        for _ in 0..100 {
            let mut buffer = Buffer::zeroed(12_288);
            assert_eq!(buffer[..], [0; 12_288]);
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
}
