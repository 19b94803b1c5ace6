//! Files: opening, reading, writing, allocation, holes, copies, durability.
//!
//! # Capabilities
//!
//! A write removes the file's capabilities, but must not look them up each time. A counter
//! therefore increments whenever a file may gain capabilities. Each open file remembers the value
//! of the capability counter at which the file had no capability.
//!
//! # Times of access
//!
//! The kernel leaves access times to the server ([`MountedVolume::note_access`]). Reads from the
//! kernel's caches reach no server and are no accesses. With a write-back cache the kernel also
//! reads a page to complete a partial write of it. Such a read uses the handle of the write, so the
//! server does not count a read by a write-only handle as an access.

use super::handles::OpenFile;
use super::{Access, MountedVolume};
use crate::vfs::{Copied, Errno, HandleId, OpenMode, Opened, ReadHow, Result, SeekTo};
use buttress::unstable::accounts::Maps as _;
use buttress::unstable::fs::File;
use buttress::{AllocateMode, ByteCount, FileKind, FileOffset, InodeFlags, Location};
use core::ops::Range;
use core::sync::atomic::Ordering;
use core::time::Duration;

/// Pauses while a caller waits for the kernel to release removed inodes, in milliseconds. During
/// the first pauses the caller waits for any removed inode, because a process may be about to close
/// it.
const PAUSES_MS: [u64; 9] = [1, 5, 20, 50, 100, 200, 400, 400, 400];
const PAUSES_FOR_ANY: usize = 4;

/// State of capabilities for a handle that does not know whether its file has a capability.
pub(super) const UNKNOWN: u64 = 0;

impl MountedVolume {
    pub(super) fn open_at(&self, location: Location, mode: OpenMode) -> Result<HandleId> {
        if let Access::Reading(_) = &self.access {
            return Err(Errno::NOSYS);
        }
        if mode.write {
            // These checks of a file handle follow the order of the kernel's permission checks.
            let writer = self.writer()?;
            let flags = self.metadata(location)?.flags;
            if flags.contains(InodeFlags::IMMUTABLE) {
                return Err(Errno::PERM);
            }
            writer
                .subvolumes()
                .require_writable(location)
                .map_err(|error| self.failed(&error))?;
            if flags.contains(InodeFlags::APPEND) && (!mode.append || mode.truncate) {
                return Err(Errno::PERM);
            }
        }
        if mode.truncate {
            let writer = self.writer()?;
            writer
                .truncate(location, ByteCount::ZERO)
                .map_err(|error| self.failed(&error))?;
            if mode.drop_privileges {
                self.drop_privileges(location)?;
            }
        }
        Ok(self.handles.add_file(location, mode, UNKNOWN))
    }

    /// Returns a file of a volume that is open for reading. The volume does not change, so such
    /// files need no open handle.
    fn file_to_read(&self, file: Opened) -> Result<File> {
        match (&self.access, file) {
            (Access::Reading(filesystem), Opened::Node(node)) => filesystem
                .open_file(self.location(node)?)
                .map_err(|error| self.failed(&error)),
            _ => Err(Errno::BADF),
        }
    }

    pub(super) fn read_at(
        &self,
        file: Opened,
        offset: u64,
        buffer: &mut [u8],
        how: ReadHow,
    ) -> Result<usize> {
        let offset = FileOffset::new(offset);
        let read = match file {
            Opened::Handle(handle) => {
                let open = self.handles.file(handle)?;
                return self.read_open(&open, offset, buffer, how);
            }
            Opened::Node(_) => self.file_to_read(file)?.read_at(offset, buffer),
        };
        read.map_err(|error| self.failed(&error))
    }

    fn read_open(
        &self,
        open: &OpenFile,
        offset: FileOffset,
        buffer: &mut [u8],
        how: ReadHow,
    ) -> Result<usize> {
        let writer = self.writer()?;
        let file = open.live(writer).map_err(|error| self.failed(&error))?;
        if how == ReadHow::Cached && !open.mode.write_only {
            // A failure to record the access does not fail the read.
            let _moved = file.note_access(self.accesses.get());
        }
        let asked = ByteCount::of(buffer.len());
        let read = file.read_at(offset, buffer);
        let read = read.map_err(|error| self.failed(&error))?;
        if how == ReadHow::Direct {
            let range = offset..offset.saturating_add(asked);
            // A failure to record the access does not fail the read.
            let _moved = file.note_direct_read(&range, self.accesses.get());
        }
        Ok(read)
    }

    /// Records an access of an inode. Returns whether the inode's access time changed. A failure to
    /// record an access does not fail the read.
    pub(super) fn note_access(&self, location: Location) -> bool {
        match &self.access {
            Access::Reading(_) => false,
            Access::Writing(writer) => writer.note_access(location, self.accesses.get()).unwrap_or(false),
        }
    }

    pub(super) fn write_at(
        &self,
        handle: HandleId,
        offset: u64,
        bytes: &[u8],
        cached: bool,
        drop_privileges: bool,
    ) -> Result<()> {
        let open = self.handles.file(handle)?;
        if !open.mode.write && !cached {
            return Err(Errno::BADF);
        }
        let writer = self.writer()?;
        let location = open.location;
        if drop_privileges {
            self.drop_privileges(location)?;
        } else {
            self.drop_capability_once(&open)?;
        }
        let offset = FileOffset::new(offset);
        let file = open.live(writer).map_err(|error| self.failed(&error))?;
        if self.is_writeback_cached() {
            open.is_untold.store(true, Ordering::SeqCst);
            self.with_space(|| writer.write_cached_at(location, offset, bytes))?;
        } else {
            self.with_space(|| file.write_at(offset, bytes))?;
        }
        // A write-back of the kernel answers no `write(2)`.
        match !cached && is_synchronous(file.flags().map_err(|error| self.failed(&error))?) {
            true => self.sync_at(location, true),
            false => Ok(()),
        }
    }

    /// Makes a call that allocates space. The kernel releases removed files, and so their space,
    /// only after their removal has returned. If the call finds no space, it therefore waits a
    /// little for these releases and retries.
    fn with_space<T>(
        &self,
        call: impl Fn() -> core::result::Result<T, buttress::unstable::fs::Error>,
    ) -> Result<T> {
        for (step, pause) in PAUSES_MS.into_iter().enumerate() {
            let gone = self.nodes.gone();
            match call() {
                Err(error) if error.errno() == libc::ENOSPC && self.lets_go(step) => {
                    std::thread::sleep(Duration::from_millis(pause));
                }
                // The last of these inodes was released during the call.
                Err(error) if error.errno() == libc::ENOSPC && self.nodes.gone() != gone => {}
                done => return done.map_err(|error| self.failed(&error)),
            }
        }
        call().map_err(|error| self.failed(&error))
    }

    /// Waits a little until the kernel has released removed files and their space is free.
    pub fn let_removed_go(&self) {
        for (step, pause) in PAUSES_MS.into_iter().enumerate() {
            if !self.lets_go(step) {
                return;
            }
            std::thread::sleep(Duration::from_millis(pause));
        }
    }

    /// Returns whether the kernel is about to release unnamed inodes. After the first pauses, the
    /// wait continues only for inodes that no process has open. A directory in use is excluded: a
    /// process may use it for any time, and its removal frees little space.
    fn lets_go(&self, step: usize) -> bool {
        let kept = self.nodes.kept();
        if self.nodes.is_letting_go() {
            return true;
        }
        if step < PAUSES_FOR_ANY {
            return !kept.is_empty();
        }
        let open = self.handles.locations();
        kept.into_iter().any(|location| {
            let is_directory = || {
                self.metadata(location)
                    .is_ok_and(|found| found.kind == FileKind::Directory)
            };
            !open.contains(&location) && !is_directory()
        })
    }

    fn drop_capability_once(&self, open: &OpenFile) -> Result<()> {
        let now = self.capabilities.load(Ordering::SeqCst);
        if open.without_capability.load(Ordering::Relaxed) != now {
            self.drop_capability(open.location)?;
            open.without_capability.store(now, Ordering::Relaxed);
        }
        Ok(())
    }

    pub(super) fn sync_at(&self, location: Location, only_data: bool) -> Result<()> {
        let writer = match &self.access {
            Access::Reading(_) => return Ok(()),
            Access::Writing(_) => self.writer()?,
        };
        if location.placeholder().is_some() {
            return Ok(());
        }
        self.with_space(|| match only_data {
            true => writer.log_tree().fdatasync(location),
            false => writer.log_tree().fsync(location),
        })?;
        self.require_lasting()
    }

    pub(super) fn allocate_at(&self, handle: HandleId, range: Range<u64>, mode: AllocateMode) -> Result<()> {
        let open = self.handles.file(handle)?;
        if !open.mode.write {
            return Err(Errno::BADF);
        }
        let writer = self.writer()?;
        self.drop_capability_once(&open)?;
        let range = FileOffset::new(range.start)..FileOffset::new(range.end);
        self.with_space(|| match self.is_writeback_cached() {
            true => writer.allocate_cached(open.location, range.clone(), mode),
            false => writer.allocate(open.location, range.clone(), mode),
        })
    }

    pub(super) fn seek_at(&self, file: Opened, offset: u64, to: SeekTo) -> Result<u64> {
        let start = FileOffset::new(offset);
        let found = match (file, to) {
            (Opened::Node(_), SeekTo::Data) => self.file_to_read(file)?.seek_data(start),
            (Opened::Node(_), SeekTo::Hole) => self.file_to_read(file)?.seek_hole(start),
            (Opened::Handle(handle), to) => {
                let location = self.handles.file(handle)?.location;
                match to {
                    SeekTo::Data => self.writer()?.live().seek_data(location, start),
                    SeekTo::Hole => self.writer()?.live().seek_hole(location, start),
                }
            }
        };
        let found = found.map_err(|error| self.failed(&error))?;
        found.map(FileOffset::get).ok_or(Errno::NXIO)
    }

    pub(super) fn copy_at(
        &self,
        (from, from_offset): (HandleId, u64),
        (to, to_offset): (HandleId, u64),
        bytes: u64,
    ) -> Result<Copied> {
        let (source, target) = (self.handles.file(from)?, self.handles.file(to)?);
        if !target.mode.write {
            return Err(Errno::BADF);
        }
        let writer = self.writer()?;
        self.drop_capability_once(&target)?;
        let end = from_offset.checked_add(bytes).ok_or(Errno::OVERFLOW)?;
        let range = FileOffset::new(from_offset)..FileOffset::new(end);
        let copied = self.with_space(|| {
            let (from, to, at) = (source.location, target.location, FileOffset::new(to_offset));
            match self.is_writeback_cached() {
                true => writer.copy_range_cached(from, range.clone(), to, at),
                false => writer.copy_range(from, range.clone(), to, at),
            }
        });
        let bytes = copied?.get();
        // The kernel does not sync after a copy.
        let file = target.live(writer).map_err(|error| self.failed(&error))?;
        if bytes > 0
            && (target.mode.durable || is_synchronous(file.flags().map_err(|error| self.failed(&error))?))
        {
            self.sync_at(target.location, true)?;
        }
        // Sharing extents is no read access.
        let sector_bytes = u64::from(self.metadata(source.location)?.block_bytes);
        let is_read = [from_offset, to_offset]
            .iter()
            .any(|offset| !offset.is_multiple_of(sector_bytes));
        Ok(Copied {
            bytes,
            is_accessed: bytes > 0 && is_read && self.note_access(source.location),
        })
    }
}

/// Returns whether each write to a file is durable when it returns (`chattr +S`). A FUSE inode
/// has no such flag in the kernel, so the server syncs by itself.
fn is_synchronous(flags: InodeFlags) -> bool {
    flags.contains(InodeFlags::SYNC)
}
