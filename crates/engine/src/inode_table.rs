//! The running transaction's inodes in memory.
//!
//! Nearly every operation changes an inode item, and each new name changes the item of its
//! directory. Instead of the item in the leaf, edits therefore change the live inode
//! ([`crate::inodes`]). Each changed item is written into its tree once: at the commit, and before
//! a view is taken. Until an inode item is written into its tree, the newest version is the one in
//! memory. `inode_items` has the writer's calls on inodes.
//!
//! The table also holds the next free inode number of each tree and the next free index of each
//! directory. The first use of a next number searches the tree; later uses count up.
//!
//! Invariants:
//! - An inode with an inode item in memory always has an item in its tree.
//! - The engine writes an inode item that changed in memory before a view shows the item's tree.
//! - Each change sets the item's `transid` to the running transaction.
//!
//! Source: on-disk format documentation, sections "INODE_ITEM" and "DIR_INDEX".

use crate::inherited::Inherited;
use crate::inodes::{INODES_MAX, InodeId, InodeState, LiveInode, LiveInodes, id_of};
use crate::known_names::KnownNames;
use crate::log_state::LogState;
use buttress_exact::u64_of;
use buttress_format::{Generation, InodeItem, InodeNumber, Key, TreeId};
use buttress_fs::location::Location;
use core::ops::RangeInclusive;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

/// The first index of a name in a directory: 0 and 1 stand for `.` and `..`.
pub const FIRST_INDEX: u64 = 2;

/// The inodes of the running transaction. See the module's documentation.
#[derive(Debug, Default)]
pub struct InodeTable {
    pub(crate) live: Arc<LiveInodes>,
    /// Inodes whose items in memory are newer than in their trees, in order.
    pub(crate) changed: BTreeMap<InodeId, Arc<LiveInode>>,
    pub(crate) next_numbers: HashMap<TreeId, u64>,
    /// How many directories got a cached next index since the last
    /// [`forget_indexes`](Self::forget_indexes).
    indexes: usize,
    /// Inodes with a log state of this transaction, which the next transaction drops.
    logged: Vec<Arc<LiveInode>>,
}

impl InodeTable {
    /// Returns the table of the same inodes for readers.
    pub fn live(&self) -> Arc<LiveInodes> {
        Arc::clone(&self.live)
    }

    /// Returns the cache of names that readers looked up.
    pub fn names(&self) -> &KnownNames {
        self.live.names()
    }

    /// Returns the number of inode items to be written back.
    pub fn changed(&self) -> u64 {
        u64_of(self.changed.len())
    }

    /// Returns the trees and keys of the changed inode items, in order.
    pub fn changed_keys(&self) -> impl Iterator<Item = (TreeId, Key)> {
        let ids = self.changed.keys();
        ids.map(|(tree, inode)| (*tree, InodeItem::key(*inode)))
    }

    /// Returns a tree's changed inode items in a range of inode numbers, in order.
    pub fn changed_items(
        &self,
        tree: TreeId,
        numbers: RangeInclusive<InodeNumber>,
    ) -> impl Iterator<Item = (InodeNumber, Option<InodeItem>)> {
        let range = (tree, *numbers.start())..=(tree, *numbers.end());
        let changed = self.changed.range(range);
        changed.map(|((_, inode), live)| (*inode, live.read().item))
    }

    /// Returns the number of inodes in memory.
    pub fn count(&self) -> usize {
        self.live.count()
    }

    /// Returns whether a caller holds the inode open.
    pub fn is_held(&self, location: Location) -> bool {
        let held = self.live.with(id_of(location), |state| state.held > 0);
        held.unwrap_or(false)
    }

    /// Returns how often an inode is held open.
    pub fn holders(&self, location: Location) -> u32 {
        // Clamp: an inode that is not in memory has no holder.
        let held = self.live.with(id_of(location), |state| state.held);
        held.unwrap_or(0)
    }

    /// Counts one more holder of an inode.
    pub fn hold(&self, location: Location) {
        let inode = self.live.entry(id_of(location));
        let mut state = inode.write();
        state.held = state.held.saturating_add(1);
    }

    /// Drops one holder of an inode. Returns whether no holder is left.
    pub fn release(&self, location: Location) -> bool {
        let released = self.live.update(id_of(location), |state| {
            state.held = state.held.saturating_sub(1);
            state.held == 0
        });
        released.unwrap_or(true)
    }

    /// Returns the attributes that new inodes inherit from a directory, if they are cached.
    pub fn inherited(&self, location: Location) -> Option<Arc<Inherited>> {
        self.live.with(id_of(location), |state| state.inherited.clone())?
    }

    /// Caches the attributes that new inodes inherit from a directory. `None` drops the cached
    /// attributes because the directory's attributes change.
    pub fn set_inherited(&self, location: Location, inherited: Option<Arc<Inherited>>) {
        self.live
            .update(id_of(location), |state| state.inherited = inherited);
    }

    /// If very many indexes are cached, drops those that the trees can return again. An operation
    /// must not call this function, because it may have used some of the cached indexes.
    pub fn forget_indexes(&mut self) {
        if self.indexes >= INODES_MAX {
            self.live.forget_indexes();
            self.indexes = 0;
        }
    }

    /// Returns the log state of an inode in this transaction. Creates the log state if the inode
    /// did not change before. `None` means that the inode changed before its log state existed.
    pub(crate) fn log_state<'a>(
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

    /// Creates the log state of an inode.
    fn begin_log_state(&mut self, inode: &Arc<LiveInode>, state: &mut InodeState, generation: Generation) {
        if state.log.is_none() {
            self.logged.push(Arc::clone(inode));
        }
        state.log = LogState::new(generation);
    }

    /// Changes the log state of an inode that is being logged, and creates the state if necessary.
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

    /// Runs `read` on the log state of an inode in this transaction, if there is one.
    pub fn with_log<T>(
        &self,
        location: Location,
        generation: Generation,
        read: impl FnOnce(&LogState) -> T,
    ) -> Option<T> {
        let read = |state: &InodeState| (state.log.generation == generation).then(|| read(&state.log));
        self.live.with(id_of(location), read)?
    }

    /// Drops all log states when a transaction begins, because its log is empty.
    pub fn forget_log_states(&mut self) {
        for inode in self.logged.drain(..) {
            inode.write().log = LogState::default();
        }
    }

    pub(crate) fn set_next_index(&mut self, directory: Location, next: u64) {
        let inode = self.live.entry(id_of(directory));
        let known = inode.write().next_index.replace(next);
        self.indexes = self.indexes.saturating_add(usize::from(known.is_none()));
    }

    /// Marks an inode whose items will be removed: readers no longer find it.
    pub fn begin_removal(&self, location: Location) {
        self.live.entry(id_of(location)).write().is_going = true;
    }

    /// Removes an inode from the table after its items were removed.
    pub fn forget(&mut self, location: Location) {
        let id = id_of(location);
        self.changed.remove(&id);
        self.live.forget(id);
    }

    /// Removes all inodes, names and indexes of a tree that will be dropped.
    pub fn forget_tree(&mut self, tree: TreeId) {
        self.changed.retain(|(of, _), _| *of != tree);
        self.live.forget_tree(tree);
        self.next_numbers.remove(&tree);
    }
}
