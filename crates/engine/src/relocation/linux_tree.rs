//! A relocation tree that a cut balance of Linux left.

use buttress_format::{RootItem, TreeId};
use buttress_fs::filesystem::root_pointer;
use buttress_tree::BlockPointer;

/// A relocation tree that Linux left.
#[derive(Clone, Debug)]
pub struct RelocationTree {
    /// The subvolume that the tree mirrors: the offset in the key of its root item.
    pub mirrored: u64,
    /// The root item of the tree.
    pub item: RootItem,
}

impl RelocationTree {
    /// Returns the pointer to the root of the tree.
    pub(super) fn root(&self) -> BlockPointer {
        BlockPointer::root(&root_pointer(TreeId::TREE_RELOCATION, &self.item))
    }
}
