//! Inodes of the running transaction, in memory.
//!
//! An inode item changes with nearly every operation, that of a directory with every name in it. So changes are made
//! in the inode's object ([`crate::inodes`]), and [`Running::write_back_inodes`] puts each changed item into its tree
//! once: at the commit, and before a view is taken. Until then the newest inode item is the one in memory;
//! [`Running::inode`] and [`Running::change_inode`] are the writer's ways to it.
//!
//! Beside that: the next free inode number of each tree and the next free index of each directory, which are looked up once
//! and then counted.
//!
//! Invariants: an inode with an item in memory has one in its tree; an item that changed in memory is written before a view
//! shows the tree; each change gives the item the running transaction as `transid`.
//!
//! Source: on-disk format documentation, sections "INODE_ITEM" and "DIR_INDEX".

use crate::inherited::Inherited;
use crate::inodes::{INODES_MAX, InodeId, InodeState, LiveInode, LiveInodes, id_of};
use crate::known_names::KnownNames;
use crate::log_state::LogState;
use crate::running::Running;
use buttress_exact::u64_of;
use buttress_format::{
    DirItem, Generation, InodeItem, InodeNumber, ItemType, Key, ObjectId, Timestamp, TreeId,
};
use buttress_fs::error::{Corruption, Error, Result};
use buttress_fs::location::Location;
use core::ops::{Range, RangeInclusive};
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

/// The first index of an entry in a directory: 0 and 1 stand for `.` and `..`.
pub const FIRST_INDEX: u64 = 2;

/// The inodes of the running transaction. See the module.
#[derive(Debug, Default)]
pub struct InodeTable {
    live: Arc<LiveInodes>,
    /// Those whose items are newer than their trees have them, in order.
    changed: BTreeMap<InodeId, Arc<LiveInode>>,
    next_numbers: HashMap<TreeId, u64>,
    /// How many directories got a next index since they were forgotten last.
    indexes: usize,
    /// Those with a state of the log, which go with the transaction.
    logged: Vec<Arc<LiveInode>>,
}

impl InodeTable {
    /// The same inodes, for readers.
    pub fn live(&self) -> Arc<LiveInodes> {
        Arc::clone(&self.live)
    }

    /// Names that readers looked up.
    pub fn names(&self) -> &KnownNames {
        self.live.names()
    }

    /// How many inode items wait to be written back.
    pub fn changed(&self) -> u64 {
        u64_of(self.changed.len())
    }

    /// Where the items lie that wait to be written back, in order.
    pub fn changed_keys(&self) -> impl Iterator<Item = (TreeId, Key)> {
        let ids = self.changed.keys();
        ids.map(|(tree, inode)| (*tree, InodeItem::key(*inode)))
    }

    /// The items of a tree's inodes that are newer than the tree has them, from one number up to another, in order.
    pub fn changed_items(
        &self,
        tree: TreeId,
        numbers: RangeInclusive<InodeNumber>,
    ) -> impl Iterator<Item = (InodeNumber, Option<InodeItem>)> {
        let range = (tree, *numbers.start())..=(tree, *numbers.end());
        let changed = self.changed.range(range);
        changed.map(|((_, inode), live)| (*inode, live.read().item))
    }

    /// How many inodes are in memory.
    pub fn count(&self) -> usize {
        self.live.count()
    }

    /// Whether somebody holds the inode open.
    pub fn is_held(&self, location: Location) -> bool {
        let held = self.live.look(id_of(location), |state| state.held > 0);
        held.unwrap_or(false)
    }

    /// Returns how often an inode is held open.
    pub fn holders(&self, location: Location) -> u32 {
        // Clamp: an inode that is not in memory has no holder.
        let held = self.live.look(id_of(location), |state| state.held);
        held.unwrap_or(0)
    }

    /// Counts one more holder of an inode.
    pub fn hold(&self, location: Location) {
        let inode = self.live.entry(id_of(location));
        let mut state = inode.write();
        state.held = state.held.saturating_add(1);
    }

    /// Lets go of an inode; says whether nobody holds it any more.
    pub fn release(&self, location: Location) -> bool {
        let released = self.live.update(id_of(location), |state| {
            state.held = state.held.saturating_sub(1);
            state.held == 0
        });
        released.unwrap_or(true)
    }

    /// Returns what a directory gives to new inodes, if that is known.
    pub fn inherited(&self, location: Location) -> Option<Arc<Inherited>> {
        self.live.look(id_of(location), |state| state.inherited.clone())?
    }

    /// Keeps what a directory gives to new inodes, or, with `None`, forgets it because it changes.
    pub fn set_inherited(&self, location: Location, inherited: Option<Arc<Inherited>>) {
        self.live
            .update(id_of(location), |state| state.inherited = inherited);
    }

    /// Forgets indexes that can be looked up again when there are very many; not while an operation may have taken some.
    pub fn forget_indexes(&mut self) {
        if self.indexes >= INODES_MAX {
            self.live.forget_indexes();
            self.indexes = 0;
        }
    }

    /// The state of the log of an inode in the running transaction, begun if nothing changed before. `None`: something did, and
    /// nothing is known of it.
    fn log_state<'a>(
        &mut self,
        inode: &Arc<LiveInode>,
        state: &'a mut InodeState,
        generation: Generation,
    ) -> Option<&'a mut LogState> {
        if state.log.generation != generation {
            let item = state.item.as_ref()?;
            if item.transid >= generation {
                return None;
            }
            self.begin_log_state(inode, state, generation);
        }
        Some(&mut state.log)
    }

    /// Begins the state of the log of an inode.
    fn begin_log_state(&mut self, inode: &Arc<LiveInode>, state: &mut InodeState, generation: Generation) {
        if state.log.is_none() {
            self.logged.push(Arc::clone(inode));
        }
        state.log = LogState::new(generation);
    }

    /// Changes the state of the log of an inode that is being logged, begun if there was none.
    pub fn with_log_state<T>(
        &mut self,
        location: Location,
        generation: Generation,
        change: impl FnOnce(&mut LogState) -> T,
    ) -> T {
        let inode = self.live.entry(id_of(location));
        let mut state = inode.write();
        if state.log.generation != generation {
            self.begin_log_state(&inode, &mut state, generation);
        }
        change(&mut state.log)
    }

    /// The state of the log of an inode in this transaction, if there is one.
    pub fn look_at_log<T>(
        &self,
        location: Location,
        generation: Generation,
        look: impl FnOnce(&LogState) -> T,
    ) -> Option<T> {
        let look = |state: &InodeState| (state.log.generation == generation).then(|| look(&state.log));
        self.live.look(id_of(location), look)?
    }

    /// A transaction begins: its log is empty.
    pub fn forget_log_states(&mut self) {
        for inode in self.logged.drain(..) {
            inode.write().log = LogState::default();
        }
    }

    fn set_next_index(&mut self, directory: Location, next: u64) {
        let inode = self.live.entry(id_of(directory));
        let known = inode.write().next_index.replace(next);
        self.indexes = self.indexes.saturating_add(usize::from(known.is_none()));
    }

    /// Marks an inode whose items are about to go: readers find it no more.
    pub fn begin_removal(&self, location: Location) {
        self.live.entry(id_of(location)).write().is_going = true;
    }

    /// Forgets an inode whose items are gone.
    pub fn forget(&mut self, location: Location) {
        let id = id_of(location);
        self.changed.remove(&id);
        self.live.forget(id);
    }

    /// Forgets all that is known of a tree that is going to be dropped.
    pub fn forget_tree(&mut self, tree: TreeId) {
        self.changed.retain(|(of, _), _| *of != tree);
        self.live.forget_tree(tree);
        self.next_numbers.remove(&tree);
    }
}

impl Running {
    /// The newest item of an inode.
    ///
    /// # Errors
    /// [`Error::InodeNotFound`], [`Error::NotPermitted`] of a placeholder, or that the tree cannot be read.
    pub fn inode(&mut self, location: Location) -> Result<InodeItem> {
        let id = id_of(location);
        if let Some(item) = self.inodes.live.look(id, |state| state.item).flatten() {
            return Ok(item);
        }
        self.take_in_inode(location).map(|(_, item)| item)
    }

    /// The object of an inode, with its item.
    fn take_in_inode(&mut self, location: Location) -> Result<(Arc<LiveInode>, InodeItem)> {
        if location.placeholder().is_some() {
            return Err(Error::NotPermitted {
                location,
                why: "it stands for a subvolume which this snapshot does not hold",
            });
        }
        let id = id_of(location);
        let inode = self.inodes.live.entry(id);
        let known = inode.read().item;
        if let Some(item) = known {
            return Ok((inode, item));
        }
        let key = InodeItem::key(location.inode);
        let tree = self.open_tree(id.0).map(|open| open.tree.clone());
        let is_there = tree.and_then(|tree| tree.require_subvolume(location.subvolume));
        let found = match is_there.and_then(|()| self.get(id.0, &key)) {
            Ok(Some(found)) => found,
            missing => {
                drop(inode);
                self.inodes.live.forget_unknown(id);
                missing?;
                return Err(Error::InodeNotFound { location });
            }
        };
        let item =
            InodeItem::parse(&key, found.data()).map_err(|error| Corruption::Item { tree: id.0, error })?;
        // Only the writer changes items, so a reader who was first took in the same.
        let item = *inode.write().item.get_or_insert(item);
        Ok((inode, item))
    }

    /// Changes the item of an inode, which then counts as changed by the running transaction. The item gets pending
    /// times first. `change` sees the newest times, and a time that it sets is the last one.
    ///
    /// # Errors
    /// As [`Running::inode`].
    pub fn change_inode(&mut self, location: Location, change: impl FnOnce(&mut InodeItem)) -> Result<()> {
        let generation = self.core.generation;
        let (inode, _) = self.take_in_inode(location)?;
        let mut state = inode.write();
        self.inodes.log_state(&inode, &mut state, generation);
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
            self.inodes.changed.insert(id_of(location), inode);
        }
        Ok(())
    }

    /// Notes that items of a file changed in a range.
    pub fn note_changed_extents(&mut self, location: Location, range: &Range<u64>) -> Result<()> {
        if buttress_faults::on("log-forgets-extents") {
            return Ok(());
        }
        let generation = self.core.generation;
        let (inode, _) = self.take_in_inode(location)?;
        let mut state = inode.write();
        if let Some(log) = self.inodes.log_state(&inode, &mut state, generation) {
            log.changed.add(range);
        }
        Ok(())
    }

    /// Notes that a directory got a name with this index.
    pub fn note_new_index(&mut self, directory: Location, index: u64) -> Result<()> {
        let generation = self.core.generation;
        let (inode, _) = self.take_in_inode(directory)?;
        let mut state = inode.write();
        if let Some(log) = self.inodes.log_state(&inode, &mut state, generation) {
            log.first_index = Some(log.first_index.map_or(index, |first| first.min(index)));
        }
        Ok(())
    }

    /// Takes in a new inode whose item was just put into the tree.
    pub fn know_inode(&mut self, location: Location, item: InodeItem) {
        let inode = self.inodes.live.entry(id_of(location));
        inode.write().item = Some(item);
    }

    /// Puts all changed inode items into their trees.
    ///
    /// # Errors
    /// That a tree cannot be read, or an item is not there: then the transaction must not be committed.
    pub fn write_back_inodes(&mut self) -> Result<()> {
        self.write_back_some_inodes(usize::MAX)
    }

    /// Puts the first changed inode items into their trees, at most so many.
    ///
    /// # Errors
    /// As [`Running::write_back_inodes`].
    pub fn write_back_some_inodes(&mut self, count: usize) -> Result<()> {
        for _ in 0..count {
            let Some(((tree, inode), live)) = self.inodes.changed.pop_first() else {
                break;
            };
            let item = live.read().item;
            let written = match item {
                Some(item) => self.write_back_inode(tree, inode, &item),
                None => Ok(()),
            };
            if let Err(error) = written {
                self.inodes.changed.insert((tree, inode), live);
                return Err(error);
            }
            live.write().changed = false;
        }
        Ok(())
    }

    /// Records in its root item when a subvolume was changed.
    pub fn touch_root(&mut self, tree: TreeId, now: Timestamp) -> Result<()> {
        if buttress_faults::on("root-change-unnoted") {
            return Ok(());
        }
        self.note_change_of_root(tree, now)
    }

    fn write_back_inode(&mut self, tree: TreeId, inode: InodeNumber, item: &InodeItem) -> Result<()> {
        let key = InodeItem::key(inode);
        let bytes = item.to_bytes();
        let found = self.update(tree, &key, &mut |data| {
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

    /// The inode number that [`Running::free_inode_number`] gives next.
    ///
    /// # Errors
    /// That the tree cannot be read.
    pub fn next_inode_number(&mut self, tree: TreeId) -> Result<u64> {
        if let Some(next) = self.inodes.next_numbers.get(&tree) {
            return Ok(*next);
        }
        let last = Key::new(ObjectId::LAST_FREE, ItemType(u8::MAX), u64::MAX);
        let highest = self
            .at_or_before(tree, &last)?
            .map_or(0, |item| item.key().objectid.get());
        let next = highest.saturating_add(1).max(InodeNumber::ROOT_DIRECTORY.get());
        self.inodes.next_numbers.insert(tree, next);
        Ok(next)
    }

    /// An inode number that nothing in the tree has. Numbers are not given twice while the volume is open.
    ///
    /// # Errors
    /// [`Error::TooMany`], or that the tree cannot be read.
    pub fn free_inode_number(&mut self, tree: TreeId) -> Result<InodeNumber> {
        let number = self.next_inode_number(tree)?;
        if number >= ObjectId::LAST_FREE.get() {
            return Err(Error::TooMany {
                what: "inodes of a subvolume",
            });
        }
        self.inodes.next_numbers.insert(tree, number.saturating_add(1));
        Ok(InodeNumber::new(number))
    }

    /// The index that [`Running::free_index`] gives next.
    ///
    /// # Errors
    /// That the tree cannot be read.
    pub fn next_index(&mut self, directory: Location) -> Result<u64> {
        let known = self.inodes.live.look(id_of(directory), |state| state.next_index);
        if let Some(next) = known.flatten() {
            return Ok(next);
        }
        let next = self.next_index_in_tree(directory)?;
        self.inodes.set_next_index(directory, next);
        Ok(next)
    }

    /// The index behind all that a directory has in its tree.
    pub fn next_index_in_tree(&mut self, directory: Location) -> Result<u64> {
        let highest = self.highest_index(directory)?;
        Ok(highest.map_or(FIRST_INDEX, |last| last.saturating_add(1)))
    }

    /// The next index of a directory. Indexes are not given twice while the directory is in memory.
    ///
    /// # Errors
    /// That the tree cannot be read.
    pub fn free_index(&mut self, directory: Location) -> Result<u64> {
        let index = self.next_index(directory)?;
        let after = match buttress_faults::on("directory-index-given-twice") {
            true => None,
            false => Some(index.saturating_add(1)),
        };
        self.inodes
            .live
            .update(id_of(directory), |state| state.next_index = after);
        Ok(index)
    }

    /// A directory that was just made holds nothing: its first index needs no search.
    pub fn know_empty_directory(&mut self, directory: Location) {
        self.inodes.set_next_index(directory, FIRST_INDEX);
    }

    fn highest_index(&mut self, directory: Location) -> Result<Option<u64>> {
        let last = DirItem::index_key(directory.inode, u64::MAX);
        let found = self.at_or_before(directory.subvolume.tree(), &last)?;
        let key = found.map(|item| item.key());
        Ok(key
            .filter(|key| key.objectid == last.objectid && key.item_type == ItemType::DIR_INDEX)
            .map(|key| key.offset))
    }

    /// The generation that inodes made or changed now carry.
    pub const fn running_generation(&self) -> Generation {
        self.core.generation
    }
}
