//! Inodes without names: an open handle holds them, or their removal is pending.
//!
//! An inode gets an orphan item when its last name is removed while it is held open or has much
//! content. The last name's removal and the orphan item's insertion are in one transaction. Once
//! the inode is no longer held, its extents are removed from the beginning, some thousand in each
//! step, so that no transaction grows without bound. The last step removes the remaining items and
//! the orphan item. After a crash between the steps, the orphan item remains, and the next opening
//! for writing continues ([`Orphans::clean`]).
//!
//! Source: on-disk format documentation, section "ORPHAN_ITEM".

use crate::WritableFilesystem;
use crate::areas::Orphans;
use crate::operations::areas::OrphanRemoval;
use buttress_engine::data_extents::{DataOwner, DataRange};
use buttress_engine::inode_table::InodeTable;
use buttress_engine::inodes::{InodeState, id_of};
use buttress_engine::reservation::Need;
use buttress_format::{
    ByteCount, ErrorKind, FileExtent, FileOffset, InodeItem, InodeNumber, ItemType, Key, ObjectId,
    OrphanItem, SubvolumeId, TreeId,
};
use buttress_fs::error::{Corruption, Error, Result};
use buttress_fs::location::Location;
use buttress_tree::ReadAhead;

/// The number of file extent items that one step removes.
const STEP_ITEMS: usize = 2000;

/// The places of one removal step: the ends of the run of items, the inode, and the orphan item.
const STEP_PLACES: u64 = 4;

/// The number of orphans that are read at once.
const ORPHANS_AT_ONCE: usize = 4096;

/// A hold that keeps an inode after its last name is removed, like an open file. If the last hold
/// on an inode without names is dropped, the inode is removed. If the removal fails, the orphan
/// item remains, and the next opening removes the inode.
#[derive(Debug)]
pub struct OpenInode {
    filesystem: WritableFilesystem,
    location: Location,
}

impl OpenInode {
    /// Returns a hold on an inode whose hold count was already raised.
    pub(super) const fn held(filesystem: WritableFilesystem, location: Location) -> Self {
        Self { filesystem, location }
    }

    /// Returns the inode's location.
    #[must_use]
    pub const fn location(&self) -> Location {
        self.location
    }
}

impl Drop for OpenInode {
    fn drop(&mut self) {
        if self.filesystem.orphans().is_last_hold(self.location)
            && self.filesystem.orphans().release(self.location)
        {
            return;
        }
        let is_orphan = self.filesystem.note(|operation| {
            let is_last = operation.begin().inodes.release(self.location);
            // A deleted subvolume is dropped as a whole, with all its inodes.
            operation.require_subvolume(self.location.subvolume)?;
            Ok(is_last && operation.inode(self.location)?.nlink == 0)
        });
        if is_orphan.unwrap_or(false) {
            // If removing the inode fails, the next opening retries it.
            drop(self.filesystem.orphans().remove(self.location));
        }
    }
}

/// Turns an error of a damaged subvolume into `None`. A volume with a damaged subvolume can still
/// be written, to save or delete that subvolume. Reads of the damaged subvolume return the error,
/// and its orphans remain for a later opening.
pub(crate) fn unless_damaged<T>(result: Result<T>) -> Result<Option<T>> {
    match result {
        Err(error) if error.kind() == ErrorKind::Corrupt && !error.is_defect() => Ok(None),
        result => result.map(Some),
    }
}

impl WritableFilesystem {
    /// Holds an inode open, so that it remains when its last name is removed.
    ///
    /// # Errors
    /// Fails with [`Error::InodeNotFound`], also for an inode without names and without holds.
    pub fn open_inode(&self, location: Location) -> Result<OpenInode> {
        self.note(|operation| {
            let item = operation.inode(location)?;
            if item.nlink == 0 && !operation.lookups().inodes().is_held(location) {
                return Err(Error::InodeNotFound { location });
            }
            operation.begin().inodes.hold(location);
            Ok(())
        })?;
        Ok(OpenInode::held(self.clone(), location))
    }
}

impl Orphans<'_> {
    /// Removes an inode without names that no handle holds, in steps of bounded size.
    pub(super) fn remove(&self, location: Location) -> Result<()> {
        loop {
            let is_gone = self.filesystem.operate(Need::freeing(STEP_PLACES), |operation| {
                operation.be_upkeep();
                match operation.require_subvolume(location.subvolume) {
                    // The subvolume's tree is dropped as a whole, with its orphans.
                    Err(Error::SubvolumeNotFound { .. }) => return Ok(true),
                    required => required?,
                }
                operation.orphan_removal().step(location, |_| ())
            })?;
            if is_gone {
                // Discard the remaining dirty data of the file too.
                return self.filesystem.writeback().write_file(location);
            }
        }
    }

    /// Returns whether an inode without names has exactly one hold now.
    fn is_last_hold(&self, location: Location) -> bool {
        let is_last = |state: &InodeState| state.held == 1 && state.item.is_some_and(|item| item.nlink == 0);
        self.filesystem.live_inodes().with(id_of(location), is_last) == Some(true)
    }

    /// Releases the last hold on an inode without names, and removes the inode: both in one edit, unless the inode has much
    /// content. Returns whether the hold was released. If the removal fails, the next opening removes the inode.
    fn release(&self, location: Location) -> bool {
        let mut is_released = false;
        let removed = self.filesystem.operate(Need::freeing(STEP_PLACES), |operation| {
            operation.be_upkeep();
            operation.require_subvolume(location.subvolume)?;
            let is_orphan = operation.inode(location)?.nlink == 0;
            if !is_orphan || operation.lookups().inodes().holders(location) > 1 {
                return Ok(None);
            }
            operation
                .orphan_removal()
                .step(location, |inodes| {
                    is_released = true;
                    inodes.release(location);
                })
                .map(Some)
        });
        let rest = match removed {
            Ok(Some(true)) => self.filesystem.writeback().write_file(location),
            Ok(Some(false)) => self.remove(location),
            Ok(None) | Err(_) => Ok(()),
        };
        drop(rest);
        is_released
    }

    /// Removes the inodes without names in one subvolume that a crash, or a hold without end, left.
    /// Returns the number of removed inodes. Inodes that are held open now remain.
    ///
    /// # Errors
    /// Fails with an error of the tree, or with [`Error::NoSpace`].
    pub fn clean(&self, subvolume: SubvolumeId) -> Result<u64> {
        let mut removed = 0_u64;
        let mut from = 0;
        loop {
            let orphans = self.list(subvolume.tree(), from)?;
            let Some(last) = orphans.last() else {
                return Ok(removed);
            };
            from = last.get().saturating_add(1);
            for inode in orphans {
                removed = removed.saturating_add(u64::from(self.clean_one(Location::new(subvolume, inode))?));
            }
        }
    }

    /// Removes the inodes without names of all subvolumes, when a volume is opened for writing. A
    /// subvolume without orphans costs a descent to one leaf.
    ///
    /// # Errors
    /// Fails as [`Orphans::clean`] does.
    pub(crate) fn clean_all(&self) -> Result<u64> {
        let mut with_orphans = self.subvolumes()?;
        if buttress_faults::on("orphans-never-cleaned") {
            with_orphans.clear();
        }
        with_orphans.into_iter().try_fold(0_u64, |sum, id| {
            let cleaned = unless_damaged(self.clean(id))?;
            Ok(sum.saturating_add(cleaned.unwrap_or(0)))
        })
    }

    fn subvolumes(&self) -> Result<Vec<SubvolumeId>> {
        let view = self.filesystem.view();
        let first = Key::new(TreeId::FS.object_id(), ItemType::ROOT_ITEM, 0);
        let last = Key::new(ObjectId::LAST_FREE, ItemType::ROOT_ITEM, u64::MAX);
        let mut found = Vec::new();
        for item in view.root_tree().range(first..=last, ReadAhead::Forward) {
            let key = item?.key();
            let id = TreeId::new(key.objectid.get()).as_subvolume();
            let Some(id) = id.filter(|_| key.item_type == ItemType::ROOT_ITEM) else {
                continue;
            };
            // A deleted subvolume is dropped as a whole, with all its inodes.
            if view.root_item(id.tree())?.references == 0 {
                continue;
            }
            let orphans = OrphanItem::key(ObjectId::MIN)..=OrphanItem::key(ObjectId::MAX);
            let has_orphans = view
                .subvolume_tree(id)
                .and_then(|tree| Ok(tree.range(orphans, ReadAhead::None).next().transpose()?.is_some()));
            if unless_damaged(has_orphans)? == Some(true) {
                found.push(id);
            }
        }
        Ok(found)
    }

    fn list(&self, tree: TreeId, from: u64) -> Result<Vec<InodeNumber>> {
        let view = self
            .filesystem
            .read_under_lock(|operation| operation.view_of(tree))?;
        let first = OrphanItem::key(ObjectId::new(from));
        let last = OrphanItem::key(ObjectId::MAX);
        view.range(first..=last, ReadAhead::None)
            .take(ORPHANS_AT_ONCE)
            .map(|item| Ok(InodeNumber::new(item?.key().offset)))
            .collect()
    }

    /// Removes an orphan inode, or only its orphan item if the inode is gone or has names. Older
    /// kernels marked truncations with an orphan item, and a truncated file needs no other cleanup.
    fn clean_one(&self, location: Location) -> Result<bool> {
        let (is_held, nlink) = self.filesystem.read_under_lock(|operation| {
            let nlink = match operation.inode(location) {
                Ok(item) => Some(item.nlink),
                Err(Error::InodeNotFound { .. }) => None,
                Err(error) => return Err(error),
            };
            Ok((operation.lookups().inodes().is_held(location), nlink))
        })?;
        if is_held {
            return Ok(false);
        }
        if nlink == Some(0) {
            self.remove(location)?;
            return Ok(true);
        }
        self.filesystem.operate(Need::freeing(1), |operation| {
            let orphan = OrphanItem::key(ObjectId::new(location.inode.get()));
            operation.edit().remove(location.subvolume.tree(), &orphan)?;
            Ok(false)
        })
    }
}

impl OrphanRemoval<'_, '_> {
    /// Removes an inode without names, or the first of its extents if it has many. Returns whether
    /// the inode no longer exists. `begun` runs once, before the first edit of the step.
    fn step(&mut self, location: Location, begun: impl FnOnce(&InodeTable)) -> Result<bool> {
        // Cache the next number while the inode exists: a transaction must not reuse a number.
        self.operation
            .lookups()
            .next_inode_number(location.subvolume.tree())?;
        let end = self.end_of_step(location)?;
        self.operation.reach_inode(location)?;
        begun(&self.operation.begin().inodes);
        if let Some(end) = end {
            self.remove_step(location, end)?;
            return Ok(false);
        }
        self.remove_inode_items(location)?;
        if buttress_faults::on("orphan-item-stays") {
            return Ok(true);
        }
        let orphan = OrphanItem::key(ObjectId::new(location.inode.get()));
        self.operation.edit().remove(location.subvolume.tree(), &orphan)?;
        Ok(true)
    }

    /// Returns the key after the extents that one step removes, if the file has more extents.
    fn end_of_step(&mut self, location: Location) -> Result<Option<Key>> {
        let item = self.operation.inode(location)?;
        if self.operation.is_small(&item) {
            return Ok(None);
        }
        let first = FileExtent::key(location.inode, FileOffset::MIN);
        let last = FileExtent::key(location.inode, FileOffset::MAX);
        let view = self.operation.view_of(location.subvolume.tree())?;
        let end = view.range(first..=last, ReadAhead::Forward).nth(STEP_ITEMS);
        Ok(end.transpose()?.map(|item| item.key()))
    }

    /// Removes the extents of a file before the key `end`.
    fn remove_step(&mut self, location: Location, end: Key) -> Result<()> {
        let first = FileExtent::key(location.inode, FileOffset::MIN);
        let removed_bytes = self.remove_items(location, first, end)?;
        self.operation.change_inode(location, |item| {
            item.nbytes = ByteCount::new(item.nbytes.get().saturating_sub(removed_bytes));
        })
    }

    /// Removes all items of an inode, and its references to extents.
    pub(super) fn remove_inode_items(&mut self, location: Location) -> Result<()> {
        let first = InodeItem::key(location.inode);
        let end = Key::new(
            ObjectId::new(location.inode.get().saturating_add(1)),
            ItemType(0),
            0,
        );
        self.operation.begin().inodes.begin_removal(location);
        self.remove_items(location, first, end)?;
        self.operation.begin().inodes.forget(location);
        Ok(())
    }

    /// Removes the items with keys in `[from, end)`, and drops the references of file extents among
    /// them. Returns the bytes that the removed items had added to `nbytes`.
    fn remove_items(&mut self, location: Location, from: Key, end: Key) -> Result<u64> {
        let tree = location.subvolume.tree();
        let sector_bytes = self.operation.lookups().core().format.sector_bytes;
        let mut extents = Vec::new();
        let mut broken = None;
        self.operation
            .edit()
            .remove_range(tree, from..end, &mut |key, data| {
                if key.item_type != ItemType::EXTENT_DATA {
                    return;
                }
                match FileExtent::parse(key, data, sector_bytes) {
                    Ok(extent) => extents.extend(
                        extent
                            .slice()
                            .filter(|slice| !slice.is_hole())
                            .map(|slice| (*key, *slice)),
                    ),
                    Err(error) => broken = Some(error),
                }
            })?;
        if let Some(error) = broken {
            return Err(Corruption::Item { tree, error }.into());
        }
        let mut bytes = 0_u64;
        for (key, slice) in extents {
            let range = DataRange {
                logical: slice.disk,
                length: slice.disk_bytes,
            };
            let owner = DataOwner {
                root: tree,
                inode: location.inode,
                offset: key.offset.wrapping_sub(slice.offset.get()),
            };
            self.operation.edit().core.drop_data_reference(range, owner);
            bytes = bytes.saturating_add(slice.num_bytes.get());
        }
        Ok(bytes)
    }
}
