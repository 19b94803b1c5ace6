//! What the kernel keeps back of what was written, where it has a writeback cache (`-o writeback_cache`).
//!
//! Size, mtime and ctime of a regular file are the kernel's to say from then on: what is told of them is not looked at while it knows the
//! file. It sends content when a file is synced or closed, when memory is wanted, or after some seconds; the times follow.
//!
//! - Content that comes changes no times, and neither do space that is allocated and copies. The times come by themselves, also after content
//!   that was sent first but came later. A call within one tick of the kernel's clock sends none, for it has the file's times already.
//! - The server's own times (of new files, of accesses) are those of the kernel's last tick. None of them is then later
//!   than the kernel's next time of the file.
//! - Whoever looks at content otherwise than by the kernel (a snapshot, a command, a search for holes) has it sent first: the kernel is
//!   told to forget what it has of all files that are open for writing, and before it forgets it sends.
//! - FUSE has no message by which a server asks for times. The kernel sends all times on syncfs(2), so another process calls that
//!   ([`KernelSync`]) before a snapshot or a command. A file of which content comes after that, without times, gets the time of that moment until its
//!   own comes.
//! - A file of which only the kernel has content takes no space yet. Programs take such a file for a hole, so one that is open for writing
//!   is shown with a little ([`MountedVolume::show_kept_back`]), and of one without any the kernel asks each time.
//! - What files forbid (append-only, immutable) was asked when a call wrote; what comes out of the cache has passed.
//!
//! Left out: content that is kept back on mounts without the option, which only maps with `mmap` can cause. It comes before a call sets the
//! modification time of its file, since the time of its coming would replace that one.

use super::MountedVolume;
use super::control::needs_content;
use crate::vfs::{Caller, Changes, HeldBack, Looks, NewTime, Result, Stale};
use buttress::{AttributeChanges, ByteCount, FileKind, Location, Metadata};
use core::fmt;
use core::sync::atomic::Ordering;
use std::sync::Arc;

/// A process that calls syncfs(2) on the mount. The server itself cannot: it has no file of the mount open.
#[derive(Clone)]
pub struct KernelSync {
    /// The process.
    pub process: u32,
    /// Has it call, and waits until it has.
    pub call: Arc<dyn Fn() + Send + Sync>,
}

impl fmt::Debug for KernelSync {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KernelSync")
            .field("process", &self.process)
            .finish_non_exhaustive()
    }
}

/// The least room that `stat(2)` shows.
const ROOM: ByteCount = ByteCount::new(512);

impl MountedVolume {
    pub(super) fn is_writeback_cached(&self) -> bool {
        self.is_writeback_cached.load(Ordering::SeqCst)
    }

    /// Sets who syncs the mount so that the kernel sends times.
    pub fn syncs_kernel_by(&self, sync: KernelSync) {
        // The first one counts.
        let _is_first = self.kernel_sync.set(sync).is_ok();
    }

    /// Has the kernel send all that it keeps, times included.
    pub(super) fn sync_kernel(&self) {
        if let Some(sync) = self.kernel_sync.get().filter(|_| self.is_writeback_cached()) {
            self.handles.in_kernel_sync(|| (sync.call)());
        }
    }

    pub(super) fn is_syncing_kernel(&self, caller: Caller) -> bool {
        self.kernel_sync
            .get()
            .is_some_and(|sync| sync.process == caller.pid)
    }

    pub(super) fn may_be_kept_back(&self, by: Looks) -> HeldBack {
        match (self.is_writeback_cached(), by) {
            // The kernel writes pages of maps back before it sets times, with a writeback cache only.
            (false, Looks::Times(node)) => {
                let location = self.numbers.location(node).ok();
                let mapped = location.filter(|location| self.handles.is_mappable(*location));
                return HeldBack::content(mapped.map(|_| Stale::Node(node)).into_iter().collect());
            }
            (false, _) | (true, Looks::Times(_)) => return HeldBack::default(),
            (true, _) => {}
        }
        // The kernel has sent all times before it asks for a sync, and a search for holes needs none.
        let times = matches!(by, Looks::Command(_, command) if needs_content(command) == Some(true));
        HeldBack {
            content: self.content_kept_back(by),
            times: times && self.kernel_sync.get().is_some(),
        }
    }

    fn content_kept_back(&self, by: Looks) -> Vec<Stale> {
        let files = match by {
            Looks::Times(_) => Vec::new(),
            Looks::All => self.handles.written(),
            Looks::Seek(node) => {
                let location = self.numbers.location(node).ok();
                let written = location.filter(|location| self.handles.is_written(*location));
                written.into_iter().collect()
            }
            Looks::Command(node, command) => match needs_content(command) {
                Some(true) => self.handles.written(),
                Some(false) => return self.content_kept_back(Looks::Seek(node)),
                None => Vec::new(),
            },
        };
        let nodes = files.into_iter().filter_map(|file| self.numbers.of(file).ok());
        nodes.map(Stale::Node).collect()
    }

    /// Files of which content has come without times were written before now.
    pub(super) fn tell_times(&self, kept: &[Stale]) {
        let Ok(writer) = self.writer() else { return };
        let now = self.now();
        let changes = AttributeChanges {
            modified: Some(now),
            changed: Some(now),
            ..AttributeChanges::default()
        };
        for stale in kept {
            let Stale::Node(node) = stale else { continue };
            let Ok(location) = self.numbers.location(*node) else {
                continue;
            };
            if self.handles.tell(location) {
                // The file may be gone.
                drop(writer.touch(location, &changes));
            }
        }
    }

    /// Whether a change is what the kernel says of a file that it has content of: its times, and nothing else.
    pub(super) fn are_times_of_cache(&self, location: Location, changes: &Changes) -> bool {
        let is_given = |time: Option<NewTime>| matches!(time, Some(NewTime::At(_)));
        let are_times = is_given(changes.modified) && changes.changed.is_some();
        let are_all = changes.accessed.is_none()
            && changes.mode.is_none()
            && changes.uid.is_none()
            && changes.gid.is_none();
        self.is_writeback_cached() && are_times && are_all && self.handles.is_written(location)
    }

    /// Sets them. A file that may not be changed any more keeps those that it has.
    pub(super) fn set_times_of_cache(&self, location: Location, times: &AttributeChanges) -> Result<()> {
        self.handles.take_times(location);
        match self.writer()?.touch(location, times) {
            Err(error) if error.errno() == libc::EPERM => Ok(()),
            set => set.map_err(|error| self.failed(&error)),
        }
    }

    /// Shows a file as one with content of which the kernel may have all.
    pub(super) fn show_kept_back(&self, metadata: &mut Metadata) {
        let is_empty = metadata.kind == FileKind::Regular && metadata.allocated == ByteCount::ZERO;
        if is_empty && self.is_writeback_cached() && self.handles.is_written(metadata.location) {
            metadata.allocated = ROOM;
        }
    }

    /// Whether a file takes no space, and takes some as soon as somebody opens it for writing.
    pub(super) fn may_get_room(&self, metadata: &Metadata) -> bool {
        metadata.allocated == ByteCount::ZERO && self.is_writeback_cached()
    }
}
