//! Damage of superblocks, devices, chunks, roots, places of subvolumes and uuids.

use super::Plant;
use crate::editor::{Editor, add, key};
use buttress_format::{DirItems, ItemType, Key, TreeId, name_hash};

/// The offset of the superblock's first copy.
const COPY: u64 = 64 << 20;
const GENERATION: usize = 72;
const TOTAL_BYTES: usize = 112;
const BYTES_USED: usize = 120;
const DEVICES: usize = 136;
const DEVICE_TOTAL_BYTES: usize = 201 + 8;
const DEVICE_BYTES_USED: usize = 201 + 16;
/// The offset of the root directory in a root item.
const ROOT_DIRECTORY: usize = 168;
const REFERENCES: usize = 216;

fn only_copies(offset: u64) -> bool {
    offset == COPY
}

fn all(_: u64) -> bool {
    true
}

fn subvolume(editor: &Editor) -> Key {
    let (place, _) = editor.find(TreeId::ROOT, ItemType::ROOT_REF, |_, _| true);
    let (root, _) = editor.find(TreeId::ROOT, ItemType::ROOT_ITEM, |key, _| {
        key.objectid.get() == place.offset
    });
    root
}

/// Returns both references between a subvolume and its parent, with their data.
fn place(editor: &Editor) -> (Key, Key, Vec<u8>) {
    let (forth, data) = editor.find(TreeId::ROOT, ItemType::ROOT_REF, |_, _| true);
    let back = key(forth.offset, ItemType::ROOT_BACKREF, forth.objectid.get());
    (forth, back, data)
}

fn uuid_item(editor: &Editor) -> (Key, Vec<u8>) {
    editor.find(TreeId::UUID, ItemType::UUID_KEY_SUBVOL, |_, data| {
        data[..8] != 5_u64.to_le_bytes()
    })
}

fn device_extent(editor: &Editor) -> (Key, Vec<u8>) {
    editor.find(TreeId::DEVICE, ItemType::DEV_EXTENT, |_, _| true)
}

/// Inserts a device extent of one sector in unused space.
fn insert_extent(editor: &mut Editor, device: u64, physical: u64) {
    let (_, mut data) = device_extent(editor);
    data[24..32].copy_from_slice(&4096_u64.to_le_bytes());
    editor.insert(
        TreeId::DEVICE,
        &key(device, ItemType::DEV_EXTENT, physical),
        &data,
    );
}

/// The offset of the flags in a block's header. The last byte of the flags is the revision of back
/// references.
const HEADER_FLAGS: usize = 56;
const HEADER_REVISION: usize = 63;

fn header(editor: &mut Editor, tree: TreeId, change: impl FnOnce(&mut [u8])) {
    let (first, _) = editor.items(tree).into_iter().next().expect("it has an item");
    editor.header(tree, &first, change);
}

pub(super) const PLANTS: &[Plant] = &[
    Plant::new(
        "header-flags",
        "kinds",
        "the header of a leaf has an unknown flag",
        &["header-flags"],
        |editor| header(editor, TreeId::FS, |header| header[HEADER_FLAGS + 1] |= 1),
    ),
    Plant::new(
        "header-flags-of-relocation",
        "kinds",
        "the header of an extent tree leaf has the relocation flag",
        &["header-flags"],
        |editor| header(editor, TreeId::EXTENT, |header| header[HEADER_FLAGS] |= 2),
    ),
    Plant::new(
        "header-revision",
        "kinds",
        "the header of a leaf has an unknown back reference revision",
        &["header-flags"],
        |editor| header(editor, TreeId::FS, |header| header[HEADER_REVISION] = 2),
    ),
    Plant::new(
        "uuid-tree-directory",
        "kinds",
        "no damage: the uuid tree has a root directory, as mkfs.btrfs 4.16 to 4.19 made it",
        &[],
        |editor| {
            let (first, _) = editor
                .items(TreeId::UUID)
                .into_iter()
                .next()
                .expect("it has a uuid");
            let name = key(256, ItemType::INODE_REF, 256);
            for at in [name, key(256, ItemType::INODE_ITEM, 0)] {
                let (_, data) = editor.find(TreeId::DATA_RELOCATION, at.item_type, |key, _| *key == at);
                // The tree has a single leaf, so no parent names its first key.
                editor.leaf(TreeId::UUID, &first, |leaf, _| {
                    let place = leaf.insert(0, &at, data.len());
                    place.expect("the item fits").copy_from_slice(&data);
                });
            }
        },
    )
    .noting(&["uuid-tree-directory"]),
    Plant::new(
        "superblock-damaged",
        "kinds",
        "bytes of a superblock copy changed",
        &["superblock-damaged"],
        |editor| editor.write_raw(0, COPY + 500, &[0x5a; 8]),
    ),
    Plant::new(
        "superblock-differs",
        "kinds",
        "a superblock copy has another bytes_used",
        &["superblock-differs"],
        |editor| editor.superblocks(None, only_copies, |bytes| add(bytes, BYTES_USED, 4096)),
    ),
    Plant::new(
        "superblock-behind",
        "kinds",
        "no damage: a superblock copy is from the commit before",
        &[],
        |editor| editor.superblocks(None, only_copies, |bytes| add(bytes, GENERATION, -1)),
    )
    .noting(&["superblock-behind"]),
    Plant::new(
        "superblock-not-written",
        "kinds",
        "no damage: a superblock copy was never written",
        &[],
        |editor| editor.write_raw(0, COPY, &[0; 4096]),
    )
    .noting(&["superblock-not-written"]),
    Plant::new(
        "bytes-used",
        "kinds",
        "bytes_used in the superblock is wrong",
        &["bytes-used"],
        |editor| editor.superblocks(None, all, |bytes| add(bytes, BYTES_USED, 4096)),
    ),
    Plant::new(
        "total-bytes-more",
        "kinds",
        "the sum of device sizes in the superblock is too large",
        &["total-bytes"],
        |editor| editor.superblocks(None, all, |bytes| add(bytes, TOTAL_BYTES, 4096)),
    ),
    Plant::new(
        "total-bytes-less",
        "kinds",
        "the sum of device sizes in the superblock is too small",
        &["total-bytes"],
        |editor| editor.superblocks(None, all, |bytes| add(bytes, TOTAL_BYTES, -4096)),
    ),
    Plant::new(
        "device-count",
        "kinds",
        "the number of devices in the superblock is wrong",
        &["device-count"],
        |editor| editor.superblocks(None, all, |bytes| add(bytes, DEVICES, 1)),
    ),
    Plant::new(
        "device-behind",
        "raid1",
        "the superblocks of one device are from the commit before",
        &["device-behind"],
        |editor| editor.superblocks(Some(1), all, |bytes| add(bytes, GENERATION, -1)),
    ),
    Plant::new(
        "device-missing",
        "raid1",
        "the second of two devices is missing",
        &["device-missing"],
        |editor| editor.remove_device(1),
    ),
    Plant::new(
        "device-too-small",
        "kinds",
        "the device is a sector smaller than its item says",
        &["device-too-small"],
        |editor| editor.cut_device(0, (128 << 20) - 4096),
    ),
    Plant::new(
        "device-item-differs",
        "kinds",
        "the superblock has another size of the device than the chunk tree",
        &["device-item-differs"],
        |editor| editor.superblocks(None, all, |bytes| add(bytes, DEVICE_TOTAL_BYTES, 4096)),
    ),
    Plant::new(
        "device-item-uses-more",
        "kinds",
        "no damage: the superblock says that the device uses more than in the commit",
        &[],
        |editor| editor.superblocks(None, all, |bytes| add(bytes, DEVICE_BYTES_USED, 1 << 20)),
    ),
    Plant::new(
        "device-bytes-used",
        "kinds",
        "the used bytes in a device item are wrong",
        &["device-bytes-used"],
        |editor| {
            editor.superblocks(None, all, |bytes| add(bytes, DEVICE_BYTES_USED, 4096));
            editor.data(TreeId::CHUNK, &key(1, ItemType::DEV_ITEM, 1), |data| {
                add(data, 16, 4096)
            });
        },
    ),
    Plant::new(
        "system-chunk-differs",
        "kinds",
        "the alignment of a system chunk differs between the chunk tree and the superblock",
        &["system-chunk-differs"],
        |editor| {
            let (chunk, _) = editor.find(TreeId::CHUNK, ItemType::CHUNK_ITEM, |_, data| data[24] & 2 != 0);
            editor.data(TreeId::CHUNK, &chunk, |data| data[32] ^= 1);
        },
    ),
    Plant::new(
        "device-extent-missing",
        "kinds",
        "a device extent removed",
        &["device-extent-missing", "device-bytes-used"],
        |editor| {
            let (extent, _) = device_extent(editor);
            editor.remove(TreeId::DEVICE, &extent);
        },
    ),
    Plant::new(
        "stripe-missing",
        "kinds",
        "a device extent added that belongs to no chunk",
        &["stripe-missing", "device-bytes-used"],
        |editor| insert_extent(editor, 1, 120 << 20),
    ),
    Plant::new(
        "device-extent-past-end",
        "kinds",
        "a device extent added past the end of the device",
        &["stripe-missing", "device-extent-past-end", "device-bytes-used"],
        |editor| insert_extent(editor, 1, 1 << 30),
    ),
    Plant::new(
        "device-unknown",
        "kinds",
        "a device extent of a device that does not exist",
        &["stripe-missing", "device-unknown"],
        |editor| insert_extent(editor, 9, 120 << 20),
    ),
    Plant::new(
        "tree-missing",
        "kinds",
        "the root item of the checksum tree removed",
        &["tree-missing", "extent-unused"],
        |editor| editor.remove(TreeId::ROOT, &key(7, ItemType::ROOT_ITEM, 0)),
    ),
    Plant::new(
        "default-subvolume-missing",
        "kinds",
        "the default subvolume does not exist",
        &["default-subvolume-missing"],
        |editor| {
            let default = key(6, ItemType::DIR_ITEM, name_hash(b"default"));
            editor.data(TreeId::ROOT, &default, |data| {
                data[..8].copy_from_slice(&9999_u64.to_le_bytes())
            });
        },
    ),
    Plant::new(
        "root-directory",
        "kinds",
        "the root item of the top level names another root directory",
        &["root-directory"],
        |editor| {
            let root = key(5, ItemType::ROOT_ITEM, 0);
            editor.data(TreeId::ROOT, &root, |data| add(data, ROOT_DIRECTORY, 1));
        },
    ),
    Plant::new(
        "root-directory-missing",
        "kinds",
        "all items of a subvolume removed",
        &["root-directory-missing", "subvolume-entry-missing"],
        |editor| {
            let tree = TreeId::new(subvolume(editor).objectid.get());
            for (key, _) in editor.items(tree).into_iter().rev() {
                editor.remove(tree, &key);
            }
        },
    ),
    Plant::new(
        "root-tree-damaged",
        "quota-xxhash",
        "the root of the root tree overwritten",
        &["tree-block-damaged", "tree-missing"],
        |editor| {
            let filesystem = editor.open();
            let root = filesystem.superblock().root;
            editor.write(&filesystem, root, &[0x5a; 64], None);
        },
    ),
    Plant::new(
        "root-orphan-item-missing",
        "kinds",
        "a subvolume has no references and no orphan item",
        &["root-orphan-item-missing", "root-reference"],
        |editor| {
            let root = subvolume(editor);
            editor.data(TreeId::ROOT, &root, |data| {
                data[REFERENCES..REFERENCES + 4].fill(0)
            });
        },
    ),
    Plant::new(
        "deleted-subvolume-with-place",
        "kinds",
        "a subvolume that is being deleted is in a directory",
        &["root-reference"],
        |editor| {
            let root = subvolume(editor);
            editor.data(TreeId::ROOT, &root, |data| {
                data[REFERENCES..REFERENCES + 4].fill(0)
            });
            let orphan = key(0_u64.wrapping_sub(5), ItemType::ORPHAN_ITEM, root.objectid.get());
            editor.insert(TreeId::ROOT, &orphan, &[]);
        },
    )
    .noting(&["being-deleted"]),
    Plant::new(
        "root-orphan-item-left-over",
        "kinds",
        "no damage: an orphan item of a subvolume that is gone",
        &[],
        |editor| {
            let orphan = key(0_u64.wrapping_sub(5), ItemType::ORPHAN_ITEM, 9999);
            editor.insert(TreeId::ROOT, &orphan, &[]);
        },
    )
    .noting(&["root-orphan-item-left-over"]),
    Plant::new(
        "root-reference-differs",
        "kinds",
        "the parent and the child record different places of a subvolume",
        &["root-reference"],
        |editor| {
            let (_, back, _) = place(editor);
            editor.data(TreeId::ROOT, &back, |data| add(data, 8, 1));
        },
    ),
    Plant::new(
        "root-reference-half",
        "kinds",
        "only the child records the place of a subvolume",
        &["root-reference"],
        |editor| {
            let (forth, ..) = place(editor);
            editor.remove(TreeId::ROOT, &forth);
        },
    ),
    Plant::new(
        "root-reference-other-half",
        "kinds",
        "only the parent records the place of a subvolume",
        &["root-reference", "subvolume-unreachable"],
        |editor| {
            let (_, back, _) = place(editor);
            editor.remove(TreeId::ROOT, &back);
        },
    ),
    Plant::new(
        "subvolume-unreachable",
        "kinds",
        "no item records the place of a subvolume",
        &["subvolume-unreachable"],
        |editor| {
            let (forth, back, _) = place(editor);
            editor.remove(TreeId::ROOT, &forth);
            editor.remove(TreeId::ROOT, &back);
        },
    ),
    Plant::new(
        "subvolume-missing",
        "kinds",
        "a place is recorded for a subvolume that does not exist",
        &["root-reference", "subvolume-missing", "subvolume-entry-missing"],
        |editor| {
            let (forth, _, data) = place(editor);
            let nowhere = key(forth.objectid.get(), ItemType::ROOT_REF, 9999);
            editor.insert(TreeId::ROOT, &nowhere, &data);
        },
    ),
    Plant::new(
        "subvolume-entry-missing",
        "kinds",
        "a subvolume's DIR_INDEX removed, and the size of the directory adjusted",
        &["subvolume-entry-missing", "files-unexplained"],
        |editor| {
            let (index, data) = editor.find(TreeId::FS, ItemType::DIR_INDEX, |key, data| {
                DirItems::parse(key, data).is_ok_and(|mut entries| {
                    entries.any(|entry| entry.location.item_type == ItemType::ROOT_ITEM)
                })
            });
            let name_bytes = data.len() - 30;
            editor.remove(TreeId::FS, &index);
            let directory = key(index.objectid.get(), ItemType::INODE_ITEM, 0);
            editor.data(TreeId::FS, &directory, |data| {
                add(data, 16, -i64::try_from(name_bytes).unwrap_or(0))
            });
        },
    ),
    Plant::new(
        "uuid-missing",
        "kinds",
        "a subvolume's uuid removed from the uuid tree",
        &["uuid-missing"],
        |editor| {
            let (item, _) = uuid_item(editor);
            editor.remove(TreeId::UUID, &item);
        },
    ),
    Plant::new(
        "uuid-wrong",
        "kinds",
        "another uuid points to a subvolume",
        &["uuid-wrong"],
        |editor| {
            let (item, data) = uuid_item(editor);
            let wrong = Key::new(item.objectid, item.item_type, item.offset ^ 1);
            editor.insert(TreeId::UUID, &wrong, &data);
        },
    ),
];
