//! The checks of items of subvolume trees, and of the root items that lead to them.

/// The check that an item of a subvolume tree fails.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FileItemProblem {
    /// An item of a file is not led by the file's inode item: the item before it belongs to another inode.
    #[error("the item before it belongs to inode {previous_objectid}: the inode item is missing")]
    InodeItemMissing {
        /// The first field of the key before this one.
        previous_objectid: u64,
    },
}
