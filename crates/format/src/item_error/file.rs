//! The checks of items of subvolume trees, and of the root items that lead to them.

/// The check that an item of a subvolume tree fails.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FileItemProblem {
    /// The item before an inode's items belongs to another inode, and no inode item comes first.
    #[error("the item before it belongs to inode {previous_objectid}: the inode item is missing")]
    InodeItemMissing {
        /// The object id in the key of the leaf's previous item.
        previous_objectid: u64,
    },
}
