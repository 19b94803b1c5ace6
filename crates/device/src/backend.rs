//! The trait below every device: positioned reads and writes of bytes.
//!
//! A backend performs one operation at a time, on the calling thread, and returns its result. The
//! request queue above a backend does everything else: order, merging, parallelism, statistics,
//! virtual time; see [`crate::Device`]. A backend is therefore easy to write, and easy to wrap:
//! partitions, injected faults and simulated disks are wrappers of another backend.

use buttress_exact::Exact as _;
use std::fmt;
use std::io;
use std::ops::Range;
#[cfg(target_os = "linux")]
use std::os::fd::BorrowedFd;

use crate::error::byte_length;

/// The storage of a device's bytes. Offsets and lengths are in bytes and may be unaligned.
///
/// All methods take `&self`, and many threads may call them at the same time. Writes that overlap,
/// and reads that overlap a write in progress, see any mixture of old and new bytes.
pub trait Backend: Send + Sync + fmt::Debug {
    /// Returns the name for messages: a path, or a given name.
    fn name(&self) -> &str;

    /// Returns the size in bytes. The size changes only by [`set_size`](Self::set_size).
    fn size_bytes(&self) -> u64;

    /// Changes the backend's size, durably. New bytes are zero; a smaller size cuts bytes off. A
    /// block device keeps its size, and the call reads the size again.
    ///
    /// # Errors
    /// Fails if the backend has a fixed size ([`io::ErrorKind::Unsupported`]), is read-only, or is
    /// a smaller block device.
    fn set_size(&self, size_bytes: u64) -> io::Result<()> {
        let _ = size_bytes;
        Err(io::Error::new(
            io::ErrorKind::Unsupported,
            "its size is fixed; only image files grow and shrink",
        ))
    }

    /// Returns the smallest unit that the medium reads and writes, in bytes. The device accepts
    /// unaligned requests, but they cost more.
    fn sector_bytes(&self) -> u32 {
        512
    }

    /// Returns true if the medium is known to be rotational, so that a seek costs milliseconds.
    fn is_rotational(&self) -> bool {
        false
    }

    /// Returns true if writes are allowed.
    fn is_writable(&self) -> bool;

    /// Fills all of `buffers`, one after another, with the bytes from `offset_bytes` on.
    ///
    /// # Errors
    /// Fails if any byte cannot be read. After an error, the buffers' content is unspecified.
    /// Reading a range that ends beyond the device fails with an error of kind
    /// [`io::ErrorKind::UnexpectedEof`].
    fn read_vectored_at(&self, offset_bytes: u64, buffers: &mut [&mut [u8]]) -> io::Result<()>;

    /// Reads like [`read_vectored_at`](Self::read_vectored_at), but only if the bytes are in
    /// memory, so that no medium delays the call. Returns `Ok(false)` if the bytes are not in
    /// memory, or if the backend cannot know.
    ///
    /// # Errors
    /// Fails as `read_vectored_at` does.
    fn read_cached_vectored_at(&self, offset_bytes: u64, buffers: &mut [&mut [u8]]) -> io::Result<bool> {
        let _ = (offset_bytes, buffers);
        Ok(false)
    }

    /// Reads like [`read_vectored_at`](Self::read_vectored_at), and returns the source of the
    /// bytes. A backend that does not know the source returns [`Source::Medium`].
    ///
    /// # Errors
    /// Fails as `read_vectored_at` does.
    fn read_telling_at(&self, offset_bytes: u64, buffers: &mut [&mut [u8]]) -> io::Result<Source> {
        self.read_vectored_at(offset_bytes, buffers)?;
        Ok(Source::Medium)
    }

    /// Returns the first range at or after `from_bytes` that may hold bytes other than zero, or
    /// `None` if only zeros follow. The range is not empty and ends within the device. A backend
    /// that does not know its holes returns the rest of the device.
    ///
    /// # Errors
    /// Fails if the medium fails.
    fn next_data(&self, from_bytes: u64) -> io::Result<Option<Range<u64>>> {
        let size_bytes = self.size_bytes();
        Ok((from_bytes < size_bytes).then_some(from_bytes..size_bytes))
    }

    /// Writes all of `bytes` from `offset_bytes` on. The bytes are durable only after a
    /// [`flush`](Self::flush).
    ///
    /// # Errors
    /// Fails if any byte was not written. After an error, the number of written bytes is
    /// unspecified.
    fn write_at(&self, offset_bytes: u64, bytes: &[u8]) -> io::Result<()>;

    /// Writes all of `parts`, one after another, from `offset_bytes` on. The medium receives one
    /// request if it supports vectored writes.
    ///
    /// # Errors
    /// Fails as [`write_at`](Self::write_at) does.
    fn write_vectored_at(&self, offset_bytes: u64, parts: &[&[u8]]) -> io::Result<()> {
        let mut offset = offset_bytes;
        for part in parts {
            self.write_at(offset, part)?;
            offset = offset.exact_add(byte_length(part.len()));
        }
        Ok(())
    }

    /// Waits until all writes that returned before this call are durable.
    ///
    /// # Errors
    /// Fails if durability cannot be guaranteed. A later successful flush proves nothing about
    /// writes before a failed flush.
    fn flush(&self) -> io::Result<()>;

    /// Releases the lock that excludes other programs, for a caller that no longer needs it. Does
    /// nothing if the backend holds no lock.
    fn unlock(&self) {}

    /// Discards bytes that are no longer needed. Later reads of discarded bytes return arbitrary
    /// bytes. A backend without discard support does nothing.
    ///
    /// # Errors
    /// Fails if the range is not on the device, if the device is read-only, or if the medium
    /// failed.
    fn discard(&self, offset_bytes: u64, length_bytes: u64) -> io::Result<()>;

    /// Returns true if a write can fail for missing space, as into a hole of an image file.
    fn may_run_out(&self) -> bool {
        false
    }

    /// Reserves the space that writes to the range will need, so that they cannot fail for lack of
    /// it. A reservation changes no byte of the device. If the backend does not support
    /// reservations, the call does nothing.
    ///
    /// # Errors
    /// Returns `ENOSPC` or `EDQUOT` if too little space exists; a part of the range may then have
    /// space. Also fails as [`write_at`](Self::write_at) does.
    fn reserve(&self, offset_bytes: u64, length_bytes: u64) -> io::Result<()> {
        let _ = (offset_bytes, length_bytes);
        Ok(())
    }

    /// Describes for messages the file system that holds the backend, and its free space.
    fn describe_space(&self) -> Option<String> {
        None
    }

    /// Zeroes the bytes by the cheapest available method.
    ///
    /// # Errors
    /// Fails as [`write_at`](Self::write_at) does.
    fn zero(&self, offset_bytes: u64, length_bytes: u64) -> io::Result<()>;

    /// Replaces the bytes from `offset_bytes` on by those of `source` from `source_offset_bytes`
    /// on. The backend then shares the blocks of `source` and copies nothing. Only files support
    /// this.
    ///
    /// # Errors
    /// Fails as [`write_at`](Self::write_at) does. Also fails if the blocks cannot be shared: on
    /// another file system ([`io::ErrorKind::CrossesDevices`]), on one without shared blocks, or
    /// for ranges that are not whole blocks.
    #[cfg(target_os = "linux")]
    fn share_from(
        &self,
        source: BorrowedFd<'_>,
        source_offset_bytes: u64,
        offset_bytes: u64,
        length_bytes: u64,
    ) -> io::Result<()> {
        let _ = (source, source_offset_bytes, offset_bytes, length_bytes);
        Err(io::ErrorKind::Unsupported.into())
    }

    /// Returns the file below, if this backend's reads and writes are exactly those of a file. For
    /// such a backend, the io_uring engine can submit reads and writes itself.
    #[cfg(target_os = "linux")]
    fn ring_target(&self) -> Option<RingTarget<'_>> {
        None
    }
}

/// The source of the bytes of a read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// All bytes of the read were in memory, for example in the page cache. The medium received no
    /// request.
    Memory,
    /// A request for some or all of the bytes went to the storage medium.
    Medium,
}

/// The properties of a file that the io_uring engine needs to read and write it.
#[cfg(target_os = "linux")]
#[derive(Clone, Copy, Debug)]
pub struct RingTarget<'a> {
    /// The open file of the backend.
    pub file: BorrowedFd<'a>,
    /// The offset in the file at which the backend's byte 0 lies.
    pub start_bytes: u64,
    /// The required alignment of offsets, lengths and addresses. The alignment is 1 if the page
    /// cache handles unaligned requests.
    pub alignment_bytes: u64,
    /// True if the file was opened for writing.
    pub writable: bool,
    /// The target of large writes, if it differs from that of small writes.
    pub large_writes: Option<LargeWriteTarget<'a>>,
}

/// The target of a file's large writes: a second opening of the same file.
#[cfg(target_os = "linux")]
#[derive(Clone, Copy, Debug)]
pub struct LargeWriteTarget<'a> {
    /// The second opening of the file.
    pub file: BorrowedFd<'a>,
    /// The required alignment of offsets, lengths and addresses.
    pub alignment_bytes: u64,
    /// The minimum length of a large write in bytes.
    pub least_bytes: u64,
}
