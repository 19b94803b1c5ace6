//! Damage of inode items: counts, flags, orphans, missing inodes.

use super::super::Plant;
use super::{NBYTES, NLINK, SIZE, inode, is_of_inode, name_of, orphan_key, set_flags};
use crate::editor::{Editor, add, key};
use buttress_format::{FileKind, ItemType, TreeId, name_hash};

/// Inserts an inode without links, with size and bytes as in the middle of a deletion.
fn insert_unlinked(editor: &mut Editor, number: u64) {
    let (key_of_file, _) = inode(editor, FileKind::Regular);
    let (_, mut data) = editor.find(TreeId::FS, ItemType::INODE_ITEM, |key, _| *key == key_of_file);
    data[NLINK..NLINK + 4].fill(0);
    data[SIZE..SIZE + 8].copy_from_slice(&123_456_u64.to_le_bytes());
    data[NBYTES..NBYTES + 8].copy_from_slice(&65_536_u64.to_le_bytes());
    editor.insert(TreeId::FS, &key(number, ItemType::INODE_ITEM, 0), &data);
}

pub(super) const PLANTS: &[Plant] = &[
    Plant::new(
        "link-count",
        "kinds",
        "a file's link count is one too large",
        &["link-count"],
        |editor| {
            let (key, _) = inode(editor, FileKind::Regular);
            editor.data(TreeId::FS, &key, |data| add(data, NLINK, 1));
        },
    ),
    Plant::new(
        "directory-size",
        "kinds",
        "the size of a directory is wrong",
        &["directory-size"],
        |editor| {
            let (key, _) = inode(editor, FileKind::Directory);
            editor.data(TreeId::FS, &key, |data| add(data, SIZE, 2));
        },
    ),
    Plant::new(
        "file-bytes",
        "kinds",
        "the byte count of a file is wrong",
        &["file-bytes"],
        |editor| {
            let (key, _) = inode(editor, FileKind::Regular);
            editor.data(TreeId::FS, &key, |data| add(data, NBYTES, 4096));
        },
    ),
    Plant::new(
        "root-inode-missing",
        "kinds",
        "the root directory of the data relocation tree has another number",
        &["root-inode-missing", "link-count"],
        |editor| {
            // The removed name is `..`, which no other inode may have.
            editor.remove(TreeId::DATA_RELOCATION, &key(256, ItemType::INODE_REF, 256));
            let inode = key(256, ItemType::INODE_ITEM, 0);
            editor.leaf(TreeId::DATA_RELOCATION, &inode, |leaf, slot| {
                let to = crate::editor::key(257, ItemType::INODE_ITEM, 0);
                assert!(slot.is_ok_and(|slot| leaf.set_key(slot, &to)));
            });
        },
    ),
    Plant::new(
        "orphan-item-missing",
        "kinds",
        "an inode without links and without an orphan item",
        &["orphan-item-missing", "file-bytes"],
        |editor| insert_unlinked(editor, 1 << 40),
    ),
    Plant::new(
        "orphan",
        "kinds",
        "no damage: an inode is pending deletion, and half of its items are gone",
        &[],
        |editor| {
            insert_unlinked(editor, 1 << 40);
            editor.insert(TreeId::FS, &orphan_key(1 << 40), &[]);
        },
    )
    .noting(&["orphans"]),
    Plant::new(
        "orphan-directory",
        "quota-xxhash",
        "no damage: a directory and its child are pending deletion, and the name still connects them",
        &[],
        |editor| {
            let (directory, child) = (1 << 40, (1 << 40) + 1);
            for number in [directory, child] {
                insert_unlinked(editor, number);
                editor.insert(TreeId::FS, &orphan_key(number), &[]);
            }
            let (_, mut entry) = editor.find(TreeId::FS, ItemType::DIR_INDEX, |key, data| {
                is_of_inode(key, data) && data[29] == FileKind::Regular.to_raw()
            });
            let (_, name) = name_of(&key(directory, ItemType::DIR_INDEX, 2), &entry);
            editor.data(TreeId::FS, &key(directory, ItemType::INODE_ITEM, 0), |data| {
                data[52..54].copy_from_slice(&0o40_755_u16.to_le_bytes());
                data[SIZE..SIZE + 8].copy_from_slice(&(2 * name.len() as u64).to_le_bytes());
                data[NBYTES..NBYTES + 8].fill(0);
            });
            entry[..8].copy_from_slice(&child.to_le_bytes());
            for (item_type, offset) in [(ItemType::DIR_ITEM, name_hash(&name)), (ItemType::DIR_INDEX, 2)] {
                editor.insert(TreeId::FS, &key(directory, item_type, offset), &entry);
            }
        },
    )
    .noting(&["orphans"]),
    Plant::new(
        "orphan-item-left-over",
        "kinds",
        "no damage: an orphan item whose inode is gone",
        &[],
        |editor| editor.insert(TreeId::FS, &orphan_key(1 << 40), &[]),
    )
    .noting(&["orphan-item-left-over"]),
    Plant::new(
        "orphan-item-of-a-file",
        "kinds",
        "no damage: an orphan item of a file that has links, as kernels before 4.19 wrote for a truncation",
        &[],
        |editor| {
            let (file, _) = inode(editor, FileKind::Regular);
            editor.insert(TreeId::FS, &orphan_key(file.objectid.get()), &[]);
        },
    )
    .noting(&["orphans"]),
    Plant::new(
        "inode-flags",
        "kinds",
        "a symlink is immutable",
        &["inode-flags"],
        |editor| {
            let (link, _) = inode(editor, FileKind::Symlink);
            set_flags(editor, &link, 1 << 6);
        },
    ),
    Plant::new(
        "inode-flags-inherited",
        "kinds",
        "no damage: a symlink has the nodatacow flag of its directory",
        &[],
        |editor| {
            let (link, _) = inode(editor, FileKind::Symlink);
            set_flags(editor, &link, 1 << 1);
        },
    ),
    Plant::new(
        "inode-missing",
        "kinds",
        "the inode item at the end of a leaf removed",
        &["inode-missing", "entry-without-inode"],
        |editor| {
            // The check of a leaf would find the damage inside that leaf, so it goes across a
            // border.
            let mut borders = editor.borders(TreeId::FS).into_iter();
            let border = borders.find(|(last, next)| {
                last.item_type == ItemType::INODE_ITEM && last.objectid == next.objectid
            });
            let (last, _) = border.expect("a leaf of the volume ends with an inode item");
            editor.remove(TreeId::FS, &last);
        },
    ),
];
