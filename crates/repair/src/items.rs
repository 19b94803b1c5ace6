//! Reads and edits of single items, in a running transaction.
//!
//! [`Items`] is the repairs' view of the transaction: inode items, both items of directory entries,
//! and the names that inodes record. Its calls change one item each, and keep no counts.

use buttress_engine::running::Running;
use buttress_exact::Exact as _;
use buttress_format::limits::item_bytes_max;
use buttress_format::{
    DirItem, DirItems, FileKind, Generation, Incompat, InodeExtrefs, InodeItem, InodeNumber, InodeRefs,
    ItemError, ItemType, Key, ObjectId, RootRef, SubvolumeId, Timestamp, TreeId,
};
use buttress_fs::error::{Corruption, Error, Name, Result};
use buttress_tree::{OwnedItem, ReadAhead};
use buttress_volume::Volume;
use core::ops::RangeInclusive;
use std::collections::BTreeSet;

/// The first index of a name in a directory.
const FIRST_INDEX: u64 = 2;

/// A directory entry that owns its bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) location: Key,
    pub(crate) transid: Generation,
    pub(crate) kind: FileKind,
    pub(crate) name: Vec<u8>,
}

impl Entry {
    fn of(entry: &DirItem<'_>) -> Self {
        Self {
            location: entry.location,
            transid: entry.transid,
            kind: entry.kind,
            name: entry.name.to_vec(),
        }
    }

    fn item(&self) -> DirItem<'_> {
        DirItem {
            location: self.location,
            transid: self.transid,
            kind: self.kind,
            name: &self.name,
            data: &[],
        }
    }
}

/// The items of a running transaction.
#[derive(Debug)]
pub(crate) struct Items<'r> {
    pub(crate) running: &'r mut Running,
    pub(crate) now: Timestamp,
    /// The inodes whose names or entries changed. The round recounts them at its end, each once.
    pub(crate) touched: &'r mut BTreeSet<FileId>,
    pub(crate) named: &'r Named,
    pub(crate) volume: &'r Volume,
    /// Whether the owner accepts data that no copy confirms.
    pub(crate) accepts_data: bool,
    /// The items that this edit changed, as they were before, in the order of the changes.
    pub(crate) undo: Vec<Before>,
}

/// An item before a change; without data if it did not exist.
pub(crate) type Before = (TreeId, Key, Option<Vec<u8>>);

/// The inode numbers that findings name. A number without an inode is not free if a name leads to
/// it: a new inode would become the target of the name.
#[derive(Clone, Debug, Default)]
pub(crate) struct Named {
    pub(crate) inodes: BTreeSet<FileId>,
    /// Whether the report has left out names that lead to nothing.
    pub(crate) is_cut: bool,
}

/// A file of a subvolume.
pub(crate) type FileId = (TreeId, InodeNumber);

/// Returns the error of an item that cannot be parsed.
pub(crate) fn broken(tree: TreeId, error: ItemError) -> Error {
    Corruption::Item { tree, error }.into()
}

/// Returns the error of a name that no file can have.
fn bad_name() -> Error {
    Error::Invalid {
        what: "a name that no file can have",
    }
}

/// Returns the keys of all items of an inode.
pub(crate) fn keys_of(inode: InodeNumber) -> RangeInclusive<Key> {
    let object = inode.object_id();
    Key::new(object, ItemType(0), 0)..=Key::new(object, ItemType(u8::MAX), u64::MAX)
}

/// Returns the keys of one type of items of an object.
pub(crate) fn keys_of_type(object: ObjectId, item_type: ItemType) -> RangeInclusive<Key> {
    Key::new(object, item_type, 0)..=Key::new(object, item_type, u64::MAX)
}

/// Returns the subvolume of a tree that a place names.
pub(crate) const fn subvolume_of(tree: TreeId) -> SubvolumeId {
    SubvolumeId::new(tree.get())
}

/// Returns whether the location of an entry is a subvolume.
pub(crate) fn is_subvolume(location: &Key) -> bool {
    location.item_type == ItemType::ROOT_ITEM
}

impl Items<'_> {
    /// Notes an inode whose counts the round must set.
    pub(crate) fn touch(&mut self, tree: TreeId, inode: InodeNumber) {
        self.touched.insert((tree, inode));
    }

    pub(crate) fn generation(&self) -> Generation {
        self.running.running_generation()
    }

    pub(crate) fn sector_bytes(&self) -> u32 {
        self.running.core.format.sector_bytes
    }

    pub(crate) fn get(&mut self, tree: TreeId, key: &Key) -> Result<Option<OwnedItem>> {
        self.running.get(tree, key)
    }

    pub(crate) fn has(&mut self, tree: TreeId, key: &Key) -> Result<bool> {
        Ok(self.get(tree, key)?.is_some())
    }

    /// Writes an item.
    pub(crate) fn put(&mut self, tree: TreeId, key: &Key, data: &[u8]) -> Result<()> {
        self.note(tree, key)?;
        self.running.put(tree, key, data)
    }

    /// Removes an item if it exists.
    pub(crate) fn remove(&mut self, tree: TreeId, key: &Key) -> Result<()> {
        self.note(tree, key)?;
        self.running.remove(tree, key).map(drop)
    }

    /// Notes an item before its change.
    fn note(&mut self, tree: TreeId, key: &Key) -> Result<()> {
        let before = self.get(tree, key)?.map(|item| item.data().to_vec());
        self.undo.push((tree, *key, before));
        Ok(())
    }

    /// Restores all items that this edit changed.
    pub(crate) fn roll_back(&mut self) -> Result<()> {
        while let Some((tree, key, before)) = self.undo.pop() {
            match before {
                Some(data) => self.running.put(tree, &key, &data)?,
                None => drop(self.running.remove(tree, &key)?),
            }
        }
        Ok(())
    }

    /// Calls `each` with the items of a range of keys.
    pub(crate) fn each(
        &mut self,
        tree: TreeId,
        keys: RangeInclusive<Key>,
        each: &mut dyn FnMut(&Key, &[u8]) -> Result<()>,
    ) -> Result<()> {
        let view = self.running.view(tree)?;
        for item in view.range(keys, ReadAhead::Forward) {
            let item = item?;
            each(&item.key(), item.data())?;
        }
        Ok(())
    }

    /// Returns an inode's item; `None` if it has none.
    pub(crate) fn inode(&mut self, tree: TreeId, inode: InodeNumber) -> Result<Option<InodeItem>> {
        let key = InodeItem::key(inode);
        let Some(item) = self.get(tree, &key)? else {
            return Ok(None);
        };
        let parsed = InodeItem::parse(&key, item.data()).map_err(|error| broken(tree, error))?;
        Ok(Some(parsed))
    }

    /// Writes an inode's item, as changed by this transaction.
    pub(crate) fn put_inode(&mut self, tree: TreeId, inode: InodeNumber, item: InodeItem) -> Result<()> {
        let item = InodeItem {
            transid: self.generation(),
            ..item
        };
        self.put(tree, &InodeItem::key(inode), &item.to_bytes())
    }

    /// Returns the entries of an item of a directory.
    pub(crate) fn entries(&mut self, tree: TreeId, key: &Key) -> Result<Vec<Entry>> {
        let Some(item) = self.get(tree, key)? else {
            return Ok(Vec::new());
        };
        let entries = DirItems::parse(key, item.data()).map_err(|error| broken(tree, error))?;
        Ok(entries.map(|entry| Entry::of(&entry)).collect())
    }

    /// Removes all entries with a name from an item of a directory. Returns the removed ones.
    pub(crate) fn remove_entries(&mut self, tree: TreeId, key: &Key, name: &[u8]) -> Result<Vec<Entry>> {
        let (removed, kept): (Vec<_>, Vec<_>) = self
            .entries(tree, key)?
            .into_iter()
            .partition(|entry| entry.name == name);
        if removed.is_empty() {
            return Ok(removed);
        }
        if kept.is_empty() {
            self.remove(tree, key)?;
            return Ok(removed);
        }
        let mut data = Vec::new();
        for entry in &kept {
            DirItems::push(&mut data, &entry.item()).map_err(|_| bad_name())?;
        }
        self.put(tree, key, &data)?;
        Ok(removed)
    }

    /// Adds an entry to an item of a directory.
    pub(crate) fn add_entry(&mut self, tree: TreeId, key: &Key, entry: &Entry) -> Result<()> {
        let mut data = self
            .get(tree, key)?
            .map_or_else(Vec::new, |item| item.data().to_vec());
        DirItems::push(&mut data, &entry.item()).map_err(|_| bad_name())?;
        if data.len() > self.item_bytes_max() {
            let name = Name::from(entry.name.as_slice());
            return Err(Error::HashCollision { name });
        }
        self.put(tree, key, &data)
    }

    fn item_bytes_max(&self) -> usize {
        item_bytes_max(self.running.core.format.node_bytes)
    }

    /// Returns the indexes under which an inode records a name in a directory.
    pub(crate) fn recorded(
        &mut self,
        tree: TreeId,
        inode: InodeNumber,
        directory: InodeNumber,
        name: &[u8],
    ) -> Result<Vec<u64>> {
        let mut indexes = Vec::new();
        let key = InodeRefs::key(inode, directory);
        if let Some(item) = self.get(tree, &key)? {
            let names = InodeRefs::parse(&key, item.data()).map_err(|error| broken(tree, error))?;
            indexes.extend(names.filter(|own| own.name == name).map(|own| own.index));
        }
        let key = InodeExtrefs::key(inode, directory, name);
        if let Some(item) = self.get(tree, &key)? {
            let names = InodeExtrefs::parse(&key, item.data()).map_err(|error| broken(tree, error))?;
            let own = names.filter(|own| own.parent == directory && own.name == name);
            indexes.extend(own.map(|own| own.index));
        }
        Ok(indexes)
    }

    /// Removes all records of a name from an inode.
    pub(crate) fn remove_records(
        &mut self,
        tree: TreeId,
        inode: InodeNumber,
        directory: InodeNumber,
        name: &[u8],
    ) -> Result<()> {
        let key = InodeRefs::key(inode, directory);
        self.shrink(tree, &key, &mut |data| InodeRefs::remove(data, name).is_some())?;
        let key = InodeExtrefs::key(inode, directory, name);
        self.shrink(tree, &key, &mut |data| {
            InodeExtrefs::remove(data, directory, name).is_some()
        })
    }

    /// Removes parts of an item while `take` finds one. An empty item is removed.
    fn shrink(&mut self, tree: TreeId, key: &Key, take: &mut dyn FnMut(&mut Vec<u8>) -> bool) -> Result<()> {
        let Some(mut data) = self.get(tree, key)?.map(|item| item.data().to_vec()) else {
            return Ok(());
        };
        let mut has_changed = false;
        while !data.is_empty() && take(&mut data) {
            has_changed = true;
        }
        if data.is_empty() {
            self.remove(tree, key)?;
        } else if has_changed {
            self.put(tree, key, &data)?;
        }
        Ok(())
    }

    /// Records a name in an inode, in `INODE_EXTREF` if `INODE_REF` is full.
    pub(crate) fn record(
        &mut self,
        tree: TreeId,
        inode: InodeNumber,
        directory: InodeNumber,
        index: u64,
        name: &[u8],
    ) -> Result<()> {
        let key = InodeRefs::key(inode, directory);
        let mut data = self
            .get(tree, &key)?
            .map_or_else(Vec::new, |item| item.data().to_vec());
        if data.len().exact_add(InodeRefs::entry_bytes(name)) <= self.item_bytes_max() {
            InodeRefs::push(&mut data, index, name).map_err(|_| bad_name())?;
            return self.put(tree, &key, &data);
        }
        let key = InodeExtrefs::key(inode, directory, name);
        let mut data = self
            .get(tree, &key)?
            .map_or_else(Vec::new, |item| item.data().to_vec());
        InodeExtrefs::push(&mut data, directory, index, name).map_err(|_| bad_name())?;
        if data.len() > self.item_bytes_max() {
            let name = Name::from(name);
            return Err(Error::HashCollision { name });
        }
        self.running.use_feature(Incompat::EXTENDED_IREF);
        self.put(tree, &key, &data)
    }

    /// Returns an index after all names of a directory.
    pub(crate) fn free_index(&mut self, tree: TreeId, directory: InodeNumber) -> Result<u64> {
        let last = DirItem::index_key(directory, u64::MAX);
        let found = self.running.at_or_before(tree, &last)?.map(|item| item.key());
        let highest =
            found.filter(|key| key.objectid == last.objectid && key.item_type == ItemType::DIR_INDEX);
        let next = highest.map_or(Some(FIRST_INDEX), |key| key.offset.checked_add(1));
        next.ok_or(Error::TooMany {
            what: "the directory has no free index for a name",
        })
    }

    /// Returns the place of a subvolume in a parent.
    pub(crate) fn place(&mut self, key: &Key) -> Result<Option<Place>> {
        let Some(item) = self.get(TreeId::ROOT, key)? else {
            return Ok(None);
        };
        let place = RootRef::parse(key, item.data()).map_err(|error| broken(TreeId::ROOT, error))?;
        Ok(Some(Place {
            directory: place.directory,
            index: place.sequence,
            name: place.name.to_vec(),
        }))
    }

    /// Returns whether the root tree has a tree.
    pub(crate) fn has_tree(&mut self, id: TreeId) -> Result<bool> {
        match self.running.open_tree(id) {
            Ok(_) => Ok(true),
            Err(Error::TreeNotFound { .. }) => Ok(false),
            Err(error) => Err(error),
        }
    }
}

/// The place of a subvolume: a name in a directory of its parent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) directory: InodeNumber,
    pub(crate) index: u64,
    pub(crate) name: Vec<u8>,
}

impl Place {
    /// Returns the data of both references.
    pub(crate) fn encode(&self) -> Result<Vec<u8>> {
        let reference = RootRef {
            directory: self.directory,
            sequence: self.index,
            name: &self.name,
        };
        reference.encode().map_err(|_| bad_name())
    }
}
