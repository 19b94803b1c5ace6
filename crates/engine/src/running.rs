//! The running transaction: the newest version of every open tree, and the work that its edits left
//! for the commit.
//!
//! The edit lock protects [`Running`]. [`Running`] has two parts: [`Core`] (the extent tree,
//! delayed references, block groups, pins) and the other trees. An edit of one tree can therefore
//! reach the state that edits of any tree need.
//!
//! Invariants: the version of a tree in [`Running::trees`] is always the newest. The root item of
//! an open tree is newer than the item in the root tree if `item_changed` is set or the root has
//! moved. The root and chunk trees have no root item: the superblock names them.

use crate::core_state::Core;
use crate::cow::{CowOnlyTree, ShareableTree, own_error, whole_edit};
use crate::holders::Holders;
use crate::inode_table::InodeTable;
use crate::removed_names::NameChanges;
use crate::trees::{LiveTree, OpenTree, OpenTrees};
use buttress_format::{Incompat, ItemType, Key, RootItem, Timestamp, TreeId};
use buttress_fs::error::{Corruption, Error, Result};
use buttress_fs::filesystem::root_pointer;
use buttress_tree::{EditContext, EditableTree, OwnedItem, Tree};
use std::ops::Range;

/// The running transaction.
#[derive(Debug)]
pub struct Running {
    /// The state that edits of any tree need.
    pub core: Core,
    /// All open trees except the extent tree.
    pub trees: OpenTrees,
    /// The live inodes, including those with items newer than in their trees.
    pub inodes: InodeTable,
    /// Names that this transaction removed, for the log.
    pub names: NameChanges,
    /// The threads that acquired the edit lock.
    pub(crate) holders: Holders,
}

impl Running {
    /// Returns an open tree, and opens it if necessary.
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

    /// Returns the root item of a tree, for changes. Fails for a tree without a root item.
    pub fn root_item_mut(&mut self, id: TreeId) -> Result<&mut RootItem> {
        let open = self.open_tree(id)?;
        open.item_changed = true;
        open.tree.forget_writable();
        open.item.as_mut().ok_or(Error::TreeNotFound { tree: id })
    }

    /// Records the time of a change in a tree's root item.
    pub fn note_change_of_root(&mut self, id: TreeId, now: Timestamp) -> Result<()> {
        let generation = self.core.generation;
        let open = self.open_tree(id)?;
        open.item_changed = true;
        let item = open.item.as_mut().ok_or(Error::TreeNotFound { tree: id })?;
        item.ctransid = generation;
        item.ctime = now;
        Ok(())
    }

    /// Returns the root item of a tree. Fails for a tree without one.
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

    /// Sets a feature flag of the volume that readers must support.
    pub fn use_feature(&mut self, feature: Incompat) {
        if !self.core.has(feature) {
            self.core.format.incompat |= feature;
            self.core.superblock_changed = true;
        }
    }

    /// Returns the newest version of a tree, as a held root.
    pub fn view(&mut self, id: TreeId) -> Result<Tree> {
        Ok(self.open_tree(id)?.tree.view())
    }

    /// Returns the item with exactly this key.
    pub fn get(&mut self, id: TreeId, key: &Key) -> Result<Option<OwnedItem>> {
        Ok(self.open_tree(id)?.tree.get(key)?)
    }

    /// Returns the last item whose key is not above `key`.
    pub fn at_or_before(&mut self, id: TreeId, key: &Key) -> Result<Option<OwnedItem>> {
        Ok(self.open_tree(id)?.tree.at_or_before(key)?)
    }

    /// Returns the first item whose key is not below `key`.
    pub fn at_or_after(&mut self, id: TreeId, key: &Key) -> Result<Option<OwnedItem>> {
        Ok(self.open_tree(id)?.tree.at_or_after(key)?)
    }

    /// Inserts an item.
    ///
    /// # Errors
    /// Fails if an item with this key exists, or with an error of the tree.
    pub fn insert(&mut self, id: TreeId, key: &Key, data: &[u8]) -> Result<()> {
        self.edit(id, |tree, context| tree.insert(context, key, data))
    }

    /// Inserts an item, or replaces the item with this key.
    ///
    /// # Errors
    /// Fails with an error of the tree.
    pub fn put(&mut self, id: TreeId, key: &Key, data: &[u8]) -> Result<()> {
        self.edit(id, |tree, context| tree.put(context, key, data))
    }

    /// Changes an item in place. Returns false if the item does not exist.
    pub fn update(&mut self, id: TreeId, key: &Key, change: &mut dyn FnMut(&mut [u8])) -> Result<bool> {
        self.edit(id, |tree, context| tree.update(context, key, change))
    }

    /// Removes an item. Returns whether the item existed.
    ///
    /// # Errors
    /// Fails with an error of the tree.
    pub fn remove(&mut self, id: TreeId, key: &Key) -> Result<bool> {
        self.edit(id, |tree, context| tree.remove(context, key))
    }

    /// Removes all items with keys in `range`. Returns the number of removed items.
    pub fn remove_range(
        &mut self,
        id: TreeId,
        range: Range<Key>,
        removed: &mut dyn FnMut(&Key, &[u8]),
    ) -> Result<u64> {
        self.edit(id, |tree, context| tree.remove_range(context, range, removed))
    }
}
