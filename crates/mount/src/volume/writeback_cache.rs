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
//!   told to forget what it has of all files that are open for writing, and before it forgets it sends. Times that have not come with it are those of
//!   that moment, until they come.
//! - A file of which only the kernel has content takes no space yet. Programs take such a file for a hole, so one that is open for writing
//!   is shown with a little ([`MountedVolume::show_kept_back`]), and of one without any the kernel asks each time.
//! - What files forbid (append-only, immutable) was asked when a call wrote; what comes out of the cache has passed.
//!
//! Left out: content that is kept back on mounts without the option, which only maps with `mmap` can cause.

use super::MountedVolume;
use super::control::needs_content;
use crate::vfs::{Changes, Looks, NewTime, Result, Stale};
use buttress::fs::Location;
use buttress::writer::operations::AttributeChanges;
use buttress::{ByteCount, FileKind, Metadata};
use core::sync::atomic::Ordering;

/// The least room that `stat(2)` shows.
const ROOM: ByteCount = ByteCount::new(512);

impl MountedVolume {
    pub(super) fn is_writeback_cached(&self) -> bool {
        self.is_writeback_cached.load(Ordering::SeqCst)
    }

    pub(super) fn may_be_kept_back(&self, by: Looks) -> Vec<Stale> {
        if !self.is_writeback_cached() {
            return Vec::new();
        }
        let files = match by {
            Looks::All => self.handles.written(),
            Looks::Seek(node) => {
                let location = self.numbers.location(node).ok();
                let written = location.filter(|location| self.handles.is_written(*location));
                written.into_iter().collect()
            }
            Looks::Command(node, command) => match needs_content(command) {
                Some(true) => self.handles.written(),
                Some(false) => return self.may_be_kept_back(Looks::Seek(node)),
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
        self.handles.tell(location);
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
