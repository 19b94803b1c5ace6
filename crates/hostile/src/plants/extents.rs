//! Damage of extents, references, block groups, free space, tree blocks and quotas.

use super::Plant;
use crate::editor::{Editor, add, key};
use buttress_format::{BlockFormat, ExtentItem, FileExtent, InlineReference, ItemType, Key, Logical, TreeId};
use buttress_tree::ReadAhead;

const REFERENCES: usize = 0;
const GENERATION: usize = 8;
/// The offset of the byte in an extent item's flags that has the flag of full back references.
const FLAGS_FULL: usize = 17;

fn format(editor: &Editor) -> BlockFormat {
    editor.open().superblock().block_format()
}

/// Returns the first data extent that `wanted` accepts.
fn data_extent(editor: &Editor, wanted: impl Fn(&ExtentItem) -> bool) -> (Key, ExtentItem) {
    let format = format(editor);
    let parse = |key: &Key, data: &[u8]| {
        let extent = ExtentItem::parse(key, data, &format).ok()?;
        (extent.is_data() && wanted(&extent)).then_some(extent)
    };
    let (key, data) = editor.find(TreeId::EXTENT, ItemType::EXTENT_ITEM, |key, data| {
        parse(key, data).is_some()
    });
    let extent = parse(&key, &data).expect("it was found");
    (key, extent)
}

/// Returns the address of a free sector at a distance from the last extent of a block group.
fn free_sector(editor: &Editor) -> u64 {
    let (free, _) = editor.find(TreeId::FREE_SPACE, ItemType::FREE_SPACE_EXTENT, |key, _| {
        key.offset >= 1 << 20 && key.objectid.get() >= 13 << 20
    });
    free.objectid.get() + 512 * 1024
}

/// Returns an extent item with one inline reference.
fn one_reference(editor: &Editor) -> Vec<u8> {
    let (_, data) = editor.find(TreeId::EXTENT, ItemType::EXTENT_ITEM, |_, data| data.len() == 53);
    data
}

/// Returns the key of a tree block's extent item.
fn block_item(editor: &Editor, logical: Logical) -> Key {
    let (key, _) = editor.find(TreeId::EXTENT, ItemType::METADATA_ITEM, |key, _| {
        key.objectid.get() == logical.get()
    });
    key
}

/// Returns the first key and the address of a leaf of the top level that refers to no data.
fn leaf_without_data(editor: &Editor) -> (Key, Logical) {
    let tree = editor.open().tree(TreeId::FS).expect("there is a top level");
    let mut leaves = tree.leaves(.., ReadAhead::None);
    loop {
        let leaf = leaves.next().expect("the tree can be read");
        let leaf = leaf.expect("there is a leaf without data");
        let has_data = leaf.items().any(|item| {
            FileExtent::parse(&item.key, item.data, 4096).is_ok_and(|extent| extent.slice().is_some())
        });
        if !has_data {
            let first = leaf.block.key(0).expect("a leaf has items");
            return (first, leaf.block.logical());
        }
    }
}

/// Returns the key of a free extent whose beginning can move.
fn free_extent(editor: &Editor) -> Key {
    let (free, _) = editor.find(TreeId::FREE_SPACE, ItemType::FREE_SPACE_EXTENT, |key, _| {
        key.offset >= 1 << 20 && key.objectid.get() >= 13 << 20
    });
    free
}

fn move_free_extent(editor: &mut Editor, by: i64) {
    let free = free_extent(editor);
    let start = free.objectid.get().wrapping_add_signed(by);
    let to = key(
        start,
        ItemType::FREE_SPACE_EXTENT,
        free.offset.wrapping_add_signed(-by),
    );
    editor.leaf(TreeId::FREE_SPACE, &free, |leaf, slot| {
        assert!(slot.is_ok_and(|slot| leaf.set_key(slot, &to)));
    });
}

fn free_space_info(editor: &Editor) -> Key {
    let (info, _) = editor.find(TreeId::FREE_SPACE, ItemType::FREE_SPACE_INFO, |key, _| {
        key.objectid.get() >= 13 << 20
    });
    info
}

fn block_group(editor: &Editor) -> (Key, Vec<u8>) {
    editor.find(TreeId::EXTENT, ItemType::BLOCK_GROUP_ITEM, |_, _| true)
}

fn qgroup_info(editor: &Editor) -> Key {
    let (info, _) = editor.find(TreeId::QUOTA, ItemType::QGROUP_INFO, |_, _| true);
    info
}

pub(super) const PLANTS: &[Plant] = &[
    Plant::new(
        "reference-total",
        "kinds",
        "the reference count of an extent is one too large",
        &["reference-total"],
        |editor| {
            let (key, _) = data_extent(editor, |_| true);
            editor.data(TreeId::EXTENT, &key, |data| add(data, REFERENCES, 1));
        },
    ),
    Plant::new(
        "reference-without-extent",
        "kinds",
        "a back reference of an extent that does not exist",
        &["reference-without-extent"],
        |editor| {
            let at = key(free_sector(editor), ItemType::TREE_BLOCK_REF, 5);
            editor.insert(TreeId::EXTENT, &at, &[]);
        },
    ),
    Plant::new(
        "extent-missing",
        "kinds",
        "the item of a data extent removed",
        &[
            "extent-missing",
            "block-group-used",
            "bytes-used",
            "free-space-lost",
            "checksum-surplus",
        ],
        |editor| {
            // The test needs an extent with checksums at the start of the first checksum item.
            let (sums, _) = editor.find(TreeId::CHECKSUM, ItemType::EXTENT_CSUM, |_, _| true);
            let (key, _) = data_extent(editor, |extent| extent.start.get() == sums.offset);
            editor.remove(TreeId::EXTENT, &key);
        },
    ),
    Plant::new(
        "extent-unused",
        "kinds",
        "a data extent item added that nothing uses",
        &[
            "extent-unused",
            "block-group-used",
            "bytes-used",
            "free-space-used",
        ],
        |editor| {
            let at = free_sector(editor);
            let data = one_reference(editor);
            editor.insert(TreeId::EXTENT, &key(at, ItemType::EXTENT_ITEM, 4096), &data);
        },
    ),
    Plant::new(
        "extent-outside-block-group",
        "kinds",
        "an extent item after all block groups",
        &["extent-outside-block-group", "extent-unused", "bytes-used"],
        |editor| {
            let data = one_reference(editor);
            editor.insert(TreeId::EXTENT, &key(1 << 40, ItemType::EXTENT_ITEM, 4096), &data);
        },
    ),
    Plant::new(
        "reference-surplus",
        "kinds",
        "a back reference is counted once too often",
        &["reference-surplus"],
        |editor| {
            // The item has one inline reference: head 24, type 1, root 8, inode 8, offset 8, count
            // 4.
            let (key, _) = data_extent(editor, |extent| {
                matches!(&extent.inline_references[..], [InlineReference::ExtentData(_)])
            });
            editor.data(TreeId::EXTENT, &key, |data| {
                add(data, REFERENCES, 1);
                data[49] += 1;
            });
        },
    ),
    Plant::new(
        "reference-missing",
        "kinds",
        "a back reference names another inode",
        &["reference-missing", "reference-surplus"],
        |editor| {
            let (key, _) = data_extent(editor, |extent| {
                matches!(&extent.inline_references[..], [InlineReference::ExtentData(_)])
            });
            editor.data(TreeId::EXTENT, &key, |data| add(data, 33, 1));
        },
    ),
    Plant::new(
        "extent-length",
        "kinds",
        "a file extent item says that its extent is longer than it is",
        &["extent-length"],
        |editor| {
            let (key, _) = editor.find(TreeId::FS, ItemType::EXTENT_DATA, |key, data| {
                FileExtent::parse(key, data, 4096)
                    .is_ok_and(|extent| extent.slice().is_some_and(|slice| !slice.is_hole()))
            });
            editor.data(TreeId::FS, &key, |data| add(data, 29, 4096));
        },
    ),
    Plant::new(
        "block-differs",
        "kinds",
        "the extent item of a tree block has a later generation than the block",
        &["block-differs"],
        |editor| {
            let limit = editor.open().superblock().generation.get();
            let (key, _) = editor.find(TreeId::EXTENT, ItemType::METADATA_ITEM, |_, data| {
                data[GENERATION..GENERATION + 8] != limit.to_le_bytes()
            });
            editor.data(TreeId::EXTENT, &key, |data| add(data, GENERATION, 1));
        },
    ),
    Plant::new(
        "block-older-item",
        "kinds",
        "the extent item of a tree block has an earlier generation than the block",
        &["block-differs"],
        |editor| {
            let (key, _) = editor.find(TreeId::EXTENT, ItemType::METADATA_ITEM, |_, _| true);
            editor.data(TreeId::EXTENT, &key, |data| add(data, GENERATION, -1));
        },
    ),
    Plant::new(
        "block-level",
        "kinds",
        "the extent item of a tree block has another level than the block",
        &["block-differs"],
        |editor| {
            let (last, _) = editor.find(TreeId::EXTENT, ItemType::METADATA_ITEM, |key, _| {
                key.offset == 0 && !editor.leads_a_leaf(TreeId::EXTENT, key)
            });
            editor.leaf(TreeId::EXTENT, &last, |leaf, slot| {
                let to = Key { offset: 1, ..last };
                assert!(slot.is_ok_and(|slot| leaf.set_key(slot, &to)));
            });
        },
    ),
    Plant::new(
        "owner-without-block",
        "kinds",
        "the owner of a leaf is a tree that does not contain the leaf",
        &["owner-without-block"],
        |editor| {
            let (place, _) = editor.find(TreeId::ROOT, ItemType::ROOT_REF, |_, _| true);
            let (first, _) = leaf_without_data(editor);
            editor.owner(TreeId::FS, &first, TreeId::new(place.offset));
        },
    ),
    Plant::new(
        "back-reference-flags-own",
        "kinds",
        "a leaf has full back references although its owner contains it",
        &["back-reference-flags"],
        |editor| {
            let (_, logical) = leaf_without_data(editor);
            let key = block_item(editor, logical);
            editor.data(TreeId::EXTENT, &key, |data| data[FLAGS_FULL] |= 1);
        },
    ),
    Plant::new(
        "back-reference-flags-tree",
        "kinds",
        "a leaf of the device tree has full back references",
        &["back-reference-flags"],
        |editor| {
            let logical = editor.open().tree(TreeId::DEVICE).expect("a tree").root().logical;
            let key = block_item(editor, logical);
            editor.data(TreeId::EXTENT, &key, |data| data[FLAGS_FULL] |= 1);
        },
    ),
    Plant::new(
        "back-reference-flags-relocated",
        "kinds",
        "a leaf without full back references has the relocation flag",
        &["back-reference-flags"],
        |editor| {
            let (first, _) = leaf_without_data(editor);
            // A header's flags follow the fsid and the address.
            editor.header(TreeId::FS, &first, |header| header[56] |= 2);
        },
    ),
    Plant::new(
        "item-of-no-type",
        "kinds",
        "an item of an unknown type in the top level",
        &["item-unexpected"],
        |editor| {
            let (last, _) = editor.items(TreeId::FS).pop().expect("it has items");
            let at = key(last.objectid.get(), ItemType(200 + 9), 1);
            editor.insert(TreeId::FS, &at, &[1, 2, 3]);
        },
    ),
    Plant::new(
        "item-of-another-tree",
        "kinds",
        "a device extent in the uuid tree",
        &["item-unexpected"],
        |editor| {
            let (_, data) = editor.find(TreeId::DEVICE, ItemType::DEV_EXTENT, |_, _| true);
            let at = key(u64::MAX - 1, ItemType::DEV_EXTENT, 1 << 30);
            editor.insert(TreeId::UUID, &at, &data);
        },
    ),
    Plant::new(
        "extent-kind",
        "kinds",
        "a data block group and its chunk become metadata",
        &["extent-kind"],
        |editor| {
            let (group, _) = editor.find(TreeId::EXTENT, ItemType::BLOCK_GROUP_ITEM, |_, data| {
                data[16] == 1
            });
            editor.data(TreeId::EXTENT, &group, |data| data[16] = 4);
            let chunk = key(256, ItemType::CHUNK_ITEM, group.objectid.get());
            editor.data(TreeId::CHUNK, &chunk, |data| data[24] = 4);
        },
    ),
    Plant::new(
        "block-group-used",
        "kinds",
        "the used bytes of a block group are wrong",
        &["block-group-used"],
        |editor| {
            let (group, _) = block_group(editor);
            editor.data(TreeId::EXTENT, &group, |data| add(data, 0, 4096));
        },
    ),
    Plant::new(
        "block-group-flags",
        "kinds",
        "a block group has another profile than its chunk",
        &["block-group-flags"],
        |editor| {
            let (group, _) = block_group(editor);
            editor.data(TreeId::EXTENT, &group, |data| data[16] |= 1 << 5);
        },
    ),
    Plant::new(
        "chunk-missing",
        "kinds",
        "a block group without a chunk",
        &["chunk-missing"],
        |editor| {
            let (_, data) = block_group(editor);
            let at = key(1 << 40, ItemType::BLOCK_GROUP_ITEM, 1 << 20);
            editor.insert(TreeId::EXTENT, &at, &data);
        },
    ),
    Plant::new(
        "chunk-missing-in-tree",
        "quota-xxhash",
        "a block group without a chunk, in a block group tree",
        &["chunk-missing", "free-space-info-missing"],
        |editor| {
            let (_, mut data) = editor.find(TreeId::BLOCK_GROUP, ItemType::BLOCK_GROUP_ITEM, |_, _| true);
            data[..8].fill(0);
            let at = key(1 << 40, ItemType::BLOCK_GROUP_ITEM, 1 << 20);
            editor.insert(TreeId::BLOCK_GROUP, &at, &data);
        },
    ),
    Plant::new(
        "block-group-missing",
        "kinds",
        "a block group removed",
        &["block-group-missing", "extent-outside-block-group"],
        |editor| {
            let (group, _) = block_group(editor);
            editor.remove(TreeId::EXTENT, &group);
        },
    ),
    Plant::new(
        "free-space-lost",
        "kinds",
        "a free extent made shorter",
        &["free-space-lost"],
        |editor| move_free_extent(editor, 4096),
    ),
    Plant::new(
        "free-space-used",
        "kinds",
        "a free extent made longer, so that it overlaps an extent",
        &["free-space-used"],
        |editor| move_free_extent(editor, -4096),
    ),
    Plant::new(
        "free-space-count",
        "kinds",
        "the number of free extents of a block group is wrong",
        &["free-space-count"],
        |editor| {
            let info = free_space_info(editor);
            editor.data(TreeId::FREE_SPACE, &info, |data| data[0] += 1);
        },
    ),
    Plant::new(
        "free-space-info-missing",
        "kinds",
        "the free space information of a block group removed",
        &["free-space-info-missing"],
        |editor| {
            let info = free_space_info(editor);
            editor.remove(TreeId::FREE_SPACE, &info);
        },
    ),
    Plant::new(
        "free-space-without-block-group",
        "kinds",
        "a free extent after all block groups",
        &["free-space-without-block-group"],
        |editor| {
            let at = key(1 << 40, ItemType::FREE_SPACE_EXTENT, 4096);
            editor.insert(TreeId::FREE_SPACE, &at, &[]);
        },
    ),
    Plant::new(
        "free-space-of-old-mkfs",
        "quota-xxhash",
        "no damage: mkfs.btrfs left free space information of its temporary chunk",
        &[],
        |editor| {
            let (first, _) = editor.items(TreeId::FREE_SPACE).remove(0);
            let of_mkfs = key(1 << 20, ItemType::FREE_SPACE_INFO, 4 << 20);
            assert_eq!(first, of_mkfs, "the seed volume has it");
        },
    )
    .noting(&["free-space-below-block-groups"]),
    Plant::new(
        "copy-damaged",
        "quota-xxhash",
        "a single copy of a tree block overwritten",
        &["copy-damaged"],
        |editor| {
            let filesystem = editor.open();
            let root = filesystem.tree(TreeId::FS).expect("a tree").root().logical;
            editor.write(&filesystem, root, &[0x5a; 64], Some(0));
        },
    ),
    Plant::new(
        "tree-block-damaged",
        "quota-xxhash",
        "all copies of a tree block overwritten",
        &["tree-block-damaged"],
        |editor| {
            let filesystem = editor.open();
            let root = filesystem.tree(TreeId::FS).expect("a tree").root().logical;
            editor.write(&filesystem, root, &[0x5a; 64], None);
        },
    ),
    Plant::new(
        "qgroup-count",
        "quota-xxhash",
        "the counts of a quota group are wrong",
        &["qgroup-count"],
        |editor| {
            let info = qgroup_info(editor);
            editor.data(TreeId::QUOTA, &info, |data| add(data, 8, 4096));
        },
    ),
    Plant::new(
        "qgroup-missing",
        "quota-xxhash",
        "a quota group removed",
        &["qgroup-missing"],
        |editor| {
            let info = qgroup_info(editor);
            editor.remove(TreeId::QUOTA, &info);
        },
    ),
    Plant::new(
        "qgroup-relation",
        "quota-xxhash",
        "a relation of quota groups recorded for only one of them",
        &["qgroup-relation"],
        |editor| {
            let info = qgroup_info(editor);
            let relation = key(info.offset, ItemType::QGROUP_RELATION, 9 << 48 | 77);
            editor.insert(TreeId::QUOTA, &relation, &[]);
        },
    ),
    Plant::new(
        "qgroup-count-simple",
        "squota",
        "the count of a simple quota is wrong",
        &["qgroup-count"],
        |editor| {
            let info = qgroup_info(editor);
            editor.data(TreeId::QUOTA, &info, |data| add(data, 8, 4096));
        },
    ),
    Plant::new(
        "quotas-inconsistent",
        "quota-xxhash",
        "no damage: the counts of a quota group are wrong, and quotas are marked as inconsistent",
        &[],
        |editor| {
            let info = qgroup_info(editor);
            editor.data(TreeId::QUOTA, &info, |data| add(data, 8, 4096));
            let status = key(0, ItemType::QGROUP_STATUS, 0);
            editor.data(TreeId::QUOTA, &status, |data| data[16] |= 4);
        },
    )
    .noting(&["quotas-inconsistent"]),
];
