//! Adding and removing names: link, unlink, rmdir.
//!
//! Removing the last name of an inode removes the inode. An inode that is held open, or whose
//! content takes several steps to remove, becomes an orphan first ([`super::orphan`]).
//!
//! Source: link(2), unlink(2), rmdir(2) for the errors; on-disk format documentation, section
//! "ORPHAN_ITEM".

use super::Operation;
use super::create::beside;
use super::entries::check_name;
use super::orphan::OpenInode;
use crate::WritableFilesystem;
use buttress_engine::entry::{Entry, Target};
use buttress_engine::removed_names::RemovedName;
use buttress_engine::reservation::Need;
use buttress_format::limits::LINKS_MAX;
use buttress_format::{ByteCount, FileKind, InodeItem, InodeRefs, ObjectId, OrphanItem, SubvolumeId};
use buttress_fs::error::{Corruption, Error, Result};
use buttress_fs::inode::Metadata;
use buttress_fs::location::Location;

/// The items that adding or removing a name edits: entry, index, the inode's reference, both
/// inodes, an orphan item.
const LINK_ITEMS: u64 = 6;

/// The places that an edit changes to remove a name and its inode, whose adjacent items have two
/// ends.
const UNLINK_PLACES: u64 = LINK_ITEMS + 2;

/// The maximum number of items of an inode that is removed in one step.
pub(super) const REMOVED_AT_ONCE: u64 = 300;

/// The state of an inode after one of its names was removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Left {
    /// The inode has other names, or is held open.
    Nothing,
    /// The inode is removed, and only its dirty data may be left.
    Gone(Location),
    /// The inode became an orphan that must still be removed.
    Orphan(Location),
    /// The inode is an orphan that is now held open for the caller.
    Kept(Location),
}

/// Decides whether an inode must be held open when its last name is removed.
pub type Keeps<'a> = &'a dyn Fn(Location) -> bool;

/// Keeps no inode: the callback of callers without open inodes.
pub(super) const fn keep_none(_: Location) -> bool {
    false
}

impl WritableFilesystem {
    /// Adds another name to an inode.
    ///
    /// # Errors
    /// Fails with [`Error::Exists`]; [`Error::CrossesSubvolumes`]; [`Error::NotPermitted`] for a
    /// directory or an immutable or append-only inode. Fails with [`Error::TooMany`] for an inode
    /// with 65,535 names, or with more in one directory than a volume without extended references
    /// can hold, or as [`WritableFilesystem::create`] does.
    pub fn link(&self, inode: Location, directory: Location, name: &[u8]) -> Result<()> {
        self.link_item(inode, directory, name).map(drop)
    }

    /// Adds a name as [`WritableFilesystem::link`] does. Returns the inode's attributes after the
    /// link was added, and whether the inode has dirty data. The call returns the attributes even
    /// if another thread has removed the inode since.
    ///
    /// # Errors
    /// Fails as [`WritableFilesystem::link`] does.
    pub fn link_and_stat(
        &self,
        inode: Location,
        directory: Location,
        name: &[u8],
    ) -> Result<(Metadata, bool)> {
        let item = self.link_item(inode, directory, name)?;
        match self.live().metadata_and_dirty(inode) {
            Err(Error::InodeNotFound { .. }) => Ok((self.metadata_of(inode, &item), false)),
            shown => shown,
        }
    }

    fn link_item(&self, inode: Location, directory: Location, name: &[u8]) -> Result<InodeItem> {
        check_name(name)?;
        self.operate_beside_data(Need::places(LINK_ITEMS), |operation| {
            let item = operation.inode(inode)?;
            operation.require_new_entry(directory, name)?;
            operation.check_link(inode, &item)?;
            if inode.subvolume != directory.subvolume {
                return Err(Error::CrossesSubvolumes);
            }
            operation.check_link_space(inode, directory.inode, name)?;
            operation.add_link(inode, &item, directory, name)?;
            operation.inode(inode)
        })
    }

    /// Removes a name of an inode that is no directory. Removing its last name removes the inode,
    /// unless it is held open.
    ///
    /// # Errors
    /// Fails with [`Error::NotFound`]; [`Error::IsADirectory`]; [`Error::NotPermitted`] for an
    /// immutable or append-only inode or directory; [`Error::ReadOnlySubvolume`].
    pub fn unlink(&self, directory: Location, name: &[u8]) -> Result<()> {
        self.unlink_keeping(directory, name, &keep_none).map(drop)
    }

    /// Removes a name as [`WritableFilesystem::unlink`] does. If the removed name was the last one
    /// and `keeps` returns true, holds the inode open. `keeps` runs under the edit lock, and may
    /// run several times.
    ///
    /// # Errors
    /// Fails as [`WritableFilesystem::unlink`] does.
    pub fn unlink_keeping(
        &self,
        directory: Location,
        name: &[u8],
        keeps: Keeps<'_>,
    ) -> Result<Option<OpenInode>> {
        let left = self.operate_beside_data(Need::freeing(UNLINK_PLACES), |operation| {
            let parent = operation.require_directory(directory)?;
            let entry = operation.require_entry(directory, name)?;
            operation.require_removing(directory, &parent)?;
            let Target::Inode(inode) = entry.target else {
                let location = entry.target.location(directory);
                return Err(Error::IsADirectory { location });
            };
            let location = beside(directory, inode);
            let item = operation.inode(location)?;
            operation.require_changeable(location, &item)?;
            if item.kind() == FileKind::Directory {
                return Err(Error::IsADirectory { location });
            }
            operation.unlink(directory, name, location, keeps)
        })?;
        self.finish_removal(left)
    }

    /// Removes an empty directory, or the empty placeholder of a subvolume that a snapshot lacks.
    ///
    /// # Errors
    /// Fails with [`Error::NotFound`]; [`Error::NotADirectory`]; [`Error::NotEmpty`];
    /// [`Error::ReadOnlySubvolume`]. Fails with [`Error::NotPermitted`], also for a subvolume,
    /// which [`Subvolumes::delete`](crate::areas::Subvolumes::delete) deletes.
    pub fn remove_directory(&self, directory: Location, name: &[u8]) -> Result<()> {
        self.remove_directory_keeping(directory, name, &keep_none)
            .map(drop)
    }

    /// Removes a directory as [`WritableFilesystem::remove_directory`] does. If `keeps` returns
    /// true, holds the removed directory open. `keeps` runs under the edit lock, and may run
    /// several times.
    ///
    /// # Errors
    /// Fails as [`WritableFilesystem::remove_directory`] does.
    pub fn remove_directory_keeping(
        &self,
        directory: Location,
        name: &[u8],
        keeps: Keeps<'_>,
    ) -> Result<Option<OpenInode>> {
        let left = self.operate_beside_data(Need::freeing(UNLINK_PLACES), |operation| {
            let parent = operation.require_directory(directory)?;
            let entry = operation.require_entry(directory, name)?;
            operation.require_removing(directory, &parent)?;
            match entry.target {
                Target::Inode(inode) => {
                    let location = beside(directory, inode);
                    let item = operation.inode(location)?;
                    operation.require_changeable(location, &item)?;
                    operation.require_empty(location, &item)?;
                    operation.unlink(directory, name, location, keeps)
                }
                Target::Subvolume(id) => operation.remove_placeholder(directory, name, id),
            }
        })?;
        self.finish_removal(left)
    }

    /// Removes what remains of an inode without names: its orphan, or its dirty data, which is
    /// obsolete. Returns the hold on an inode that stays open.
    pub(super) fn finish_removal(&self, left: Left) -> Result<Option<OpenInode>> {
        match left {
            Left::Nothing => {}
            Left::Kept(location) => return Ok(Some(OpenInode::held(self.clone(), location))),
            Left::Gone(location) => self.writeback().write_file(location)?,
            Left::Orphan(location) => self.orphans().remove(location)?,
        }
        Ok(None)
    }
}

impl Operation<'_> {
    fn check_link(&mut self, inode: Location, item: &InodeItem) -> Result<()> {
        if item.kind() == FileKind::Directory {
            return Err(Error::NotPermitted {
                location: inode,
                why: "a directory has one name",
            });
        }
        self.require_changeable(inode, item)?;
        if item.nlink == 0 && !self.lookups().inodes().is_held(inode) {
            return Err(Error::InodeNotFound { location: inode });
        }
        if item.nlink >= LINKS_MAX {
            return Err(Error::TooMany {
                what: "names of an inode",
            });
        }
        Ok(())
    }

    fn add_link(
        &mut self,
        inode: Location,
        item: &InodeItem,
        directory: Location,
        name: &[u8],
    ) -> Result<()> {
        self.reach_new_entry(directory, name)?;
        let own_side = InodeRefs::key(inode.inode, directory.inode);
        self.reach(inode.subvolume.tree(), &[own_side])?;
        if item.nlink == 0 {
            let orphan = OrphanItem::key(ObjectId::new(inode.inode.get()));
            self.reach(inode.subvolume.tree(), &[orphan])?;
        }
        let index = self.begin().inode_items().free_index(directory)?;
        self.insert_link(inode, directory.inode, name, index)?;
        let entry = Entry {
            target: Target::Inode(inode.inode),
            kind: item.kind(),
        };
        self.insert_entry(directory, name, entry, index)?;
        self.grow_directory(directory, name)?;
        self.touch_inode(inode)?;
        self.change_inode(inode, |item| item.nlink = item.nlink.saturating_add(1))?;
        if item.nlink == 0 {
            let orphan = OrphanItem::key(ObjectId::new(inode.inode.get()));
            self.edit().remove(inode.subvolume.tree(), &orphan)?;
        }
        Ok(())
    }

    /// Returns an error for a directory with entries, and for an inode that is no directory.
    pub(super) fn require_empty(&self, location: Location, item: &InodeItem) -> Result<()> {
        if item.kind() != FileKind::Directory {
            return Err(Error::NotADirectory {
                path: location.to_string().into(),
            });
        }
        if item.size != ByteCount::ZERO {
            return Err(Error::NotEmpty { location });
        }
        Ok(())
    }

    /// Removes a directory entry and the inode's reference to it, and updates sizes, times and the
    /// link count.
    pub(super) fn unlink_name(&mut self, directory: Location, name: &[u8], inode: Location) -> Result<()> {
        let index = self.remove_link(inode, directory.inode, name)?;
        self.remove_entry(directory, name, index)?;
        self.note_removed_name(directory, name, inode, index)?;
        self.shrink_directory(directory, name)?;
        self.touch_inode(inode)
    }

    /// Records a removed name, for later logs.
    fn note_removed_name(
        &mut self,
        directory: Location,
        name: &[u8],
        inode: Location,
        index: u64,
    ) -> Result<()> {
        let is_directory = self.inode(inode)?.kind() == FileKind::Directory;
        let generation = self.generation();
        let is_new_directory = self.inode(directory)?.generation == generation;
        let first_index = self
            .lookups()
            .inodes()
            .with_log(directory, generation, |log| log.first_index);
        let first_index = first_index.flatten();
        let removed = RemovedName {
            directory: directory.inode,
            index,
            name: name.into(),
            inode: inode.inode,
            is_directory,
            is_committed: !is_new_directory && first_index.is_none_or(|first| index < first),
        };
        let tree = directory.subvolume.tree();
        self.edit().names.note_removed(tree, removed);
        Ok(())
    }

    /// Removes a name and, with the last name, the inode. If `keeps` returns true, the call holds
    /// the inode open instead of removing it.
    pub(super) fn unlink(
        &mut self,
        directory: Location,
        name: &[u8],
        inode: Location,
        keeps: Keeps<'_>,
    ) -> Result<Left> {
        let item = self.inode(inode)?;
        // Cache the next number while the inode exists: a transaction must not reuse a number.
        self.lookups().next_inode_number(inode.subvolume.tree())?;
        let index = self.reach_name(directory, name, inode)?;
        let is_kept = item.nlink <= 1 && keeps(inode);
        let is_held = is_kept || self.lookups().inodes().is_held(inode);
        if item.nlink <= 1 && !is_held && self.is_small(&item) {
            // The inode's reference to this name is removed with the inode's other items.
            self.remove_entry(directory, name, index)?;
            self.note_removed_name(directory, name, inode, index)?;
            self.shrink_directory(directory, name)?;
            self.orphan_removal().remove_inode_items(inode)?;
            return Ok(Left::Gone(inode));
        }
        self.unlink_name(directory, name, inode)?;
        let taken = u32::from(!buttress_faults::on("link-count-never-falls"));
        self.change_inode(inode, |item| item.nlink = item.nlink.saturating_sub(taken))?;
        if item.nlink > 1 {
            return Ok(Left::Nothing);
        }
        if item.kind() == FileKind::Directory {
            self.change_inode(inode, |item| item.size = ByteCount::ZERO)?;
        }
        let orphan = OrphanItem::key(ObjectId::new(inode.inode.get()));
        self.edit().insert(inode.subvolume.tree(), &orphan, &[])?;
        if is_kept {
            self.begin().inodes.hold(inode);
            return Ok(Left::Kept(inode));
        }
        Ok(if is_held {
            Left::Nothing
        } else {
            Left::Orphan(inode)
        })
    }

    /// Returns whether an inode certainly has few items, given that an extent has at least one
    /// sector.
    pub(super) fn is_small(&self, item: &InodeItem) -> bool {
        let bytes = item.size.get().max(item.nbytes.get());
        item.kind() != FileKind::Regular || bytes <= REMOVED_AT_ONCE.saturating_mul(2048)
    }

    fn remove_placeholder(&mut self, directory: Location, name: &[u8], id: SubvolumeId) -> Result<Left> {
        if self.subvolume_index(directory, name, id)?.is_some() {
            return Err(Error::NotPermitted {
                location: Location::root_of(id),
                why: "it is a subvolume; delete it as a subvolume",
            });
        }
        let Some(index) = self.search_index(directory, name)? else {
            return Err(Corruption::DirIndexMissing {
                directory,
                name: buttress_fs::error::Name::from(name),
            }
            .into());
        };
        self.remove_entry(directory, name, index)?;
        let tree = directory.subvolume.tree();
        self.edit().names.note_subvolume(tree, directory.inode);
        self.shrink_directory(directory, name)?;
        Ok(Left::Nothing)
    }
}
