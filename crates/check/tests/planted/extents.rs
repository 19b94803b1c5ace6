//! Extents, references, block groups, free space, quotas.

use crate::{expect, volume};
use buttress_check::Finding;
use buttress_format::{BlockFormat, ExtentItem, FileExtent, InlineReference, ItemType, Key, Logical, TreeId};
use buttress_hostile::editor::{Editor, add, key};
use buttress_tree::ReadAhead;

const REFERENCES: usize = 0;
const GENERATION: usize = 8;

fn format(editor: &Editor) -> BlockFormat {
    editor.open().superblock().block_format()
}

/// The first data extent that is wanted.
fn data_extent(editor: &Editor, wanted: impl Fn(&ExtentItem) -> bool) -> (Key, ExtentItem) {
    let format = format(editor);
    let parse = |key: &Key, data: &[u8]| {
        let extent = ExtentItem::parse(key, data, &format).ok()?;
        (extent.is_data() && wanted(&extent)).then_some(extent)
    };
    let (key, data) = editor.find(TreeId::EXTENT, ItemType::EXTENT_ITEM, |key, data| {
        parse(key, data).is_some()
    });
    let extent = parse(&key, &data).unwrap();
    (key, extent)
}

/// A block group with nothing behind its last extent, as far as one sector: where something can be planted.
fn free_sector(editor: &Editor) -> u64 {
    let (free, _) = editor.find(TreeId::FREE_SPACE, ItemType::FREE_SPACE_EXTENT, |key, _| {
        key.offset >= 1 << 20 && key.objectid.get() >= 13 << 20
    });
    free.objectid.get() + 512 * 1024
}

#[test]
fn reference_total() {
    let mut editor = volume("kinds");
    let (key, _) = data_extent(&editor, |_| true);
    editor.data(TreeId::EXTENT, &key, |data| add(data, REFERENCES, 1));
    expect(&editor, &["reference-total"]);
}

#[test]
fn reference_without_extent() {
    let mut editor = volume("kinds");
    let at = key(free_sector(&editor), ItemType::TREE_BLOCK_REF, 5);
    editor.insert(TreeId::EXTENT, &at, &[]);
    expect(&editor, &["reference-without-extent"]);
}

#[test]
fn extent_missing() {
    let mut editor = volume("kinds");
    // One with checksums, where the first checksum item begins.
    let (sums, _) = editor.find(TreeId::CHECKSUM, ItemType::EXTENT_CSUM, |_, _| true);
    let (key, extent) = data_extent(&editor, |extent| extent.start.get() == sums.offset);
    editor.remove(TreeId::EXTENT, &key);
    let found = expect(
        &editor,
        &[
            "extent-missing",
            "block-group-used",
            "bytes-used",
            "free-space-lost",
            "checksum-surplus",
        ],
    );
    assert!(found.iter().any(|finding| matches!(finding,
        Finding::ExtentMissing { logical, length, .. } if *logical == extent.start && *length == extent.length)));
}

#[test]
fn extent_unused() {
    let mut editor = volume("kinds");
    let at = free_sector(&editor);
    let (_, data) = editor.find(TreeId::EXTENT, ItemType::EXTENT_ITEM, |_, data| data.len() == 53);
    editor.insert(TreeId::EXTENT, &key(at, ItemType::EXTENT_ITEM, 4096), &data);
    let report = crate::check_it(&editor, false);
    for code in [
        "extent-unused",
        "block-group-used",
        "bytes-used",
        "free-space-used",
    ] {
        assert!(report.counts.contains_key(code), "{}", crate::text(&report));
    }
}

#[test]
fn extent_outside_block_group() {
    let mut editor = volume("kinds");
    let (_, data) = editor.find(TreeId::EXTENT, ItemType::EXTENT_ITEM, |_, data| data.len() == 53);
    let at = key(1 << 40, ItemType::EXTENT_ITEM, 4096);
    editor.insert(TreeId::EXTENT, &at, &data);
    expect(
        &editor,
        &["extent-outside-block-group", "extent-unused", "bytes-used"],
    );
}

#[test]
fn reference_surplus_and_missing() {
    let mut editor = volume("kinds");
    // One inline reference: head 24, type 1, root 8, inode 8, offset 8, count 4.
    let (key, _) = data_extent(&editor, |extent| {
        matches!(&extent.inline_references[..], [InlineReference::ExtentData(_)])
    });
    let mut more = editor.clone();
    more.data(TreeId::EXTENT, &key, |data| {
        add(data, REFERENCES, 1);
        data[49] += 1;
    });
    let found = expect(&more, &["reference-surplus"]);
    assert!(
        matches!(&found[..], [Finding::ReferenceSurplus { recorded, found, .. }] if *recorded == *found + 1),
        "{found:?}"
    );
    editor.data(TreeId::EXTENT, &key, |data| add(data, 33, 1));
    expect(&editor, &["reference-missing", "reference-surplus"]);
}

#[test]
fn extent_length() {
    let mut editor = volume("kinds");
    let (key, _) = editor.find(TreeId::FS, ItemType::EXTENT_DATA, |key, data| {
        FileExtent::parse(key, data, 4096)
            .is_ok_and(|extent| extent.slice().is_some_and(|slice| !slice.is_hole()))
    });
    editor.data(TreeId::FS, &key, |data| add(data, 29, 4096));
    let report = crate::check_it(&editor, false);
    assert!(
        report.counts.contains_key("extent-length"),
        "{}",
        crate::text(&report)
    );
}

#[test]
fn block_differs() {
    let mut editor = volume("kinds");
    let (key, _) = editor.find(TreeId::EXTENT, ItemType::METADATA_ITEM, |_, _| true);
    editor.data(TreeId::EXTENT, &key, |data| add(data, GENERATION, -1));
    expect(&editor, &["block-differs"]);
}

#[test]
fn owner_without_block() {
    let volume = volume("kinds");
    let (place, _) = volume.find(TreeId::ROOT, ItemType::ROOT_REF, |_, _| true);
    // A leaf without data: there is nothing below it, so that nothing else is wrong when another tree counts it.
    let tree = volume.open().tree(TreeId::FS).unwrap();
    let mut leaves = tree.leaves(.., ReadAhead::None);
    let first = loop {
        let leaf = leaves.next().unwrap().expect("there is a leaf without data");
        let has_data = leaf.items().any(|item| {
            FileExtent::parse(&item.key, item.data, 4096).is_ok_and(|extent| extent.slice().is_some())
        });
        if !has_data {
            break leaf.block.key(0).unwrap();
        }
    };
    for (owner, expected) in [(9999, "does not exist"), (place.offset, "does not hold it")] {
        let mut editor = volume.clone();
        editor.owner(TreeId::FS, &first, TreeId::new(owner));
        let found = expect(&editor, &["owner-without-block"]);
        assert!(
            matches!(&found[..], [Finding::OwnerWithoutBlock { level: 0, owner: named, problem, .. }]
                if named.get() == owner && *problem == expected),
            "{found:?}"
        );
        let report = crate::check_it(&editor, false);
        assert_eq!(
            report.findings[0].affected,
            [b"/".to_vec()],
            "{}",
            crate::text(&report)
        );
    }
}

#[test]
fn extent_kind() {
    let mut editor = volume("kinds");
    let (group, _) = editor.find(TreeId::EXTENT, ItemType::BLOCK_GROUP_ITEM, |_, data| {
        data[16] == 1
    });
    editor.data(TreeId::EXTENT, &group, |data| data[16] = 4);
    let chunk = key(256, ItemType::CHUNK_ITEM, group.objectid.get());
    editor.data(TreeId::CHUNK, &chunk, |data| data[24] = 4);
    expect(&editor, &["extent-kind"]);
}

#[test]
fn block_groups() {
    let volume = volume("kinds");
    let (group, _) = volume.find(TreeId::EXTENT, ItemType::BLOCK_GROUP_ITEM, |_, _| true);
    let mut editor = volume.clone();
    editor.data(TreeId::EXTENT, &group, |data| add(data, 0, 4096));
    expect(&editor, &["block-group-used"]);
    let mut editor = volume.clone();
    editor.data(TreeId::EXTENT, &group, |data| data[16] |= 1 << 5);
    expect(&editor, &["block-group-flags"]);
    let mut editor = volume.clone();
    let (_, data) = editor.find(TreeId::EXTENT, ItemType::BLOCK_GROUP_ITEM, |_, _| true);
    editor.insert(
        TreeId::EXTENT,
        &key(1 << 40, ItemType::BLOCK_GROUP_ITEM, 1 << 20),
        &data,
    );
    expect(&editor, &["chunk-missing"]);
    let mut editor = volume.clone();
    editor.remove(TreeId::EXTENT, &group);
    let report = crate::check_it(&editor, false);
    for code in ["block-group-missing", "extent-outside-block-group"] {
        assert!(report.counts.contains_key(code), "{}", crate::text(&report));
    }
}

#[test]
fn a_block_group_without_a_chunk_in_a_tree_of_its_own() {
    let mut editor = volume("quota-xxhash");
    let (_, data) = editor.find(TreeId::BLOCK_GROUP, ItemType::BLOCK_GROUP_ITEM, |_, _| true);
    let at = key(1 << 40, ItemType::BLOCK_GROUP_ITEM, 1 << 20);
    let mut empty = data;
    empty[..8].fill(0);
    editor.insert(TreeId::BLOCK_GROUP, &at, &empty);
    let report = crate::check_it(&editor, false);
    assert!(
        report.counts.contains_key("chunk-missing"),
        "{}",
        crate::text(&report)
    );
}

#[test]
fn free_space() {
    let volume = volume("kinds");
    let (free, _) = volume.find(TreeId::FREE_SPACE, ItemType::FREE_SPACE_EXTENT, |key, _| {
        key.offset >= 1 << 20 && key.objectid.get() >= 13 << 20
    });
    let moved = |by: i64| {
        let start = free.objectid.get().wrapping_add_signed(by);
        key(
            start,
            ItemType::FREE_SPACE_EXTENT,
            free.offset.wrapping_add_signed(-by),
        )
    };
    let change = |to: Key| {
        let mut editor = volume.clone();
        editor.leaf(TreeId::FREE_SPACE, &free, |leaf, slot| {
            assert!(leaf.set_key(slot.unwrap(), &to));
        });
        editor
    };
    expect(&change(moved(4096)), &["free-space-lost"]);
    expect(&change(moved(-4096)), &["free-space-used"]);
    let (info, _) = volume.find(TreeId::FREE_SPACE, ItemType::FREE_SPACE_INFO, |key, _| {
        key.objectid.get() >= 13 << 20
    });
    let mut editor = volume.clone();
    editor.data(TreeId::FREE_SPACE, &info, |data| data[0] += 1);
    expect(&editor, &["free-space-count"]);
    let mut editor = volume.clone();
    editor.remove(TreeId::FREE_SPACE, &info);
    expect(&editor, &["free-space-info-missing"]);
    let mut editor = volume.clone();
    editor.insert(
        TreeId::FREE_SPACE,
        &key(1 << 40, ItemType::FREE_SPACE_EXTENT, 4096),
        &[],
    );
    expect(&editor, &["free-space-without-block-group"]);
}

#[test]
fn tree_blocks() {
    let mut editor = volume("quota-xxhash");
    let filesystem = editor.open();
    let root = *filesystem.tree(TreeId::FS).unwrap().root();
    let mut one = editor.clone();
    one.write(&filesystem, root.logical, &[0x5a; 64], Some(0));
    let found = expect(&one, &["copy-damaged"]);
    assert!(matches!(&found[..], [Finding::CopyDamaged { logical, .. }] if *logical == root.logical));
    editor.write(&filesystem, root.logical, &[0x5a; 64], None);
    expect(&editor, &["tree-block-damaged"]);
}

#[test]
fn a_root_tree_that_is_lost_is_a_finding() {
    let mut editor = volume("quota-xxhash");
    let filesystem = editor.open();
    let logical: Logical = filesystem.superblock().root;
    editor.write(&filesystem, logical, &[0x5a; 64], None);
    expect(&editor, &["tree-block-damaged", "tree-missing"]);
}

#[test]
fn quotas() {
    let volume = volume("quota-xxhash");
    let (info, _) = volume.find(TreeId::QUOTA, ItemType::QGROUP_INFO, |_, _| true);
    for at in [8, 24] {
        let mut editor = volume.clone();
        editor.data(TreeId::QUOTA, &info, |data| add(data, at, 4096));
        expect(&editor, &["qgroup-count"]);
    }
    let mut editor = volume.clone();
    editor.remove(TreeId::QUOTA, &info);
    expect(&editor, &["qgroup-missing"]);
    let mut editor = volume.clone();
    let relation = key(info.offset, ItemType::QGROUP_RELATION, 9 << 48 | 77);
    editor.insert(TreeId::QUOTA, &relation, &[]);
    expect(&editor, &["qgroup-relation"]);
}

#[test]
fn simple_quotas() {
    let mut editor = volume("squota");
    let (info, _) = editor.find(TreeId::QUOTA, ItemType::QGROUP_INFO, |_, _| true);
    editor.data(TreeId::QUOTA, &info, |data| add(data, 8, 4096));
    expect(&editor, &["qgroup-count"]);
}

#[test]
fn quotas_that_are_inconsistent_are_a_state() {
    let mut editor = volume("quota-xxhash");
    let (info, _) = editor.find(TreeId::QUOTA, ItemType::QGROUP_INFO, |_, _| true);
    editor.data(TreeId::QUOTA, &info, |data| add(data, 8, 4096));
    let status = key(0, ItemType::QGROUP_STATUS, 0);
    editor.data(TreeId::QUOTA, &status, |data| data[16] |= 4);
    expect(&editor, &[]);
    let report = crate::check_it(&editor, false);
    assert!(report.notes.contains(&buttress_check::Note::QuotasInconsistent));
}
