//! Damage of names: the two forms of a directory entry, and the names of an inode.

use super::super::Plant;
use super::{NLINK, SIZE, inode, is_of_inode, name_of};
use crate::editor::{Editor, add, key};
use buttress_format::{DirItems, FileKind, InodeRefs, ItemType, Key, TreeId, name_hash};

/// Adds the growth of names to a directory's size.
fn resize(editor: &mut Editor, directory: u64, more: i64) {
    let item = key(directory, ItemType::INODE_ITEM, 0);
    editor.data(TreeId::FS, &item, |data| add(data, SIZE, more));
}

/// Removes a name in one of its two forms.
fn remove_entry(editor: &mut Editor, item_type: ItemType) {
    let (key, data) = editor.find(TreeId::FS, item_type, |key, data| {
        is_of_inode(key, data) && DirItems::parse(key, data).is_ok_and(|entries| entries.count() == 1)
    });
    let (_, name) = name_of(&key, &data);
    editor.remove(TreeId::FS, &key);
    resize(
        editor,
        key.objectid.get(),
        -i64::try_from(name.len()).unwrap_or(0),
    );
}

/// Returns a DIR_INDEX that `wanted` accepts, and the DIR_ITEM of the same name.
fn both_forms(editor: &Editor, wanted: impl Fn(&Key, &[u8]) -> bool) -> (Key, Key, Vec<u8>) {
    let (index, data) = editor.find(TreeId::FS, ItemType::DIR_INDEX, wanted);
    let (_, name) = name_of(&index, &data);
    let hash = Key::new(index.objectid, ItemType::DIR_ITEM, name_hash(&name));
    (index, hash, data)
}

pub(super) const PLANTS: &[Plant] = &[
    Plant::new(
        "entry-missing-index",
        "kinds",
        "a DIR_INDEX removed",
        &["entry-missing"],
        |editor| remove_entry(editor, ItemType::DIR_INDEX),
    ),
    Plant::new(
        "entry-missing-item",
        "kinds",
        "a DIR_ITEM removed",
        &["entry-missing"],
        |editor| remove_entry(editor, ItemType::DIR_ITEM),
    ),
    Plant::new(
        "link-missing",
        "kinds",
        "a name removed from an inode with several names",
        &["link-missing"],
        |editor| {
            let (at, data) = editor.find(TreeId::FS, ItemType::INODE_REF, |key, data| {
                InodeRefs::parse(key, data).is_ok_and(|names| names.count() > 1)
            });
            let first = usize::from(data[8]) | usize::from(data[9]) << 8;
            editor.replace(TreeId::FS, &at, &data[10 + first..]);
            let item = Key::new(at.objectid, ItemType::INODE_ITEM, 0);
            editor.data(TreeId::FS, &item, |data| add(data, NLINK, -1));
        },
    ),
    Plant::new(
        "entry-without-inode",
        "kinds",
        "an entry points to a missing inode",
        &["entry-without-inode", "entry-missing"],
        |editor| {
            let (index, hash, _) = both_forms(editor, is_of_inode);
            for key in [index, hash] {
                editor.data(TreeId::FS, &key, |data| {
                    data[..8].copy_from_slice(&99_999_u64.to_le_bytes())
                });
            }
        },
    ),
    Plant::new(
        "entry-kind",
        "kinds",
        "the entry of a file has the type of a pipe",
        &["entry-kind"],
        |editor| {
            let (index, hash, _) = both_forms(editor, |key, data| {
                is_of_inode(key, data) && data[29] == FileKind::Regular.to_raw()
            });
            for key in [index, hash] {
                editor.data(TreeId::FS, &key, |data| data[29] = FileKind::Fifo.to_raw());
            }
        },
    ),
    Plant::new(
        "entries-differ",
        "kinds",
        "the DIR_ITEM of a subvolume points to another subvolume",
        &["entries-differ", "subvolume-entry-missing"],
        |editor| {
            let (_, hash, _) = both_forms(editor, |key, data| !is_of_inode(key, data));
            editor.data(TreeId::FS, &hash, |data| {
                data[..8].copy_from_slice(&99_999_u64.to_le_bytes())
            });
        },
    ),
    Plant::new(
        "not-a-directory",
        "kinds",
        "a pipe has an entry",
        &["not-a-directory", "link-missing"],
        |editor| {
            let (item, _) = inode(editor, FileKind::Fifo);
            let (index, hash, data) = both_forms(editor, is_of_inode);
            let (target, _) = name_of(&index, &data);
            for (item_type, offset) in [(ItemType::DIR_ITEM, hash.offset), (ItemType::DIR_INDEX, 2)] {
                let mut entry = data.clone();
                entry[..8].copy_from_slice(&target.objectid.get().to_le_bytes());
                editor.insert(TreeId::FS, &Key::new(item.objectid, item_type, offset), &entry);
            }
        },
    ),
    Plant::new(
        "name-twice",
        "kinds",
        "a file has the same name twice, in all forms of it",
        &["name-twice"],
        |editor| {
            // The name is alone in its DIR_ITEM and INODE_REF, and its file has one link.
            let (index, hash, data) = both_forms(editor, |key, data| {
                let (target, name) = name_of(key, data);
                let inode =
                    crate::editor::key(target.objectid.get(), ItemType::INODE_REF, key.objectid.get());
                is_of_inode(key, data)
                    && data[29] == FileKind::Regular.to_raw()
                    && !editor.leads_a_leaf(TreeId::FS, &inode)
                    && editor
                        .items(TreeId::FS)
                        .iter()
                        .any(|(other, names)| *other == inode && names.len() == 10 + name.len())
            });
            let (target, name) = name_of(&index, &data);
            let (last, _) = editor
                .items(TreeId::FS)
                .into_iter()
                .rfind(|(key, _)| key.objectid == index.objectid && key.item_type == ItemType::DIR_INDEX)
                .expect("there is one");
            let again = last.offset + 1000;
            editor.insert(
                TreeId::FS,
                &Key {
                    offset: again,
                    ..last
                },
                &data,
            );
            editor.replace(TreeId::FS, &hash, &[&data[..], &data[..]].concat());
            let names = Key::new(target.objectid, ItemType::INODE_REF, index.objectid.get());
            let name_of_inode = |index: u64| {
                let length = u16::try_from(name.len()).unwrap_or(0).to_le_bytes();
                [&index.to_le_bytes()[..], &length[..], &name[..]].concat()
            };
            let both = [name_of_inode(index.offset), name_of_inode(again)].concat();
            editor.replace(TreeId::FS, &names, &both);
            let item = Key::new(target.objectid, ItemType::INODE_ITEM, 0);
            editor.data(TreeId::FS, &item, |data| add(data, NLINK, 1));
            let more = i64::try_from(2 * name.len()).unwrap_or(0);
            resize(editor, index.objectid.get(), more);
        },
    ),
    Plant::new(
        "root-directory-name",
        "kinds",
        "the root directory has another name in itself than `..`",
        &["root-directory-name"],
        |editor| {
            let at = key(256, ItemType::INODE_REF, 256);
            editor.data(TreeId::FS, &at, |data| data[10] = b'x');
        },
    ),
];
