//! The running transaction: the newest version of every tree that was opened, and what its edits left to do.
//!
//! [`Running`] is what the edit lock protects. It has two parts, so that an edit of one tree can reach what edits of
//! any tree need: [`Core`] (the extent tree, delayed references, block groups, pins) and the other trees.
//!
//! Invariants: a tree in [`Running::trees`] is the newest version; its root item here is newer than the one in the root
//! tree where `item_changed` is set or the root has moved. The root and chunk trees have no root item: the superblock
//! names them.

use crate::core_state::Core;
use crate::cow::{CowOnlyTree, ShareableTree, own_error, whole_edit};
use crate::inode_table::InodeTable;
use crate::removed_names::NameChanges;
use crate::trees::{LiveTree, OpenTree, OpenTrees};
use buttress_format::{CompatRo, Incompat, ItemType, Key, RootItem, Timestamp, TreeId};
use buttress_fs::error::{Corruption, Error, Result};
use buttress_fs::filesystem::root_pointer;
use buttress_tree::{EditContext, EditableTree, OwnedItem, Tree};
use std::ops::Range;

/// The running transaction.
#[derive(Debug)]
pub struct Running {
    /// The parts that edits of any tree need.
    pub core: Core,
    /// All open trees but the extent tree.
    pub trees: OpenTrees,
    /// Inodes whose items are newer than their trees have them.
    pub inodes: InodeTable,
    /// Names that went, as logs have to know them.
    pub names: NameChanges,
}

impl Running {
    /// The tree that block group items lie in.
    pub fn block_group_tree(&self) -> TreeId {
        if self.core.compat_ro.contains(CompatRo::BLOCK_GROUP_TREE) {
            TreeId::BLOCK_GROUP
        } else {
            TreeId::EXTENT
        }
    }

    pub(crate) fn has_free_space_tree(&self) -> bool {
        self.core.compat_ro.contains(CompatRo::FREE_SPACE_TREE)
    }

    /// The open tree, opened if it was not.
    pub fn open_tree(&mut self, id: TreeId) -> Result<&mut OpenTree> {
        if id == TreeId::EXTENT {
            return Ok(&mut self.core.extent);
        }
        if !self.trees.contains(id) {
            let opened = self.find_tree(id)?;
            self.trees.insert(id, opened);
        }
        self.trees.get_mut(id).ok_or(Error::TreeNotFound { tree: id })
    }

    /// Reads the newest root item of a tree.
    fn find_tree(&self, id: TreeId) -> Result<OpenTree> {
        let wanted = Key::new(id.object_id(), ItemType::ROOT_ITEM, u64::MAX);
        let found = self.root_tree()?.tree.at_or_before(&wanted)?;
        let Some(found) = found.filter(|found| {
            let key = found.key();
            key.objectid == id.object_id() && key.item_type == ItemType::ROOT_ITEM
        }) else {
            return Err(Error::TreeNotFound { tree: id });
        };
        let item =
            RootItem::parse(&found.key(), found.data(), self.core.format.sector_bytes).map_err(|error| {
                Corruption::Item {
                    tree: TreeId::ROOT,
                    error,
                }
            })?;
        let tree = self.core.forest.tree(root_pointer(id, &item));
        let tree = LiveTree::new(EditableTree::open(&tree));
        if id.as_subvolume().is_some() && item.references == 0 {
            tree.set_deleted();
        }
        Ok(OpenTree {
            tree,
            item: Some(item),
            item_offset: found.key().offset,
            item_changed: false,
        })
    }

    pub(crate) fn root_tree(&self) -> Result<&OpenTree> {
        self.trees
            .get(TreeId::ROOT)
            .ok_or(Error::TreeNotFound { tree: TreeId::ROOT })
    }

    /// The root item of a tree that has one, to be changed.
    pub fn root_item_mut(&mut self, id: TreeId) -> Result<&mut RootItem> {
        let open = self.open_tree(id)?;
        open.item_changed = true;
        open.tree.forget_writable();
        open.item.as_mut().ok_or(Error::TreeNotFound { tree: id })
    }

    /// Records in its root item when a tree was changed.
    pub fn note_change_of_root(&mut self, id: TreeId, now: Timestamp) -> Result<()> {
        let generation = self.core.generation;
        let open = self.open_tree(id)?;
        open.item_changed = true;
        let item = open.item.as_mut().ok_or(Error::TreeNotFound { tree: id })?;
        item.ctransid = generation;
        item.ctime = now;
        Ok(())
    }

    /// The root item of a tree that has one.
    pub fn root_item(&mut self, id: TreeId) -> Result<&RootItem> {
        self.open_tree(id)?
            .item
            .as_ref()
            .ok_or(Error::TreeNotFound { tree: id })
    }

    /// Edits one tree.
    pub fn edit<T>(
        &mut self,
        id: TreeId,
        edit: impl FnOnce(&mut EditableTree, &mut dyn EditContext) -> buttress_tree::Result<T>,
    ) -> Result<T> {
        if id == TreeId::EXTENT {
            return self.core.edit_extents(edit);
        }
        let _whole = whole_edit();
        self.open_tree(id)?;
        let Self { core, trees, .. } = self;
        let Some(open) = trees.get_mut(id) else {
            return Err(Error::TreeNotFound { tree: id });
        };
        let result = if id.holds_files() {
            let mut context = ShareableTree::new(core, id, open.last_snapshot());
            open.tree.edit(|tree| edit(tree, &mut context))
        } else {
            let mut context = CowOnlyTree::new(core.generation, core.node_bytes(), &mut core.references);
            open.tree.edit(|tree| edit(tree, &mut context))
        };
        result.map_err(own_error)
    }

    /// Marks the volume as using a feature that readers must know.
    pub fn use_feature(&mut self, feature: Incompat) {
        if !self.core.has(feature) {
            self.core.format.incompat |= feature;
            self.core.superblock_changed = true;
        }
    }

    /// The newest version of a tree, held.
    pub fn view(&mut self, id: TreeId) -> Result<Tree> {
        Ok(self.open_tree(id)?.tree.view())
    }

    /// The item with this very key.
    pub fn get(&mut self, id: TreeId, key: &Key) -> Result<Option<OwnedItem>> {
        Ok(self.open_tree(id)?.tree.get(key)?)
    }

    /// The last item whose key is not above `key`.
    pub fn at_or_before(&mut self, id: TreeId, key: &Key) -> Result<Option<OwnedItem>> {
        Ok(self.open_tree(id)?.tree.at_or_before(key)?)
    }

    /// The first item whose key is not below `key`.
    pub fn at_or_after(&mut self, id: TreeId, key: &Key) -> Result<Option<OwnedItem>> {
        Ok(self.open_tree(id)?.tree.at_or_after(key)?)
    }

    /// Inserts an item.
    ///
    /// # Errors
    /// An item with this key exists; an error of the tree.
    pub fn insert(&mut self, id: TreeId, key: &Key, data: &[u8]) -> Result<()> {
        self.edit(id, |tree, context| tree.insert(context, key, data))
    }

    /// Inserts an item, or replaces the one with this key.
    ///
    /// # Errors
    /// An error of the tree.
    pub fn put(&mut self, id: TreeId, key: &Key, data: &[u8]) -> Result<()> {
        self.edit(id, |tree, context| tree.put(context, key, data))
    }

    /// Changes an item in place; false when there is none.
    pub fn update(&mut self, id: TreeId, key: &Key, change: &mut dyn FnMut(&mut [u8])) -> Result<bool> {
        self.edit(id, |tree, context| tree.update(context, key, change))
    }

    /// Removes an item. Returns whether there was one.
    ///
    /// # Errors
    /// An error of the tree.
    pub fn remove(&mut self, id: TreeId, key: &Key) -> Result<bool> {
        self.edit(id, |tree, context| tree.remove(context, key))
    }

    /// Removes all items with keys in `range`; returns how many there were.
    pub fn remove_range(
        &mut self,
        id: TreeId,
        range: Range<Key>,
        removed: &mut dyn FnMut(&Key, &[u8]),
    ) -> Result<u64> {
        self.edit(id, |tree, context| tree.remove_range(context, range, removed))
    }

    /// Inserts an item into the extent tree.
    ///
    /// # Errors
    /// As for [`Running::insert`].
    pub fn extent_insert(&mut self, key: &Key, data: &[u8]) -> Result<()> {
        self.core
            .edit_extents(|tree, context| tree.insert(context, key, data))
    }

    /// Inserts or replaces an item of the extent tree.
    ///
    /// # Errors
    /// An error of the tree.
    pub fn extent_put(&mut self, key: &Key, data: &[u8]) -> Result<()> {
        self.core
            .edit_extents(|tree, context| tree.put(context, key, data))
    }

    /// Removes an item of the extent tree.
    ///
    /// # Errors
    /// An error of the tree.
    pub fn extent_remove(&mut self, key: &Key) -> Result<()> {
        self.core
            .edit_extents(|tree, context| tree.remove(context, key))
            .map(|_| ())
    }
}
