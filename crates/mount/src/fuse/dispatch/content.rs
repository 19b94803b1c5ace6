//! Requests about open files.

use super::{Reply, Request, Server};
use crate::fuse::CONTENT_BYTES_MAX;
use crate::fuse::wire::{Output, bit, operation};
use crate::vfs::{Changes, Errno, HandleId, NewNode, OpenMode, Opened, ReadHow, Result, SeekTo, Stale};
use buttress::AllocateMode;

/// Largest copy length that the 32-bit answer can state.
const COPY_BYTES_MAX: u64 = 0x7fff_f000;

fn open_mode(flags: u32, open_flags: u32) -> Result<OpenMode> {
    let flags = i32::try_from(flags).map_err(|_| Errno::INVAL)?;
    Ok(OpenMode {
        write: flags & libc::O_ACCMODE != libc::O_RDONLY,
        write_only: flags & libc::O_ACCMODE == libc::O_WRONLY,
        append: flags & libc::O_APPEND != 0,
        truncate: flags & libc::O_TRUNC != 0,
        drop_privileges: open_flags & bit::OPEN_IN_KILL_PRIVILEGES != 0,
        durable: durability(flags).is_some(),
    })
}

/// Returns whether these open flags make each write durable, and then whether the content suffices
/// (`O_DSYNC` without `O_SYNC`). The flags of a WRITE request include `RWF_DSYNC` and `RWF_SYNC`.
const fn durability(flags: i32) -> Option<bool> {
    match flags & libc::O_SYNC {
        libc::O_SYNC => Some(false),
        rest if rest & libc::O_DSYNC != 0 => Some(true),
        _ => None,
    }
}

fn allocate_mode(mode: u32) -> Result<AllocateMode> {
    const KEEP: i32 = libc::FALLOC_FL_KEEP_SIZE;
    const PUNCH: i32 = libc::FALLOC_FL_PUNCH_HOLE | KEEP;
    const ZERO: i32 = libc::FALLOC_FL_ZERO_RANGE;
    const ZERO_KEEP: i32 = ZERO | KEEP;
    match i32::try_from(mode).map_err(|_| Errno::OPNOTSUPP)? {
        0 => Ok(AllocateMode::Allocate),
        KEEP => Ok(AllocateMode::AllocateKeepSize),
        PUNCH => Ok(AllocateMode::PunchHole),
        ZERO => Ok(AllocateMode::ZeroRange),
        ZERO_KEEP => Ok(AllocateMode::ZeroRangeKeepSize),
        _ => Err(Errno::OPNOTSUPP),
    }
}

impl Server {
    fn put_open(handle: HandleId, out: &mut Output) {
        // All changes of a file go through the kernel, so its cached content stays valid.
        out.u64(handle.0)
            .u32(bit::OPEN_KEEP_CACHE | bit::OPEN_PARALLEL_DIRECT_WRITES)
            .u32(0);
    }

    pub(super) fn open(&self, request: &mut Request<'_>, out: &mut Output) -> Result<()> {
        let mode = open_mode(request.input.u32()?, request.input.u32()?)?;
        let handle = self.vfs.open(self.node_of(request), mode)?;
        Self::put_open(handle, out);
        Ok(())
    }

    fn new_file<'a>(request: &mut Request<'a>) -> Result<(u32, NewNode, OpenMode, &'a [u8])> {
        let (flags, mode, umask, open_flags) = (
            request.input.u32()?,
            request.input.u32()?,
            request.input.u32()?,
            request.input.u32()?,
        );
        let new = NewNode {
            mode,
            umask,
            uid: request.header.uid,
            gid: request.header.gid,
        };
        Ok((flags, new, open_mode(flags, open_flags)?, request.input.name()?))
    }

    pub(super) fn create(&self, request: &mut Request<'_>, out: &mut Output) -> Result<()> {
        const EXISTS: Errno = Errno(libc::EEXIST);
        let (flags, new, mode, name) = Self::new_file(request)?;
        let directory = self.node_of(request);
        let is_exclusive = i32::try_from(flags).is_ok_and(|flags| flags & libc::O_EXCL != 0);
        let (entry, handle) = match self.vfs.create(directory, name, &new, mode) {
            // Another process created the file first.
            Err(EXISTS) if !is_exclusive => {
                let entry = self.vfs.lookup(directory, name)?;
                let opened = self.vfs.open(entry.node, mode);
                if opened.is_err() {
                    self.vfs.forget(entry.node, 1);
                }
                (entry, opened?)
            }
            created => created?,
        };
        self.put_entry(&entry, out);
        Self::put_open(handle, out);
        Ok(())
    }

    pub(super) fn create_unnamed(&self, request: &mut Request<'_>, out: &mut Output) -> Result<()> {
        let (_, new, mode, _) = Self::new_file(request)?;
        let (entry, handle) = self.vfs.create_unnamed(self.node_of(request), &new, mode)?;
        self.put_entry(&entry, out);
        Self::put_open(handle, out);
        Ok(())
    }

    /// Parses the handle in the next field of a request. If the client did not open a file or
    /// directory, there is no handle; the node then identifies it.
    pub(super) fn opened(&self, request: &mut Request<'_>) -> Result<Opened> {
        Ok(match request.input.u64()? {
            0 => Opened::Node(self.node_of(request)),
            handle => Opened::Handle(HandleId(handle)),
        })
    }

    pub(super) fn read(&self, request: &mut Request<'_>, out: &mut Output) -> Result<()> {
        let file = self.opened(request)?;
        let offset = request.input.u64()?;
        let size = usize::try_from(request.input.u32()?).map_err(|_| Errno::INVAL)?;
        // Reads into the page cache have no lock owner; direct reads have the owner of the reader.
        let how = match request.input.u32()? & bit::READ_LOCK_OWNER {
            0 => ReadHow::Cached,
            _ => ReadHow::Direct,
        };
        if how == ReadHow::Cached {
            self.vfs.caches(self.node_of(request));
        }
        let buffer = out.content.take(size.min(CONTENT_BYTES_MAX));
        let read = self.vfs.read(file, offset, buffer, how)?;
        out.content.keep(read);
        Ok(())
    }

    /// Writes content. If the kernel does not invalidate its page cache after a direct write, the
    /// cache may hold old pages from a concurrent read. The kernel therefore drops these pages
    /// before the caller gets the answer. If the kernel never cached content of the file, no
    /// invalidation is needed: later reads return the new content.
    ///
    /// The kernel syncs the file after a write with `O_DSYNC`, except after an asynchronous direct
    /// write (libaio, io_uring). A direct write with this flag is therefore durable when its answer
    /// leaves. If the kernel syncs as well, the second sync has nothing to do.
    pub(super) fn write(&self, request: &mut Request<'_>, out: &mut Output) -> Result<Reply> {
        let handle = HandleId(request.input.u64()?);
        let offset = request.input.u64()?;
        let size = request.input.u32()?;
        let flags = request.input.u32()?;
        request.input.skip(8)?;
        let open_flags = request.input.u32()?;
        request.input.skip(4)?;
        let bytes = usize::try_from(size).map_err(|_| Errno::INVAL)?;
        let content = request.input.bytes(bytes)?;
        let is_cached = flags & bit::WRITE_CACHE != 0;
        let drop_privileges = flags & bit::WRITE_KILL_PRIVILEGES != 0;
        let node = self.node_of(request);
        let open_flags = i32::try_from(open_flags).map_err(|_| Errno::INVAL)?;
        let is_direct = open_flags & libc::O_DIRECT != 0 && !is_cached;
        if !is_direct {
            // Record this before the write, so that a later direct write knows about the cached
            // pages.
            self.vfs.caches(node);
        }
        self.vfs
            .write(handle, offset, content, is_cached, drop_privileges)?;
        if let Some(only_data) = durability(open_flags).filter(|_| is_direct) {
            self.vfs.sync(node, only_data)?;
        }
        out.u32(size).u32(0);
        if !is_direct || !self.vfs.is_cached(node) {
            return Ok(Reply::Answer);
        }
        let range = offset..offset.saturating_add(u64::from(size));
        Ok(Reply::After(vec![Stale::Content(node, range)]))
    }

    pub(super) fn release(&self, request: &mut Request<'_>) -> Result<()> {
        self.vfs.release(HandleId(request.input.u64()?));
        Ok(())
    }

    pub(super) fn sync(&self, request: &mut Request<'_>) -> Result<()> {
        let _handle = request.input.u64()?;
        let flags = request.input.u32()?;
        self.vfs.sync(self.node_of(request), flags & bit::FSYNC_DATA != 0)
    }

    pub(super) fn allocate(&self, request: &mut Request<'_>) -> Result<Reply> {
        let handle = HandleId(request.input.u64()?);
        let (offset, length) = (request.input.u64()?, request.input.u64()?);
        let mode = allocate_mode(request.input.u32()?)?;
        let end = offset.checked_add(length).ok_or(Errno(libc::EFBIG))?;
        let reply = self.drop_privileges_of_others(request, request.header.node)?;
        match self.vfs.allocate(handle, offset..end, mode) {
            Ok(()) => Ok(reply),
            Err(errno) => {
                let stale = Stale::Content(self.node_of(request), offset..end);
                Ok(Reply::FailedAfter(errno, vec![stale]))
            }
        }
    }

    /// Drops privileges of a file after a content change without the flag that states the caller's
    /// right to keep them. Root keeps the privileges of a file whose content it changes. The kernel
    /// does not expect the change of mode.
    fn drop_privileges_of_others(&self, request: &Request<'_>, node: u64) -> Result<Reply> {
        if request.header.uid == 0 {
            return Ok(Reply::Answer);
        }
        let node = self.node(node);
        let metadata = self.vfs.attributes(node)?.metadata;
        let mode = metadata.permissions();
        // The request names one group of the caller. If the file belongs to another group, the
        // server treats the caller as no member of the file's group.
        let loses_group = mode & libc::S_ISGID != 0 && request.header.gid != metadata.gid;
        let changes = Changes {
            mode: loses_group.then_some(mode & !(libc::S_ISUID | libc::S_ISGID)),
            drop_privileges: true,
            ..Changes::default()
        };
        self.vfs.change(node, &changes)?;
        Ok(Reply::After(vec![Stale::Attributes(node)]))
    }

    pub(super) fn seek(&self, request: &mut Request<'_>, out: &mut Output) -> Result<()> {
        let file = self.opened(request)?;
        let offset = request.input.u64()?;
        let to = match i32::try_from(request.input.u32()?) {
            Ok(libc::SEEK_DATA) => SeekTo::Data,
            Ok(libc::SEEK_HOLE) => SeekTo::Hole,
            _ => return Err(Errno::INVAL),
        };
        out.u64(self.vfs.seek(file, offset, to)?);
        Ok(())
    }

    pub(super) fn copy(&self, request: &mut Request<'_>, out: &mut Output) -> Result<Reply> {
        let from = (HandleId(request.input.u64()?), request.input.u64()?);
        let target = request.input.u64()?;
        let to = (HandleId(request.input.u64()?), request.input.u64()?);
        let bytes = request.input.u64()?;
        let reply = self.drop_privileges_of_others(request, target)?;
        let is_short = request.header.operation != operation::COPY_FILE_RANGE_64;
        let most = if is_short { COPY_BYTES_MAX } else { u64::MAX };
        let copied = match self.vfs.copy(from, to, bytes.min(most)) {
            Ok(copied) => copied,
            Err(errno) => {
                // Clamp: no file has content past this end.
                let range = to.1..to.1.saturating_add(bytes);
                let stale = Stale::Content(self.node(target), range);
                return Ok(Reply::FailedAfter(errno, vec![stale]));
            }
        };
        if is_short {
            out.u32(u32::try_from(copied.bytes).unwrap_or(u32::MAX)).u32(0);
        } else {
            out.u64(copied.bytes);
        }
        if !copied.is_accessed {
            return Ok(reply);
        }
        let mut stale = vec![Stale::Attributes(self.node_of(request))];
        if let Reply::After(others) = reply {
            stale.extend(others);
        }
        Ok(Reply::After(stale))
    }
}
