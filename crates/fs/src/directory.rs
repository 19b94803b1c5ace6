//! Directories: their entries in the order of `readdir(3)`.
//!
//! A directory holds each entry twice: as `DIR_ITEM` by the name's hash for lookups, and as
//! `DIR_INDEX` by index for listing. Like the kernel, listing follows the index, one item at a
//! time. A directory of millions of names takes no more memory than one of ten.
//!
//! The index items and the name items of a directory should agree. The size of a directory's inode
//! is twice the length of its names. Counting names during a listing thus detects, at no extra
//! cost, whether the index lacks an entry. Only if the index lacks an entry does [`ReadDir`]
//! compare each entry from both sides. The listing adds the entries that the index lacks, and
//! reports each entry without its other half as an error. The listing reports invalid names (empty,
//! `.`, `..`, with a slash or a zero byte) and never returns them.
//!
//! The listing does not contain `.` and `..`.
//!
//! Source: on-disk format documentation, sections "DIR_ITEM" and "DIR_INDEX".

use crate::error::{Corruption, Error, Name, Result};
use crate::filesystem::Filesystem;
use crate::location::Location;
use buttress_exact::{Exact as _, u64_of};
use buttress_format::{
    ByteCount, DirItem, DirItems, FileKind, InodeNumber, ItemType, Key, ObjectId, SubvolumeId, TreeId,
    name_hash,
};
use buttress_tree::{Items, ReadAhead, Tree};
use std::collections::VecDeque;
use std::path::PathBuf;

/// An entry of a directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DirEntry {
    /// The name: not empty, without slashes and zero bytes.
    pub name: Vec<u8>,
    /// The kind of file that the entry states. The entry's kind should agree with the file type in
    /// the inode's mode.
    pub kind: FileKind,
    /// The index of the entry in its directory; 0 if the entry was found by name.
    pub index: u64,
    /// The target of the entry: an inode of the same subvolume, the root of another subvolume, or a
    /// placeholder.
    pub target: Location,
}

/// Returns true if `name` is a valid entry name.
#[must_use]
pub fn is_valid_name(name: &[u8]) -> bool {
    !name.is_empty() && name != b"." && name != b".." && !name.iter().any(|byte| matches!(byte, 0 | b'/'))
}

impl Filesystem {
    /// Returns the entries of a directory in the order of `readdir(3)`.
    ///
    /// # Errors
    /// Returns [`Error::NotADirectory`]. Also fails if the inode cannot be read. The iterator
    /// returns later errors as items, and continues after them if it can.
    pub fn read_dir(&self, directory: Location) -> Result<ReadDir> {
        if directory.placeholder().is_some() {
            return Ok(ReadDir::empty(self, directory));
        }
        let metadata = self.metadata(directory)?;
        if !metadata.is_directory() {
            return Err(Error::NotADirectory {
                path: PathBuf::from(directory.to_string()),
            });
        }
        let tree = self.subvolume_tree(directory.subvolume)?;
        Ok(ReadDir::new(self, tree, directory, metadata.size, 0))
    }

    /// Returns the entry `name` of a directory, or `None`. The lookup distinguishes names of equal
    /// hash.
    ///
    /// # Errors
    /// Fails if the tree cannot be read, or if the entry is invalid.
    pub fn lookup(&self, directory: Location, name: &[u8]) -> Result<Option<DirEntry>> {
        if directory.placeholder().is_some() || !is_valid_name(name) {
            return Ok(None);
        }
        let tree = self.subvolume_tree(directory.subvolume)?;
        let key = Key::new(directory.inode.object_id(), ItemType::DIR_ITEM, name_hash(name));
        let Some(item) = tree.get(&key)? else {
            return Ok(None);
        };
        let entries = DirItems::parse(&key, item.data()).map_err(|error| Corruption::Item {
            tree: directory.subvolume.tree(),
            error,
        })?;
        for entry in entries {
            if entry.name == name {
                return self.entry(directory, 0, &entry).map(Some);
            }
        }
        Ok(None)
    }

    /// Returns an item's entry, with its name checked and its target found.
    pub fn entry(&self, directory: Location, index: u64, item: &DirItem<'_>) -> Result<DirEntry> {
        if !is_valid_name(item.name) {
            return Err(Corruption::NameInvalid {
                directory,
                index,
                name: Name::from(item.name),
            }
            .into());
        }
        let target = match item.location.item_type {
            ItemType::INODE_ITEM if item.location.objectid >= ObjectId::FIRST_FREE => Some(Location::new(
                directory.subvolume,
                InodeNumber::new(item.location.objectid.get()),
            )),
            ItemType::ROOT_ITEM => match TreeId::new(item.location.objectid.get()).as_subvolume() {
                Some(child) => Some(self.nested_subvolume(directory, item.name, child)?),
                None => None,
            },
            _ => None,
        };
        match target {
            Some(target) => Ok(DirEntry {
                name: item.name.to_vec(),
                kind: item.kind,
                index,
                target,
            }),
            None => Err(Corruption::EntryTargetInvalid {
                directory,
                name: Name::from(item.name),
                target: item.location,
            }
            .into()),
        }
    }
}

/// The entries of a directory, in the order of their indexes; see the module's documentation.
#[derive(Debug)]
pub struct ReadDir {
    filesystem: Filesystem,
    directory: Location,
    stage: Stage,
    /// The bytes of all names listed so far.
    listed_bytes: u64,
    /// The index after the last listed item.
    next_index: u64,
    /// The size of the directory's inode: twice the bytes of its names. `None` if only a part of
    /// the directory is listed.
    size: Option<ByteCount>,
    ready: VecDeque<Result<DirEntry>>,
}

/// The state of a suspended listing.
#[derive(Clone, Copy, Debug)]
pub struct Suspended {
    next_index: u64,
    listed_bytes: u64,
    size: Option<ByteCount>,
}

#[derive(Debug)]
enum Stage {
    /// The listing returns entries in index order.
    Listing {
        tree: Tree,
        items: Items,
    },
    /// The index seems to lack entries, so the listing checks each entry of the index by name.
    CheckingIndex {
        tree: Tree,
        items: Items,
    },
    /// The listing checks each entry by name against the index.
    CheckingNames {
        tree: Tree,
        items: Items,
    },
    Done,
}

fn entries_of(tree: &Tree, directory: Location, item_type: ItemType, from: u64) -> Items {
    let object_id = directory.inode.object_id();
    tree.range(
        Key::new(object_id, item_type, from)..=Key::new(object_id, item_type, u64::MAX),
        ReadAhead::Forward,
    )
}

impl ReadDir {
    /// Lists from the index `from` on. Only a listing from index 0 is checked for missing entries.
    pub fn new(filesystem: &Filesystem, tree: Tree, directory: Location, size: ByteCount, from: u64) -> Self {
        let items = entries_of(&tree, directory, ItemType::DIR_INDEX, from);
        Self {
            filesystem: filesystem.clone(),
            directory,
            stage: Stage::Listing { tree, items },
            listed_bytes: 0,
            next_index: 0,
            size: (from == 0).then_some(size),
            ready: VecDeque::new(),
        }
    }

    /// Restarts the listing at its beginning.
    pub(crate) fn restart(self) -> Result<Self> {
        self.filesystem.read_dir(self.directory)
    }

    /// Returns the listing's position, so that the listing can resume later and meanwhile use
    /// little memory. Returns `None` if the listing cannot be suspended at its position.
    pub(crate) fn suspend(&self) -> Option<Suspended> {
        match &self.stage {
            Stage::Listing { .. } if self.ready.is_empty() => Some(Suspended {
                next_index: self.next_index,
                listed_bytes: self.listed_bytes,
                size: self.size,
            }),
            _ => None,
        }
    }

    /// Resumes a suspended listing.
    pub fn resume(filesystem: &Filesystem, tree: Tree, directory: Location, at: Suspended) -> Self {
        let mut listing = Self::new(filesystem, tree, directory, ByteCount::ZERO, at.next_index);
        listing.listed_bytes = at.listed_bytes;
        listing.size = at.size;
        listing
    }

    /// Returns a listing of a directory without entries.
    #[must_use]
    pub fn empty(filesystem: &Filesystem, directory: Location) -> Self {
        Self {
            filesystem: filesystem.clone(),
            directory,
            stage: Stage::Done,
            listed_bytes: 0,
            next_index: 0,
            size: None,
            ready: VecDeque::new(),
        }
    }

    /// Returns the directory.
    #[must_use]
    pub const fn directory(&self) -> Location {
        self.directory
    }

    fn tree_id(&self) -> TreeId {
        self.directory.subvolume.tree()
    }

    /// Puts the entries of one index item into `ready`: one entry, unless the item is broken.
    fn take_listed(&mut self, key: Key, data: &[u8]) {
        match DirItems::parse(&key, data) {
            Ok(entries) => {
                for entry in entries {
                    self.listed_bytes = self.listed_bytes.exact_add(u64_of(entry.name.len()));
                    self.ready
                        .push_back(self.filesystem.entry(self.directory, key.offset, &entry));
                }
            }
            Err(error) => {
                self.ready.push_back(Err(Corruption::Item {
                    tree: self.tree_id(),
                    error,
                }
                .into()));
            }
        }
    }

    /// Returns true if the listed names have as many bytes as the inode states.
    fn is_complete(&self) -> bool {
        self.size
            .is_none_or(|size| size.get() == self.listed_bytes.exact_mul(2))
    }

    /// Reports the entry of an index item that cannot be found by its name.
    fn check_listed(&mut self, tree: &Tree, key: Key, data: &[u8]) -> Result<()> {
        for entry in DirItems::parse(&key, data).into_iter().flatten() {
            let by_name = Key::new(key.objectid, ItemType::DIR_ITEM, name_hash(entry.name));
            let found = tree.get(&by_name)?.is_some_and(|item| {
                DirItems::parse(&by_name, item.data())
                    .into_iter()
                    .flatten()
                    .any(|other| other.name == entry.name)
            });
            if !found {
                self.ready.push_back(Err(Corruption::DirItemMissing {
                    directory: self.directory,
                    name: Name::from(entry.name),
                    index: key.offset,
                }
                .into()));
            }
        }
        Ok(())
    }

    /// Adds and reports the entries of a name item that the index lacks.
    fn check_named(&mut self, tree: &Tree, key: Key, data: &[u8]) -> Result<()> {
        for entry in DirItems::parse(&key, data).into_iter().flatten() {
            if !self.is_listed(tree, &entry)? {
                self.ready.push_back(Err(Corruption::DirIndexMissing {
                    directory: self.directory,
                    name: Name::from(entry.name),
                }
                .into()));
                self.ready
                    .push_back(self.filesystem.entry(self.directory, 0, &entry));
            }
        }
        Ok(())
    }

    /// Returns true if the index holds the entry. The entry's index comes from the reference in the
    /// inode or subvolume that it names.
    fn is_listed(&self, tree: &Tree, entry: &DirItem<'_>) -> Result<bool> {
        let index = match entry.location.item_type {
            ItemType::ROOT_ITEM => {
                let child = SubvolumeId::new(entry.location.objectid.get());
                let place = self.filesystem.subvolume_place(child)?;
                place
                    .filter(|place| place.name == entry.name)
                    .map(|place| place.index)
            }
            _ => {
                let child = Location::new(
                    self.directory.subvolume,
                    InodeNumber::new(entry.location.objectid.get()),
                );
                self.filesystem
                    .link_index(tree, child, self.directory.inode, entry.name)?
            }
        };
        let Some(index) = index else { return Ok(false) };
        let key = Key::new(self.directory.inode.object_id(), ItemType::DIR_INDEX, index);
        let Some(item) = tree.get(&key)? else {
            return Ok(false);
        };
        Ok(DirItems::parse(&key, item.data())
            .into_iter()
            .flatten()
            .any(|other| other.name == entry.name))
    }

    /// Processes one more directory item. Returns false at the end of the directory.
    fn advance(&mut self) -> bool {
        match core::mem::replace(&mut self.stage, Stage::Done) {
            Stage::Listing { tree, mut items } => match items.next() {
                Some(Ok(item)) => {
                    // Clamp: the index comes from disk; no item follows the last one.
                    self.next_index = item.key().offset.saturating_add(1);
                    self.take_listed(item.key(), item.data());
                    self.stage = Stage::Listing { tree, items };
                }
                Some(Err(error)) => {
                    // An entry that the index could not provide does not count as missing.
                    self.size = None;
                    self.ready.push_back(Err(error.into()));
                    self.stage = Stage::Listing { tree, items };
                }
                None if self.is_complete() => return false,
                None => {
                    let items = entries_of(&tree, self.directory, ItemType::DIR_INDEX, 0);
                    self.stage = Stage::CheckingIndex { tree, items };
                }
            },
            Stage::CheckingIndex { tree, mut items } => match items.next() {
                Some(item) => {
                    let checked = item
                        .map_err(Error::from)
                        .and_then(|item| self.check_listed(&tree, item.key(), item.data()));
                    self.ready.extend(checked.err().map(Err));
                    self.stage = Stage::CheckingIndex { tree, items };
                }
                None => {
                    let items = entries_of(&tree, self.directory, ItemType::DIR_ITEM, 0);
                    self.stage = Stage::CheckingNames { tree, items };
                }
            },
            Stage::CheckingNames { tree, mut items } => match items.next() {
                Some(item) => {
                    let checked = item
                        .map_err(Error::from)
                        .and_then(|item| self.check_named(&tree, item.key(), item.data()));
                    self.ready.extend(checked.err().map(Err));
                    self.stage = Stage::CheckingNames { tree, items };
                }
                None => return false,
            },
            Stage::Done => return false,
        }
        true
    }
}

impl Iterator for ReadDir {
    type Item = Result<DirEntry>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            if let Some(entry) = self.ready.pop_front() {
                return Some(entry);
            }
            if !self.advance() {
                return None;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::is_valid_name;

    #[test]
    fn names_that_lead_elsewhere_are_refused() {
        for (name, valid) in [
            (&b"a"[..], true),
            (b"...", true),
            (b"\xff\n", true),
            (b"", false),
            (b".", false),
            (b"..", false),
            (b"a/b", false),
            (b"/", false),
            (b"a\0b", false),
        ] {
            assert_eq!(is_valid_name(name), valid, "{name:?}");
        }
    }
}
