//! Image files and block devices.
//!
//! Image files and block devices share one backend type. Image files and block devices differ in
//! their size, in locks that exclude other programs ([`opening`]), and in the calls that discard
//! and zero ([`system`]). Reads of a file use the page cache, or bypass it with `O_DIRECT`. Large
//! writes always bypass the page cache ([`large`]). Unaligned requests with `O_DIRECT` are
//! [widened](widening). Sparse image files depend on the free space of their file system
//! ([`host`]).
//!
//! The kernel's own read-ahead for the page cache stays enabled. The kernel's read-ahead only
//! begins with sequential reads, where it helps. Callers that read ahead with large requests do not
//! trigger the kernel's read-ahead.
//!
//! Left out: parallel requests (the engines), and partitions ([`crate::partition`]).

#[cfg(test)]
mod cold;
pub(crate) mod guard;
mod host;
mod large;
mod locked;
mod opening;
mod system;
mod widening;

pub use locked::LockedFile;
pub(crate) use opening::open;
pub(crate) use system::punch_hole;

use buttress_exact::{Exact as _, at_most};
use core::sync::atomic::{AtomicU64, Ordering};
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

use buttress_locks::unscheduled::Mutex;
use buttress_locks::{Rank, lock_class};

use crate::backend::{Backend, LargeWriteTarget, RingTarget, Source};
use crate::buffer::Buffer;
use crate::device::OpenOptions;
use crate::error::{byte_length, check_range, out_of_range, read_only};
use host::{HostSpace, is_out_of_space};
use large::{LARGE_WRITE_BYTES, LargeWrites};

lock_class!(WideningLock, "widening", Rank::new(94).over_device());

#[derive(Debug)]
struct FileBackend {
    name: Arc<str>,
    file: File,
    is_block_device: bool,
    writable: bool,
    direct: bool,
    rotational: bool,
    size_bytes: AtomicU64,
    sector_bytes: u32,
    widening: Mutex<(), WideningLock>,
    /// The path of large writes, if it differs from that of small writes.
    large: Option<LargeWrites>,
    /// The file system that holds the file, if the file is open for writing.
    host: Option<HostSpace>,
}

impl FileBackend {
    fn new(
        name: &Arc<str>,
        file: File,
        path: &Path,
        is_block_device: bool,
        options: &OpenOptions,
    ) -> io::Result<Self> {
        let size_bytes = if is_block_device {
            system::block_device_bytes(&file)?
        } else {
            file.metadata()?.len()
        };
        let sector_bytes = if is_block_device {
            system::block_device_sector_bytes(&file)?
        } else if options.direct {
            system::direct_alignment_bytes(&file)
        } else {
            512
        };
        let host = options
            .write
            .then(|| HostSpace::of(&file, path, is_block_device))
            .flatten();
        // The page cache of a loop device loses writes that fail, and reports them only at the next
        // flush.
        let is_loop = |host: &HostSpace| host.is_below_device() && host.may_run_out();
        let least_bytes = match host.as_ref().is_some_and(is_loop) {
            true => u64::from(sector_bytes),
            false => LARGE_WRITE_BYTES,
        };
        Ok(Self {
            name: Arc::clone(name),
            rotational: system::is_rotational(&file, is_block_device),
            large: (options.write && !options.direct)
                .then(|| LargeWrites::of(&file, is_block_device, least_bytes))
                .flatten(),
            host,
            file,
            is_block_device,
            writable: options.write,
            direct: options.direct,
            size_bytes: AtomicU64::new(size_bytes),
            sector_bytes,
            widening: Mutex::new(()),
        })
    }

    fn size(&self) -> u64 {
        self.size_bytes.load(Ordering::Acquire)
    }

    /// Writes data that is large enough directly, bypassing the page cache. Returns false if the
    /// data is too small, or if the file system refuses the direct write.
    fn write_large(&self, offset: u64, length: u64, parts: &[&[u8]]) -> io::Result<bool> {
        let Some(large) = self.large.as_ref().filter(|large| large.takes(offset, length)) else {
            return Ok(false);
        };
        match large.write(offset, parts) {
            Err(cause) if cause.raw_os_error() == Some(libc::EINVAL) => Ok(false),
            // Unlike a buffered write, a direct write needs blocks at once. A direct write cannot
            // use blocks that the file system is about to free or holds for dirty pages. The caller
            // then retries with a buffered write, whose result counts. A failed direct write may
            // have written a part. The buffered write writes the same bytes to the same place, so
            // that part does no harm.
            Err(cause) if is_out_of_space(&cause) && !self.is_block_device => Ok(false),
            answer => answer.map(|()| true),
        }
    }

    fn check_write(&self, offset: u64, length: u64) -> io::Result<()> {
        if !self.writable {
            return Err(read_only());
        }
        check_range(self.size(), offset, length)
    }

    /// Returns the failure of a write. The failure is ENOSPC if a loop device reported EIO because
    /// its file system is full.
    fn with_cause_below(&self, cause: io::Error, length: u64) -> io::Error {
        match &self.host {
            Some(host) if host.is_full_below(&self.file, &cause, length) => {
                io::Error::from_raw_os_error(libc::ENOSPC)
            }
            _ => cause,
        }
    }

    fn write_parts(&self, offset_bytes: u64, parts: &[&[u8]], length: u64) -> io::Result<()> {
        if self.write_large(offset_bytes, length, parts)? {
            return Ok(());
        }
        let parts = match parts.split_last() {
            Some((_, first)) if buttress_faults::on("device-merged-write-cut") => first,
            _ => parts,
        };
        let addresses = parts
            .iter()
            .map(|part| (byte_length(part.as_ptr().addr()), byte_length(part.len())));
        if !self.direct || self.is_aligned(offset_bytes, addresses) {
            return system::write_all_vectored(self.file.as_fd(), offset_bytes, parts);
        }
        let mut joined = Buffer::uncleared(usize::try_from(length).map_err(|_| out_of_range(self.size()))?);
        let mut rest = &mut joined[..];
        for part in parts {
            let Some((place, left)) = rest.split_at_mut_checked(part.len()) else {
                return Err(out_of_range(self.size()));
            };
            place.copy_from_slice(part);
            rest = left;
        }
        self.write_whole(offset_bytes, &joined)
    }

    fn write_whole(&self, offset_bytes: u64, bytes: &[u8]) -> io::Result<()> {
        let length = byte_length(bytes.len());
        if self.write_large(offset_bytes, length, &[bytes])? {
            return Ok(());
        }
        let part = (byte_length(bytes.as_ptr().addr()), length);
        if !self.direct || self.is_aligned(offset_bytes, std::iter::once(part)) {
            return self.file.write_all_at(bytes, offset_bytes);
        }
        if self.is_aligned(offset_bytes, std::iter::once((0, length))) {
            // Only the memory of this write is misaligned.
            return self.file.write_all_at(&Buffer::from(bytes), offset_bytes);
        }
        self.write_widened(offset_bytes, bytes)
    }

    fn write_zeros(&self, offset: u64, length: u64) -> io::Result<()> {
        let zeros = Buffer::zeroed(1 << 20);
        let mut done = 0_u64;
        while done < length {
            let count = at_most(length.exact_sub(done), zeros.len());
            let part = zeros.get(..count).ok_or_else(|| out_of_range(self.size()))?;
            self.write_at(offset.exact_add(done), part)?;
            done = done.exact_add(byte_length(count));
        }
        Ok(())
    }
}

fn total_length(buffers: &[&mut [u8]]) -> u64 {
    buffers
        .iter()
        .fold(0, |sum: u64, buffer| sum.exact_add(byte_length(buffer.len())))
}

impl Drop for FileBackend {
    fn drop(&mut self) {
        guard::release(&self.file);
    }
}

impl Backend for FileBackend {
    fn name(&self) -> &str {
        &self.name
    }

    fn unlock(&self) {
        guard::release(&self.file);
    }

    fn size_bytes(&self) -> u64 {
        self.size()
    }

    /// A block device keeps its size, and this call reads the size again.
    fn set_size(&self, size_bytes: u64) -> io::Result<()> {
        if !self.writable {
            return Err(read_only());
        }
        if self.is_block_device {
            let found = system::block_device_bytes(&self.file)?;
            self.size_bytes.store(found, Ordering::Release);
            return match size_bytes <= found {
                true => Ok(()),
                false => Err(io::Error::other(format!(
                    "the block device ends before (found {found} bytes, expected at least {size_bytes}). Grow it first"
                ))),
            };
        }
        let too_large = |_| io::Error::from_raw_os_error(libc::EFBIG);
        i64::try_from(size_bytes).map_err(too_large)?;
        self.file.set_len(size_bytes)?;
        self.size_bytes.store(size_bytes, Ordering::Release);
        self.file.sync_all()
    }

    fn next_data(&self, from_bytes: u64) -> io::Result<Option<Range<u64>>> {
        let size_bytes = self.size();
        if from_bytes >= size_bytes {
            return Ok(None);
        }
        if self.is_block_device {
            return Ok(Some(from_bytes..size_bytes));
        }
        system::next_data(&self.file, from_bytes, size_bytes)
    }

    fn sector_bytes(&self) -> u32 {
        self.sector_bytes
    }

    fn is_rotational(&self) -> bool {
        self.rotational
    }

    fn is_writable(&self) -> bool {
        self.writable
    }

    fn read_vectored_at(&self, offset_bytes: u64, buffers: &mut [&mut [u8]]) -> io::Result<()> {
        if self.direct {
            let parts = buffers
                .iter()
                .map(|b| (byte_length(b.as_ptr().addr()), byte_length(b.len())));
            if !self.is_aligned(offset_bytes, parts) {
                let end = offset_bytes.exact_add(total_length(buffers));
                check_range(self.size(), offset_bytes, end.exact_sub(offset_bytes))?;
                let (wide, mut position) = self.read_widened(offset_bytes, end)?;
                for buffer in buffers {
                    let next = position.exact_add(buffer.len());
                    let part = wide
                        .get(position..next)
                        .ok_or_else(|| out_of_range(self.size()))?;
                    buffer.copy_from_slice(part);
                    position = next;
                }
                return Ok(());
            }
        }
        match buffers {
            [buffer] => self.file.read_exact_at(buffer, offset_bytes),
            _ => system::read_all_vectored(self.file.as_fd(), offset_bytes, buffers),
        }
        .map_err(|cause| match cause.kind() {
            io::ErrorKind::UnexpectedEof => out_of_range(self.size()),
            _ => cause,
        })
    }

    fn read_cached_vectored_at(&self, offset_bytes: u64, buffers: &mut [&mut [u8]]) -> io::Result<bool> {
        if self.direct {
            return Ok(false);
        }
        let wanted = total_length(buffers);
        let got = system::read_cached_vectored(self.file.as_fd(), offset_bytes, buffers);
        Ok(byte_length(got) == wanted)
    }

    fn read_telling_at(&self, offset_bytes: u64, buffers: &mut [&mut [u8]]) -> io::Result<Source> {
        if self.direct {
            self.read_vectored_at(offset_bytes, buffers)?;
            return Ok(Source::Medium);
        }
        let wanted = total_length(buffers);
        let got = system::read_cached_vectored(self.file.as_fd(), offset_bytes, buffers);
        if byte_length(got) == wanted {
            return Ok(Source::Memory);
        }
        // Bytes that the read has already copied are skipped.
        let mut skipped = got;
        let mut rest: Vec<&mut [u8]> = Vec::with_capacity(buffers.len());
        for buffer in buffers {
            let count = skipped.min(buffer.len());
            skipped = skipped.exact_sub(count);
            rest.extend(buffer.get_mut(count..).filter(|part| !part.is_empty()));
        }
        self.read_vectored_at(offset_bytes.exact_add(byte_length(got)), &mut rest)?;
        Ok(Source::Medium)
    }

    fn write_at(&self, offset_bytes: u64, bytes: &[u8]) -> io::Result<()> {
        let length = byte_length(bytes.len());
        self.check_write(offset_bytes, length)?;
        self.write_whole(offset_bytes, bytes)
            .map_err(|cause| self.with_cause_below(cause, length))
    }

    fn write_vectored_at(&self, offset_bytes: u64, parts: &[&[u8]]) -> io::Result<()> {
        let length = parts
            .iter()
            .fold(0, |sum: u64, part| sum.exact_add(byte_length(part.len())));
        self.check_write(offset_bytes, length)?;
        self.write_parts(offset_bytes, parts, length)
            .map_err(|cause| self.with_cause_below(cause, length))
    }

    fn may_run_out(&self) -> bool {
        self.host.as_ref().is_some_and(HostSpace::may_run_out)
    }

    fn reserve(&self, offset_bytes: u64, length_bytes: u64) -> io::Result<()> {
        self.check_write(offset_bytes, length_bytes)?;
        match &self.host {
            Some(host) => host.reserve(&self.file, offset_bytes, length_bytes),
            None => Ok(()),
        }
    }

    fn describe_space(&self) -> Option<String> {
        Some(self.host.as_ref()?.describe(&self.file))
    }

    fn share_from(
        &self,
        source: BorrowedFd<'_>,
        source_offset_bytes: u64,
        offset_bytes: u64,
        length_bytes: u64,
    ) -> io::Result<()> {
        check_range(self.size(), offset_bytes, length_bytes)?;
        system::share(
            source,
            source_offset_bytes,
            &self.file,
            offset_bytes,
            length_bytes,
        )
    }

    /// `fdatasync`: on a block device the kernel writes back its page cache and flushes the drive's
    /// own cache.
    fn flush(&self) -> io::Result<()> {
        if !self.writable || buttress_faults::on("device-no-fdatasync") {
            return Ok(());
        }
        self.file.sync_data()
    }

    fn discard(&self, offset_bytes: u64, length_bytes: u64) -> io::Result<()> {
        self.check_write(offset_bytes, length_bytes)?;
        if self.is_block_device {
            system::discard_blocks(&self.file, offset_bytes, length_bytes, self.sector_bytes)
        } else {
            punch_hole(&self.file, offset_bytes, length_bytes).map(|_punched| ())
        }
    }

    fn zero(&self, offset_bytes: u64, length_bytes: u64) -> io::Result<()> {
        self.check_write(offset_bytes, length_bytes)?;
        let done = if self.is_block_device {
            system::zero_blocks(&self.file, offset_bytes, length_bytes, self.sector_bytes)?
        } else {
            punch_hole(&self.file, offset_bytes, length_bytes)?
        };
        if done {
            Ok(())
        } else {
            self.write_zeros(offset_bytes, length_bytes)
        }
    }

    fn ring_target(&self) -> Option<RingTarget<'_>> {
        let alignment_bytes = if self.direct {
            u64::from(self.sector_bytes)
        } else {
            1
        };
        Some(RingTarget {
            file: self.file.as_fd(),
            start_bytes: 0,
            alignment_bytes,
            writable: self.writable,
            large_writes: self.large.as_ref().map(|large| LargeWriteTarget {
                file: large.file(),
                alignment_bytes: large.alignment_bytes(),
                least_bytes: large.least_bytes(),
            }),
        })
    }
}
