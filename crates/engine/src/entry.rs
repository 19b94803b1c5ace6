//! Directory entries and the inodes or subvolumes that they name.
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
    /// The inode or subvolume that the entry names.
    pub target: Target,
    /// The file type that the entry records.
    pub kind: FileKind,
}

/// The inode or subvolume that a directory entry names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target {
    /// An inode of the same subvolume.
    Inode(InodeNumber),
    /// Another subvolume.
    Subvolume(SubvolumeId),
}

impl Target {
    /// Returns the target of a directory item.
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

    /// Returns the key that an entry stores for this target. For a subvolume the key's offset has
    /// no meaning, because each subvolume has one root item.
    #[must_use]
    pub fn key(self) -> Key {
        match self {
            Self::Inode(inode) => InodeItem::key(inode),
            Self::Subvolume(id) => Key::new(id.tree().object_id(), ItemType::ROOT_ITEM, u64::MAX),
        }
    }

    /// Returns the location of the entry's target, for an entry in `directory`.
    pub fn location(self, directory: Location) -> Location {
        match self {
            Self::Inode(inode) => Location::new(directory.subvolume, inode),
            Self::Subvolume(id) => Location::root_of(id),
        }
    }
}

/// Returns the entry with this name among the entries of its hash item, or `None`.
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
