//! The replay of a log: one edit of the running transaction, committed at once.
//!
//! For each subvolume, each of these steps runs over all items of its log, in this order:
//!
//! 1. The replay of inodes: it removes attributes, names and content that the log marks as removed.
//!    After these removals, the inode gets its item.
//! 2. The log's directory entries, in the order of their indexes.
//! 3. Names of inodes ([`names`]), extended attributes, file extents with their checksums
//!    ([`extents`]).
//! 4. Link counts: every visited inode gets the count of its names. An inode that the replay leaves
//!    without names becomes an orphan, which opening removes afterwards.
//!
//! # Invariants
//!
//! - Until the commit is durable, no block of the log or the last commit is overwritten. A crash
//!   during the replay leaves the log and the last commit unchanged; the next opening replays the log
//!   again.
//! - After each step of the replay, names are consistent: both the directory and the inode record
//!   each name.
//! - After a replay, directories have the times of the log, or their own times. Directory entries
//!   that the replay adds or removes change no timestamps.
//!
//! # The generation of a logged inode
//!
//! Zero means that only the existence of the inode is logged, with its names and attributes. If the
//! subvolume already has that inode, the inode keeps its item, except for a size that was logged
//! before.

mod extents;
mod names;

use crate::areas::LogTree;
use crate::operations::Operation;
use buttress_engine::data_extents::DataRange;
use buttress_engine::pending_log::{PendingLog, broken};
use buttress_format::{
    ByteCount, DirItem, DirItems, FileKind, InodeItem, InodeNumber, ItemType, Key, Logical, ObjectId,
    OrphanItem, SubvolumeId, TreeId,
};
use buttress_fs::Location;
use buttress_fs::error::{Corruption, Error, Result};
use buttress_tree::{OwnedItem, ReadAhead, Tree};
use std::collections::{BTreeMap, BTreeSet, HashSet};

impl LogTree<'_> {
    /// Replays a log, and commits. After the replay, the volume has no log.
    ///
    /// # Errors
    /// Fails with [`Error::DamagedLog`] if the log cannot be replayed. Nothing was written then,
    /// and the log is still pending.
    pub(crate) fn replay(&self, log: &PendingLog) -> Result<()> {
        let handle = self.filesystem.start_unchecked();
        let replayed = self.filesystem.operate_on(handle, |operation| {
            operation.be_upkeep();
            let running = operation.edit();
            running.core.superblock_changed = true;
            let mut unused = running.log_space().take_data(log)?;
            for (subvolume, tree) in &log.logs {
                let replay = Replay::new(operation, *subvolume, tree.clone(), &mut unused);
                replay.run()?;
            }
            // Free the data extents of inodes that the replay skipped.
            for range in unused.into_values() {
                operation.edit().data_space().give_back(range);
            }
            Ok(())
        });
        replayed.map_err(|cause| log.damaged(cause))?;
        self.filesystem.commit_metadata().map(drop)
    }
}

/// The replay of one subvolume's log.
struct Replay<'a, 'b> {
    operation: &'a mut Operation<'b>,
    subvolume: SubvolumeId,
    log: Tree,
    /// Extents that only logs refer to, and that no file extent item uses yet.
    unused: &'a mut BTreeMap<Logical, DataRange>,
    /// Inodes whose names may have changed.
    touched: BTreeSet<InodeNumber>,
    /// Logged inodes without names, whose items no path would reach.
    ignored: HashSet<InodeNumber>,
}

impl<'a, 'b> Replay<'a, 'b> {
    fn new(
        operation: &'a mut Operation<'b>,
        subvolume: SubvolumeId,
        log: Tree,
        unused: &'a mut BTreeMap<Logical, DataRange>,
    ) -> Self {
        Self {
            operation,
            subvolume,
            log,
            unused,
            touched: BTreeSet::new(),
            ignored: HashSet::new(),
        }
    }
}

/// Returns the range of keys of one item type of an inode.
fn keys_of(inode: InodeNumber, item_type: ItemType) -> core::ops::RangeInclusive<Key> {
    let object = ObjectId::new(inode.get());
    Key::new(object, item_type, 0)..=Key::new(object, item_type, u64::MAX)
}

fn inode_of(key: &Key) -> InodeNumber {
    InodeNumber::new(key.objectid.get())
}

/// Returns the error for a log that breaks a rule of the format.
fn wrong(key: &Key, what: &'static str) -> Error {
    Corruption::Log { key: *key, what }.into()
}

impl Replay<'_, '_> {
    fn run(mut self) -> Result<()> {
        self.each(|replay, item| match item.key().item_type {
            ItemType::INODE_ITEM => replay.inode(item),
            _ => Ok(()),
        })?;
        self.each(|replay, item| match item.key().item_type {
            ItemType::DIR_INDEX => replay.entry(item),
            _ => Ok(()),
        })?;
        let mut named = None;
        self.each(|replay, item| {
            let inode = inode_of(&item.key());
            match item.key().item_type {
                ItemType::INODE_REF | ItemType::INODE_EXTREF if named != Some(inode) => {
                    named = Some(inode);
                    replay.names(inode)
                }
                ItemType::XATTR_ITEM => replay.xattr(item),
                ItemType::EXTENT_DATA => replay.extent(item),
                _ => Ok(()),
            }
        })?;
        self.count_links()
    }

    /// Calls `body` for all log items of inodes that are not ignored.
    fn each(&mut self, mut body: impl FnMut(&mut Self, &OwnedItem) -> Result<()>) -> Result<()> {
        let items = self.log.range(Key::MIN..=Key::MAX, ReadAhead::None);
        for item in items {
            let item = item?;
            if !self.ignored.contains(&inode_of(&item.key())) {
                body(self, &item)?;
            }
        }
        Ok(())
    }

    const fn tree(&self) -> TreeId {
        self.subvolume.tree()
    }

    const fn at(&self, inode: InodeNumber) -> Location {
        Location::new(self.subvolume, inode)
    }

    /// Returns the inode item, if the subvolume has the inode.
    fn find_inode(&mut self, inode: InodeNumber) -> Result<Option<InodeItem>> {
        let location = self.at(inode);
        match self.operation.inode(location) {
            Ok(item) => Ok(Some(item)),
            Err(Error::InodeNotFound { .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Returns the subvolume's items of one type of an inode.
    fn items(&mut self, inode: InodeNumber, item_type: ItemType) -> Result<Vec<OwnedItem>> {
        let tree = self.tree();
        let view = self.operation.view_of(tree)?;
        let items = view.range(keys_of(inode, item_type), ReadAhead::Forward);
        Ok(items.collect::<core::result::Result<_, _>>()?)
    }

    /// Replays one logged inode item: step 1 of the log replay.
    fn inode(&mut self, item: &OwnedItem) -> Result<()> {
        let key = item.key();
        let logged = InodeItem::parse(&key, item.data()).map_err(broken)?;
        let inode = inode_of(&key);
        if logged.nlink == 0 {
            self.ignored.insert(inode);
            return Ok(());
        }
        let present = self.find_inode(inode)?;
        if let Some(present) = &present {
            if present.kind() != logged.kind() {
                return Err(wrong(&key, "an inode is of another kind than in its subvolume"));
            }
            if !buttress_faults::on("replay-keeps-xattrs") {
                self.remove_xattrs(inode)?;
            }
            if present.kind() == FileKind::Directory {
                self.remove_entries(inode)?;
            }
        }
        self.put_inode(inode, &logged, present.is_some())?;
        self.touched.insert(inode);
        let says_nothing_of_size =
            present.is_some() && is_existence_only(&logged) && logged.size == ByteCount::ZERO;
        if logged.kind() == FileKind::Regular && !says_nothing_of_size {
            self.cut(inode)?;
        }
        Ok(())
    }

    fn put_inode(&mut self, inode: InodeNumber, logged: &InodeItem, is_present: bool) -> Result<()> {
        let location = self.at(inode);
        if !is_present {
            let generation = self.operation.generation();
            let mut item = *logged;
            item.transid = generation;
            item.nbytes = ByteCount::ZERO;
            if is_existence_only(logged) {
                item.generation = generation;
            }
            if item.kind() == FileKind::Directory {
                item.size = ByteCount::ZERO;
            }
            let tree = self.tree();
            let running = self.operation.edit();
            running.insert(tree, &InodeItem::key(inode), &item.to_bytes())?;
            running.inode_items().know(location, item);
            return Ok(());
        }
        if is_existence_only(logged) {
            if logged.kind() == FileKind::Regular && logged.size != ByteCount::ZERO {
                self.operation
                    .change_inode(location, |item| item.size = logged.size)?;
            }
            return Ok(());
        }
        self.operation.change_inode(location, |item| {
            // Later steps of the replay compute both values.
            let (nbytes, size) = (item.nbytes, item.size);
            *item = *logged;
            item.nbytes = nbytes;
            if item.kind() == FileKind::Directory {
                item.size = size;
            }
        })
    }

    /// Removes the extended attributes that the log does not have.
    fn remove_xattrs(&mut self, inode: InodeNumber) -> Result<()> {
        for item in self.items(inode, ItemType::XATTR_ITEM)? {
            let key = item.key();
            let logged = self.log.get(&key)?;
            let names_of = |item: &OwnedItem| -> Result<Vec<Vec<u8>>> {
                let entries = DirItems::parse(&key, item.data()).map_err(broken)?;
                Ok(entries.map(|entry| entry.name.to_vec()).collect())
            };
            let logged = logged.as_ref().map(names_of).transpose()?.unwrap_or_default();
            for name in names_of(&item)? {
                if !logged.contains(&name) {
                    let file = self.at(inode);
                    self.operation.xattrs().remove_item(file, &name)?;
                }
            }
        }
        Ok(())
    }

    /// Does step 3 of the replay for the extended attributes of one hash.
    fn xattr(&mut self, item: &OwnedItem) -> Result<()> {
        let key = item.key();
        DirItems::parse(&key, item.data()).map_err(broken)?;
        self.require_inode(&key)?;
        let tree = self.tree();
        self.operation.edit().put(tree, &key, item.data())
    }

    /// Returns the inode of an item; the subvolume must have it by now.
    fn require_inode(&mut self, key: &Key) -> Result<InodeItem> {
        let found = self.find_inode(inode_of(key))?;
        found.ok_or_else(|| wrong(key, "neither the log nor the subvolume has the item's inode"))
    }

    /// Performs step 4 of the log replay.
    fn count_links(&mut self) -> Result<()> {
        while let Some(inode) = self.touched.pop_first() {
            let location = self.at(inode);
            let Some(item) = self.find_inode(inode)? else {
                continue;
            };
            if inode == InodeNumber::ROOT_DIRECTORY {
                continue;
            }
            let names = self.names_of(inode)?.len();
            let is_directory = item.kind() == FileKind::Directory;
            if names == 0 {
                if is_directory {
                    self.empty(inode)?;
                }
                self.make_orphan(inode)?;
            }
            let links = match is_directory {
                true => names.min(1),
                false => names,
            };
            let links = u32::try_from(links).unwrap_or(u32::MAX);
            if item.nlink != links {
                self.operation.change_inode(location, |item| item.nlink = links)?;
            }
        }
        Ok(())
    }

    fn make_orphan(&mut self, inode: InodeNumber) -> Result<()> {
        let tree = self.tree();
        let key = OrphanItem::key(ObjectId::new(inode.get()));
        self.operation.edit().put(tree, &key, &[])
    }

    /// Returns the inode that an entry leads to; `None` for a subvolume, since no log adds or
    /// removes subvolumes.
    fn target(entry: &DirItem<'_>) -> Option<InodeNumber> {
        let is_inode = entry.location.item_type == ItemType::INODE_ITEM;
        is_inode.then(|| InodeNumber::new(entry.location.objectid.get()))
    }
}

/// Returns whether only the existence of an inode is logged.
fn is_existence_only(logged: &InodeItem) -> bool {
    logged.generation.get() == 0
}
