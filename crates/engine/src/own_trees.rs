//! New trees of the volume's own, such as the quota tree.
//!
//! The root tree gets the item with the edit that makes the tree. The commit gives the root its
//! address. Subvolumes and log trees are made elsewhere.

use crate::running::Running;
use crate::trees::{LiveTree, OpenTree};
use buttress_format::{ByteCount, Generation, InodeItem, ItemType, Key, RootItem, Timestamp, TreeId};
use buttress_fs::error::Result;
use buttress_tree::EditableTree;

/// The mode that the unused inode of a root item has.
const DIRECTORY_MODE: u32 = 0o040_755;

impl Running {
    /// Makes one of the volume's own trees, without items.
    pub(crate) fn make_own_tree(&mut self, id: TreeId) -> Result<()> {
        let generation = self.core.generation;
        let chunk_tree_uuid = self.core.chunk_tree_uuid;
        let tree = EditableTree::new_empty(&self.core.forest, id, generation, chunk_tree_uuid);
        let item = own_root_item(generation, self.core.node_bytes());
        self.insert(TreeId::ROOT, &root_key(id, 0), &item.to_bytes())?;
        let open = OpenTree {
            tree: LiveTree::new(tree),
            item: Some(item),
            item_offset: 0,
            item_changed: true,
        };
        self.trees.insert(id, open);
        Ok(())
    }
}

/// Returns the root item of one of the volume's own trees, without the address of its root.
fn own_root_item(generation: Generation, node_bytes: ByteCount) -> RootItem {
    RootItem {
        inode: InodeItem {
            generation: Generation::new(1),
            size: ByteCount::new(3),
            nbytes: node_bytes,
            nlink: 1,
            mode: DIRECTORY_MODE,
            ..InodeItem::empty(Timestamp::default())
        },
        bytes_used: node_bytes,
        references: 1,
        ..RootItem::empty(generation)
    }
}

/// Returns the key of a tree's root item.
pub(crate) fn root_key(id: TreeId, offset: u64) -> Key {
    Key::new(id.object_id(), ItemType::ROOT_ITEM, offset)
}
