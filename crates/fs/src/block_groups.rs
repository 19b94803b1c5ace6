//! Block groups: the item of each chunk that holds the number of its used bytes.
//!
//! With the block-group-tree feature, the items lie in a tree of their own. Otherwise they lie in
//! the extent tree, between the extents. The items are therefore looked up chunk by chunk, not by a
//! walk.
//!
//! Source: on-disk format documentation, section "BLOCK_GROUP_ITEM".

use crate::error::{Corruption, Result};
use crate::filesystem::Filesystem;
use buttress_format::{BlockGroupItem, CompatRo, ItemType, Key, ObjectId, TreeId};
use buttress_tree::Tree;
use buttress_volume::MappedChunk;

/// The tree that holds the block group items.
#[derive(Clone, Debug)]
pub struct BlockGroups {
    tree: Tree,
}

impl BlockGroups {
    /// Returns the block groups of a volume.
    ///
    /// # Errors
    /// Fails if the tree of the block group items is missing.
    pub fn of(filesystem: &Filesystem) -> Result<Self> {
        let has_own_tree = filesystem
            .superblock()
            .compat_ro
            .contains(CompatRo::BLOCK_GROUP_TREE);
        let id = match has_own_tree {
            true => TreeId::BLOCK_GROUP,
            false => TreeId::EXTENT,
        };
        let tree = filesystem.tree(id)?;
        Ok(Self { tree })
    }

    /// Returns the block group of a chunk.
    ///
    /// # Errors
    /// Fails if the item is missing, or cannot be read.
    pub fn get(&self, chunk: &MappedChunk) -> Result<BlockGroupItem> {
        let id = self.tree.root().tree;
        let key = Key::new(
            ObjectId::new(chunk.start().get()),
            ItemType::BLOCK_GROUP_ITEM,
            chunk.length().get(),
        );
        let item = self.tree.get(&key)?.ok_or(Corruption::ItemMissing {
            tree: id,
            key,
            what: "the block group of a chunk",
        })?;
        Ok(BlockGroupItem::parse(&key, item.data()).map_err(|error| Corruption::Item { tree: id, error })?)
    }
}
