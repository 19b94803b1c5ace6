//! An open file, whose calls search no table.
//!
//! Invariants:
//! - The open file's inode is the object in the table of live inodes while the inode has items: the
//!   table keeps an object in use.
//! - The trees of a live file are the open ones, or [`LiveFile::is_current`] returns false and each
//!   call searches them again.
//! - Deleting a subvolume marks its open tree before its inodes leave the table.

use crate::WritableFilesystem;
use crate::areas::LiveReads;
use crate::operations::AccessPolicy;
use buttress_engine::file_content::FileContent;
use buttress_engine::inodes::{InodeState, LiveInode, id_of};
use buttress_engine::trees::LiveTree;
use buttress_format::{FileOffset, InodeFlags, InodeItem};
use buttress_fs::error::{Error, Result};
use buttress_fs::location::Location;
use core::ops::Range;
use std::sync::Arc;

/// A file with its live inode and its trees. See the module's documentation.
#[derive(Debug)]
pub struct LiveFile {
    filesystem: WritableFilesystem,
    location: Location,
    pub(super) inode: Arc<LiveInode>,
    /// The tree of the file, and the tree of checksums.
    pub(super) trees: [LiveTree; 2],
}

impl LiveReads<'_> {
    /// Returns a file for repeated calls. The returned file does not hold the inode open: without
    /// names, the inode can be removed.
    ///
    /// # Errors
    /// Fails with [`Error::InodeNotFound`], or with an error of the tree.
    pub fn file(&self, location: Location) -> Result<LiveFile> {
        // Loads the item, or reports that none exists.
        self.inode(location)?;
        Ok(LiveFile {
            filesystem: self.filesystem.clone(),
            location,
            inode: self.filesystem.live_inodes().entry(id_of(location)),
            trees: self.trees_of(location)?,
        })
    }
}

impl LiveFile {
    /// Returns the inode's location.
    #[must_use]
    pub const fn location(&self) -> Location {
        self.location
    }

    /// Returns whether the file's trees are still the open trees.
    fn is_current(&self) -> bool {
        self.trees.iter().all(LiveTree::is_open)
    }

    /// Returns the live inode if the inode table has it for the length of a call. The table keeps
    /// this live inode while the caller keeps the file and no operation has removed the inode.
    fn kept_inode(&self) -> Option<&LiveInode> {
        let [of_file, _] = &self.trees;
        let is_there = of_file.require_subvolume(self.location.subvolume).is_ok();
        (self.is_current() && is_there && !self.inode.read().is_going).then_some(&*self.inode)
    }

    /// Returns the newest item of the inode with pending times, and its dirty data.
    fn newest(&self) -> Result<(InodeItem, Option<Arc<FileContent>>)> {
        let [of_file, _] = &self.trees;
        let known = |state: &InodeState| {
            let item = state.newest().filter(|_| !state.is_going);
            item.map(|item| (item, state.content.clone()))
        };
        if self.is_current() {
            let found = self.filesystem.steps().read_once(|| {
                of_file.require_subvolume(self.location.subvolume)?;
                Ok::<_, Error>(known(&self.inode.read()))
            });
            if let Some(found) = found? {
                return Ok(found);
            }
        }
        self.filesystem.live().inode(self.location)
    }

    /// Returns the flags of the inode.
    ///
    /// # Errors
    /// Fails with [`Error::InodeNotFound`], or with an error of the tree.
    pub fn flags(&self) -> Result<InodeFlags> {
        Ok(self.newest()?.0.flags)
    }

    /// Reads as [`LiveReads::read_at`] does.
    ///
    /// # Errors
    /// Fails as [`LiveReads::read_at`] does.
    pub fn read_at(&self, offset: FileOffset, buffer: &mut [u8]) -> Result<usize> {
        let filesystem = &self.filesystem;
        if !self.is_current() {
            return filesystem.live().read_at(self.location, offset, buffer);
        }
        filesystem.live().read_in_parts(offset, buffer, |at, part| {
            filesystem.live().read_part_of(self, at, part)
        })
    }

    /// Writes as [`WritableFilesystem::write_at`] does.
    ///
    /// # Errors
    /// Fails as [`WritableFilesystem::write_at`] does.
    pub fn write_at(&self, offset: FileOffset, bytes: &[u8]) -> Result<()> {
        self.filesystem
            .write_kept_at(self.location, self.kept_inode(), offset, bytes)
    }

    /// Records an access as [`WritableFilesystem::note_access`] does.
    ///
    /// # Errors
    /// Fails as [`WritableFilesystem::note_access`] does.
    pub fn note_access(&self, policy: AccessPolicy) -> Result<bool> {
        if !self.filesystem.moves_access_time_of(&self.newest()?.0, policy) {
            return Ok(false);
        }
        self.filesystem.note_access(self.location, policy)
    }

    /// Records a direct read as [`WritableFilesystem::note_direct_read`] does.
    ///
    /// # Errors
    /// Fails as [`WritableFilesystem::note_direct_read`] does.
    pub fn note_direct_read(&self, range: &Range<FileOffset>, policy: AccessPolicy) -> Result<bool> {
        if !self.filesystem.moves_access_time_of(&self.newest()?.0, policy) {
            return Ok(false);
        }
        self.filesystem.note_direct_read(self.location, range, policy)
    }
}
