//! Large writes, which bypass the page cache.
//!
//! The page cache copies a large write and writes it back later, at a fraction of a fast disk's
//! speed (docs/internals/performance.md, "Device"). Files open for writing therefore have a second,
//! `O_DIRECT` opening. The second opening of a file serves writes of at least [`LARGE_WRITE_BYTES`]
//! that are aligned to the medium's sectors. Writes below that size, and all reads, use the page
//! cache. The kernel writes back and drops cached pages under a direct write, so direct and cached
//! descriptors read the same bytes.
//!
//! Content in unaligned memory is first copied into aligned buffers. If the file system does not
//! support `O_DIRECT`, the file has no second descriptor for large writes.

use buttress_exact::{Exact as _, copy_into};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::fs::{FileExt, OpenOptionsExt};

use super::system;
use crate::buffer::Buffer;
use crate::error::byte_length;

/// The minimum size in bytes of a direct write, except on a loop device whose file has holes.
pub(super) const LARGE_WRITE_BYTES: u64 = 128 << 10;

/// The number of bytes staged at once for a write from unaligned memory.
const STAGED_BYTES: usize = 1 << 20;

/// The second descriptor of a file, which bypasses the page cache for large writes.
#[derive(Debug)]
pub(super) struct LargeWrites {
    file: File,
    alignment_bytes: u64,
    /// The minimum size of a direct write in bytes. Smaller writes use the page cache.
    least_bytes: u64,
}

/// The message for a violated invariant: all parts of a write are staged.
const LOST: &str = "a fault of this program: a part of a write does not fit where it is staged";

fn lost() -> io::Error {
    io::Error::other(LOST)
}

impl LargeWrites {
    /// Opens `file` a second time, if its file system supports `O_DIRECT`.
    pub(super) fn of(file: &File, is_block_device: bool, least_bytes: u64) -> Option<Self> {
        // The file is opened again by its descriptor, because its name may lead to another file by
        // now.
        let path = format!("/proc/self/fd/{}", file.as_raw_fd());
        let flags = libc::O_DIRECT | libc::O_CLOEXEC;
        let opened = File::options().write(true).custom_flags(flags).open(path).ok()?;
        Self::over(file, opened, is_block_device, least_bytes).ok()
    }

    /// Uses `opened`, a second opening of `file` with `O_DIRECT`.
    pub(super) fn over(
        file: &File,
        opened: File,
        is_block_device: bool,
        least_bytes: u64,
    ) -> io::Result<Self> {
        let alignment_bytes = if is_block_device {
            system::block_device_sector_bytes(file)?
        } else {
            system::direct_alignment_bytes(&opened)
        };
        Ok(Self {
            file: opened,
            alignment_bytes: u64::from(alignment_bytes),
            least_bytes,
        })
    }

    /// Returns the second opening, to be passed to another process.
    pub(super) fn into_file(self) -> File {
        self.file
    }

    pub(super) fn file(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    pub(super) const fn least_bytes(&self) -> u64 {
        self.least_bytes
    }

    pub(super) const fn alignment_bytes(&self) -> u64 {
        self.alignment_bytes
    }

    /// Returns true if a write is large and aligned enough for the `O_DIRECT` opening.
    pub(super) fn takes(&self, offset: u64, length: u64) -> bool {
        length >= self.least_bytes && self.is_aligned(offset) && self.is_aligned(length)
    }

    fn is_aligned(&self, value: u64) -> bool {
        value.checked_rem(self.alignment_bytes) == Some(0)
    }

    /// Writes all parts, one after another, from `offset` on. The total length of the parts is
    /// aligned.
    pub(super) fn write(&self, offset: u64, parts: &[&[u8]]) -> io::Result<()> {
        let suits = |part: &&[u8]| {
            self.is_aligned(byte_length(part.as_ptr().addr())) && self.is_aligned(byte_length(part.len()))
        };
        if parts.iter().all(suits) {
            return system::write_all_vectored(self.file.as_fd(), offset, parts);
        }
        let total = parts.iter().fold(0_usize, |sum, part| sum.exact_add(part.len()));
        let mut staged = Buffer::uncleared(total.min(STAGED_BYTES));
        let (mut filled, mut at) = (0_usize, offset);
        for part in parts {
            let mut rest = *part;
            while !rest.is_empty() {
                let count = staged.len().exact_sub(filled).min(rest.len());
                let Some((now, later)) = rest.split_at_checked(count).filter(|_| count > 0) else {
                    return Err(lost());
                };
                let end = filled.exact_add(count);
                copy_into(&mut staged, filled..end, now, LOST).map_err(|_| lost())?;
                (filled, rest) = (end, later);
                if filled == staged.len() {
                    self.file.write_all_at(&staged, at)?;
                    at = at.exact_add(byte_length(filled));
                    filled = 0;
                }
            }
        }
        self.file.write_all_at(staged.get(..filled).ok_or_else(lost)?, at)
    }
}
