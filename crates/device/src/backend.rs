//! The one small trait behind every device: positioned reads and writes of bytes.
//!
//! A backend does one thing at a time, on the thread that calls it, and says how it went. Everything else (order,
//! merging, parallelism, statistics, virtual time) is the request queue's, above it: see [`crate::Device`]. So
//! a backend is easy to write, and easy to wrap: a partition, injected faults and a simulated disk are
//! wrappers around another one.

use buttress_exact::Exact as _;
use std::fmt;
use std::io;
#[cfg(target_os = "linux")]
use std::os::fd::BorrowedFd;

use crate::error::byte_length;

/// Where bytes live. Offsets and lengths are in bytes and may be unaligned.
///
/// All methods take `&self` and may be called from many threads at once. Writes that overlap, and reads that
/// overlap a write in progress, see any mixture of old and new bytes.
pub trait Backend: Send + Sync + fmt::Debug {
    /// What messages call it: a path, or a name that was given to it.
    fn name(&self) -> &str;

    /// Its size in bytes. Only [`set_size`](Self::set_size) changes it.
    fn size_bytes(&self) -> u64;

    /// Gives the backend another size, durably. New bytes are zero; a smaller size cuts bytes off. A block device keeps
    /// its size; the call then reads the size again.
    ///
    /// # Errors
    /// The backend has a fixed size ([`io::ErrorKind::Unsupported`]), or is read-only; a block device is smaller.
    fn set_size(&self, size_bytes: u64) -> io::Result<()> {
        let _ = size_bytes;
        Err(io::Error::new(
            io::ErrorKind::Unsupported,
            "its size is fixed; only image files grow and shrink",
        ))
    }

    /// The smallest unit that the medium reads and writes at once, in bytes. Unaligned requests are still
    /// allowed; they cost more.
    fn sector_bytes(&self) -> u32 {
        512
    }

    /// Whether the medium is known to turn, so that going elsewhere costs milliseconds.
    fn is_rotational(&self) -> bool {
        false
    }

    /// Whether writes are allowed.
    fn is_writable(&self) -> bool;

    /// Fills all of `buffers`, one after another, with the bytes from `offset_bytes` on.
    ///
    /// # Errors
    /// When even one byte could not be read; the buffers' content is then unspecified. A range that ends past
    /// the end of the device is an error of kind [`io::ErrorKind::UnexpectedEof`].
    fn read_vectored_at(&self, offset_bytes: u64, buffers: &mut [&mut [u8]]) -> io::Result<()>;

    /// As [`read_vectored_at`](Self::read_vectored_at), but only if that needs no waiting for a medium, because
    /// the bytes are in memory. `Ok(false)` when they are not, or when that cannot be known.
    ///
    /// # Errors
    /// As `read_vectored_at`.
    fn read_cached_vectored_at(&self, offset_bytes: u64, buffers: &mut [&mut [u8]]) -> io::Result<bool> {
        let _ = (offset_bytes, buffers);
        Ok(false)
    }

    /// As [`read_vectored_at`](Self::read_vectored_at), and says where the bytes came from. Who cannot tell says
    /// [`Source::Medium`].
    ///
    /// # Errors
    /// As `read_vectored_at`.
    fn read_telling_at(&self, offset_bytes: u64, buffers: &mut [&mut [u8]]) -> io::Result<Source> {
        self.read_vectored_at(offset_bytes, buffers)?;
        Ok(Source::Medium)
    }

    /// Writes all of `bytes` from `offset_bytes` on. They are durable only after a [`flush`](Self::flush).
    ///
    /// # Errors
    /// When not all was written; how much was is unspecified.
    fn write_at(&self, offset_bytes: u64, bytes: &[u8]) -> io::Result<()>;

    /// Writes all of `parts`, one after another, from `offset_bytes` on: one request where the medium can do that.
    ///
    /// # Errors
    /// As [`write_at`](Self::write_at).
    fn write_vectored_at(&self, offset_bytes: u64, parts: &[&[u8]]) -> io::Result<()> {
        let mut offset = offset_bytes;
        for part in parts {
            self.write_at(offset, part)?;
            offset = offset.exact_add(byte_length(part.len()));
        }
        Ok(())
    }

    /// Returns once all writes that returned before it began are durable.
    ///
    /// # Errors
    /// When that cannot be promised. A later flush that succeeds says nothing about writes before a failed one.
    fn flush(&self) -> io::Result<()>;

    /// Lets others lock what this one locked, who is done with it. What is not locked has nothing to let go of.
    fn unlock(&self) {}

    /// Says that the bytes are no longer needed; reading them afterwards gives anything. A backend that has no
    /// use for this does nothing.
    ///
    /// # Errors
    /// When the range is not on the device, the device is read-only, or the medium failed.
    fn discard(&self, offset_bytes: u64, length_bytes: u64) -> io::Result<()>;

    /// Whether a write can fail for want of space, as one into a hole of an image file can.
    fn may_run_out(&self) -> bool {
        false
    }

    /// Takes the space that writes to the range will need, so that they cannot fail for want of it. Changes no byte. Does
    /// nothing where that is not possible.
    ///
    /// # Errors
    /// `ENOSPC` or `EDQUOT` if too little space exists; a part of the range may have space then. As
    /// [`write_at`](Self::write_at).
    fn reserve(&self, offset_bytes: u64, length_bytes: u64) -> io::Result<()> {
        let _ = (offset_bytes, length_bytes);
        Ok(())
    }

    /// Describes for messages which file system holds the backend, and how much space is free there.
    fn describe_space(&self) -> Option<String> {
        None
    }

    /// Makes the bytes zero, by the cheapest means there are.
    ///
    /// # Errors
    /// As [`write_at`](Self::write_at).
    fn zero(&self, offset_bytes: u64, length_bytes: u64) -> io::Result<()>;

    /// Makes the bytes from `offset_bytes` on those of `source` from `source_offset_bytes` on, by sharing its blocks: nothing is
    /// copied. Only files can do this.
    ///
    /// # Errors
    /// As [`write_at`](Self::write_at), and where the blocks cannot be shared: another file system
    /// ([`io::ErrorKind::CrossesDevices`]), one that cannot share, or ranges that are not whole blocks of it.
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

    /// The file below, if reads and writes of this backend are nothing but those of a file: lets the io_uring engine
    /// submit them itself.
    #[cfg(target_os = "linux")]
    fn ring_target(&self) -> Option<RingTarget<'_>> {
        None
    }
}

/// Where the bytes of a read came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// All of them were in memory, as those of a file in the page cache are: nothing was asked of the medium.
    Memory,
    /// Some of them, or all, were asked of the medium.
    Medium,
}

/// What the io_uring engine needs to know of a file to read from it and write to it.
#[cfg(target_os = "linux")]
#[derive(Clone, Copy, Debug)]
pub struct RingTarget<'a> {
    /// The open file.
    pub file: BorrowedFd<'a>,
    /// Where in the file the backend's byte 0 lies.
    pub start_bytes: u64,
    /// Offsets, lengths and addresses must be multiples of this (1 when the page cache takes care of it).
    pub alignment_bytes: u64,
    /// Whether the file was opened for writing.
    pub writable: bool,
    /// How large writes are to go, if otherwise than the rest.
    pub large_writes: Option<LargeWriteTarget<'a>>,
}

/// Where a file's large writes go: another opening of the same file.
#[cfg(target_os = "linux")]
#[derive(Clone, Copy, Debug)]
pub struct LargeWriteTarget<'a> {
    /// It.
    pub file: BorrowedFd<'a>,
    /// Offsets, lengths and addresses must be multiples of this.
    pub alignment_bytes: u64,
    /// Writes of so many bytes and more are meant.
    pub least_bytes: u64,
}
