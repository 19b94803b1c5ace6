//! Rules for items of files that need no more than the item, and the inode where it lies in the same leaf.
//!
//! The checks of a block let through what the kernel's do. What it passes over, and `btrfs check` does not, is here.

use crate::block_scan::Walk;
use crate::facts::is_own_parent;
use crate::finding::Finding;
use buttress_format::directory::RawDirItem;
use buttress_format::{
    DirItems, FileExtent, FileExtentBody, FileKind, FileOffset, Generation, InodeExtrefs, InodeFlags,
    InodeItem, InodeNumber, InodeRefs, ItemType, Key, ObjectId, SubvolumeId,
};
use buttress_fs::Name;
use buttress_tree::BlockPointer;

/// A symlink cannot be opened, so nobody can have set these flags; new inodes do not inherit them.
const NOT_FOR_SYMLINKS: InodeFlags = InodeFlags::IMMUTABLE.union(InodeFlags::APPEND);

/// Flags that an inode of its kind may have. A cache of inode numbers is told of.
pub(crate) fn check_flags(walk: &Walk<'_>, pointer: &BlockPointer, key: &Key, inode: &InodeItem) {
    let Some(subvolume) = pointer.tree.as_subvolume() else {
        return;
    };
    if key.objectid == ObjectId::FREE_INODE {
        walk.check.note(crate::Note::InodeCache { subvolume });
    }
    if inode.flags.intersects(NOT_FOR_SYMLINKS) && inode.kind() == FileKind::Symlink {
        walk.check.find(Finding::InodeFlags {
            subvolume,
            inode: InodeNumber::new(key.objectid.get()),
            flags: inode.flags.bits(),
        });
    }
}

/// What one file extent item says by itself.
pub(crate) fn check_extent(
    walk: &Walk<'_>,
    pointer: &BlockPointer,
    key: &Key,
    extent: &FileExtent<'_>,
    inode: Option<&InodeItem>,
) {
    let Some(subvolume) = pointer.tree.as_subvolume() else {
        return;
    };
    let number = InodeNumber::new(key.objectid.get());
    let limit = Generation::new(walk.check.superblock().generation.get().saturating_add(1));
    if extent.generation > limit {
        walk.check.find(Finding::FileExtentGeneration {
            subvolume,
            inode: number,
            offset: FileOffset::new(key.offset),
            generation: extent.generation,
            limit,
        });
    }
    let is_symlink = inode.is_some_and(|inode| inode.kind() == FileKind::Symlink);
    if is_symlink && !matches!(extent.body, FileExtentBody::Inline(_)) {
        let inode = number;
        walk.check.find(Finding::SymlinkContent { subvolume, inode });
    }
}

/// A name is in a directory once. Names of equal hash share an item, and so do the names of an inode in one directory: so
/// a name that is there twice is twice in an item.
pub(crate) fn check_names(walk: &Walk<'_>, pointer: &BlockPointer, key: &Key, data: &[u8]) {
    // Nearly all items hold one name.
    if holds_one(key, data) && key.objectid != InodeNumber::ROOT_DIRECTORY.object_id() {
        return;
    }
    let Some(subvolume) = pointer.tree.as_subvolume() else {
        return;
    };
    match key.item_type {
        ItemType::DIR_ITEM => {
            let directory = InodeNumber::new(key.objectid.get());
            let names = DirItems::parse(key, data).into_iter().flatten();
            let names = names.map(|entry| (directory, entry.name));
            check_twice(walk, subvolume, key, names);
        }
        ItemType::INODE_REF => {
            let inode = InodeNumber::new(key.objectid.get());
            for name in InodeRefs::parse(key, data).into_iter().flatten() {
                if is_own_parent(inode, &name) && (name.name, name.index) != (b"..", 0) {
                    walk.check.find(Finding::RootDirectoryName {
                        subvolume,
                        name: Name::from(name.name),
                        index: name.index,
                    });
                }
            }
            let names = InodeRefs::parse(key, data).into_iter().flatten();
            check_twice(walk, subvolume, key, names.map(|name| (name.parent, name.name)));
        }
        _ => {
            let names = InodeExtrefs::parse(key, data).into_iter().flatten();
            check_twice(walk, subvolume, key, names.map(|name| (name.parent, name.name)));
        }
    }
}

/// Whether the first name of an item fills it, by the length that its head says: a `DIR_ITEM`, `INODE_REF` or `INODE_EXTREF`.
fn holds_one(key: &Key, data: &[u8]) -> bool {
    let (length_at, head) = match key.item_type {
        ItemType::DIR_ITEM => (27, size_of::<RawDirItem>()),
        ItemType::INODE_REF => (8, 10),
        _ => (16, 18),
    };
    let length = data.get(length_at..).and_then(|rest| rest.first_chunk());
    length.is_some_and(|length| head.saturating_add(u16::from_le_bytes(*length).into()) >= data.len())
}

/// Finds names that are there more than once.
fn check_twice<'a>(
    walk: &Walk<'_>,
    subvolume: SubvolumeId,
    key: &Key,
    mut names: impl Iterator<Item = (InodeNumber, &'a [u8])>,
) {
    let (Some(first), Some(second)) = (names.next(), names.next()) else {
        return;
    };
    let mut all = vec![first, second];
    all.extend(names);
    all.sort_unstable();
    for pair in all.windows(2) {
        if let [(directory, name), next] = pair
            && (*directory, *name) == *next
        {
            walk.check.find(Finding::NameTwice {
                subvolume,
                directory: *directory,
                name: Name::from(*name),
                key: *key,
            });
        }
    }
}
