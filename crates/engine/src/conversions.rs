//! Conversions of a whole volume: the block group tree, the free-space tree, the fsid of devices.
//!
//! Each conversion is one commit, so a crash leaves the volume as before or as after it. The
//! conversions expect that no other thread uses the volume, and read missing blocks under the edit
//! lock.
//!
//! | call | before | the commit |
//! |---|---|---|
//! | [`Conversions::move_block_group_items`] | the items lie in either tree; an interrupted btrfstune leaves them in both | all items lie in the wanted tree |
//! | [`Conversions::end_fsid_change`] | all tree blocks have the new fsid | device items and superblock have the new fsid |
//! | [`Conversions::make_free_space_tree`] | commits that remove older forms | the tree, and the flags that make it valid |
//!
//! Invariant: the free-space tree is computed from the extent tree alone. The commit then adds the
//! changes of its own extents, as every commit does.
//!
//! Source: on-disk format documentation, sections "Block group item" and "Free space info".

use crate::areas::Conversions;
use crate::core_state::VALID_FREE_SPACE_TREE;
use crate::engine::Engine;
use crate::free_ranges::FreeRanges;
use crate::loading::free_ranges_of_extents;
use crate::need::Need;
use crate::own_trees::root_key;
use crate::running::Running;
use crate::running_parts::FeatureTrees;
use buttress_exact::{Exact as _, u64_of};
use buttress_format::superblock::SuperblockFlags;
use buttress_format::{CompatRo, Incompat, ItemType, Key, ObjectId, TreeId, Uuid};
use buttress_fs::error::{Defect, Error, Result};
use buttress_locks::Excused;
use buttress_tree::NonBlocking;

/// The places of a conversion beside those of its items: root items, root blocks.
pub(crate) const OTHER_PLACES: u64 = 16;

/// The bytes of an item header in a leaf.
const ITEM_BYTES: u64 = 25;

impl Engine {
    /// Runs an edit that nothing else runs beside. An error of the edit stops writing.
    pub(crate) fn edit_alone<T>(
        &self,
        need: Need,
        edit: impl FnOnce(&mut Running) -> Result<T>,
    ) -> Result<T> {
        let mut handle = self.start(need)?;
        let _alone = Excused::from_device_rule();
        let edited = NonBlocking::lifted(|| edit(&mut handle));
        handle.core.superblock_changed = true;
        drop(handle);
        edited.inspect_err(|error| self.forest().volume().stop_writing(error))
    }
}

impl Conversions<'_> {
    /// Moves all block group items to the block group tree, or back to the extent tree, and
    /// commits. Finishes such a move that btrfstune began.
    ///
    /// # Errors
    /// Fails with [`Error::Invalid`] if the items are there already, or if the volume has no valid
    /// free-space tree. Also fails with an error of the commit.
    pub fn move_block_group_items(&self, to: BlockGroupPlace) -> Result<()> {
        let compat_ro = self.engine.forest().volume().superblock().compat_ro;
        let flags = self.engine.forest().volume().superblock().flags;
        let is_unfinished = flags.contains(SuperblockFlags::CHANGING_BG_TREE);
        let has_tree = compat_ro.contains(CompatRo::BLOCK_GROUP_TREE);
        match to {
            BlockGroupPlace::OwnTree if has_tree && !is_unfinished => {
                let what = "the filesystem already has block group tree feature";
                return Err(Error::Invalid { what });
            }
            BlockGroupPlace::OwnTree if !compat_ro.contains(VALID_FREE_SPACE_TREE) => {
                let what = "the volume has no valid free-space tree, which the block group tree needs (run `buttress tune --convert-to-free-space-tree` first)";
                return Err(Error::Invalid { what });
            }
            BlockGroupPlace::ExtentTree if !has_tree && !is_unfinished => {
                let what = "filesystem doesn't have block-group-tree feature";
                return Err(Error::Invalid { what });
            }
            _ => {}
        }
        let groups = u64_of(self.engine.start_reading().core.groups.iter().count());
        let need = Need::places(groups.exact_mul(2).exact_add(OTHER_PLACES));
        self.engine
            .edit_alone(need, |running| running.feature_trees().move_block_group_items(to))?;
        self.engine.commit().map(drop)
    }

    /// Makes the free-space tree of a volume that has none, and removes the v1 cache. Removes an
    /// invalid tree first.
    ///
    /// # Errors
    /// Fails with [`Error::Invalid`] if the volume has a valid free-space tree. Also fails with an error
    /// of a commit.
    pub fn make_free_space_tree(&self) -> Result<()> {
        let compat_ro = self.engine.forest().volume().superblock().compat_ro;
        if compat_ro.contains(VALID_FREE_SPACE_TREE) {
            let what = "filesystem already has free-space-tree feature";
            return Err(Error::Invalid { what });
        }
        if compat_ro.contains(CompatRo::FREE_SPACE_TREE) {
            self.clear_free_space_tree()?;
        }
        self.clear_v1_cache()?;
        // No delayed reference is left after a commit, so the extent tree is whole.
        self.engine.commit()?;
        let bytes = {
            let mut handle = self.engine.start_reading();
            let _alone = Excused::from_device_rule();
            NonBlocking::lifted(|| handle.feature_trees().bytes_of_free_space_items())?
        };
        let leaf = u64::from(self.engine.forest().block_format().node_bytes).quotient(4);
        let need = Need::places(bytes.quotient(leaf).exact_add(OTHER_PLACES));
        self.engine
            .edit_alone(need, |running| running.feature_trees().make_free_space_tree())?;
        self.engine.commit().map(drop)
    }

    /// Ends a change of the fsid: all device items get the fsid, and the commit clears the flag.
    ///
    /// # Errors
    /// Fails with an error of the commit.
    pub fn end_fsid_change(&self, fsid: Uuid) -> Result<()> {
        let devices = u64_of(self.engine.start_reading().core.device_count());
        self.engine
            .edit_alone(Need::places(devices.exact_add(OTHER_PLACES)), |running| {
                let mut items = Vec::new();
                for room in &mut running.core.devices.rooms {
                    room.item.fsid = fsid;
                    items.push(room.item);
                }
                for item in items {
                    let key = Key::new(ObjectId::DEVICE_ITEMS, ItemType::DEV_ITEM, item.device.get());
                    running.put(TreeId::CHUNK, &key, &item.to_bytes())?;
                }
                let cleared = SuperblockFlags::CHANGING_FSID;
                running
                    .core
                    .tuning
                    .change_flags(SuperblockFlags::empty(), cleared);
                Ok(())
            })?;
        self.engine.commit().map(drop)
    }
}

/// The tree in which a volume keeps its block group items.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BlockGroupPlace {
    /// The block group tree.
    OwnTree,
    /// The extent tree, between the extents.
    ExtentTree,
}

impl FeatureTrees<'_> {
    fn move_block_group_items(&mut self, place: BlockGroupPlace) -> Result<()> {
        let (from, to) = match place {
            BlockGroupPlace::OwnTree => (TreeId::EXTENT, TreeId::BLOCK_GROUP),
            BlockGroupPlace::ExtentTree => (TreeId::BLOCK_GROUP, TreeId::EXTENT),
        };
        if !self.has_tree(TreeId::BLOCK_GROUP)? {
            self.running.make_own_tree(TreeId::BLOCK_GROUP)?;
        }
        let mut items = Vec::new();
        for group in self.running.core.groups.iter_mut() {
            group.written_used = Some(group.used);
            items.push((group.item_key(), group.item()));
        }
        for (key, item) in items {
            self.running.remove(from, &key)?;
            self.running.put(to, &key, &item.to_bytes())?;
        }
        let has_tree = place == BlockGroupPlace::OwnTree;
        if has_tree {
            self.running.core.format.incompat |= Incompat::NO_HOLES;
        } else {
            self.remove_empty_tree(TreeId::BLOCK_GROUP)?;
        }
        self.running
            .core
            .compat_ro
            .set(CompatRo::BLOCK_GROUP_TREE, has_tree);
        let cleared = SuperblockFlags::CHANGING_BG_TREE;
        self.running
            .core
            .tuning
            .change_flags(SuperblockFlags::empty(), cleared);
        Ok(())
    }

    pub(crate) fn has_tree(&mut self, id: TreeId) -> Result<bool> {
        match self.running.open_tree(id) {
            Ok(_) => Ok(true),
            Err(Error::TreeNotFound { .. }) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Removes one of the volume's own trees whose last item this edit removed. The root block is
    /// in memory and has no address, so it disappears with the tree.
    pub(crate) fn remove_empty_tree(&mut self, id: TreeId) -> Result<()> {
        let tree = &self.running.open_tree(id)?.tree;
        let is_empty = tree.at_or_after(&Key::MIN)?.is_none();
        if is_empty && tree.root_logical().is_some() {
            // A conversion that was cut early leaves an empty tree on disk. Edits free its leaf.
            self.running.insert(id, &Key::MIN, &[])?;
            self.running.remove(id, &Key::MIN)?;
        }
        let open = self.running.open_tree(id)?;
        let (offset, address) = (open.item_offset, open.tree.root_logical());
        if !is_empty || address.is_some() {
            let defect = Defect::new("a tree to be removed has items, or a root block on disk");
            return Err(defect.with("tree", id.get()).into());
        }
        self.running.trees.remove(id);
        self.running.remove(TreeId::ROOT, &root_key(id, offset))?;
        Ok(())
    }

    /// Returns an upper bound of the bytes that the items of a new free-space tree take.
    fn bytes_of_free_space_items(&mut self) -> Result<u64> {
        let mut bytes = 0_u64;
        for (start, length) in self.groups_in_order() {
            let free = self.free_ranges_by_extents(start, length)?;
            let ranges = u64_of(free.count()).exact_add(2);
            bytes = bytes.exact_add(ranges.exact_mul(ITEM_BYTES));
        }
        Ok(bytes)
    }

    fn make_free_space_tree(&mut self) -> Result<()> {
        self.running.make_own_tree(TreeId::FREE_SPACE)?;
        self.running.core.compat_ro.insert(VALID_FREE_SPACE_TREE);
        self.running.core.tuning.forget_cache();
        for (start, length) in self.groups_in_order() {
            let free = self.free_ranges_by_extents(start, length)?;
            if let Some(group) = self.running.core.groups.get_mut(start) {
                // The extent tree already has these changes.
                group.became_used = FreeRanges::default();
                group.became_free = FreeRanges::default();
            }
            self.running
                .free_space_tree()
                .insert_ranges(start, length, &free)?;
        }
        Ok(())
    }

    /// Returns start and length of the block groups that the free-space tree must describe. Commits
    /// add the items of new block groups themselves.
    fn groups_in_order(&self) -> Vec<(u64, u64)> {
        let groups = self.running.core.groups.iter();
        let known = groups.filter(|group| !group.needs_free_space_info);
        known.map(|group| (group.start, group.length)).collect()
    }

    fn free_ranges_by_extents(&self, start: u64, length: u64) -> Result<FreeRanges> {
        let tree = self.running.core.extent.tree.view();
        free_ranges_of_extents(&tree, start, length, &self.running.core.format)
    }
}
