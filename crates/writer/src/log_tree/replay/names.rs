//! Replay of names, on the directory's side and on the inode's side.
//!
//! The log of a directory has entries by index, and ranges of indexes of which it has all entries.
//! A replay removes the subvolume's entries in such a range that the log lacks. The log of an inode
//! has all its names in the directories that the log mentions. An entry that conflicts with a
//! logged name, by name or by index, is removed.

use super::{Replay, inode_of, keys_of, wrong};
use buttress_engine::entry::{Entry, Target};
use buttress_engine::pending_log::broken;
use buttress_format::{
    ByteCount, DirItem, DirItems, DirLogRange, FileKind, InodeExtrefs, InodeName, InodeNumber, InodeRefs,
    ItemType, Key,
};
use buttress_fs::error::{Corruption, Result};
use buttress_tree::{OwnedItem, ReadAhead, Tree};

/// A name of an inode.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Named {
    pub(super) parent: InodeNumber,
    pub(super) index: u64,
    pub(super) name: Vec<u8>,
}

impl From<InodeName<'_>> for Named {
    fn from(name: InodeName<'_>) -> Self {
        Self {
            parent: name.parent,
            index: name.index,
            name: name.name.to_vec(),
        }
    }
}

/// Returns all names of an inode in a tree. The root directory's reference to itself does not count
/// as a name.
fn names_in(tree: &Tree, inode: InodeNumber) -> Result<Vec<Named>> {
    let mut names: Vec<Named> = Vec::new();
    let keys = *keys_of(inode, ItemType::INODE_REF).start()..=*keys_of(inode, ItemType::INODE_EXTREF).end();
    for item in tree.range(keys, ReadAhead::None) {
        let item = item?;
        let key = item.key();
        if key.item_type == ItemType::INODE_REF {
            names.extend(
                InodeRefs::parse(&key, item.data())
                    .map_err(broken)?
                    .map(Named::from),
            );
        } else if key.item_type == ItemType::INODE_EXTREF {
            names.extend(
                InodeExtrefs::parse(&key, item.data())
                    .map_err(broken)?
                    .map(Named::from),
            );
        }
    }
    names.retain(|name| name.parent != inode);
    Ok(names)
}

impl Replay<'_, '_> {
    /// Returns all names of an inode in the subvolume.
    pub(super) fn names_of(&mut self, inode: InodeNumber) -> Result<Vec<Named>> {
        let tree = self.tree();
        names_in(&self.operation.view_of(tree)?, inode)
    }

    /// Removes the entries that the log marks as removed.
    pub(super) fn remove_entries(&mut self, directory: InodeNumber) -> Result<()> {
        let log = self.log.clone();
        for range in log.range(keys_of(directory, ItemType::DIR_LOG_INDEX), ReadAhead::None) {
            let range = range?;
            let range = DirLogRange::parse(&range.key(), range.data()).map_err(broken)?;
            let keys = DirItem::index_key(directory, range.first)..=DirItem::index_key(directory, range.last);
            let tree = self.tree();
            let view = self.operation.view_of(tree)?;
            let mut gone = Vec::new();
            for item in view.range(keys, ReadAhead::Forward) {
                let item = item?;
                if !self.is_logged(&item)? {
                    gone.push(item);
                }
            }
            drop(view);
            for item in gone {
                self.remove_entry(&item)?;
            }
        }
        Ok(())
    }

    /// Returns whether the log has an entry with the same index and name.
    fn is_logged(&self, item: &OwnedItem) -> Result<bool> {
        let key = item.key();
        let Some(logged) = self.log.get(&key)? else {
            return Ok(false);
        };
        let mut logged = DirItems::parse(&key, logged.data()).map_err(broken)?;
        let mut present = DirItems::parse(&key, item.data()).map_err(broken)?;
        let name = present.next().map(|entry| entry.name);
        Ok(logged.next().map(|entry| entry.name) == name)
    }

    /// Removes an entry that leads to an inode, on both sides.
    fn remove_entry(&mut self, item: &OwnedItem) -> Result<()> {
        let key = item.key();
        let Some(entry) = DirItems::parse(&key, item.data()).map_err(broken)?.next() else {
            return Ok(());
        };
        match Self::target(&entry) {
            Some(inode) => self.unlink(inode_of(&key), entry.name, inode, key.offset),
            None => Ok(()),
        }
    }

    /// Removes a name, on both sides. Times stay unchanged.
    fn unlink(&mut self, directory: InodeNumber, name: &[u8], inode: InodeNumber, index: u64) -> Result<()> {
        let (directory, location) = (self.at(directory), self.at(inode));
        self.operation.remove_link(location, directory.inode, name)?;
        self.operation.remove_entry(directory, name, index)?;
        self.touched.insert(inode);
        self.resize(directory.inode, name, u64::saturating_sub)
    }

    /// Adds a directory entry and the inode's reference to it. Adding a name leaves the times of
    /// inode and directory unchanged.
    fn link(&mut self, inode: InodeNumber, named: &Named) -> Result<()> {
        let (directory, location) = (self.at(named.parent), self.at(inode));
        let kind = self.operation.inode(location)?.kind();
        self.operation
            .insert_link(location, named.parent, &named.name, named.index)?;
        let entry = Entry {
            target: Target::Inode(inode),
            kind,
        };
        self.operation
            .insert_entry(directory, &named.name, entry, named.index)?;
        self.touched.insert(inode);
        self.resize(named.parent, &named.name, u64::saturating_add)
    }

    fn resize(
        &mut self,
        directory: InodeNumber,
        name: &[u8],
        by: impl FnOnce(u64, u64) -> u64,
    ) -> Result<()> {
        let bytes = ByteCount::of(name.len()).get().saturating_mul(2);
        self.operation.change_inode(self.at(directory), |item| {
            item.size = ByteCount::new(by(item.size.get(), bytes));
        })
    }

    /// Removes all entries of a deleted directory.
    pub(super) fn empty(&mut self, directory: InodeNumber) -> Result<()> {
        for item in self.items(directory, ItemType::DIR_INDEX)? {
            self.remove_entry(&item)?;
        }
        Ok(())
    }

    /// Does step 2 of the replay for one directory entry.
    pub(super) fn entry(&mut self, item: &OwnedItem) -> Result<()> {
        let key = item.key();
        if self.require_inode(&key)?.kind() != FileKind::Directory {
            return Err(wrong(&key, "an entry of what is no directory"));
        }
        let Some(entry) = DirItems::parse(&key, item.data()).map_err(broken)?.next() else {
            return Ok(());
        };
        // Names that the log of their inode has are added with the inode's other names.
        let Some(inode) = Self::target(&entry) else {
            return Ok(());
        };
        if self.find_inode(inode)?.is_none() {
            return Ok(());
        }
        let named = Named {
            parent: inode_of(&key),
            index: key.offset,
            name: entry.name.to_vec(),
        };
        if self.make_way(&named, inode)? || names_in(&self.log, inode)?.contains(&named) {
            return Ok(());
        }
        self.link(inode, &named)
    }

    /// Removes an entry that has the name or the index of a logged entry, but leads to another
    /// inode. Returns whether the logged name already exists, with any index.
    fn make_way(&mut self, named: &Named, inode: InodeNumber) -> Result<bool> {
        let directory = self.at(named.parent);
        let mut is_there = false;
        if let Some(present) = self.operation.find_entry(directory, &named.name)? {
            match present.target {
                Target::Inode(other) if other == inode => is_there = true,
                Target::Inode(other) => {
                    let index = self
                        .operation
                        .link_index(self.at(other), named.parent, &named.name)?;
                    self.unlink(named.parent, &named.name, other, index)?;
                }
                Target::Subvolume(_) => {
                    let key = DirItem::index_key(named.parent, named.index);
                    return Err(wrong(&key, "a logged name is that of a subvolume"));
                }
            }
        }
        let tree = self.tree();
        let key = DirItem::index_key(named.parent, named.index);
        if let Some(item) = self.operation.get(tree, &key)? {
            let is_same = DirItems::parse(&key, item.data())
                .map_err(broken)?
                .next()
                .is_some_and(|entry| entry.name == named.name && Self::target(&entry) == Some(inode));
            if !is_same {
                self.remove_entry(&item)?;
            }
        }
        Ok(is_there)
    }

    /// Does step 3 of the replay for all names of an inode.
    pub(super) fn names(&mut self, inode: InodeNumber) -> Result<()> {
        self.require_inode(&Key::new(
            buttress_format::ObjectId::new(inode.get()),
            ItemType::INODE_REF,
            0,
        ))?;
        let logged = names_in(&self.log, inode)?;
        let present = self.names_of(inode)?;
        // Old names in the logged directories are removed first: a name may exist there under
        // another index.
        let parents: Vec<InodeNumber> = logged.iter().map(|name| name.parent).collect();
        for old in &present {
            if parents.contains(&old.parent) && !logged.contains(old) {
                self.unlink(old.parent, &old.name, inode, old.index)?;
            }
        }
        for named in &logged {
            if present.contains(named) && self.has_entry(named, inode)? {
                continue;
            }
            let Some(parent) = self.find_inode(named.parent)? else {
                // The directory was not logged and does not exist in the subvolume.
                continue;
            };
            if parent.kind() != FileKind::Directory {
                let key = InodeRefs::key(inode, named.parent);
                return Err(wrong(&key, "an inode has a name in what is no directory"));
            }
            if self.make_way(named, inode)? {
                return Err(Corruption::DirIndexMissing {
                    directory: self.at(named.parent),
                    name: buttress_fs::error::Name::from(named.name.as_slice()),
                }
                .into());
            }
            self.link(inode, named)?;
        }
        Ok(())
    }

    /// Returns whether the directory has an entry of this name for the inode.
    fn has_entry(&mut self, named: &Named, inode: InodeNumber) -> Result<bool> {
        let parent = self.at(named.parent);
        let found = self.operation.find_entry(parent, &named.name)?;
        Ok(found.is_some_and(|entry| entry.target == Target::Inode(inode)))
    }
}
