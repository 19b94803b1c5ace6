//! The items of a name, on the directory's side and on the inode's side.
//!
//! A name has three items: `DIR_ITEM` under its hash, `DIR_INDEX` under its index, and an entry of
//! `INODE_REF` under the inode. If `INODE_REF` is full, the entry is in `INODE_EXTREF`. Instead of
//! that entry, the name of a subvolume has a pair of root references in the root tree.
//!
//! Source: on-disk format documentation, sections "DIR_ITEM", "DIR_INDEX", "INODE_REF",
//! "INODE_EXTREF", "ROOT_REF".

use super::Access;
use super::Operation;
use buttress_engine::entry::{Entry, Target, entry_in};
use buttress_format::limits::item_bytes_max;
use buttress_format::{
    DirItem, DirItems, FileKind, Generation, Incompat, InodeExtrefs, InodeItem, InodeNumber, InodeRefs,
    ItemError, Key, ObjectId, OrphanItem, RootRef, SubvolumeId, TreeId,
};
use buttress_fs::directory::is_valid_name;
use buttress_fs::error::{Corruption, Error, Name, Result};
use buttress_fs::location::Location;
use buttress_fs::lookup::{NAME_LIMIT, display_path};
use buttress_tree::error::Cause;

/// Returns the index in a subvolume's root reference, if the reference records the entry `name` of
/// this directory.
pub(crate) fn place_in(directory: Location, key: &Key, data: &[u8], name: &[u8]) -> Result<Option<u64>> {
    let tree = TreeId::ROOT;
    let place = RootRef::parse(key, data).map_err(|error| Corruption::Item { tree, error })?;
    let is_here = place.directory == directory.inode && place.name == name;
    Ok(is_here.then_some(place.sequence))
}

/// Returns the error for a missing entry.
pub(super) fn not_found(name: &[u8]) -> Error {
    Error::NotFound {
        path: display_path(name),
    }
}

/// Returns an error for an invalid name.
pub(super) fn check_name(name: &[u8]) -> Result<()> {
    if name.len() > NAME_LIMIT {
        return Err(Error::NameTooLong {
            length_bytes: name.len(),
            limit_bytes: NAME_LIMIT,
        });
    }
    if is_valid_name(name) {
        return Ok(());
    }
    Err(match name {
        b"." | b".." => Error::Exists {
            name: Name::from(name),
        },
        _ => Error::Invalid {
            what: "the name is empty, or contains a slash or a zero byte",
        },
    })
}

impl Access<'_> {
    /// Loads the leaves that receive a new entry, for its name and for its index.
    pub(super) fn reach_new_entry(&mut self, directory: Location, name: &[u8]) -> Result<()> {
        let index = self.lookups().next_index(directory)?;
        if self.defers_names(directory.subvolume)? {
            let key = DirItem::index_key(directory.inode, index);
            return self.reach(directory.subvolume.tree(), &[key]);
        }
        self.reach_entry(directory, name, index)
    }

    /// Returns whether new names of this subvolume are deferred before they are inserted.
    pub(super) fn defers_names(&mut self, subvolume: SubvolumeId) -> Result<bool> {
        Ok(self.lookups().open_tree(subvolume.tree())?.tree.defers_names())
    }

    /// Loads the items of a directory entry, by name and by index.
    ///
    /// Loading the entry also caches the directory's next index. Without this cache, a lookup after
    /// the removal of the last name would reuse that name's index. A log must not give a new name
    /// an index that the last commit still uses: Linux refuses such a log and does not mount.
    pub(super) fn reach_entry(&mut self, directory: Location, name: &[u8], index: u64) -> Result<()> {
        if !buttress_faults::on("directory-index-of-removed-name") {
            self.lookups().next_index(directory)?;
        }
        let keys = [
            DirItem::index_key(directory.inode, index),
            DirItem::key(directory.inode, name),
        ];
        self.reach(directory.subvolume.tree(), &keys)
    }

    /// Returns the entry of this name, or `None`.
    pub(crate) fn find_entry(&mut self, directory: Location, name: &[u8]) -> Result<Option<Entry>> {
        Ok(self.find_entry_beside(directory, name)?.0)
    }

    /// Returns the entry of this name, or `None`, and the length of the item that has or would have
    /// the entry.
    pub(super) fn find_entry_beside(
        &mut self,
        directory: Location,
        name: &[u8],
    ) -> Result<(Option<Entry>, usize)> {
        if let Some(waiting) = self.waiting_entry(directory, name)? {
            return Ok((Some(waiting), 0));
        }
        let tree = directory.subvolume.tree();
        let key = DirItem::key(directory.inode, name);
        let Some(item) = self.get(tree, &key)? else {
            return Ok((None, 0));
        };
        let found = entry_in(directory, &key, item.data(), name)?;
        Ok((found, item.data().len()))
    }

    /// Returns the entry of a waiting name ([`buttress_engine::waiting_names`]).
    pub(super) fn waiting_entry(&mut self, directory: Location, name: &[u8]) -> Result<Option<Entry>> {
        let tree = &self.lookups().open_tree(directory.subvolume.tree())?.tree;
        if tree.names_waiting() == 0 {
            return Ok(None);
        }
        tree.waiting_name(directory, &DirItem::key(directory.inode, name), name)
    }
}

impl Operation<'_> {
    fn broken(tree: TreeId, error: ItemError) -> Error {
        Corruption::Item { tree, error }.into()
    }

    /// Returns the entry of this name, for a removal or a move. Fails if the name is deferred
    /// although the tree also has it, since such a name could never be inserted.
    pub(super) fn require_entry(&mut self, directory: Location, name: &[u8]) -> Result<Entry> {
        if let Some(waiting) = self.waiting_entry(directory, name)? {
            let key = DirItem::key(directory.inode, name);
            if let Some(item) = self.get(directory.subvolume.tree(), &key)?
                && entry_in(directory, &key, item.data(), name)?.is_some()
            {
                return Err(Error::Exists {
                    name: Name::from(name),
                });
            }
            return Ok(waiting);
        }
        self.find_entry(directory, name)?.ok_or_else(|| not_found(name))
    }

    /// Returns an error if a name cannot be added because the item of its hash, `item_bytes` long,
    /// is full.
    pub(super) fn check_collision(&self, name: &[u8], item_bytes: usize) -> Result<()> {
        let nowhere = Target::Inode(InodeNumber::MIN);
        let entry_bytes = entry(nowhere, FileKind::Unknown, Generation::MIN, name).encoded_bytes();
        if item_bytes == 0 || item_bytes.saturating_add(entry_bytes) <= item_bytes_max(self.node_bytes()) {
            return Ok(());
        }
        Err(Error::HashCollision {
            name: Name::from(name),
        })
    }

    /// Reads the blocks of all items of an inode's name, from the first of the inode's items to
    /// their end, which may be in two leaves. Also loads the path to the orphan item. Returns the
    /// index of the directory entry with this name.
    pub(super) fn reach_name(&mut self, directory: Location, name: &[u8], inode: Location) -> Result<u64> {
        let index = self.link_index(inode, directory.inode, name)?;
        self.reach_entry(directory, name, index)?;
        self.reach_inode(inode)?;
        Ok(index)
    }

    /// Reads the blocks of the first item of an inode, the end of its items, and its orphan item.
    pub(super) fn reach_inode(&mut self, inode: Location) -> Result<()> {
        let keys = [
            InodeItem::key(inode.inode),
            InodeItem::key(InodeNumber::new(inode.inode.get().saturating_add(1))),
            OrphanItem::key(ObjectId::new(inode.inode.get())),
        ];
        self.reach(inode.subvolume.tree(), &keys)
    }

    /// Inserts an entry into a directory, by name and by index. Inserting the entry does not change
    /// the inode.
    pub(crate) fn insert_entry(
        &mut self,
        directory: Location,
        name: &[u8],
        entry_of: Entry,
        index: u64,
    ) -> Result<()> {
        let tree = directory.subvolume.tree();
        let item = entry(entry_of.target, entry_of.kind, self.generation(), name);
        let key = DirItem::key(directory.inode, name);
        let broken = |problem| Self::broken(tree, ItemError::new(&key, problem));
        let data = item.encode().map_err(broken)?;
        self.edit().inode_items().note_new_index(directory, index)?;
        if let Target::Subvolume(_) = entry_of.target {
            self.edit().names.note_subvolume(tree, directory.inode);
        }
        let index_key = DirItem::index_key(directory.inode, index);
        self.edit().insert(tree, &index_key, &data)?;
        let open = &self.edit().open_tree(tree)?.tree;
        if open.defers_names() {
            return open.change_names(|names| names.add(key, &item)).map_err(broken);
        }
        // Another name in the directory seldom has the same hash, so this one insertion nearly
        // always suffices.
        match self.edit().insert(tree, &key, &data) {
            Err(Error::Tree(error)) if matches!(error.cause(), Cause::ItemExists(_)) => {
                self.append(tree, &key, &mut |data| {
                    DirItems::push(data, &item).map_err(broken)
                })
            }
            inserted => inserted,
        }
    }

    /// Removes an entry from a directory. Removing the entry does not change the inode.
    pub(crate) fn remove_entry(&mut self, directory: Location, name: &[u8], index: u64) -> Result<()> {
        let tree = directory.subvolume.tree();
        let key = DirItem::key(directory.inode, name);
        self.edit().inodes.names().forget(directory, name);
        let open = &self.edit().open_tree(tree)?.tree;
        let waited = open.names_waiting() > 0 && open.change_names(|names| names.remove(&key, name));
        let found = waited || self.shrink(tree, &key, &mut |data| DirItems::remove(data, name))?;
        if !found {
            return Err(Corruption::ItemMissing {
                tree,
                key,
                what: "the entry of a name that its inode has",
            }
            .into());
        }
        let index_key = DirItem::index_key(directory.inode, index);
        if self.edit().remove(tree, &index_key)? {
            return Ok(());
        }
        Err(Corruption::ItemMissing {
            tree,
            key: index_key,
            what: "the index of an entry",
        }
        .into())
    }

    /// Adds a name to an inode's references.
    pub(crate) fn insert_link(
        &mut self,
        inode: Location,
        parent: InodeNumber,
        name: &[u8],
        index: u64,
    ) -> Result<()> {
        let tree = inode.subvolume.tree();
        let key = InodeRefs::key(inode.inode, parent);
        let present_bytes = self.get(tree, &key)?.map_or(0, |item| item.data().len());
        let grown_bytes = present_bytes.saturating_add(InodeRefs::entry_bytes(name));
        if present_bytes == 0 || grown_bytes <= item_bytes_max(self.node_bytes()) {
            return self.append(tree, &key, &mut |data| {
                InodeRefs::push(data, index, name)
                    .map_err(|problem| Self::broken(tree, ItemError::new(&key, problem)))
            });
        }
        let key = InodeExtrefs::key(inode.inode, parent, name);
        self.append(tree, &key, &mut |data| {
            InodeExtrefs::push(data, parent, index, name)
                .map_err(|problem| Self::broken(tree, ItemError::new(&key, problem)))
        })
    }

    /// Returns an error for a name if neither of the inode's two reference items has space for it.
    pub(super) fn check_link_space(
        &mut self,
        inode: Location,
        parent: InodeNumber,
        name: &[u8],
    ) -> Result<()> {
        let tree = inode.subvolume.tree();
        let most_bytes = item_bytes_max(self.node_bytes());
        let mut fits = |key: Key, entry_bytes: usize| -> Result<bool> {
            let present_bytes = self.get(tree, &key)?.map_or(0, |item| item.data().len());
            Ok(present_bytes == 0 || present_bytes.saturating_add(entry_bytes) <= most_bytes)
        };
        if fits(InodeRefs::key(inode.inode, parent), InodeRefs::entry_bytes(name))? {
            return Ok(());
        }
        let fits_extended = fits(
            InodeExtrefs::key(inode.inode, parent, name),
            InodeExtrefs::entry_bytes(name),
        )?;
        if fits_extended && self.has(Incompat::EXTENDED_IREF) {
            return Ok(());
        }
        Err(Error::TooMany {
            what: "names of one inode in one directory",
        })
    }

    /// Returns the index of an inode's name.
    pub(crate) fn link_index(&mut self, inode: Location, parent: InodeNumber, name: &[u8]) -> Result<u64> {
        let tree = inode.subvolume.tree();
        let key = InodeRefs::key(inode.inode, parent);
        if let Some(item) = self.get(tree, &key)? {
            let mut names = InodeRefs::parse(&key, item.data()).map_err(|error| Self::broken(tree, error))?;
            if let Some(found) = names.find(|found| found.name == name) {
                return Ok(found.index);
            }
        }
        let extended = InodeExtrefs::key(inode.inode, parent, name);
        if let Some(item) = self.get(tree, &extended)? {
            let mut names =
                InodeExtrefs::parse(&extended, item.data()).map_err(|error| Self::broken(tree, error))?;
            if let Some(found) = names.find(|found| found.parent == parent && found.name == name) {
                return Ok(found.index);
            }
        }
        Err(Self::name_missing(tree, key))
    }

    fn name_missing(tree: TreeId, key: Key) -> Error {
        Corruption::ItemMissing {
            tree,
            key,
            what: "the name of an inode that a directory has",
        }
        .into()
    }

    /// Removes a name from an inode's references, and returns its index.
    pub(crate) fn remove_link(&mut self, inode: Location, parent: InodeNumber, name: &[u8]) -> Result<u64> {
        let tree = inode.subvolume.tree();
        let mut index = None;
        let key = InodeRefs::key(inode.inode, parent);
        let mut take = |data: &mut Vec<u8>| {
            index = InodeRefs::remove(data, name);
            index.is_some()
        };
        self.shrink(tree, &key, &mut take)?;
        if index.is_none() {
            let extended = InodeExtrefs::key(inode.inode, parent, name);
            let mut take = |data: &mut Vec<u8>| {
                index = InodeExtrefs::remove(data, parent, name);
                index.is_some()
            };
            self.shrink(tree, &extended, &mut take)?;
        }
        index.ok_or_else(|| Self::name_missing(tree, key))
    }

    /// Returns the index of a subvolume's entry, if this entry is the subvolume's place.
    pub(super) fn subvolume_index(
        &mut self,
        directory: Location,
        name: &[u8],
        child: SubvolumeId,
    ) -> Result<Option<u64>> {
        let [key, _] = RootRef::keys(directory.subvolume, child);
        let Some(item) = self.get(TreeId::ROOT, &key)? else {
            return Ok(None);
        };
        place_in(directory, &key, item.data(), name)
    }

    /// Returns the index of this name by a scan of the directory. The placeholder of a missing
    /// subvolume has no reference that records its index.
    pub(super) fn search_index(&mut self, directory: Location, name: &[u8]) -> Result<Option<u64>> {
        let tree = directory.subvolume.tree();
        let view = self.view_of(tree)?;
        let keys = DirItem::index_key(directory.inode, 0)..=DirItem::index_key(directory.inode, u64::MAX);
        for item in view.range(keys, buttress_tree::ReadAhead::Forward) {
            let item = item?;
            let key = item.key();
            let mut entries =
                DirItems::parse(&key, item.data()).map_err(|error| Self::broken(tree, error))?;
            if entries.any(|entry| entry.name == name) {
                return Ok(Some(key.offset));
            }
        }
        Ok(None)
    }

    /// Appends to an item's data, and creates the item if it is missing.
    pub(super) fn append(
        &mut self,
        tree: TreeId,
        key: &Key,
        add: &mut dyn FnMut(&mut Vec<u8>) -> Result<()>,
    ) -> Result<()> {
        let mut data = self
            .get(tree, key)?
            .map_or_else(Vec::new, |item| item.data().to_vec());
        let is_new = data.is_empty();
        add(&mut data)?;
        if is_new {
            return self.edit().insert(tree, key, &data);
        }
        self.edit().put(tree, key, &data)
    }

    /// Removes a part of an item's data. An empty item is removed. Returns whether anything was
    /// removed.
    pub(super) fn shrink(
        &mut self,
        tree: TreeId,
        key: &Key,
        take: &mut dyn FnMut(&mut Vec<u8>) -> bool,
    ) -> Result<bool> {
        let Some(mut data) = self.get(tree, key)?.map(|item| item.data().to_vec()) else {
            return Ok(false);
        };
        if !take(&mut data) {
            return Ok(false);
        }
        if data.is_empty() {
            self.edit().remove(tree, key)?;
        } else {
            self.edit().put(tree, key, &data)?;
        }
        Ok(true)
    }
}

pub(super) fn entry(target: Target, kind: FileKind, transid: Generation, name: &[u8]) -> DirItem<'_> {
    DirItem {
        location: target.key(),
        transid,
        kind,
        name,
        data: &[],
    }
}
