//! The content of one file during a call that holds the file's lock.

use crate::WritableFilesystem;
use buttress_engine::dirty_data::DirtyData;
use buttress_engine::file_content::{FileContent, FileState, file_id};
use buttress_engine::inodes::{InodeState, LiveInode};
use buttress_engine::pending_times::PendingTimes;
use buttress_engine::quota_limits::QuotaLimits;
use buttress_engine::trees::LiveTree;
use buttress_exact::Exact as _;
use buttress_exact::defect::take;
use buttress_format::{FileKind, InodeFlags, InodeItem, TreeId};
use buttress_fs::error::{Error, Result};
use buttress_fs::location::Location;
use core::ops::Range;
use std::sync::Arc;

/// The file on which a call works.
#[derive(Clone, Copy)]
pub(super) struct Of<'a> {
    pub(super) location: Location,
    /// The live inode, if the caller holds it and the inode table contains it.
    pub(super) inode: Option<&'a LiveInode>,
}

impl Of<'_> {
    pub(super) const fn location(location: Location) -> Self {
        Self {
            location,
            inode: None,
        }
    }
}

/// A file's content while a call holds the file lock.
pub(super) struct Content<'a> {
    pub(super) filesystem: &'a WritableFilesystem,
    pub(super) location: Location,
    pub(super) inode: Option<&'a LiveInode>,
    pub(super) file: &'a Arc<FileContent>,
    pub(super) state: &'a mut FileState,
    pub(super) sector_bytes: u64,
    /// Whether the caller sets the file's times itself.
    pub(super) keeps_times: bool,
}

impl Content<'_> {
    /// Returns the file's size, including dirty data.
    pub(super) fn size(&mut self) -> Result<u64> {
        if let Some(size) = self.state.size {
            return Ok(size);
        }
        let size = self.item()?.size.get();
        self.set_size(size);
        Ok(size)
    }

    /// Returns the newest item of the inode.
    fn item(&self) -> Result<InodeItem> {
        if let Some(inode) = self.inode {
            let known = |state: &InodeState| state.newest().filter(|_| !state.is_going);
            let found = self.filesystem.steps().read_once(|| known(&inode.read()));
            if let Some(item) = found {
                return Ok(item);
            }
        }
        Ok(self.filesystem.live().inode(self.location)?.0)
    }

    /// Changes the file's size, also as readers see it.
    pub(super) fn set_size(&mut self, size: u64) {
        self.state.size = Some(size);
        self.file.waiting.write().size = Some(size);
    }

    /// Runs `read` on the dirty data.
    pub(super) fn with_dirty<T>(&self, read: impl FnOnce(&DirtyData) -> T) -> T {
        read(&self.file.waiting.read().pending)
    }

    /// Changes the dirty data.
    pub(super) fn change_dirty<T>(&self, change: impl FnOnce(&mut DirtyData) -> T) -> T {
        change(&mut self.file.waiting.write().pending)
    }

    pub(super) fn waiting_ranges(&self, from: u64, count: usize) -> Vec<Range<u64>> {
        self.with_dirty(|pending| pending.ranges(from, count))
    }

    /// Returns the inode item of a writable file. Fails if the file's content must not be written.
    pub(super) fn require_writable(&mut self) -> Result<InodeItem> {
        self.filesystem.require_writing()?;
        let location = self.location;
        let is_known = |tree: &Option<LiveTree>| tree.as_ref().is_some_and(LiveTree::is_known_writable);
        if !is_known(&self.state.tree) {
            self.state.tree = self.filesystem.live_trees().get(location.subvolume.tree());
        }
        let item = if is_known(&self.state.tree) {
            self.item()?
        } else {
            self.filesystem.read_under_lock(|operation| {
                operation.require_writable(location)?;
                operation.inode(location)
            })?
        };
        match item.kind() {
            FileKind::Regular => {}
            FileKind::Directory => return Err(Error::IsADirectory { location }),
            _ => return Err(Error::NotAFile { location }),
        }
        if item.flags.contains(InodeFlags::IMMUTABLE) && !self.is_unfinished() {
            return Err(Error::NotPermitted {
                location,
                why: "it is immutable",
            });
        }
        Ok(item)
    }

    /// Returns whether the file's subvolume is unfinished, so that no reader sees it. In an
    /// unfinished subvolume, inode flags forbid no change.
    pub(super) fn is_unfinished(&self) -> bool {
        let tree = self.filesystem.live_trees().get(self.location.subvolume.tree());
        tree.is_some_and(|tree| tree.is_unfinished())
    }

    /// Returns the inode item. Fails if existing content must not be changed, as in an append-only
    /// file.
    pub(super) fn require_changeable(&mut self) -> Result<InodeItem> {
        let item = self.require_writable()?;
        if item.flags.contains(InodeFlags::APPEND) && !self.is_unfinished() {
            return Err(Error::NotPermitted {
                location: self.location,
                why: "it is append-only",
            });
        }
        Ok(item)
    }

    /// Records that content was written now.
    pub(super) fn touch(&self) {
        if self.keeps_times {
            return self.count_write();
        }
        let filesystem = self.filesystem;
        // The inode's lock orders this time after the time that any earlier call set.
        self.change_pending(|pending| pending.note_write(filesystem.now()));
    }

    /// Records that content was written by a caller that sets the file's times itself.
    pub(super) fn count_write(&self) {
        self.change_pending(PendingTimes::count_write);
    }

    /// Returns whether the inode item lacks times of writes.
    pub(super) fn has_pending_times(&self) -> bool {
        self.filesystem
            .contents()
            .has_pending_times(file_id(self.location))
    }

    /// Changes the pending times. If an inode is no longer in memory, it is deleted, and needs no
    /// times.
    pub(super) fn change_pending(&self, change: impl FnOnce(&mut PendingTimes)) {
        if let Some(inode) = self.inode {
            return change(&mut inode.write().pending);
        }
        let inodes = self.filesystem.live_inodes();
        let _found = inodes.update(file_id(self.location), |inode| change(&mut inode.pending));
    }

    /// Reserves space for `bytes` more of content. If no space is free, writes back and commits
    /// first.
    pub(super) fn reserve(&mut self, bytes: u64) -> Result<()> {
        if bytes == 0 {
            return Ok(());
        }
        let tree = self.location.subvolume.tree();
        let limits = self.filesystem.quota_limits();
        let charged = limits.charge(tree, bytes)?;
        self.reserve_space(bytes)
            .inspect_err(|_| limits.uncharge(tree, charged))?;
        self.state.reserved = self.state.reserved.exact_add(bytes);
        self.state.charged = self.state.charged.exact_add(charged);
        Ok(())
    }

    /// Reserves space for `bytes` more of content, without a record of it.
    fn reserve_space(&mut self, bytes: u64) -> Result<()> {
        let filesystem = self.filesystem;
        match filesystem.reserve_data(bytes) {
            Err(error) if error.is_out_of_space() => {
                // Compression may shrink the dirty data, and a commit frees space that edits gave
                // up.
                self.write_back()?;
                filesystem.commit_metadata()?;
                filesystem.reserve_data(bytes)
            }
            reserved => reserved,
        }
    }

    /// Releases space that was reserved for content that now has extents. Quota limits count the
    /// bytes until the stored counters include them.
    pub(super) fn release(&mut self, bytes: u64) {
        self.end_reservation(bytes, QuotaLimits::land);
    }

    /// Releases reserved space that no content needs. Quota limits no longer count it.
    pub(super) fn unreserve(&mut self, bytes: u64) {
        self.end_reservation(bytes, QuotaLimits::uncharge);
    }

    /// Ends the reservation of dirty data that was removed from memory.
    pub(super) fn forget(&mut self, bytes: u64) {
        // Unreserved data goes first, so that enough space stays reserved for the rest.
        let unreserved = bytes.min(self.state.unreserved);
        self.state.unreserved = self.state.unreserved.exact_sub(unreserved);
        self.unreserve(bytes.exact_sub(unreserved));
    }

    /// Ends a reservation. Releasing more than the file has reserved is a defect, and stops writing.
    fn end_reservation(&mut self, bytes: u64, end_charge: fn(&QuotaLimits, TreeId, u64)) {
        if bytes == 0 {
            return;
        }
        let mut rest = self.state.reserved;
        let what = "a file releases more space than is reserved for its content";
        if let Err(defect) = take(&mut rest, bytes, what) {
            self.filesystem.forest().volume().stop_writing(&defect);
            return;
        }
        if !buttress_faults::on("ledger-promise-released-twice") {
            self.state.reserved = rest;
        }
        if !buttress_faults::on("ledger-promise-kept") {
            self.filesystem.release_data(bytes);
        }
        let tree = self.location.subvolume.tree();
        // Clamp: as long as enough bytes stay reserved, all charged bytes stay charged.
        let ended = self.state.charged.saturating_sub(rest);
        self.state.charged = self.state.charged.exact_sub(ended);
        end_charge(self.filesystem.quota_limits(), tree, ended);
    }

    /// Runs `body` while write-back makes no inline extent of the file.
    pub(super) fn out_of_tree<T>(&mut self, body: impl FnOnce(&mut Self) -> Result<T>) -> Result<T> {
        self.state.never_inline = true;
        let result = body(self);
        self.state.never_inline = false;
        result
    }

    /// Returns the start of the sector that holds an offset.
    pub(super) fn align_down(&self, at: u64) -> u64 {
        at.exact_sub(at.remainder(self.sector_bytes))
    }

    /// Returns an offset if a sector begins there, else the end of its sector.
    pub(super) fn align_up(&self, at: u64) -> u64 {
        // Clamp: the largest offset stands for the end of every file.
        at.checked_next_multiple_of(self.sector_bytes).unwrap_or(u64::MAX)
    }
}
