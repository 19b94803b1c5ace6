//! Damage to files: inodes, names, content.
//!
//! This module finds items to damage. Each part has the plants of one kind of item.

mod content;
mod inodes;
mod names;

use super::Plant;
use crate::editor::{Editor, key};
use buttress_format::{DirItems, FileKind, InodeItem, ItemType, Key, TreeId};

pub(super) const PLANTS: [&[Plant]; 3] = [inodes::PLANTS, names::PLANTS, content::PLANTS];

/// Byte offsets of the fields in an inode item.
const SIZE: usize = 16;
const NBYTES: usize = 24;
const NLINK: usize = 40;
const FLAGS: usize = 64;

/// Returns the inode item of the first inode of a kind in the top level, except the root directory.
fn inode(editor: &Editor, kind: FileKind) -> (Key, InodeItem) {
    let (key, data) = editor.find(TreeId::FS, ItemType::INODE_ITEM, |key, data| {
        key.objectid.get() > 256 && InodeItem::parse(key, data).is_ok_and(|inode| inode.kind() == kind)
    });
    let inode = InodeItem::parse(&key, &data).expect("it was found");
    (key, inode)
}

/// Returns location and name of the first entry of an item.
fn name_of(key: &Key, data: &[u8]) -> (Key, Vec<u8>) {
    let entry = DirItems::parse(key, data).expect("it is sound").next();
    let entry = entry.expect("it holds a name");
    (entry.location, entry.name.to_vec())
}

fn is_of_inode(key: &Key, data: &[u8]) -> bool {
    DirItems::parse(key, data)
        .is_ok_and(|mut entries| entries.all(|entry| entry.location.item_type == ItemType::INODE_ITEM))
}

fn orphan_key(inode: u64) -> Key {
    key(0_u64.wrapping_sub(5), ItemType::ORPHAN_ITEM, inode)
}

fn set_flags(editor: &mut Editor, inode: &Key, flags: u8) {
    editor.data(TreeId::FS, inode, |data| data[FLAGS] |= flags);
}
