//! Inodes from other items, root directories, and `lost+found`.

use super::{counts, names};
use crate::items::{Items, broken, is_subvolume, keys_of};
use crate::steps::Applied;
use buttress_format::{
    ByteCount, DirItem, FileKind, InodeExtrefs, InodeItem, InodeNumber, InodeRefs, ItemType, Key, OrphanItem,
    TreeId,
};
use buttress_fs::error::{Error, Result};

/// The name of the directory for inodes without a place.
const LOST_AND_FOUND: &[u8] = b"lost+found";

const TYPE_DIRECTORY: u32 = 0o040_000;
const PERMISSIONS: u32 = 0o7777;

/// The most entries of an inode that an edit examines one by one.
const ENTRIES_MAX: usize = 200;

/// Returns the mode of a new inode of a kind: for the owner only.
const fn mode_of(kind: FileKind) -> u32 {
    match kind {
        FileKind::Directory => 0o040_700,
        FileKind::Symlink => 0o120_777,
        FileKind::CharacterDevice => 0o020_600,
        FileKind::BlockDevice => 0o060_600,
        FileKind::Fifo => 0o010_600,
        FileKind::Socket => 0o140_600,
        _ => 0o100_600,
    }
}

fn new_inode(items: &Items<'_>, mode: u32) -> InodeItem {
    InodeItem {
        generation: items.generation(),
        nlink: 1,
        mode,
        ..InodeItem::empty(items.now)
    }
}

/// Sets the root directory of a root item to inode 256.
pub(super) fn set_root_directory(items: &mut Items<'_>, tree: TreeId) -> Result<Applied> {
    items.running.root_item_mut(tree)?.root_directory = InodeNumber::ROOT_DIRECTORY;
    Ok(Applied::Changed)
}

/// Makes the root directory of a tree, with its name `..` in itself.
pub(super) fn make_root_directory(items: &mut Items<'_>, tree: TreeId) -> Result<Applied> {
    let root = InodeNumber::ROOT_DIRECTORY;
    if items.inode(tree, root)?.is_none() {
        let item = new_inode(items, TYPE_DIRECTORY | 0o755);
        items.put_inode(tree, root, item)?;
    }
    name_root_directory(items, tree)?;
    counts::recount(items, tree, root)
}

/// Names the root directory `..` in itself, and nothing else.
pub(super) fn name_root_directory(items: &mut Items<'_>, tree: TreeId) -> Result<Applied> {
    let root = InodeNumber::ROOT_DIRECTORY;
    let mut data = Vec::new();
    InodeRefs::push(&mut data, 0, b"..").map_err(|_| Error::Invalid {
        what: "the name of a root directory",
    })?;
    items.put(tree, &InodeRefs::key(root, root), &data)?;
    Ok(Applied::Changed)
}

/// Makes an inode item from the other items of the inode.
pub(super) fn make(items: &mut Items<'_>, tree: TreeId, inode: InodeNumber) -> Result<Applied> {
    if items.inode(tree, inode)?.is_some() {
        return Ok(Applied::Nothing("the inode item exists"));
    }
    if inode == InodeNumber::ROOT_DIRECTORY {
        return make_root_directory(items, tree);
    }
    let sums = counts::sums(items, tree, inode)?;
    let kind = if sums.has_entries {
        FileKind::Directory
    } else {
        // Clamp: without an entry, nothing says that the inode is another kind than a file.
        kind_by_entries(items, tree, inode)?.unwrap_or(FileKind::Regular)
    };
    let is_file = matches!(kind, FileKind::Regular | FileKind::Symlink);
    let item = InodeItem {
        size: if is_file {
            ByteCount::new(sums.end)
        } else {
            ByteCount::ZERO
        },
        ..new_inode(items, mode_of(kind))
    };
    items.put_inode(tree, inode, item)?;
    counts::recount(items, tree, inode)?;
    Ok(Applied::Changed)
}

/// Returns the kind of an inode by the directory entries that its names lead to.
fn kind_by_entries(items: &mut Items<'_>, tree: TreeId, inode: InodeNumber) -> Result<Option<FileKind>> {
    let mut names = Vec::new();
    items.each(tree, keys_of(inode), &mut |key, data| {
        let fail = |error| broken(tree, error);
        let own = |name: buttress_format::InodeName<'_>| (name.parent, name.index);
        match key.item_type {
            ItemType::INODE_REF => names.extend(InodeRefs::parse(key, data).map_err(fail)?.map(own)),
            ItemType::INODE_EXTREF => names.extend(InodeExtrefs::parse(key, data).map_err(fail)?.map(own)),
            _ => {}
        }
        Ok(())
    })?;
    for (parent, index) in names {
        let entries = items.entries(tree, &DirItem::index_key(parent, index))?;
        let mut own = entries
            .iter()
            .filter(|entry| entry.location == InodeItem::key(inode));
        if let Some(entry) = own.next() {
            return Ok(Some(entry.kind));
        }
    }
    Ok(None)
}

/// Makes an inode with entries a directory if a child names it as parent. Otherwise, no child
/// records the entries, and they are removed.
pub(super) fn settle_directory(items: &mut Items<'_>, tree: TreeId, inode: InodeNumber) -> Result<Applied> {
    let Some(item) = items.inode(tree, inode)? else {
        return Ok(Applied::Nothing("the inode does not exist"));
    };
    if item.kind() == FileKind::Directory {
        return Ok(Applied::Nothing("the inode is a directory"));
    }
    let targets = names::targets_of(items, tree, inode.object_id())?;
    let mut is_parent = false;
    for (_, target, name) in &targets {
        let child = InodeNumber::new(target.objectid.get());
        is_parent |= !is_subvolume(target) && !items.recorded(tree, child, inode, name)?.is_empty();
    }
    if is_parent {
        if counts::sums(items, tree, inode)?.has_extents {
            return Ok(Applied::Nothing("the inode has both entries and extents"));
        }
        let mode = item.mode & PERMISSIONS | TYPE_DIRECTORY;
        items.put_inode(tree, inode, InodeItem { mode, ..item })?;
    } else {
        for (key, _, name) in targets.iter().take(ENTRIES_MAX) {
            items.remove_entries(tree, key, name)?;
        }
    }
    counts::recount(items, tree, inode)?;
    Ok(Applied::Changed)
}

/// Makes sure that a directory exists. A directory that is gone is made again in `lost+found`, so
/// that its names stay together. Returns the reason if the inode cannot be a directory.
pub(super) fn require_directory(
    items: &mut Items<'_>,
    tree: TreeId,
    directory: InodeNumber,
) -> Result<Option<&'static str>> {
    match items.inode(tree, directory)? {
        Some(item) if item.kind() == FileKind::Directory => Ok(None),
        Some(_) => Ok(Some("the parent is not a directory")),
        None if directory == InodeNumber::ROOT_DIRECTORY => {
            make_root_directory(items, tree)?;
            Ok(None)
        }
        None => {
            let item = new_inode(items, mode_of(FileKind::Directory));
            items.put_inode(tree, directory, item)?;
            adopt(items, tree, directory)?;
            Ok(None)
        }
    }
}

/// Gives an inode without names a name in `lost+found`. An inode without content is marked for
/// deletion instead.
pub(super) fn give_name(items: &mut Items<'_>, tree: TreeId, inode: InodeNumber) -> Result<Applied> {
    let Some(item) = items.inode(tree, inode)? else {
        return Ok(Applied::Nothing("the inode does not exist"));
    };
    let sums = counts::sums(items, tree, inode)?;
    if sums.names > 0 {
        return counts::recount(items, tree, inode);
    }
    let is_empty = !sums.has_entries && !sums.has_extents;
    if is_empty || tree.as_subvolume().is_none() {
        counts::recount(items, tree, inode)?;
        let key = OrphanItem::key(inode.object_id());
        items.put(tree, &key, &[])?;
        return Ok(Applied::Changed);
    }
    if item.kind() != FileKind::Directory && sums.has_entries {
        return Ok(Applied::Nothing("the inode has entries, but is not a directory"));
    }
    adopt(items, tree, inode)?;
    Ok(Applied::Changed)
}

/// Names an inode in `lost+found` by its number.
fn adopt(items: &mut Items<'_>, tree: TreeId, inode: InodeNumber) -> Result<()> {
    let directory = lost_and_found(items, tree)?;
    let name = inode.get().to_string();
    names::add(items, tree, directory, name.as_bytes(), &InodeItem::key(inode))
}

/// Returns the directory `lost+found` of a subvolume, made if it does not exist.
pub(super) fn lost_and_found(items: &mut Items<'_>, tree: TreeId) -> Result<InodeNumber> {
    let root = InodeNumber::ROOT_DIRECTORY;
    if items.inode(tree, root)?.is_none() {
        make_root_directory(items, tree)?;
    }
    let entries = items.entries(tree, &DirItem::key(root, LOST_AND_FOUND))?;
    for entry in entries.iter().filter(|entry| entry.name == LOST_AND_FOUND) {
        let inode = InodeNumber::new(entry.location.objectid.get());
        let is_inode = entry.location.item_type == ItemType::INODE_ITEM;
        if is_inode
            && items
                .inode(tree, inode)?
                .is_some_and(|item| item.kind() == FileKind::Directory)
        {
            return Ok(inode);
        }
    }
    let inode = free_number(items, tree)?;
    let item = new_inode(items, mode_of(FileKind::Directory));
    items.put_inode(tree, inode, item)?;
    names::add(items, tree, root, LOST_AND_FOUND, &InodeItem::key(inode))?;
    Ok(inode)
}

/// Returns an inode number after all of a tree to which no name leads.
fn free_number(items: &mut Items<'_>, tree: TreeId) -> Result<InodeNumber> {
    if items.named.is_cut {
        return Err(Error::Invalid {
            what: "the report leaves out names that lead to nothing, so no inode number is known to be free",
        });
    }
    let last = Key::new(buttress_format::ObjectId::LAST_FREE, ItemType(u8::MAX), u64::MAX);
    let highest = items
        .running
        .at_or_before(tree, &last)?
        .map_or(0, |item| item.key().objectid.get());
    // The root directory has the lowest number of any inode.
    let lowest = InodeNumber::ROOT_DIRECTORY.get().max(highest);
    let mut numbers = (lowest..last.objectid.get()).skip(1).map(InodeNumber::new);
    let free = numbers.find(|number| !items.named.inodes.contains(&(tree, *number)));
    free.ok_or(Error::TooMany {
        what: "the subvolume has no free inode number",
    })
}
