//! The records of one name: `DIR_ITEM`, `DIR_INDEX`, and the record of the target.

use crate::items::{Entry, Items, Place, broken, is_subvolume, keys_of_type, subvolume_of};
use buttress_format::{DirItem, DirItems, FileKind, InodeNumber, ItemType, Key, ObjectId, RootRef, TreeId};
use buttress_fs::error::{Error, Name, Result};

/// The number of names `NAME~2`, `NAME~3` … that are tried.
const TRIES: u32 = 1000;

/// The longest name, in bytes.
const NAME_BYTES_MAX: usize = 255;

/// A name in a directory, whose records are being settled.
pub(super) struct Spot<'a> {
    pub(super) tree: TreeId,
    pub(super) directory: InodeNumber,
    pub(super) name: &'a [u8],
}

impl Spot<'_> {
    pub(super) fn item_key(&self) -> Key {
        DirItem::key(self.directory, self.name)
    }
}

pub(super) const fn inode_of(target: &Key) -> InodeNumber {
    InodeNumber::new(target.objectid.get())
}

/// Returns the location of a subvolume in a directory entry.
pub(super) const fn subvolume_location(child: TreeId) -> Key {
    Key::new(child.object_id(), ItemType::ROOT_ITEM, u64::MAX)
}

pub(super) fn place_keys(spot: &Spot<'_>, target: &Key) -> [Key; 2] {
    let child = TreeId::new(target.objectid.get());
    RootRef::keys(subvolume_of(spot.tree), subvolume_of(child))
}

/// Writes both items of an entry, and the record of its target. The placeholder of a subvolume has
/// no record.
pub(super) fn write(
    items: &mut Items<'_>,
    spot: &Spot<'_>,
    target: &Key,
    index: u64,
    is_recorded: bool,
) -> Result<()> {
    let kind = if is_subvolume(target) {
        FileKind::Directory
    } else {
        let item = items.inode(spot.tree, inode_of(target))?;
        // Clamp: the caller has seen the inode.
        item.map_or(FileKind::Unknown, |item| item.kind())
    };
    let entry = Entry {
        location: *target,
        transid: items.generation(),
        kind,
        name: spot.name.to_vec(),
    };
    items.add_entry(spot.tree, &spot.item_key(), &entry)?;
    let key = DirItem::index_key(spot.directory, index);
    items.add_entry(spot.tree, &key, &entry)?;
    if !is_subvolume(target) {
        return items.record(spot.tree, inode_of(target), spot.directory, index, spot.name);
    }
    if is_recorded {
        let place = Place {
            directory: spot.directory,
            index,
            name: spot.name.to_vec(),
        };
        let data = place.encode()?;
        for key in place_keys(spot, target) {
            items.put(TreeId::ROOT, &key, &data)?;
        }
    }
    Ok(())
}

/// Gives a target a new name in a directory, with all records.
pub(super) fn add(
    items: &mut Items<'_>,
    tree: TreeId,
    directory: InodeNumber,
    name: &[u8],
    target: &Key,
) -> Result<()> {
    let spot = Spot {
        tree,
        directory,
        name,
    };
    let taken = items.entries(tree, &spot.item_key())?;
    let other;
    let spot = if taken.iter().any(|entry| entry.name == name) {
        other = free_name(items, &spot)?;
        Spot { name: &other, ..spot }
    } else {
        spot
    };
    let index = items.free_index(tree, directory)?;
    write(items, &spot, target, index, true)?;
    items.touch(tree, directory);
    if !is_subvolume(target) {
        items.touch(tree, inode_of(target));
    }
    Ok(())
}

/// Returns a name `NAME~2`, `NAME~3` … that the directory does not have.
pub(super) fn free_name(items: &mut Items<'_>, spot: &Spot<'_>) -> Result<Vec<u8>> {
    for number in 2..TRIES {
        let suffix = format!("~{number}").into_bytes();
        // Clamp: the suffix is shorter than the longest name.
        let kept = spot.name.len().min(NAME_BYTES_MAX.saturating_sub(suffix.len()));
        let mut name = spot.name.get(..kept).map(<[u8]>::to_vec).unwrap_or_default();
        name.extend_from_slice(&suffix);
        let key = DirItem::key(spot.directory, &name);
        let taken = items.entries(spot.tree, &key)?;
        if !taken.iter().any(|entry| entry.name == name) {
            return Ok(name);
        }
    }
    Err(Error::Exists {
        name: Name::from(spot.name),
    })
}

/// Returns the subvolumes and inodes that the entries of a directory lead to, with their names.
pub(super) fn targets_of(
    items: &mut Items<'_>,
    tree: TreeId,
    directory: ObjectId,
) -> Result<Vec<(Key, Key, Vec<u8>)>> {
    let mut found = Vec::new();
    for item_type in [ItemType::DIR_ITEM, ItemType::DIR_INDEX] {
        items.each(tree, keys_of_type(directory, item_type), &mut |key, data| {
            let entries = DirItems::parse(key, data).map_err(|error| broken(tree, error))?;
            for entry in entries {
                found.push((*key, entry.location, entry.name.to_vec()));
            }
            Ok(())
        })?;
    }
    Ok(found)
}

/// Removes both items of an entry if they lead to a subvolume.
pub(super) fn remove_target(items: &mut Items<'_>, tree: TreeId, place: &Place, child: TreeId) -> Result<()> {
    for key in [
        DirItem::index_key(place.directory, place.index),
        DirItem::key(place.directory, &place.name),
    ] {
        let entries = items.entries(tree, &key)?;
        let leads_there =
            |entry: &Entry| is_subvolume(&entry.location) && entry.location.objectid == child.object_id();
        if entries
            .iter()
            .any(|entry| entry.name == place.name && leads_there(entry))
        {
            items.remove_entries(tree, &key, &place.name)?;
        }
    }
    items.touch(tree, place.directory);
    Ok(())
}
