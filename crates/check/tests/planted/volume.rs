//! Superblocks, devices, chunks, roots.

use crate::{expect, volume};
use buttress_check::{Finding, Note};
use buttress_format::{DirItems, ItemType, Key, TreeId, name_hash};
use buttress_hostile::editor::{Editor, add, key};

const COPY: u64 = 64 << 20;
const BYTES_USED: usize = 120;
const TOTAL_BYTES: usize = 112;
const GENERATION: usize = 72;
const DEVICES: usize = 136;
const DEVICE_ITEM: usize = 201;

fn only_copies(offset: u64) -> bool {
    offset == COPY
}

fn all(_: u64) -> bool {
    true
}

#[test]
fn superblocks() {
    let mut editor = volume("kinds");
    editor.write_raw(0, COPY + 500, &[0x5a; 8]);
    expect(&editor, &["superblock-damaged"]);
    let mut editor = volume("kinds");
    editor.superblocks(None, only_copies, |bytes| add(bytes, BYTES_USED, 4096));
    let found = expect(&editor, &["superblock-differs"]);
    assert!(matches!(
        &found[..],
        [Finding::SuperblockDiffers {
            field: "bytes_used",
            ..
        }]
    ));
    let mut editor = volume("kinds");
    editor.superblocks(None, only_copies, |bytes| add(bytes, GENERATION, -1));
    expect(&editor, &[]);
    let report = crate::check_it(&editor, false);
    assert!(
        report
            .notes
            .iter()
            .any(|note| matches!(note, Note::SuperblockBehind { .. }))
    );
}

#[test]
fn totals_of_the_superblock() {
    for (at, more, code) in [
        (BYTES_USED, 4096, "bytes-used"),
        (TOTAL_BYTES, 4096, "total-bytes"),
        (DEVICES, 1, "device-count"),
    ] {
        let mut editor = volume("kinds");
        editor.superblocks(None, all, |bytes| add(bytes, at, more));
        expect(&editor, &[code]);
    }
}

#[test]
fn devices() {
    let mut editor = volume("raid1");
    editor.superblocks(Some(1), all, |bytes| add(bytes, GENERATION, -1));
    expect(&editor, &["device-behind"]);
    let mut editor = volume("raid1");
    editor.remove_device(1);
    expect(&editor, &["device-missing"]);
    let mut editor = volume("kinds");
    editor.cut_device(0, (128 << 20) - 4096);
    expect(&editor, &["device-too-small"]);
    let mut editor = volume("kinds");
    editor.superblocks(None, all, |bytes| add(bytes, DEVICE_ITEM + 16, 4096));
    expect(&editor, &["device-item-differs"]);
    let mut editor = volume("kinds");
    editor.superblocks(None, all, |bytes| add(bytes, DEVICE_ITEM + 16, 4096));
    editor.data(TreeId::CHUNK, &key(1, ItemType::DEV_ITEM, 1), |data| {
        add(data, 16, 4096)
    });
    expect(&editor, &["device-bytes-used"]);
}

#[test]
fn system_chunks() {
    let mut editor = volume("kinds");
    let (chunk, _) = editor.find(TreeId::CHUNK, ItemType::CHUNK_ITEM, |_, data| data[24] & 2 != 0);
    // The alignment that the item asks for.
    editor.data(TreeId::CHUNK, &chunk, |data| data[32] ^= 1);
    expect(&editor, &["system-chunk-differs"]);
}

fn device_extent(editor: &Editor) -> (Key, Vec<u8>) {
    editor.find(TreeId::DEVICE, ItemType::DEV_EXTENT, |_, _| true)
}

#[test]
fn device_extents() {
    let volume = volume("kinds");
    let (extent, data) = device_extent(&volume);
    let mut editor = volume.clone();
    editor.remove(TreeId::DEVICE, &extent);
    expect(&editor, &["device-extent-missing", "device-bytes-used"]);
    let insert = |device: u64, physical: u64, codes: &[&str]| {
        let mut editor = volume.clone();
        let mut data = data.clone();
        // A length of one sector.
        data[24..32].copy_from_slice(&4096_u64.to_le_bytes());
        editor.insert(
            TreeId::DEVICE,
            &key(device, ItemType::DEV_EXTENT, physical),
            &data,
        );
        expect(&editor, codes);
    };
    insert(1, 120 << 20, &["stripe-missing", "device-bytes-used"]);
    insert(
        1,
        1 << 30,
        &["stripe-missing", "device-extent-past-end", "device-bytes-used"],
    );
    insert(9, 120 << 20, &["stripe-missing", "device-unknown"]);
}

#[test]
fn roots() {
    let mut editor = volume("kinds");
    let root = key(7, ItemType::ROOT_ITEM, 0);
    editor.remove(TreeId::ROOT, &root);
    expect(&editor, &["tree-missing", "extent-unused"]);
    let mut editor = volume("kinds");
    let default = key(6, ItemType::DIR_ITEM, name_hash(b"default"));
    editor.data(TreeId::ROOT, &default, |data| {
        data[..8].copy_from_slice(&9999_u64.to_le_bytes())
    });
    expect(&editor, &["default-subvolume-missing"]);
    let mut editor = volume("kinds");
    let root = key(5, ItemType::ROOT_ITEM, 0);
    editor.data(TreeId::ROOT, &root, |data| add(data, 168, 1));
    expect(&editor, &["root-directory"]);
}

/// The place of a subvolume, from both sides.
fn place(editor: &Editor) -> (Key, Key, Vec<u8>) {
    let (forth, data) = editor.find(TreeId::ROOT, ItemType::ROOT_REF, |_, _| true);
    let back = key(forth.offset, ItemType::ROOT_BACKREF, forth.objectid.get());
    (forth, back, data)
}

#[test]
fn places_of_subvolumes() {
    let volume = volume("kinds");
    let (forth, back, data) = place(&volume);
    let mut editor = volume.clone();
    editor.data(TreeId::ROOT, &back, |data| add(data, 8, 1));
    expect(&editor, &["root-reference"]);
    let mut editor = volume.clone();
    editor.remove(TreeId::ROOT, &forth);
    expect(&editor, &["root-reference"]);
    let mut editor = volume.clone();
    editor.remove(TreeId::ROOT, &back);
    expect(&editor, &["root-reference", "subvolume-unreachable"]);
    let mut editor = volume.clone();
    editor.remove(TreeId::ROOT, &forth);
    editor.remove(TreeId::ROOT, &back);
    expect(&editor, &["subvolume-unreachable"]);
    let mut editor = volume.clone();
    let nowhere = key(forth.objectid.get(), ItemType::ROOT_REF, 9999);
    editor.insert(TreeId::ROOT, &nowhere, &data);
    expect(
        &editor,
        &["root-reference", "subvolume-missing", "subvolume-entry-missing"],
    );
}

#[test]
fn subvolume_entry_missing() {
    let mut editor = volume("kinds");
    let (index, data) = editor.find(TreeId::FS, ItemType::DIR_INDEX, |key, data| {
        DirItems::parse(key, data)
            .is_ok_and(|mut entries| entries.any(|entry| entry.location.item_type == ItemType::ROOT_ITEM))
    });
    let name = DirItems::parse(&index, &data)
        .unwrap()
        .next()
        .unwrap()
        .name
        .to_vec();
    editor.remove(TreeId::FS, &index);
    let directory = key(index.objectid.get(), ItemType::INODE_ITEM, 0);
    editor.data(TreeId::FS, &directory, |data| {
        add(data, 16, -i64::try_from(name.len()).unwrap())
    });
    let report = crate::check_it(&editor, false);
    assert!(
        report.counts.contains_key("subvolume-entry-missing"),
        "{}",
        crate::text(&report)
    );
}

#[test]
fn uuids() {
    let volume = volume("kinds");
    let (item, data) = volume.find(TreeId::UUID, ItemType::UUID_KEY_SUBVOL, |_, data| {
        data[..8] != 5_u64.to_le_bytes()
    });
    let mut editor = volume.clone();
    editor.remove(TreeId::UUID, &item);
    expect(&editor, &["uuid-missing"]);
    let mut editor = volume.clone();
    let wrong = Key::new(item.objectid, item.item_type, item.offset ^ 1);
    editor.insert(TreeId::UUID, &wrong, &data);
    expect(&editor, &["uuid-wrong"]);
}
