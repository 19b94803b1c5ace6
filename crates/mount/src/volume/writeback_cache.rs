//! Written content in the kernel's write-back cache (`-o writeback_cache`).
//!
//! With this option the kernel determines size, mtime and ctime of a regular file. The kernel
//! ignores the server's values of size and times while it caches the file. The kernel sends content
//! when a file is synced or closed, when the kernel needs memory, or after some seconds; the times
//! follow.
//!
//! - Arriving content changes no times, and neither do allocations and copies. Times of cached
//!   content arrive separately from the content. Content that the kernel sends before the times may
//!   still arrive after them. A call within one tick of the kernel's clock sends none, because the
//!   file already has these times.
//! - The times that the server itself sets (of new files, of accesses) have the value of the
//!   kernel's last tick. None of the server's times is then later than the kernel's next time of
//!   the file.
//! - Before an operation that depends on content without a read (a snapshot, a command, a search
//!   for holes), the server invalidates all files that are open for writing. The kernel sends the
//!   dirty content of pages before it drops them.
//! - FUSE has no message by which a server requests times. The kernel sends all times on syncfs(2),
//!   so another process calls syncfs ([`KernelSync`]) before a snapshot or a command. If content
//!   without times arrives later, its file gets the current time, until its own times arrive.
//! - A file whose content exists only in the kernel has no allocated space yet. Programs would
//!   treat a file whose content exists only in the kernel as a hole. A file that is open for
//!   writing therefore shows a little space ([`MountedVolume::show_kept_back`]), and the kernel may
//!   not cache the attributes of a file without space.
//! - The server checks flags of files (append-only, immutable) when a call writes; cached content
//!   that arrives later has passed these checks.
//!
//! Left out: unsent content on mounts without the option, which only `mmap` can cause. The kernel
//! sends this content before a call sets the modification time of its file, because its later
//! arrival would replace that time.

use super::MountedVolume;
use super::control::needs_content;
use crate::vfs::{Caller, Changes, HeldBack, Looks, NewTime, Result, Stale};
use buttress::{AttributeChanges, ByteCount, FileKind, Location, Metadata};
use core::fmt;
use core::sync::atomic::Ordering;
use std::sync::Arc;

/// A process that calls syncfs(2) on the mount. The server itself cannot trigger this, because it
/// has no file of the mount open.
#[derive(Clone)]
pub struct KernelSync {
    /// Id of the process.
    pub process: u32,
    /// Makes the process call syncfs, and waits for it.
    pub call: Arc<dyn Fn() + Send + Sync>,
}

impl fmt::Debug for KernelSync {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KernelSync")
            .field("process", &self.process)
            .finish_non_exhaustive()
    }
}

/// Smallest allocated space that `stat(2)` shows for an open file.
const ROOM: ByteCount = ByteCount::new(512);

impl MountedVolume {
    pub(super) fn is_writeback_cached(&self) -> bool {
        self.is_writeback_cached.load(Ordering::SeqCst)
    }

    /// Sets the process that syncs the mount, so that the kernel sends times.
    pub fn syncs_kernel_by(&self, sync: KernelSync) {
        // The mount keeps only the first process that a caller sets.
        let _is_first = self.kernel_sync.set(sync).is_ok();
    }

    /// Makes the kernel send all unsent content and times.
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
            // Only with a write-back cache does the kernel itself write mapped pages back before it
            // sets times.
            (false, Looks::Times(node)) => {
                let location = self.numbers.location(node).ok();
                let mapped = location.filter(|location| self.handles.is_mappable(*location));
                return HeldBack::content(mapped.map(|_| Stale::Node(node)).into_iter().collect());
            }
            (false, _) | (true, Looks::Times(_)) => return HeldBack::default(),
            (true, _) => {}
        }
        // The kernel sends all times before it asks for a sync, and a search for holes needs no times.
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

    /// Sets the current time on files whose content arrived without times, because it was written
    /// before now.
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
                // The file may have been deleted since, so errors are ignored.
                drop(writer.touch(location, &changes));
            }
        }
    }

    /// Returns whether a change of attributes is the kernel's update of a cached file: the file's
    /// times, and nothing else.
    pub(super) fn are_times_of_cache(&self, location: Location, changes: &Changes) -> bool {
        let is_given = |time: Option<NewTime>| matches!(time, Some(NewTime::At(_)));
        let are_times = is_given(changes.modified) && changes.changed.is_some();
        let are_all = changes.accessed.is_none()
            && changes.mode.is_none()
            && changes.uid.is_none()
            && changes.gid.is_none();
        self.is_writeback_cached() && are_times && are_all && self.handles.is_written(location)
    }

    /// Sets the times of a cached file. A file that forbids changes keeps its old times.
    pub(super) fn set_times_of_cache(&self, location: Location, times: &AttributeChanges) -> Result<()> {
        self.handles.take_times(location);
        match self.writer()?.touch(location, times) {
            Err(error) if error.errno() == libc::EPERM => Ok(()),
            set => set.map_err(|error| self.failed(&error)),
        }
    }

    /// Shows a little allocated space for a file whose content the kernel may hold.
    pub(super) fn show_kept_back(&self, metadata: &mut Metadata) {
        let is_empty = metadata.kind == FileKind::Regular && metadata.allocated == ByteCount::ZERO;
        if is_empty && self.is_writeback_cached() && self.handles.is_written(metadata.location) {
            metadata.allocated = ROOM;
        }
    }

    /// Returns whether a file has no allocated space but shows some once a process opens it for
    /// writing.
    pub(super) fn may_get_room(&self, metadata: &Metadata) -> bool {
        metadata.allocated == ByteCount::ZERO && self.is_writeback_cached()
    }
}
