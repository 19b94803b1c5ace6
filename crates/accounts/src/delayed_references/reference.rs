//! A reference to an extent, keyed or by the address of the referring block.

use buttress_format::{InodeNumber, Logical, TreeId};

/// A reference to an extent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Reference {
    /// A keyed reference of a tree to one of its blocks.
    TreeBlock {
        /// The tree that owns the block.
        root: TreeId,
    },
    /// A full back reference of a block to its child, by the block's own address.
    SharedBlock {
        /// The address of the parent block.
        parent: Logical,
    },
    /// A keyed reference of one file's items to data.
    Data {
        /// The tree of the file.
        root: TreeId,
        /// The inode number of the file.
        inode: InodeNumber,
        /// The file offset at which the extent's first byte would lie; wraps below zero.
        offset: u64,
    },
    /// A full back reference of one leaf's items to data, by the leaf's address.
    SharedData {
        /// The address of the leaf.
        parent: Logical,
    },
}
