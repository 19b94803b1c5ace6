//! The writer's calls on inodes: reading and changing inode items, choosing inode numbers and
//! indexes, and writing items back.
//!
//! Invariants: see [`inode_table`](crate::inode_table).

use crate::inode_table::FIRST_INDEX;
use crate::inodes::{InodeState, LiveInode, id_of};
use crate::running::Running;
use crate::running_parts::InodeItems;
use buttress_format::{
    DirItem, Generation, InodeItem, InodeNumber, ItemType, Key, ObjectId, Timestamp, TreeId,
};
use buttress_fs::error::{Corruption, Error, Result};
use buttress_fs::location::Location;
use core::ops::Range;
use std::sync::Arc;

impl InodeItems<'_> {
    /// Returns the newest item of an inode.
    ///
    /// # Errors
    /// Fails with [`Error::InodeNotFound`], with [`Error::NotPermitted`] for a placeholder, or with
    /// an error of the tree.
    pub fn item(&mut self, location: Location) -> Result<InodeItem> {
        let id = id_of(location);
        if let Some(item) = self.running.inodes.live.with(id, |state| state.item).flatten() {
            return Ok(item);
        }
        self.take_in(location).map(|(_, item)| item)
    }

    /// Returns the live inode and its item, loaded into memory if necessary.
    fn take_in(&mut self, location: Location) -> Result<(Arc<LiveInode>, InodeItem)> {
        if location.placeholder().is_some() {
            return Err(Error::NotPermitted {
                location,
                why: "it is the placeholder of a subvolume that this snapshot does not contain",
            });
        }
        let id = id_of(location);
        let inode = self.running.inodes.live.entry(id);
        let known = inode.read().item;
        if let Some(item) = known {
            return Ok((inode, item));
        }
        let key = InodeItem::key(location.inode);
        let tree = self.running.open_tree(id.0).map(|open| open.tree.clone());
        let is_there = tree.and_then(|tree| tree.require_subvolume(location.subvolume));
        let found = match is_there.and_then(|()| self.running.get(id.0, &key)) {
            Ok(Some(found)) => found,
            missing => {
                drop(inode);
                self.running.inodes.live.forget_unknown(id);
                missing?;
                return Err(Error::InodeNotFound { location });
            }
        };
        let item =
            InodeItem::parse(&key, found.data()).map_err(|error| Corruption::Item { tree: id.0, error })?;
        // Only the writer changes items, so a reader that loaded the item first loaded an equal
        // item.
        let item = *inode.write().item.get_or_insert(item);
        Ok((inode, item))
    }

    /// Changes the item of an inode, and marks the item as changed by the running transaction. The
    /// inode item receives the pending times first. `change` receives the newest times, and a time
    /// that `change` sets takes precedence.
    ///
    /// # Errors
    /// Fails as [`InodeItems::item`] does.
    pub fn change(&mut self, location: Location, change: impl FnOnce(&mut InodeItem)) -> Result<()> {
        let generation = self.running.core.generation;
        let (inode, _) = self.take_in(location)?;
        let mut state = inode.write();
        self.running.inodes.log_state(&inode, &mut state, generation);
        let InodeState {
            item,
            pending,
            changed,
            ..
        } = &mut *state;
        let Some(item) = item else {
            return Err(Error::InodeNotFound { location });
        };
        core::mem::take(pending).merge_into(item);
        change(item);
        if !buttress_faults::on("inode-transid-kept") {
            item.transid = generation;
        }
        if !core::mem::replace(changed, true) {
            drop(state);
            self.running.inodes.changed.insert(id_of(location), inode);
        }
        Ok(())
    }

    /// Records for the log that items of a file changed in a range.
    pub fn note_changed_extents(&mut self, location: Location, range: &Range<u64>) -> Result<()> {
        if buttress_faults::on("log-forgets-extents") {
            return Ok(());
        }
        let generation = self.running.core.generation;
        let (inode, _) = self.take_in(location)?;
        let mut state = inode.write();
        if let Some(log) = self.running.inodes.log_state(&inode, &mut state, generation) {
            log.changed.add(range);
        }
        Ok(())
    }

    /// Records in the log state that a directory got a name with this index.
    pub fn note_new_index(&mut self, directory: Location, index: u64) -> Result<()> {
        let generation = self.running.core.generation;
        let (inode, _) = self.take_in(directory)?;
        let mut state = inode.write();
        if let Some(log) = self.running.inodes.log_state(&inode, &mut state, generation) {
            log.first_index = Some(log.first_index.map_or(index, |first| first.min(index)));
        }
        Ok(())
    }

    /// Adds a new inode to the table. The caller has just inserted the inode's item into the tree.
    pub fn know(&mut self, location: Location, item: InodeItem) {
        let inode = self.running.inodes.live.entry(id_of(location));
        inode.write().item = Some(item);
    }

    /// Writes all changed inode items into their trees.
    ///
    /// # Errors
    /// Fails if a tree cannot be read, or if an item does not exist. After an error, the
    /// transaction must not be committed.
    pub fn write_back(&mut self) -> Result<()> {
        self.write_back_some(usize::MAX)
    }

    /// Writes the first `count` changed inode items into their trees, or all of them if fewer
    /// exist.
    ///
    /// # Errors
    /// Fails as [`InodeItems::write_back`] does.
    pub fn write_back_some(&mut self, count: usize) -> Result<()> {
        for _ in 0..count {
            let Some(((tree, inode), live)) = self.running.inodes.changed.pop_first() else {
                break;
            };
            let item = live.read().item;
            let written = match item {
                Some(item) => self.write_back_one(tree, inode, &item),
                None => Ok(()),
            };
            if let Err(error) = written {
                self.running.inodes.changed.insert((tree, inode), live);
                return Err(error);
            }
            live.write().changed = false;
        }
        Ok(())
    }

    fn write_back_one(&mut self, tree: TreeId, inode: InodeNumber, item: &InodeItem) -> Result<()> {
        let key = InodeItem::key(inode);
        let bytes = item.to_bytes();
        let found = self.running.update(tree, &key, &mut |data| {
            if data.len() == bytes.len() {
                data.copy_from_slice(&bytes);
            }
        })?;
        if found {
            return Ok(());
        }
        Err(Corruption::ItemMissing {
            tree,
            key,
            what: "an inode that was changed",
        }
        .into())
    }

    /// Returns the inode number that [`InodeItems::free_number`] would return next.
    ///
    /// # Errors
    /// Fails if the tree cannot be read.
    pub fn next_number(&mut self, tree: TreeId) -> Result<u64> {
        if let Some(next) = self.running.inodes.next_numbers.get(&tree) {
            return Ok(*next);
        }
        let last = Key::new(ObjectId::LAST_FREE, ItemType(u8::MAX), u64::MAX);
        let highest = self
            .running
            .at_or_before(tree, &last)?
            .map_or(0, |item| item.key().objectid.get());
        let next = highest.saturating_add(1).max(InodeNumber::ROOT_DIRECTORY.get());
        self.running.inodes.next_numbers.insert(tree, next);
        Ok(next)
    }

    /// Returns an unused inode number of a tree. A number is not returned twice while the volume is
    /// open.
    ///
    /// # Errors
    /// Fails with [`Error::TooMany`] if no number is left, or with an error of the tree.
    pub fn free_number(&mut self, tree: TreeId) -> Result<InodeNumber> {
        let number = self.next_number(tree)?;
        if number >= ObjectId::LAST_FREE.get() {
            return Err(Error::TooMany {
                what: "inodes of a subvolume",
            });
        }
        self.running
            .inodes
            .next_numbers
            .insert(tree, number.saturating_add(1));
        Ok(InodeNumber::new(number))
    }

    /// Returns the index that [`InodeItems::free_index`] would return next.
    ///
    /// # Errors
    /// Fails if the tree cannot be read.
    pub fn next_index(&mut self, directory: Location) -> Result<u64> {
        let known = self
            .running
            .inodes
            .live
            .with(id_of(directory), |state| state.next_index);
        let is_forgotten = buttress_faults::on("directory-index-given-twice");
        if let Some(next) = known.flatten().filter(|_| !is_forgotten) {
            return Ok(next);
        }
        let next = self.next_index_in_tree(directory)?;
        self.running.inodes.set_next_index(directory, next);
        Ok(next)
    }

    /// Returns the index after the last index of a directory in its tree.
    pub fn next_index_in_tree(&mut self, directory: Location) -> Result<u64> {
        let highest = self.highest_index(directory)?;
        Ok(highest.map_or(FIRST_INDEX, |last| last.saturating_add(1)))
    }

    /// Returns an unused name index of a directory. An index is not returned twice while the
    /// directory is in memory.
    ///
    /// # Errors
    /// Fails if the tree cannot be read.
    pub fn free_index(&mut self, directory: Location) -> Result<u64> {
        let index = self.next_index(directory)?;
        let after = index.saturating_add(1);
        self.running
            .inodes
            .live
            .update(id_of(directory), |state| state.next_index = Some(after));
        Ok(index)
    }

    /// Records that a new directory is empty, so its first index needs no search.
    pub fn know_empty_directory(&mut self, directory: Location) {
        self.running.inodes.set_next_index(directory, FIRST_INDEX);
    }

    fn highest_index(&mut self, directory: Location) -> Result<Option<u64>> {
        let last = DirItem::index_key(directory.inode, u64::MAX);
        let found = self.running.at_or_before(directory.subvolume.tree(), &last)?;
        let key = found.map(|item| item.key());
        Ok(key
            .filter(|key| key.objectid == last.objectid && key.item_type == ItemType::DIR_INDEX)
            .map(|key| key.offset))
    }
}

impl Running {
    /// Records the time and generation of a subvolume's change in its root item.
    pub fn touch_root(&mut self, tree: TreeId, now: Timestamp) -> Result<()> {
        if buttress_faults::on("root-change-unnoted") {
            return Ok(());
        }
        self.note_change_of_root(tree, now)
    }

    /// Returns the generation that new and changed inodes record.
    pub const fn running_generation(&self) -> Generation {
        self.core.generation
    }
}
