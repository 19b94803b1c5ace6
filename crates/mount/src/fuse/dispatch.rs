//! From a request to a call of the file system, and back.
//!
//! - `names`: lookup, creation, links, removal, listing.
//! - The module `attributes`: the attributes of `stat(2)`, extended attributes, control commands.
//! - `content`: open files.
//! - `interrupts`: requests that a signal cancels.
//!
//! The kernel's node numbers are those of the file system, except that the root is 1.

mod attributes;
mod content;
mod interrupts;
mod names;
#[cfg(test)]
mod tests;

use super::notify::Later;
use super::wire::{Header, IN_HEADER, Input, OUT_HEADER, Output, ROOT, operation};
use crate::vfs::Stale;
use crate::vfs::{Caller, Entry, Errno, HeldBack, Looks, NodeId, Result, Shown, Vfs};
use buttress::Metadata;
use crossbeam_channel::Sender;
use interrupts::Interrupts;
use parking_lot::Mutex;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

/// Validity of names and of missing names in seconds. Only the kernel changes names, or the server
/// notifies the kernel of a change.
const NAMES_LAST: u64 = 3600;

/// Outcome of a request.
enum Reply {
    /// The answer to the request is in the output.
    Answer,
    /// The answer is in the output, but the kernel must drop this cached information first.
    After(Vec<Stale>),
    /// The call failed, possibly after a part of its change. The kernel must drop this cached
    /// information first: for an error, it assumes that nothing changed.
    FailedAfter(Errno, Vec<Stale>),
    /// The request was not executed: the kernel must first send this content.
    Before(HeldBack),
    /// The kernel expects no answer to this request.
    None,
}

/// Time at which an answer is sent.
pub(super) enum When {
    Now,
    /// The answer is sent after the kernel has dropped this cached information.
    After(Vec<Stale>),
    /// The kernel must first send this cached file content to the server. The server then executes
    /// the request [again](Turn::HasCome).
    Before(HeldBack),
    /// The kernel expects no answer.
    Never,
}

/// An attempt at answering a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Turn {
    First,
    /// The kernel has sent the file's unsent content.
    HasCome,
    /// The current thread cannot wait for unsent content.
    CannotCome,
}

/// Server of one mount.
pub(super) struct Server {
    vfs: Arc<dyn Vfs>,
    root: NodeId,
    /// Queue of the notifier thread. Leaf lock.
    later: Mutex<Option<Sender<Later>>>,
    interrupts: Interrupts,
}

/// A request that was read.
#[derive(Clone, Copy)]
struct Request<'a> {
    header: Header,
    input: Input<'a>,
    turn: Turn,
}

impl Request<'_> {
    const fn caller(&self) -> Caller {
        Caller {
            uid: self.header.uid,
            gid: self.header.gid,
            pid: self.header.pid,
        }
    }
}

impl Server {
    pub(super) fn new(vfs: Arc<dyn Vfs>) -> Self {
        let root = vfs.root();
        Self {
            vfs,
            root,
            later: Mutex::default(),
            interrupts: Interrupts::default(),
        }
    }

    pub(super) const fn root(&self) -> NodeId {
        self.root
    }

    /// Records that the kernel agreed to use a write-back cache.
    pub(super) fn kernel_keeps_writes(&self) {
        self.vfs.keeps_writes();
    }

    /// Makes the kernel send its unsent times.
    pub(super) fn fetch_times(&self) {
        self.vfs.fetch_times();
    }

    /// Records that the kernel has sent this content.
    pub(super) fn has_come(&self, content: &[Stale]) {
        self.vfs.has_come(content);
    }

    /// Sets the queue of the thread that sends answers after invalidations.
    pub(super) fn answers_later_by(&self, later: Sender<Later>) {
        *self.later.lock() = Some(later);
    }

    /// Closes the queue of deferred answers.
    pub(super) fn answers_no_more(&self) {
        self.later.lock().take();
    }

    /// Queues `later` for the notifier thread, which invalidates the kernel's caches and then
    /// completes the request. Returns false if the notifier thread has stopped.
    pub(super) fn forget_first(&self, later: Later) -> bool {
        // The receiving end exists until the answering threads have ended or the mount ends.
        self.later
            .lock()
            .as_ref()
            .is_some_and(|sender| sender.send(later).is_ok())
    }

    /// Executes a request, builds its answer, and returns the time for sending it.
    pub(super) fn respond(&self, header: Header, input: Input<'_>, turn: Turn, out: &mut Output<'_>) -> When {
        out.body.clear();
        out.content.keep(0);
        out.zeros(OUT_HEADER);
        let request = Request { header, input, turn };
        match self.answer_safely(request, out) {
            Ok(Reply::Before(kept)) => When::Before(kept),
            Ok(Reply::None) => {
                seal(out, header.unique, 0);
                When::Never
            }
            Ok(Reply::Answer) => {
                seal(out, header.unique, 0);
                When::Now
            }
            Ok(Reply::After(stale)) => {
                seal(out, header.unique, 0);
                When::After(stale)
            }
            Ok(Reply::FailedAfter(errno, stale)) => {
                seal_error(out, header.unique, errno);
                When::After(stale)
            }
            Err(errno) => {
                seal_error(out, header.unique, errno);
                When::Now
            }
        }
    }

    fn answer_safely(&self, request: Request<'_>, out: &mut Output<'_>) -> Result<Reply> {
        let answered = catch_unwind(AssertUnwindSafe(|| self.answer(request, out)));
        answered.unwrap_or_else(|_| {
            self.vfs.broke();
            Err(Errno::IO)
        })
    }

    fn answer(&self, mut request: Request<'_>, out: &mut Output<'_>) -> Result<Reply> {
        // The kernel states this length, and the request was read completely.
        if request.header.bytes < IN_HEADER {
            return Err(Errno::INVAL);
        }
        let request = &mut request;
        if let Some(first) = self.before(request)? {
            return Ok(first);
        }
        match request.header.operation {
            operation::FORGET | operation::BATCH_FORGET => {
                self.forget(request)?;
                return Ok(Reply::None);
            }
            operation::INTERRUPT => {
                self.interrupts.interrupt(request.input.u64()?);
                return Ok(Reply::None);
            }
            // Only mounts of block devices send this request: umount(8) waits for the answer.
            operation::DESTROY => self.vfs.end(),
            operation::LOOKUP => self.lookup(request, out)?,
            operation::MKNOD => self.make_node(request, out)?,
            operation::MKDIR => self.make_directory(request, out)?,
            operation::SYMLINK => self.make_symlink(request, out)?,
            operation::LINK => self.link(request, out)?,
            operation::UNLINK => self.unlink(request)?,
            operation::RMDIR => self.remove_directory(request)?,
            operation::RENAME | operation::RENAME2 => self.rename(request)?,
            operation::OPENDIR => self.open_directory(request, out)?,
            operation::READDIR => self.list(request, out)?,
            operation::READDIRPLUS => self.list_plus(request, out)?,
            operation::RELEASE | operation::RELEASEDIR => self.release(request)?,
            operation::FSYNC | operation::FSYNCDIR => self.sync(request)?,
            operation::GETATTR => self.attributes(request, out)?,
            operation::STATX => self.statx(request, out)?,
            operation::SETATTR => self.set_attributes(request, out)?,
            operation::READLINK => self.read_link(request, out)?,
            operation::STATFS => self.statistics(out)?,
            operation::SYNCFS => self.vfs.sync_all()?,
            operation::GETXATTR => self.xattr(request, out)?,
            operation::LISTXATTR => self.xattr_names(request, out)?,
            operation::SETXATTR => self.set_xattr(request)?,
            operation::REMOVEXATTR => self.remove_xattr(request)?,
            operation::IOCTL => return self.control(request, out),
            operation::OPEN => self.open(request, out)?,
            operation::CREATE => self.create(request, out)?,
            operation::TMPFILE => self.create_unnamed(request, out)?,
            operation::READ => self.read(request, out)?,
            operation::WRITE => return self.write(request, out),
            // Closing a file descriptor (FLUSH) has no effect in this server. After this answer,
            // the kernel only writes cached data back, and sends no more FLUSH requests.
            operation::FLUSH => return Err(Errno::NOSYS),
            operation::FALLOCATE => return self.allocate(request),
            operation::LSEEK => self.seek(request, out)?,
            operation::COPY_FILE_RANGE | operation::COPY_FILE_RANGE_64 => return self.copy(request, out),
            _ => return Err(Errno::NOSYS),
        }
        Ok(Reply::Answer)
    }

    /// Returns the reply that asks the kernel for unsent content, if a request depends on such
    /// content.
    fn before(&self, request: &Request<'_>) -> Result<Option<Reply>> {
        let node = self.node_of(request);
        let looks = match request.header.operation {
            operation::LSEEK => Looks::Seek(node),
            operation::SETATTR if attributes::sets_modification_time(request)? => Looks::Times(node),
            operation::IOCTL => Looks::Command(node, attributes::command_in(request)?),
            operation::SYNCFS if self.vfs.is_fetching_times(request.caller()) => {
                return Ok(Some(Reply::Answer));
            }
            operation::SYNCFS => Looks::All,
            _ => return Ok(None),
        };
        if request.turn == Turn::HasCome {
            return Ok(None);
        }
        let kept = self.vfs.kept_back(looks);
        match (request.turn, looks) {
            _ if kept.is_nothing() => Ok(None),
            (Turn::First, _) => Ok(Some(Reply::Before(kept))),
            // A snapshot that this request takes has the times that have arrived so far.
            _ if kept.content.is_empty() => Ok(None),
            (_, Looks::Times(_)) => Ok(None),
            // After this answer the kernel treats files as having no holes.
            (_, Looks::Seek(_)) => Err(Errno::NOSYS),
            _ => Err(Errno::AGAIN),
        }
    }

    /// Converts a node number of the kernel to a node.
    fn node(&self, number: u64) -> NodeId {
        match number {
            ROOT => self.root,
            number => NodeId(number),
        }
    }

    fn node_of(&self, request: &Request<'_>) -> NodeId {
        self.node(request.header.node)
    }

    /// Converts a node to a node number of the kernel.
    fn number(&self, node: NodeId) -> u64 {
        if node == self.root { ROOT } else { node.0 }
    }

    fn put_entry(&self, entry: &Entry, out: &mut Output) {
        let lasts = (NAMES_LAST, entry.lasts_s);
        let number = self.number(entry.node);
        let shown = shown_number(entry.node, &entry.metadata);
        out.entry(number, entry.generation, lasts, shown, &entry.metadata);
    }

    #[allow(clippy::unused_self, reason = "beside the other answer with attributes")]
    fn put_attributes(&self, node: NodeId, shown: &Shown, out: &mut Output) {
        out.u64(shown.lasts_s)
            .u32(0)
            .u32(0)
            .attributes(shown_number(node, &shown.metadata), &shown.metadata);
    }
}

/// Returns the inode number that `stat(2)` shows. All placeholders show inode number 2, as in the
/// kernel's btrfs.
fn shown_number(node: NodeId, metadata: &Metadata) -> u64 {
    match metadata.location.placeholder() {
        Some(_) => metadata.location.inode.get(),
        None => node.0,
    }
}

/// Turns an answer into one of an error.
fn seal_error(out: &mut Output<'_>, unique: u64, errno: Errno) {
    out.body.truncate(OUT_HEADER);
    out.content.keep(0);
    seal(out, unique, errno.0);
}

/// Writes the header of an answer.
fn seal(out: &mut Output<'_>, unique: u64, errno: i32) {
    let mut head = Output::default();
    let length = out.body.len().saturating_add(out.content.bytes().len());
    head.u32(u32::try_from(length).unwrap_or(u32::MAX))
        .bytes(&errno.wrapping_neg().to_ne_bytes())
        .u64(unique);
    if let Some(place) = out.body.get_mut(..OUT_HEADER) {
        place.copy_from_slice(&head.body);
    }
}
