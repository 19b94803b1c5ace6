//! How much fits: the room in a leaf, and the limits of items that the kernel derives from it.
//!
//! A kernel refuses, or cannot change any more, what is larger than it would have made itself, so writers keep to
//! these, not only to what fits. All of them are bytes of an item's data, without the item's head, on a
//! volume whose tree blocks are `node_bytes` long.
//!
//! Source: on-disk format documentation, sections "Tree blocks" and "Overview"; btrfs(5), section "Filesystem
//! limits"; the limits of inline references and packed items were measured on the kernel's volumes.

use crate::directory::RawDirItem;
use crate::file_extent::FileExtent;
use crate::node::{HEADER_BYTES, RawItem};
use buttress_exact::usize_of;

/// The most names that an inode can have.
pub const LINKS_MAX: u32 = 65_535;

/// What a leaf holds besides its header: heads of items and their data.
#[must_use]
pub fn leaf_bytes(node_bytes: u32) -> usize {
    usize_of(node_bytes).saturating_sub(HEADER_BYTES)
}

/// The longest item: it is alone in its leaf. Items of packed entries (names of an inode, directory entries or
/// attributes of one hash) grow up to this.
#[must_use]
pub fn item_bytes_max(node_bytes: u32) -> usize {
    leaf_bytes(node_bytes).saturating_sub(size_of::<RawItem>())
}

/// The length below which an extent item stays when an inline reference is added: a sixteenth of a leaf. Beyond
/// it references become items of their own.
#[must_use]
pub fn extent_item_bytes_limit(node_bytes: u32) -> usize {
    (leaf_bytes(node_bytes) >> 4).saturating_sub(size_of::<RawItem>())
}

/// The most inline content, as it is stored; `max_inline` and the sector size limit it further.
#[must_use]
pub fn inline_content_bytes_max(node_bytes: u32) -> usize {
    item_bytes_max(node_bytes).saturating_sub(FileExtent::INLINE_HEAD_BYTES)
}

/// The most bytes that name and value of an extended attribute have together.
#[must_use]
pub fn xattr_bytes_max(node_bytes: u32) -> usize {
    item_bytes_max(node_bytes).saturating_sub(size_of::<RawDirItem>())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_of_the_default_node_size() {
        // What the kernel and btrfs-progs report for 16 KiB nodes.
        assert_eq!(leaf_bytes(16_384), 16_283);
        assert_eq!(item_bytes_max(16_384), 16_258);
        assert_eq!(inline_content_bytes_max(16_384), 16_237);
        assert_eq!(xattr_bytes_max(16_384), 16_228);
        assert_eq!(extent_item_bytes_limit(16_384), 992);
        assert_eq!(leaf_bytes(0), 0);
    }
}
