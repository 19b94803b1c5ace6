//! Entries of directories and their targets.
//!
//! Source: on-disk format documentation, section "DIR_ITEM".

use buttress_format::{
    DirItem, DirItems, FileKind, InodeItem, InodeNumber, ItemType, Key, SubvolumeId, TreeId,
};
use buttress_fs::error::{Corruption, Name, Result};
use buttress_fs::location::Location;

/// An entry of a directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The target.
    pub target: Target,
    /// The kind of file that the entry names.
    pub kind: FileKind,
}

/// An inode of the same subvolume, or another subvolume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target {
    /// An inode of the same subvolume.
    Inode(InodeNumber),
    /// Another subvolume.
    Subvolume(SubvolumeId),
}

impl Target {
    /// Returns the target of an item's entry.
    pub fn of(directory: Location, item: &DirItem<'_>) -> Result<Self> {
        let number = item.location.objectid.get();
        match (item.location.item_type, TreeId::new(number).as_subvolume()) {
            (ItemType::INODE_ITEM, _) => Ok(Self::Inode(InodeNumber::new(number))),
            (ItemType::ROOT_ITEM, Some(id)) => Ok(Self::Subvolume(id)),
            _ => Err(Corruption::EntryTargetInvalid {
                directory,
                name: Name::from(item.name),
                target: item.location,
            }
            .into()),
        }
    }

    /// The key that an entry holds. For subvolumes the offset says nothing: there is one root item of each.
    #[must_use]
    pub fn key(self) -> Key {
        match self {
            Self::Inode(inode) => InodeItem::key(inode),
            Self::Subvolume(id) => Key::new(id.tree().object_id(), ItemType::ROOT_ITEM, u64::MAX),
        }
    }

    /// Returns the location of the target, for an entry in `directory`.
    pub fn location(self, directory: Location) -> Location {
        match self {
            Self::Inode(inode) => Location::new(directory.subvolume, inode),
            Self::Subvolume(id) => Location::root_of(id),
        }
    }
}

/// The entry of this name in the item of its hash, or `None`.
pub fn entry_in(directory: Location, key: &Key, data: &[u8], name: &[u8]) -> Result<Option<Entry>> {
    let tree = directory.subvolume.tree();
    let mut entries = DirItems::parse(key, data).map_err(|error| Corruption::Item { tree, error })?;
    let Some(entry) = entries.find(|entry| entry.name == name) else {
        return Ok(None);
    };
    Ok(Some(Entry {
        target: Target::of(directory, &entry)?,
        kind: entry.kind,
    }))
}
