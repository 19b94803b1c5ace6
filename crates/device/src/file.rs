//! Image files and block devices.
//!
//! One type serves both; they differ in how their size is found, in what keeps others away while we write, and
//! in the calls that discard and zero ([`system`]). Reads go through the page cache, or around it with
//! `O_DIRECT`; large writes go around it in either case ([`large`]). With `O_DIRECT` requests that are not aligned to the medium's sector are widened, read into an aligned
//! buffer and copied.
//!
//! The kernel's own read-ahead is left as it is for the page cache: it only begins where reads follow each
//! other, which is where it helps; callers that read ahead with large requests of their own pass it by.
//!
//! What it does not do: parallel requests (the engines'), and partitions ([`crate::partition`]).

#[cfg(test)]
mod cold;
pub(crate) mod guard;
mod host;
mod large;
mod system;

pub(crate) use system::punch_hole;

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::{FileExt, FileTypeExt, OpenOptionsExt};
use std::path::Path;
use std::sync::Arc;

use buttress_locks::unscheduled::Mutex;
use buttress_locks::{Rank, lock_class};

use crate::backend::{Backend, LargeWriteTarget, RingTarget, Source};
use crate::buffer::Buffer;
use crate::device::OpenOptions;
use crate::error::{IoError, Operation, byte_length, check_range, out_of_range, read_only};
use crate::overlay::{BaseState, Overlay};
use crate::partition;
use host::{HostSpace, is_out_of_space};
use large::{LARGE_WRITE_BYTES, LargeWrites};

lock_class!(WideningLock, "widening", Rank::new(94).over_device());

/// What [`open`] found: the backend (of the partition, if one was asked for), and what the user should know.
pub(crate) struct Opened {
    pub(crate) backend: Arc<dyn Backend>,
    pub(crate) notices: Vec<String>,
    /// The file as an overlay over it would know it.
    pub(crate) state: BaseState,
}

/// Opens the image file or block device at `path`.
///
/// For reading, a shared lock is taken, and a mounted device is reported; for writing, the lock is exclusive,
/// and whatever is mounted or used by something else is refused.
pub(crate) fn open(path: &Path, options: &OpenOptions) -> Result<Opened, IoError> {
    let name: Arc<str> = path.to_string_lossy().into();
    let fail = |cause: io::Error| IoError::new(&name, Operation::Open, 0, 0, &cause);
    // With an overlay the file itself is only read.
    let over = options.overlay.as_deref();
    let writes_overlay = options.write && over.is_some();
    let options = &OpenOptions {
        write: options.write && over.is_none(),
        ..options.clone()
    };
    let around = OpenOptions {
        direct: true,
        ..options.clone()
    };
    let (file, is_block_device) = open_file(path, options).map_err(fail)?;
    let when_cold = match options.write {
        true => options.direct_when_cold_to_write,
        false => options.direct_when_cold,
    };
    let wanted = when_cold && !options.direct;
    let again = (wanted && system::is_cold(&file)).then(|| open_file(path, &around));
    // Where the file system refuses O_DIRECT, the page cache will do.
    let (file, options) = match again {
        Some(Ok((file, _))) => (file, &around),
        Some(Err(_)) | None => (file, options),
    };
    let notices = guard::claim(&file, path, is_block_device, options.write).map_err(fail)?;
    if writes_overlay && let Some(notice) = notices.first() {
        let what = format!("no overlay is written over a device that may change: {notice}");
        return Err(fail(io::Error::new(io::ErrorKind::ResourceBusy, what)));
    }
    let backend = FileBackend::new(&name, file, path, is_block_device, options).map_err(fail)?;
    let table_sector_bytes = is_block_device.then_some(backend.sector_bytes);
    let state = BaseState::of(&backend.file, backend.size_bytes).map_err(fail)?;
    let backend: Arc<dyn Backend> = Arc::new(backend);
    let backend = match over {
        Some(path) => Arc::new(Overlay::open(backend, &state, path, writes_overlay).map_err(fail)?),
        None => backend,
    };
    let backend = partition::window(backend, options.partition, table_sector_bytes)
        .map_err(|cause| IoError::new(&name, Operation::Partition, 0, 0, &cause))?;
    Ok(Opened {
        backend,
        notices,
        state,
    })
}

fn open_file(path: &Path, options: &OpenOptions) -> io::Result<(File, bool)> {
    let kind = std::fs::metadata(path)?.file_type();
    let is_block_device = kind.is_block_device();
    if !(kind.is_file() || is_block_device) {
        let what = "it is neither a regular file nor a block device";
        return Err(io::Error::new(io::ErrorKind::InvalidInput, what));
    }
    let mut flags = libc::O_CLOEXEC;
    if options.direct {
        flags |= libc::O_DIRECT;
    }
    if is_block_device && options.write && options.claimed.as_deref() != Some(path) {
        // On a block device this means: only if no mount and no other exclusive user holds it.
        flags |= libc::O_EXCL;
    }
    let opened = File::options()
        .read(true)
        .write(options.write)
        .custom_flags(flags)
        .open(path);
    let file = opened.map_err(|cause| match cause.raw_os_error() {
        Some(libc::EBUSY) => io::Error::new(
            io::ErrorKind::ResourceBusy,
            "it is mounted or in use by something else; unmount it, or open it read-only",
        ),
        Some(libc::EINVAL) if options.direct => io::Error::new(
            io::ErrorKind::Unsupported,
            "its file system does not support O_DIRECT; open it without",
        ),
        _ => cause,
    })?;
    Ok((file, is_block_device))
}

#[derive(Debug)]
struct FileBackend {
    name: Arc<str>,
    file: File,
    is_block_device: bool,
    writable: bool,
    direct: bool,
    rotational: bool,
    size_bytes: u64,
    sector_bytes: u32,
    widening: Mutex<(), WideningLock>,
    /// The way that large writes take, unless all take it.
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
        // The page cache of a loop device loses writes that fail, and reports them only at the next flush.
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
            size_bytes,
            sector_bytes,
            widening: Mutex::new(()),
        })
    }

    /// Whether a request can go to a file opened with `O_DIRECT` as it is.
    fn is_aligned(&self, offset: u64, mut parts: impl Iterator<Item = (u64, u64)>) -> bool {
        let unit = u64::from(self.sector_bytes);
        let aligned = |value: u64| value.checked_rem(unit) == Some(0);
        aligned(offset) && parts.all(|(address, length)| aligned(address) && aligned(length))
    }

    /// Reads `[start, end)`, widened to whole sectors, into a buffer of its own. Also gives where in it `start` is.
    ///
    /// The last sector of a file may reach past its end; what is there then reads as zeros.
    fn read_widened(&self, start: u64, end: u64) -> io::Result<(Buffer, usize)> {
        let unit = u64::from(self.sector_bytes).max(1);
        let lead = start.checked_rem(unit).unwrap_or(0);
        let first = start.saturating_sub(lead);
        let end = end
            .checked_next_multiple_of(unit)
            .ok_or_else(|| out_of_range(self.size_bytes))?;
        let too_long = |_| out_of_range(self.size_bytes);
        let length = usize::try_from(end.saturating_sub(first)).map_err(too_long)?;
        let mut buffer = Buffer::zeroed(length);
        let mut filled = 0_usize;
        while let Some(rest) = buffer.get_mut(filled..).filter(|rest| !rest.is_empty()) {
            let at = first.saturating_add(byte_length(filled));
            match self.file.read_at(rest, at) {
                Ok(0) => break,
                Ok(count) => filled = filled.saturating_add(count),
                Err(cause) if cause.kind() == io::ErrorKind::Interrupted => {}
                Err(cause) => return Err(cause),
            }
            // A count that is no whole sector only occurs at the end of a file.
            if self.size_bytes <= first.saturating_add(byte_length(filled)) {
                break;
            }
        }
        Ok((buffer, usize::try_from(lead).map_err(too_long)?))
    }

    /// Writes bytes that are not aligned, by reading the sectors at both ends first. One at a time: two such writes
    /// may share a sector.
    fn write_widened(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        let _alone = self.widening.lock();
        let end = offset.saturating_add(byte_length(bytes.len()));
        let (mut buffer, lead) = self.read_widened(offset, end)?;
        if buttress_faults::on("device-widened-write-clears") {
            buffer.fill(0);
        }
        let target = lead
            .checked_add(bytes.len())
            .and_then(|end| buffer.get_mut(lead..end));
        target
            .ok_or_else(|| out_of_range(self.size_bytes))?
            .copy_from_slice(bytes);
        let start = offset.saturating_sub(byte_length(lead));
        self.file.write_all_at(&buffer, start)?;
        if !self.is_block_device && start.saturating_add(byte_length(buffer.len())) > self.size_bytes {
            // Widening made the file longer than it was.
            self.file.set_len(self.size_bytes)?;
        }
        Ok(())
    }

    /// Writes around the page cache what is large enough for it; `false` for what is not, or where the file system will
    /// not have it after all.
    fn write_large(&self, offset: u64, length: u64, parts: &[&[u8]]) -> io::Result<bool> {
        let Some(large) = self.large.as_ref().filter(|large| large.takes(offset, length)) else {
            return Ok(false);
        };
        match large.write(offset, parts) {
            Err(cause) if cause.raw_os_error() == Some(libc::EINVAL) => Ok(false),
            // A direct write needs blocks at once. It cannot have blocks that the file system is about to free or holds
            // for dirty pages. The buffered write then tries again, and its result counts. It writes the same bytes to
            // the same place, so a part that is already written does no harm.
            Err(cause) if is_out_of_space(&cause) && !self.is_block_device => Ok(false),
            answer => answer.map(|()| true),
        }
    }

    fn check_write(&self, offset: u64, length: u64) -> io::Result<()> {
        if !self.writable {
            return Err(read_only());
        }
        check_range(self.size_bytes, offset, length)
    }

    /// Returns the failure of a write. It is ENOSPC if a loop device reported EIO because its file system is full.
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
        let mut joined =
            Buffer::uncleared(usize::try_from(length).map_err(|_| out_of_range(self.size_bytes))?);
        let mut rest = &mut joined[..];
        for part in parts {
            let Some((place, left)) = rest.split_at_mut_checked(part.len()) else {
                return Err(out_of_range(self.size_bytes));
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
            // Only the memory does not suit.
            return self.file.write_all_at(&Buffer::from(bytes), offset_bytes);
        }
        self.write_widened(offset_bytes, bytes)
    }

    fn write_zeros(&self, offset: u64, length: u64) -> io::Result<()> {
        let zeros = Buffer::zeroed(1 << 20);
        let mut done = 0_u64;
        while done < length {
            let count = length.saturating_sub(done).min(byte_length(zeros.len()));
            let part = usize::try_from(count)
                .ok()
                .and_then(|count| zeros.get(..count))
                .unwrap_or_default();
            self.write_at(offset.saturating_add(done), part)?;
            done = done.saturating_add(count);
        }
        Ok(())
    }
}

fn total_length(buffers: &[&mut [u8]]) -> u64 {
    buffers.iter().fold(0, |sum: u64, buffer| {
        sum.saturating_add(byte_length(buffer.len()))
    })
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
        self.size_bytes
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
                let end = offset_bytes.saturating_add(total_length(buffers));
                check_range(self.size_bytes, offset_bytes, end.saturating_sub(offset_bytes))?;
                let (wide, mut position) = self.read_widened(offset_bytes, end)?;
                for buffer in buffers {
                    let next = position.saturating_add(buffer.len());
                    let part = wide
                        .get(position..next)
                        .ok_or_else(|| out_of_range(self.size_bytes))?;
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
            io::ErrorKind::UnexpectedEof => out_of_range(self.size_bytes),
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
        // What was copied is not copied again.
        let mut skipped = got;
        let mut rest: Vec<&mut [u8]> = Vec::with_capacity(buffers.len());
        for buffer in buffers {
            let count = skipped.min(buffer.len());
            skipped = skipped.saturating_sub(count);
            rest.extend(buffer.get_mut(count..).filter(|part| !part.is_empty()));
        }
        self.read_vectored_at(offset_bytes.saturating_add(byte_length(got)), &mut rest)?;
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
            .fold(0, |sum: u64, part| sum.saturating_add(byte_length(part.len())));
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
        check_range(self.size_bytes, offset_bytes, length_bytes)?;
        system::share(
            source,
            source_offset_bytes,
            &self.file,
            offset_bytes,
            length_bytes,
        )
    }

    /// `fdatasync`: on a block device the kernel writes back its page cache and flushes the drive's own cache.
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
