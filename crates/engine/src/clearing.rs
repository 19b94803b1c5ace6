//! Removal of what the kernel, or the next commit, can make again: the uuid tree, the free-space
//! tree, the v1 cache of free space, and inode caches of old kernels.
//!
//! | call | commits | afterwards |
//! |---|---|---|
//! | [`Conversions::clear_uuid_tree`] | a single commit | Linux makes the tree at the next mount |
//! | [`Conversions::clear_free_space_tree`] | two | free space comes from the extent tree |
//! | [`Conversions::clear_v1_cache`] | a commit for each 64 caches | the superblock names no cache |
//! | [`Conversions::clear_inode_caches`] | a commit for each subvolume | nothing uses inode caches |
//!
//! The calls expect that no other thread uses the volume, and read missing blocks under the edit
//! lock.
//!
//! A free-space tree that may be damaged must not direct the allocations of these commits. The
//! opening option [`clears_free_space_tree`](crate::opening::WriteOptions::clears_free_space_tree)
//! makes the tree invalid before the first allocation.
//!
//! Invariant: the superblock of the commit that removes a tree no longer names the tree as valid, so
//! a crash leaves the tree whole, or absent and not expected.
//!
//! Source: on-disk format documentation, sections "Free space tree" and "Root item"; the
//! descriptions of btrfs-rescue(8).

use crate::areas::Conversions;
use crate::conversions::OTHER_PLACES;
use crate::core_state::VALID_FREE_SPACE_TREE;
use crate::data_extents::{DataOwner, DataRange};
use crate::need::Need;
use crate::running_parts::FeatureTrees;
use buttress_exact::{Exact as _, u64_of};
use buttress_format::free_space::FreeSpaceHeader;
use buttress_format::{CompatRo, FileExtent, InodeItem, InodeNumber, ItemType, Key, ObjectId, TreeId};
use buttress_fs::error::{Corruption, Error, Result};
use buttress_tree::ReadAhead;

/// The number of v1 caches that one commit removes.
const CACHES_AT_ONCE: usize = 64;

/// The places that removing one v1 cache edits: its header, its inode, its extents.
const PLACES_OF_CACHE: u64 = 6;

impl Conversions<'_> {
    /// Removes the uuid tree, and commits. Returns false if there was none.
    ///
    /// # Errors
    /// Fails with an error of the tree or the commit.
    pub fn clear_uuid_tree(&self) -> Result<bool> {
        let need = Need::freeing(OTHER_PLACES);
        let removed = self.engine.edit_alone(need, |running| {
            running.core.tuning.forget_uuid_tree();
            running.feature_trees().remove_tree(TreeId::UUID)
        })?;
        self.engine.commit()?;
        Ok(removed)
    }

    /// Removes the free-space tree, and commits. Returns false if there was none.
    ///
    /// If the tree may be damaged, open the volume with
    /// [`WriteOptions::clears_free_space_tree`](crate::opening::WriteOptions::clears_free_space_tree).
    /// Otherwise, allocations before the removal use the tree.
    ///
    /// # Errors
    /// Fails with [`Error::Invalid`] on a volume with a block group tree, which Linux reads only
    /// beside a free-space tree. Also fails with an error of the tree or a commit.
    pub fn clear_free_space_tree(&self) -> Result<bool> {
        require_clearable(self.engine.forest().volume().superblock().compat_ro)?;
        // No delayed reference is left after a commit, so the extent tree alone has all free space.
        self.engine.commit()?;
        let need = Need::freeing(OTHER_PLACES);
        let removed = self.engine.edit_alone(need, |running| {
            let removed = running.feature_trees().remove_tree(TreeId::FREE_SPACE)?;
            running.core.compat_ro.remove(VALID_FREE_SPACE_TREE);
            Ok(removed)
        })?;
        self.engine.commit()?;
        Ok(removed)
    }

    /// Removes the files of the v1 free space cache, and commits. The superblock then names no cache.
    ///
    /// # Errors
    /// Fails with an error of the root tree or a commit.
    pub fn clear_v1_cache(&self) -> Result<()> {
        loop {
            let need = Need::freeing(PLACES_OF_CACHE.exact_mul(u64_of(CACHES_AT_ONCE)));
            let left = self.engine.edit_alone(need, |running| {
                running.feature_trees().remove_some_caches(CACHES_AT_ONCE)
            })?;
            self.engine.commit()?;
            if !left {
                return Ok(());
            }
        }
    }

    /// Removes the inode caches that kernels before 5.11 kept in subvolumes. Calls `cleared` for
    /// each subvolume, after its commit.
    ///
    /// # Errors
    /// Fails with an error of a tree or a commit. Subvolumes that come later keep their caches.
    pub fn clear_inode_caches(&self, cleared: &mut dyn FnMut(TreeId)) -> Result<()> {
        let mut from = TreeId::FS;
        loop {
            let need = Need::freeing(PLACES_OF_CACHE.exact_add(OTHER_PLACES));
            let next = self.engine.edit_alone(need, |running| {
                let next = running.feature_trees().subvolume_from(from)?;
                if let Some(tree) = next {
                    running.feature_trees().remove_inode_cache(tree)?;
                }
                Ok(next)
            })?;
            let Some(tree) = next else { return Ok(()) };
            self.engine.commit()?;
            cleared(tree);
            from = TreeId::new(tree.get().exact_add(1));
        }
    }
}

/// Refuses a volume that needs a valid free-space tree.
pub(crate) fn require_clearable(compat_ro: CompatRo) -> Result<()> {
    if compat_ro.contains(CompatRo::BLOCK_GROUP_TREE) {
        let what = "the volume has a block group tree, and Linux mounts it only with a free-space tree (run `buttress tune --convert-from-block-group-tree` first)";
        return Err(Error::Invalid { what });
    }
    Ok(())
}

impl FeatureTrees<'_> {
    /// Removes one of the volume's own trees with all items. Returns false if the tree does not
    /// exist.
    fn remove_tree(&mut self, id: TreeId) -> Result<bool> {
        if !self.has_tree(id)? {
            return Ok(false);
        }
        self.running
            .remove_range(id, Key::MIN..Key::MAX, &mut |_, _| {})?;
        self.remove_empty_tree(id)?;
        Ok(true)
    }

    /// Returns the first live subvolume whose id is not below `from`.
    fn subvolume_from(&mut self, from: TreeId) -> Result<Option<TreeId>> {
        let mut key = Key::new(from.object_id(), ItemType::ROOT_ITEM, 0);
        while let Some(item) = self.running.at_or_after(TreeId::ROOT, &key)? {
            let found = item.key();
            let tree = TreeId::new(found.objectid.get());
            if found.objectid > ObjectId::LAST_FREE {
                return Ok(None);
            }
            let is_root = found.item_type == ItemType::ROOT_ITEM && tree.holds_files();
            if is_root && self.running.root_item(tree)?.references > 0 {
                return Ok(Some(tree));
            }
            let Some(next) = found.successor() else {
                return Ok(None);
            };
            key = next;
        }
        Ok(None)
    }

    /// Removes the inode cache of a subvolume: its header, its inode and its content.
    fn remove_inode_cache(&mut self, tree: TreeId) -> Result<()> {
        let header = Key::new(ObjectId::FREE_INODE, ItemType(0), 0);
        self.running.remove(tree, &header)?;
        let header = Key::new(ObjectId::FREE_SPACE, ItemType(0), 0);
        self.running.remove(tree, &header)?;
        self.remove_cache_file(tree, InodeNumber::new(ObjectId::FREE_INODE.get()))
    }

    /// Removes up to `most` v1 caches: headers, inodes and content. Returns whether more may be
    /// left.
    fn remove_some_caches(&mut self, most: usize) -> Result<bool> {
        let first = Key::new(ObjectId::FREE_SPACE, ItemType(0), 0);
        let end = Key::new(ObjectId::FREE_SPACE, ItemType(0), u64::MAX);
        let tree = self.running.view(TreeId::ROOT)?;
        let mut caches = Vec::new();
        for item in tree.range(first..=end, ReadAhead::None).take(most) {
            let item = item?;
            let key = item.key();
            let header = FreeSpaceHeader::parse(&key, item.data()).map_err(|error| Corruption::Item {
                tree: TreeId::ROOT,
                error,
            })?;
            caches.push((key, InodeNumber::new(header.location.objectid.get())));
        }
        for (header, inode) in &caches {
            self.running.remove(TreeId::ROOT, header)?;
            self.remove_cache_file(TreeId::ROOT, *inode)?;
        }
        self.running.core.tuning.forget_cache();
        Ok(caches.len() == most)
    }

    /// Removes the inode of a cache with its content. Only regular inodes are removed: a damaged
    /// header may name any object.
    fn remove_cache_file(&mut self, tree: TreeId, inode: InodeNumber) -> Result<()> {
        let object = inode.object_id();
        let key = InodeItem::key(inode);
        let Some(found) = self.running.get(tree, &key)? else {
            return Ok(());
        };
        let item = InodeItem::parse(&key, found.data()).map_err(|error| Corruption::Item { tree, error })?;
        if item.mode & MODE_TYPE != MODE_REGULAR {
            return Ok(());
        }
        let next = ObjectId::new(object.get().exact_add(1));
        let (first, end) = (Key::new(object, ItemType(0), 0), Key::new(next, ItemType(0), 0));
        let sector_bytes = self.running.core.format.sector_bytes;
        let mut extents = Vec::new();
        let mut damaged = None;
        self.running.remove_range(tree, first..end, &mut |key, data| {
            if key.item_type == ItemType::EXTENT_DATA {
                match FileExtent::parse(key, data, sector_bytes) {
                    Ok(extent) => extents.extend(extent.slice().map(|slice| (*key, *slice))),
                    Err(error) => damaged = Some(error),
                }
            }
        })?;
        if let Some(error) = damaged {
            return Err(Corruption::Item { tree, error }.into());
        }
        for (key, slice) in extents.iter().filter(|(_, slice)| !slice.is_hole()) {
            let range = DataRange {
                logical: slice.disk,
                length: slice.disk_bytes,
            };
            let owner = DataOwner {
                root: tree,
                inode,
                offset: key.offset.wrapping_sub(slice.offset.get()),
            };
            self.running.core.drop_data_reference(range, owner);
        }
        Ok(())
    }
}

/// The bits of a mode that name the type of an inode, and those of a regular file.
const MODE_TYPE: u32 = 0o170_000;
const MODE_REGULAR: u32 = 0o100_000;
