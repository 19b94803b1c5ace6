//! Inodes, names, file extents, checksums.

use crate::{expect, expect_with, volume};
use buttress_check::Finding;
use buttress_format::{
    DirItems, FileExtent, FileExtentBody, FileKind, InodeItem, InodeRefs, ItemType, Key, TreeId, name_hash,
};
use buttress_hostile::editor::{Editor, add, key};

const SIZE: usize = 16;
const NBYTES: usize = 24;
const NLINK: usize = 40;

/// The inode item of the first inode of a kind in the top level, the root directory left out.
fn inode(editor: &Editor, kind: FileKind) -> (Key, InodeItem) {
    let (key, data) = editor.find(TreeId::FS, ItemType::INODE_ITEM, |key, data| {
        key.objectid.get() > 256 && InodeItem::parse(key, data).is_ok_and(|inode| inode.kind() == kind)
    });
    (key, InodeItem::parse(&key, &data).unwrap())
}

/// Removes an item, and makes the directory as much smaller as a name was long.
fn remove_entry(editor: &mut Editor, entry: &Key, name_bytes: usize) {
    editor.remove(TreeId::FS, entry);
    let directory = key(entry.objectid.get(), ItemType::INODE_ITEM, 0);
    editor.data(TreeId::FS, &directory, |data| {
        add(data, SIZE, -i64::try_from(name_bytes).unwrap());
    });
}

/// The first entry of an item.
fn name_of(key: &Key, data: &[u8]) -> (Key, Vec<u8>) {
    let entry = DirItems::parse(key, data).unwrap().next().unwrap();
    (entry.location, entry.name.to_vec())
}

fn is_of_inode(key: &Key, data: &[u8]) -> bool {
    DirItems::parse(key, data)
        .is_ok_and(|mut entries| entries.all(|entry| entry.location.item_type == ItemType::INODE_ITEM))
}

pub(crate) fn plant_many(editor: &mut Editor) {
    for (key, data) in editor.items(TreeId::FS) {
        if key.item_type == ItemType::INODE_ITEM
            && InodeItem::parse(&key, &data).is_ok_and(|inode| inode.kind() == FileKind::Regular)
        {
            editor.data(TreeId::FS, &key, |data| add(data, NLINK, 1));
            editor.data(TreeId::FS, &key, |data| add(data, NBYTES, 4096));
        }
    }
}

#[test]
fn link_count() {
    let mut editor = volume("kinds");
    let (key, item) = inode(&editor, FileKind::Regular);
    editor.data(TreeId::FS, &key, |data| add(data, NLINK, 1));
    let found = expect(&editor, &["link-count"]);
    assert!(
        matches!(&found[..], [Finding::LinkCount { inode, stored, counted, .. }]
            if inode.get() == key.objectid.get() && *stored == item.nlink + 1 && *counted == u64::from(item.nlink)),
        "{found:?}"
    );
}

#[test]
fn directory_size() {
    let mut editor = volume("kinds");
    let (key, _) = inode(&editor, FileKind::Directory);
    editor.data(TreeId::FS, &key, |data| add(data, SIZE, 2));
    expect(&editor, &["directory-size"]);
}

#[test]
fn file_bytes() {
    let mut editor = volume("kinds");
    let (key, _) = inode(&editor, FileKind::Regular);
    editor.data(TreeId::FS, &key, |data| add(data, NBYTES, 4096));
    expect(&editor, &["file-bytes"]);
}

#[test]
fn entry_missing() {
    for item_type in [ItemType::DIR_INDEX, ItemType::DIR_ITEM] {
        let mut editor = volume("kinds");
        let (key, data) = editor.find(TreeId::FS, item_type, |key, data| {
            is_of_inode(key, data) && DirItems::parse(key, data).is_ok_and(|entries| entries.count() == 1)
        });
        let (_, name) = name_of(&key, &data);
        remove_entry(&mut editor, &key, name.len());
        let found = expect(&editor, &["entry-missing"]);
        let expected = item_type.name().unwrap();
        assert!(
            matches!(&found[..], [Finding::EntryMissing { missing, .. }] if *missing == expected),
            "{found:?}"
        );
    }
}

#[test]
fn link_missing() {
    let mut editor = volume("kinds");
    // A name of an inode that has several in one directory.
    let (key, data) = editor.find(TreeId::FS, ItemType::INODE_REF, |key, data| {
        InodeRefs::parse(key, data).is_ok_and(|names| names.count() > 1)
    });
    let first = InodeRefs::parse(&key, &data).unwrap().next().unwrap();
    let rest = data[10 + first.name.len()..].to_vec();
    editor.replace(TreeId::FS, &key, &rest);
    let item = Key::new(key.objectid, ItemType::INODE_ITEM, 0);
    editor.data(TreeId::FS, &item, |data| add(data, NLINK, -1));
    expect(&editor, &["link-missing"]);
}

#[test]
fn entry_without_inode() {
    let mut editor = volume("kinds");
    let (index, data) = editor.find(TreeId::FS, ItemType::DIR_INDEX, is_of_inode);
    let (_, name) = name_of(&index, &data);
    let hash = Key::new(index.objectid, ItemType::DIR_ITEM, name_hash(&name));
    for key in [index, hash] {
        editor.data(TreeId::FS, &key, |data| {
            data[..8].copy_from_slice(&99_999_u64.to_le_bytes())
        });
    }
    expect(&editor, &["entry-without-inode", "entry-missing"]);
}

#[test]
fn entry_kind() {
    let mut editor = volume("kinds");
    let (index, data) = editor.find(TreeId::FS, ItemType::DIR_INDEX, |key, data| {
        is_of_inode(key, data) && data[29] == FileKind::Regular.to_raw()
    });
    let (_, name) = name_of(&index, &data);
    let hash = Key::new(index.objectid, ItemType::DIR_ITEM, name_hash(&name));
    for key in [index, hash] {
        editor.data(TreeId::FS, &key, |data| data[29] = FileKind::Fifo.to_raw());
    }
    expect(&editor, &["entry-kind"]);
}

#[test]
fn entries_differ() {
    let mut editor = volume("kinds");
    let (index, data) = editor.find(TreeId::FS, ItemType::DIR_INDEX, |key, data| {
        !is_of_inode(key, data)
    });
    let (_, name) = name_of(&index, &data);
    let hash = Key::new(index.objectid, ItemType::DIR_ITEM, name_hash(&name));
    editor.data(TreeId::FS, &hash, |data| {
        data[..8].copy_from_slice(&99_999_u64.to_le_bytes())
    });
    expect(&editor, &["entries-differ", "subvolume-entry-missing"]);
}

#[test]
fn not_a_directory() {
    let mut editor = volume("kinds");
    let (item, _) = inode(&editor, FileKind::Fifo);
    let (index, data) = editor.find(TreeId::FS, ItemType::DIR_INDEX, is_of_inode);
    let (target, name) = name_of(&index, &data);
    for (item_type, offset) in [(ItemType::DIR_ITEM, name_hash(&name)), (ItemType::DIR_INDEX, 2)] {
        let mut entry = data.clone();
        entry[..8].copy_from_slice(&target.objectid.get().to_le_bytes());
        editor.insert(TreeId::FS, &Key::new(item.objectid, item_type, offset), &entry);
    }
    expect(&editor, &["not-a-directory", "link-missing"]);
}

#[test]
fn orphan_item_missing() {
    let mut editor = volume("kinds");
    let (_, data) = editor.find(TreeId::FS, ItemType::INODE_ITEM, |key, data| {
        InodeItem::parse(key, data).is_ok_and(|inode| inode.kind() == FileKind::Fifo)
    });
    let mut orphan = data;
    orphan[NLINK..NLINK + 4].fill(0);
    let number = 1 << 40;
    editor.insert(TreeId::FS, &key(number, ItemType::INODE_ITEM, 0), &orphan);
    expect(&editor, &["orphan-item-missing"]);
    let item = key(0u64.wrapping_sub(5), ItemType::ORPHAN_ITEM, number);
    editor.insert(TreeId::FS, &item, &[]);
    expect(&editor, &[]);
    // Left over from an inode that is gone: no damage.
    let item = key(0u64.wrapping_sub(5), ItemType::ORPHAN_ITEM, number + 1);
    editor.insert(TreeId::FS, &item, &[]);
    expect(&editor, &[]);
}

#[test]
fn content_unexpected() {
    let mut editor = volume("kinds");
    let (item, _) = inode(&editor, FileKind::Fifo);
    let (_, inline) = editor.find(TreeId::FS, ItemType::EXTENT_DATA, |key, data| {
        FileExtent::parse(key, data, 4096)
            .is_ok_and(|extent| matches!(extent.body, FileExtentBody::Inline(content) if content.len() < 200))
    });
    let at = Key::new(item.objectid, ItemType::EXTENT_DATA, 0);
    editor.insert(TreeId::FS, &at, &inline);
    expect(&editor, &["content-unexpected"]);
}

#[test]
fn hole_item_missing() {
    let mut editor = volume("old");
    let (key, _) = inode(&editor, FileKind::Regular);
    editor.data(TreeId::FS, &key, |data| add(data, SIZE, 1 << 20));
    expect(&editor, &["hole-item-missing"]);
}

#[test]
fn inode_missing() {
    let mut editor = volume("kinds");
    // An inode item at the end of a leaf: inside one, the check of the leaf itself tells.
    let border = editor
        .borders(TreeId::FS)
        .into_iter()
        .find(|(last, next)| last.item_type == ItemType::INODE_ITEM && last.objectid == next.objectid);
    let Some((last, _)) = border else {
        panic!("no leaf of the volume ends with an inode item");
    };
    editor.remove(TreeId::FS, &last);
    let report = crate::check_it(&editor, false);
    assert!(
        report.counts.contains_key("inode-missing"),
        "{}",
        crate::text(&report)
    );
}

#[test]
fn root_directory_missing() {
    let mut editor = volume("kinds");
    let (place, _) = editor.find(TreeId::ROOT, ItemType::ROOT_REF, |_, _| true);
    let tree = TreeId::new(place.offset);
    for (key, _) in editor.items(tree).into_iter().rev() {
        editor.remove(tree, &key);
    }
    let report = crate::check_it(&editor, false);
    assert!(
        report.counts.contains_key("root-directory-missing"),
        "{}",
        crate::text(&report)
    );
}

#[test]
fn checksum_surplus() {
    let mut editor = volume("kinds");
    let at = key(0u64.wrapping_sub(10), ItemType::EXTENT_CSUM, 1 << 40);
    editor.insert(TreeId::CHECKSUM, &at, &[1, 2, 3, 4]);
    expect(&editor, &["checksum-surplus"]);
}

#[test]
fn checksum_missing() {
    let mut editor = volume("kinds");
    let (at, data) = editor.find(TreeId::CHECKSUM, ItemType::EXTENT_CSUM, |_, _| true);
    if data.len() > 4 {
        editor.replace(TreeId::CHECKSUM, &at, &data[..data.len() - 4]);
    } else {
        editor.remove(TreeId::CHECKSUM, &at);
    }
    expect(&editor, &["checksum-missing"]);
}

#[test]
fn data_damaged() {
    let mut editor = volume("kinds");
    let (at, _) = editor.find(TreeId::CHECKSUM, ItemType::EXTENT_CSUM, |_, _| true);
    let filesystem = editor.open();
    let logical = buttress_format::Logical::new(at.offset);
    editor.write(&filesystem, logical, &[0x5a; 100], None);
    expect(&editor, &[]);
    let found = expect_with(&editor, true, &["data-damaged"]);
    assert!(
        matches!(&found[..], [Finding::DataDamaged { logical: lost, length }]
            if *lost == logical && length.get() == 4096),
        "{found:?}"
    );
    let report = crate::check_it(&editor, true);
    assert!(
        !report.findings[0].affected.is_empty(),
        "{}",
        crate::text(&report)
    );
}

#[test]
fn data_copy_damaged() {
    let mut editor = volume("raid1");
    let (at, _) = editor.find(TreeId::CHECKSUM, ItemType::EXTENT_CSUM, |_, _| true);
    let filesystem = editor.open();
    let logical = buttress_format::Logical::new(at.offset);
    editor.write(&filesystem, logical, &[0x5a; 100], Some(1));
    expect_with(&editor, true, &["data-copy-damaged"]);
}
