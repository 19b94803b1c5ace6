//! The item types of each tree.
//!
//! Block checks verify items of known types in any tree. This module finds items whose type is
//! unknown or belongs to another kind of tree, where no program would search it. A tree of a kind
//! without a list in this module may have any items.
//!
//! Source: on-disk format documentation, sections "Reserved objectids" and "Item types".

use crate::context::Check;
use crate::finding::Finding;
use crate::report::Note;
use buttress_format::{ItemType, Key, ObjectId, TreeBlock, TreeId};
use buttress_tree::BlockPointer;

/// A set of item types.
#[derive(Clone, Copy, Debug)]
struct Types([u128; 2]);

impl Types {
    const fn of(types: &[ItemType]) -> Self {
        let mut words = [0, 0];
        let mut rest = types;
        while let Some((item_type, after)) = rest.split_first() {
            let bit = 1 << (item_type.0 & 127);
            if item_type.0 < 128 {
                words[0] |= bit;
            } else {
                words[1] |= bit;
            }
            rest = after;
        }
        Self(words)
    }

    const fn and(self, other: Self) -> Self {
        let (Self([low, high]), Self([more_low, more_high])) = (self, other);
        Self([low | more_low, high | more_high])
    }

    const fn contains(self, item_type: ItemType) -> bool {
        let Self([low, high]) = self;
        let word = if item_type.0 < 128 { low } else { high };
        word >> (item_type.0 & 127) & 1 == 1
    }
}

const FILES: Types = Types::of(&[
    ItemType::INODE_ITEM,
    ItemType::INODE_REF,
    ItemType::INODE_EXTREF,
    ItemType::XATTR_ITEM,
    ItemType::VERITY_DESC_ITEM,
    ItemType::VERITY_MERKLE_ITEM,
    ItemType::ORPHAN_ITEM,
    ItemType::DIR_ITEM,
    ItemType::DIR_INDEX,
    ItemType::EXTENT_DATA,
]);
/// The root tree's items: root items, a directory, and the inodes of v1 caches.
const ROOTS: Types = FILES.and(Types::of(&[
    ItemType::ROOT_ITEM,
    ItemType::ROOT_BACKREF,
    ItemType::ROOT_REF,
    ItemType::TEMPORARY_ITEM,
    ItemType::PERSISTENT_ITEM,
]));
const EXTENTS: Types = Types::of(&[
    ItemType::EXTENT_ITEM,
    ItemType::METADATA_ITEM,
    ItemType::TREE_BLOCK_REF,
    ItemType::EXTENT_DATA_REF,
    ItemType::SHARED_BLOCK_REF,
    ItemType::SHARED_DATA_REF,
    ItemType::BLOCK_GROUP_ITEM,
]);
const CHUNKS: Types = Types::of(&[ItemType::DEV_ITEM, ItemType::CHUNK_ITEM]);
const DEVICES: Types = Types::of(&[
    ItemType::DEV_EXTENT,
    ItemType::TEMPORARY_ITEM,
    ItemType::PERSISTENT_ITEM,
    ItemType::DEV_REPLACE,
]);
const QUOTAS: Types = Types::of(&[
    ItemType::QGROUP_STATUS,
    ItemType::QGROUP_INFO,
    ItemType::QGROUP_LIMIT,
    ItemType::QGROUP_RELATION,
]);
const UUIDS: Types = Types::of(&[ItemType::UUID_KEY_SUBVOL, ItemType::UUID_KEY_RECEIVED_SUBVOL]);
const FREE_SPACE: Types = Types::of(&[
    ItemType::FREE_SPACE_INFO,
    ItemType::FREE_SPACE_EXTENT,
    ItemType::FREE_SPACE_BITMAP,
]);
/// A log's items: those of a subvolume, completely logged ranges of directories, and checksums.
const LOG: Types = FILES.and(Types::of(&[
    ItemType::DIR_LOG_ITEM,
    ItemType::DIR_LOG_INDEX,
    ItemType::EXTENT_CSUM,
    ItemType::ROOT_ITEM,
]));

/// Returns the item types of a tree.
fn types_of(tree: TreeId) -> Option<Types> {
    Some(match tree {
        TreeId::ROOT => ROOTS,
        TreeId::EXTENT => EXTENTS,
        TreeId::CHUNK => CHUNKS,
        TreeId::DEVICE => DEVICES,
        TreeId::CHECKSUM => Types::of(&[ItemType::EXTENT_CSUM]),
        TreeId::QUOTA => QUOTAS,
        TreeId::UUID => UUIDS,
        TreeId::FREE_SPACE => FREE_SPACE,
        TreeId::BLOCK_GROUP => Types::of(&[ItemType::BLOCK_GROUP_ITEM]),
        TreeId::RAID_STRIPE => Types::of(&[ItemType::RAID_STRIPE]),
        TreeId::TREE_LOG => LOG,
        TreeId::TREE_RELOCATION | TreeId::DATA_RELOCATION => FILES,
        other if other.as_subvolume().is_some() => FILES,
        _ => return None,
    })
}

/// Returns whether an item is the header of a v1 cache, which has the type number 0.
fn is_cache_header(tree: TreeId, key: &Key) -> bool {
    key.item_type == ItemType(0)
        && key.objectid == ObjectId::FREE_SPACE
        && (tree == TreeId::ROOT || tree.as_subvolume().is_some())
}

/// Returns whether an item is the inode or the name of a root directory in the uuid tree.
/// mkfs.btrfs 4.16 to 4.19 made these items, as in a subvolume. The kernel ignores both items.
fn is_directory_of_uuids(tree: TreeId, key: &Key) -> bool {
    let root = ObjectId::FIRST_FREE;
    let is_inode = key.item_type == ItemType::INODE_ITEM && key.offset == 0;
    let is_name = key.item_type == ItemType::INODE_REF && key.offset == root.get();
    tree == TreeId::UUID && key.objectid == root && (is_inode || is_name)
}

/// Finds the items of a leaf that have a type which does not belong in the leaf's tree.
pub(crate) fn check(check: &Check<'_>, pointer: &BlockPointer, block: &TreeBlock) {
    if !block.is_leaf() {
        return;
    }
    let Some(types) = types_of(pointer.tree) else {
        return;
    };
    for key in block.item_keys() {
        if types.contains(key.item_type) || is_cache_header(pointer.tree, &key) {
            continue;
        }
        if is_directory_of_uuids(pointer.tree, &key) {
            check.note(Note::UuidTreeDirectory);
        } else {
            check.find(Finding::ItemUnexpected {
                tree: pointer.tree,
                logical: block.logical(),
                key,
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_type_with_a_name_belongs_somewhere() {
        let trees = [1, 2, 3, 4, 5, 7, 8, 9, 10, 11, 12]
            .map(TreeId::new)
            .into_iter()
            .chain([TreeId::TREE_LOG]);
        let lists: Vec<Types> = trees.filter_map(types_of).collect();
        assert_eq!(lists.len(), 12);
        for item_type in (0..=u8::MAX).map(ItemType) {
            let belongs = lists.iter().any(|types| types.contains(item_type));
            // The types here are inline only, are markers, or belong to a tree without a list.
            let nowhere = [
                ItemType::EXTENT_OWNER_REF,
                ItemType::STRING_ITEM,
                ItemType::IDENTITY_REMAP,
                ItemType::REMAP,
                ItemType::REMAP_BACKREF,
            ];
            let expected = item_type.name().is_some() && !nowhere.contains(&item_type);
            assert_eq!(belongs, expected, "{item_type}");
        }
    }
}
