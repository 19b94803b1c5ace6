//! System calls on files and block devices that the standard library does not have.
//!
//! Block devices support three `ioctl` requests that rustix has no function for: their size
//! (BLKGETSIZE64), discard (BLKDISCARD) and zero (BLKZEROOUT). Source: the kernel's user-space
//! header `linux/fs.h`. Each of these requests is one `unsafe` call on memory of its own stack
//! frame.

use buttress_exact::Exact as _;
use std::fs::File;
use std::io::{self, IoSlice, IoSliceMut};
use std::ops::Range;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::os::unix::fs::MetadataExt;

use rustix::fs::FallocateFlags;
use rustix::io::{Errno, ReadWriteFlags};

use crate::error::byte_length;

const BLKDISCARD: libc::Ioctl = 0x1277;
const BLKZEROOUT: libc::Ioctl = 0x127f;
const BLKGETSIZE64: libc::Ioctl = 0x8008_1272;

/// Returns the size of a block device in bytes. The `stat(2)` size of a block device is 0.
pub(super) fn block_device_bytes(file: &File) -> io::Result<u64> {
    let mut bytes = 0_u64;
    // SAFETY: BLKGETSIZE64 writes one u64 to a live local variable's address; `file` is borrowed,
    // so its descriptor stays open.
    let answer = unsafe { libc::ioctl(file.as_raw_fd(), BLKGETSIZE64, &raw mut bytes) };
    if answer == 0 {
        return Ok(bytes);
    }
    // If the driver does not respond, use the position of a seek to the end as the size.
    rustix::fs::seek(file, rustix::fs::SeekFrom::End(0)).map_err(io::Error::from)
}

/// Returns the first range of data in a file at or after `from_bytes`, up to `size_bytes`.
///
/// A file system that does not report holes yields the whole rest.
pub(super) fn next_data(file: &File, from_bytes: u64, size_bytes: u64) -> io::Result<Option<Range<u64>>> {
    let start = match rustix::fs::seek(file, rustix::fs::SeekFrom::Data(from_bytes)) {
        Ok(start) => start,
        Err(Errno::NXIO) => return Ok(None),
        Err(Errno::INVAL | Errno::NOTSUP) => return Ok(Some(from_bytes..size_bytes)),
        Err(cause) => return Err(cause.into()),
    };
    let end = match rustix::fs::seek(file, rustix::fs::SeekFrom::Hole(start)) {
        // The file may have grown since its size was read.
        Ok(end) => end.min(size_bytes),
        // Another process cut the file off. The read of the range will report the end.
        Err(Errno::NXIO) => size_bytes,
        Err(cause) => return Err(cause.into()),
    };
    Ok((start < end).then_some(start..end))
}

/// The file below a loop device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct LoopStatus {
    /// The device number of the file system that holds the file below.
    pub(super) device: u64,
    /// The file's inode number.
    pub(super) inode: u64,
    /// The offset in the file at which the device begins, in bytes.
    pub(super) start_bytes: u64,
}

/// Returns the file below a loop device, or `None` for other devices.
///
/// Source of the request and of the structure of 232 bytes: the kernel's user-space header
/// `linux/loop.h`.
pub(super) fn loop_status(file: &File) -> Option<LoopStatus> {
    const LOOP_GET_STATUS64: libc::Ioctl = 0x4c05;
    let mut words = [0_u64; 29];
    // SAFETY: the request writes one structure of 232 bytes to the address that it gets. The
    // address is that of a live local array of 232 bytes, for which every bit pattern is valid. The
    // file descriptor is open while `file` is borrowed.
    let answer = unsafe { libc::ioctl(file.as_raw_fd(), LOOP_GET_STATUS64, words.as_mut_ptr()) };
    let [device, inode, _, start_bytes, ..] = words;
    (answer == 0).then_some(LoopStatus {
        device,
        inode,
        start_bytes,
    })
}

/// Returns the logical sector of a block device in bytes.
pub(super) fn block_device_sector_bytes(file: &File) -> io::Result<u32> {
    let bytes = rustix::fs::ioctl_blksszget(file)?;
    Ok(if bytes.is_power_of_two() { bytes } else { 512 })
}

/// Returns the alignment in bytes that O_DIRECT on a file requires. The kernel reports this
/// alignment since Linux 6.1 (statx). On older kernels the alignment is 4096, which suits every
/// disk.
pub(super) fn direct_alignment_bytes(file: &File) -> u32 {
    const DIOALIGN: u32 = 0x2000;
    let flags = rustix::fs::StatxFlags::from_bits_retain(DIOALIGN);
    match rustix::fs::statx(file, c"", rustix::fs::AtFlags::EMPTY_PATH, flags) {
        Ok(answer) if answer.stx_mask & DIOALIGN != 0 => {
            let alignment = answer.stx_dio_offset_align.max(answer.stx_dio_mem_align);
            if alignment.is_power_of_two() && alignment <= 4096 {
                alignment
            } else {
                4096
            }
        }
        _ => 4096,
    }
}

/// The page cache is cold for a file if it holds less than one of this many parts of the file's
/// bytes.
const COLD_PARTS: u64 = 16;

/// Returns true if next to nothing of a file or block device is in the page cache. Returns false if
/// the kernel does not report this (before 6.5).
///
/// Source: the manual page cachestat(2): arguments, structures, and that a length of 0 means up to
/// the end.
pub(super) fn is_cold(file: &File) -> bool {
    /// The number of the system call is the same on all architectures except Alpha.
    const CACHESTAT: libc::c_long = 451;
    let range: [u64; 2] = [0, 0];
    // The counts of pages that are cached, dirty, under write-back, evicted, recently evicted.
    let mut counts = [0_u64; 5];
    // SAFETY: the kernel reads two u64 at the second address and writes five u64 at the third; both
    // are live local variables of that size. The file descriptor is open for as long as `file` is
    // borrowed.
    let answer = unsafe {
        libc::syscall(
            CACHESTAT,
            file.as_raw_fd(),
            range.as_ptr(),
            counts.as_mut_ptr(),
            0_u32,
        )
    };
    let Ok(metadata) = file.metadata() else {
        return false;
    };
    let bytes = if metadata.rdev() == 0 {
        metadata.blocks().exact_mul(512)
    } else {
        // Clamp: a device that does not report its size is not cold.
        block_device_bytes(file).unwrap_or(0)
    };
    let page_bytes = byte_length(rustix::param::page_size());
    let [cached_pages, ..] = counts;
    let cached = cached_pages.exact_mul(page_bytes);
    answer == 0 && cached.exact_mul(COLD_PARTS) < bytes
}

/// Returns true if the kernel reports the block device as rotational. For a file, the block device
/// below counts. Many virtual disks are reported as rotational. Files on a file system without a
/// single block device never count as rotational.
///
/// Source: the kernel's documentation "Queue sysfs files", `rotational`.
pub(super) fn is_rotational(file: &File, is_block_device: bool) -> bool {
    let Ok(metadata) = file.metadata() else {
        return false;
    };
    let device = if is_block_device {
        metadata.rdev()
    } else {
        metadata.dev()
    };
    let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
    // A partition has no request queue of its own in sysfs.
    ["queue", "../queue"].iter().any(|queue| {
        let path = format!("/sys/dev/block/{major}:{minor}/{queue}/rotational");
        std::fs::read(path).is_ok_and(|answer| answer.starts_with(b"1"))
    })
}

/// Fills all buffers from `offset` on; continues after short reads.
pub(super) fn read_all_vectored(
    file: BorrowedFd<'_>,
    offset: u64,
    buffers: &mut [&mut [u8]],
) -> io::Result<()> {
    let mut offset = offset;
    let mut slices: Vec<IoSliceMut<'_>> = buffers.iter_mut().map(|buffer| IoSliceMut::new(buffer)).collect();
    let mut rest = slices.as_mut_slice();
    // Empty buffers at the front would make "0 bytes read" ambiguous.
    IoSliceMut::advance_slices(&mut rest, 0);
    while !rest.is_empty() {
        match rustix::io::preadv(file, rest, offset) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(count) => {
                offset = offset.exact_add(byte_length(count));
                IoSliceMut::advance_slices(&mut rest, count);
            }
            Err(Errno::INTR) => {}
            Err(cause) => return Err(cause.into()),
        }
    }
    Ok(())
}

/// Writes all parts from `offset` on, and continues after short writes.
pub(super) fn write_all_vectored(file: BorrowedFd<'_>, offset: u64, parts: &[&[u8]]) -> io::Result<()> {
    let mut offset = offset;
    let mut slices: Vec<IoSlice<'_>> = parts.iter().map(|part| IoSlice::new(part)).collect();
    let mut rest = slices.as_mut_slice();
    IoSlice::advance_slices(&mut rest, 0);
    while !rest.is_empty() {
        match rustix::io::pwritev(file, rest, offset) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(count) => {
                offset = offset.exact_add(byte_length(count));
                IoSlice::advance_slices(&mut rest, count);
            }
            Err(Errno::INTR) => {}
            Err(cause) => return Err(cause.into()),
        }
    }
    Ok(())
}

/// Fills the buffers as far as the page cache holds the bytes, and returns the number of bytes.
/// Returns zero if the first bytes are not cached, or if the file system fails or does not know.
/// For such bytes, the ordinary read finds the cause.
pub(super) fn read_cached_vectored(file: BorrowedFd<'_>, offset: u64, buffers: &mut [&mut [u8]]) -> usize {
    let answer = match buffers {
        [buffer] => rustix::io::preadv2(
            file,
            &mut [IoSliceMut::new(buffer)],
            offset,
            ReadWriteFlags::NOWAIT,
        ),
        _ => {
            let mut slices: Vec<IoSliceMut<'_>> =
                buffers.iter_mut().map(|buffer| IoSliceMut::new(buffer)).collect();
            rustix::io::preadv2(file, &mut slices, offset, ReadWriteFlags::NOWAIT)
        }
    };
    // Clamp: a failed read counts as not cached.
    answer.unwrap_or(0)
}

/// Frees a range of a file, which then reads as zeros. Returns false if the file system does not
/// support this.
pub(crate) fn punch_hole(file: &File, offset: u64, length: u64) -> io::Result<bool> {
    if length == 0 {
        return Ok(true);
    }
    let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    match rustix::fs::fallocate(file, flags, offset, length) {
        Ok(()) => Ok(true),
        Err(Errno::OPNOTSUPP | Errno::NOSYS) => Ok(false),
        Err(cause) => Err(cause.into()),
    }
}

/// Shares the blocks of a range of `source` with a range of `target`. The ranges are whole blocks
/// of the file system that holds both files.
///
/// Source: the manual FICLONERANGE(2const): request, structure, errors.
pub(super) fn share(
    source: BorrowedFd<'_>,
    source_offset: u64,
    target: &File,
    offset: u64,
    length: u64,
) -> io::Result<()> {
    #[repr(C)]
    struct Range {
        source: i64,
        source_offset: u64,
        length: u64,
        offset: u64,
    }
    const FICLONERANGE: libc::Ioctl = 0x4020_940d;
    if length == 0 {
        // A length of zero in the request would mean up to the end of the file.
        return Ok(());
    }
    let range = Range {
        source: source.as_raw_fd().into(),
        source_offset,
        length,
        offset,
    };
    // SAFETY: the request reads one structure of this shape from the address it is given, which is
    // a live local variable's; both file descriptors are open for as long as they are borrowed.
    let answer = unsafe { libc::ioctl(target.as_raw_fd(), FICLONERANGE, &raw const range) };
    match answer {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Discards the whole sectors of a range. Does nothing if the device has no discard.
pub(super) fn discard_blocks(file: &File, offset: u64, length: u64, sector_bytes: u32) -> io::Result<()> {
    let unit = u64::from(sector_bytes).max(1);
    let end = offset.exact_add(length);
    let end = end.exact_sub(end.remainder(unit));
    match offset.checked_next_multiple_of(unit) {
        Some(start) if start < end => {
            range_request(file, BLKDISCARD, start, end.exact_sub(start)).map(|_done| ())
        }
        _ => Ok(()),
    }
}

/// Zeroes a range of whole sectors of a block device. Returns false if the device cannot, so that
/// the caller must write zeros.
pub(super) fn zero_blocks(file: &File, offset: u64, length: u64, sector_bytes: u32) -> io::Result<bool> {
    let unit = u64::from(sector_bytes);
    if offset.checked_rem(unit) != Some(0) || length.checked_rem(unit) != Some(0) {
        return Ok(false);
    }
    if length == 0 {
        return Ok(true);
    }
    range_request(file, BLKZEROOUT, offset, length)
}

/// Sends a request for a range. Returns false if the device does not support the request.
fn range_request(file: &File, request: libc::Ioctl, offset: u64, length: u64) -> io::Result<bool> {
    let range: [u64; 2] = [offset, length];
    // SAFETY: both requests read two u64 (start and length in bytes) from a live local array; the
    // file descriptor stays open while `file` is borrowed.
    let answer = unsafe { libc::ioctl(file.as_raw_fd(), request, range.as_ptr()) };
    if answer == 0 {
        return Ok(true);
    }
    let cause = io::Error::last_os_error();
    match cause.raw_os_error() {
        Some(libc::EOPNOTSUPP | libc::ENOTTY | libc::ENOSYS) => Ok(false),
        _ => Err(cause),
    }
}
