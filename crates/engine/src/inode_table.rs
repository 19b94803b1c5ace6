//! Inodes of the running transaction, in memory.
//!
//! An inode item changes with nearly every operation, that of a directory with every name in it. So changes are made
//! in the inode's object ([`crate::inodes`]), and each changed item is put into its tree once: at the commit, and before a
//! view is taken. Until then the newest inode item is the one in memory. `inode_items` has the
//! writer's ways to it.
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
use buttress_exact::u64_of;
use buttress_format::{Generation, InodeItem, InodeNumber, Key, TreeId};
use buttress_fs::location::Location;
use core::ops::RangeInclusive;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

/// The first index of an entry in a directory: 0 and 1 stand for `.` and `..`.
pub const FIRST_INDEX: u64 = 2;

/// The inodes of the running transaction. See the module.
#[derive(Debug, Default)]
pub struct InodeTable {
    pub(crate) live: Arc<LiveInodes>,
    /// Those whose items are newer than their trees have them, in order.
    pub(crate) changed: BTreeMap<InodeId, Arc<LiveInode>>,
    pub(crate) next_numbers: HashMap<TreeId, u64>,
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

    pub(crate) fn set_next_index(&mut self, directory: Location, next: u64) {
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
