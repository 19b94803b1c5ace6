//! Size limits: the space in a leaf, and the item limits that the kernel derives from it.
//!
//! A kernel refuses, or cannot change, items larger than it would have made itself. Writers
//! therefore keep to the kernel's limits, even if a larger item fits the leaf. All limits are bytes
//! of an item's data, without the item's header, on a volume with tree blocks of `node_bytes`.
//!
//! Source: on-disk format documentation, sections "Tree blocks" and "Overview"; btrfs(5), section
//! "Filesystem limits"; the limits of inline references and packed items were measured on the
//! kernel's volumes.

use crate::directory::RawDirItem;
use crate::file_extent::FileExtent;
use crate::node::{HEADER_BYTES, RawItem};
use buttress_exact::usize_of;

/// The maximum number of names of an inode.
pub const LINKS_MAX: u32 = 65_535;

/// Returns the capacity of a leaf in bytes, without its header. Item headers and item data share
/// the capacity of a leaf.
#[must_use]
pub fn leaf_bytes(node_bytes: u32) -> usize {
    usize_of(node_bytes).saturating_sub(HEADER_BYTES)
}

/// Returns the maximum size of an item, which fills its leaf alone. Items of packed entries can
/// grow up to this size: names of an inode, and directory entries or attributes of one hash.
#[must_use]
pub fn item_bytes_max(node_bytes: u32) -> usize {
    leaf_bytes(node_bytes).saturating_sub(size_of::<RawItem>())
}

/// Returns the limit of an extent item: a sixteenth of a leaf. An inline reference is added only
/// while the item stays below the limit. References beyond the limit become items of their own.
#[must_use]
pub fn extent_item_bytes_limit(node_bytes: u32) -> usize {
    (leaf_bytes(node_bytes) >> 4).saturating_sub(size_of::<RawItem>())
}

/// Returns the maximum size of stored inline content. `max_inline` and the sector size limit inline
/// content further.
#[must_use]
pub fn inline_content_bytes_max(node_bytes: u32) -> usize {
    item_bytes_max(node_bytes).saturating_sub(FileExtent::INLINE_HEAD_BYTES)
}

/// Returns the maximum total size of the name and value of an extended attribute.
#[must_use]
pub fn xattr_bytes_max(node_bytes: u32) -> usize {
    item_bytes_max(node_bytes).saturating_sub(size_of::<RawDirItem>())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_of_the_default_node_size() {
        // The kernel and btrfs-progs report these limits for 16 KiB nodes.
        assert_eq!(leaf_bytes(16_384), 16_283);
        assert_eq!(item_bytes_max(16_384), 16_258);
        assert_eq!(inline_content_bytes_max(16_384), 16_237);
        assert_eq!(xattr_bytes_max(16_384), 16_228);
        assert_eq!(extent_item_bytes_limit(16_384), 992);
        assert_eq!(leaf_bytes(0), 0);
    }
}
