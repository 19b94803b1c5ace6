//! Inodes of the running transaction, in memory.
//!
//! An inode item changes with nearly every operation, that of a directory with every name in it. So changes are made
//! here, and [`Running::write_back_inodes`] puts each changed item into its tree once: at the commit, and before a view is
//! taken. Until then the newest inode item is the one here; [`Running::inode`] and
//! [`Running::change_inode`] are the only ways to it.
//!
//! Beside the items: the next free inode number of each tree and the next free index of each directory, which are
//! looked up once and then counted, and which inodes are held open.
//!
//! Invariants: an inode in the table has an item in its tree; an item that the table holds as changed is written before
//! anybody else can see the tree; each change gives the item the running transaction as `transid`.
//!
//! Source: on-disk format documentation, sections "INODE_ITEM" and "DIR_INDEX".

use crate::error::{Corruption, Error, Result};
use crate::location::Location;
use crate::operations::inherit::Inherited;
use crate::transaction::running::Running;
use buttress_format::{
    DirItem, Generation, InodeItem, InodeNumber, ItemType, Key, ObjectId, Timestamp, TreeId,
};
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

/// How many inodes are kept before those are forgotten that did not change.
const INODES_MAX: usize = 1 << 16;

/// The first index of an entry in a directory: 0 and 1 stand for `.` and `..`.
pub(crate) const FIRST_INDEX: u64 = 2;

/// An inode that was looked at or changed.
#[derive(Clone, Debug)]
struct InodeState {
    item: InodeItem,
    /// Whether the item is newer than the one in the tree.
    changed: bool,
    /// Of a directory: what new inodes in it are given, where that is known.
    inherited: Option<Arc<Inherited>>,
}

/// The inodes of the running transaction. See the module.
#[derive(Debug, Default)]
pub(crate) struct InodeTable {
    inodes: BTreeMap<(TreeId, InodeNumber), InodeState>,
    next_numbers: HashMap<TreeId, u64>,
    next_indexes: HashMap<(TreeId, InodeNumber), u64>,
    /// How often each inode is held open.
    held: HashMap<(TreeId, InodeNumber), u32>,
    changed: u64,
    /// How many were left when room was made last.
    kept: usize,
}

fn id_of(location: Location) -> (TreeId, InodeNumber) {
    (location.subvolume.tree(), location.inode)
}

impl InodeTable {
    /// How many inode items wait to be written back.
    pub(crate) const fn changed(&self) -> u64 {
        self.changed
    }

    /// Where the items lie that wait to be written back, in order.
    pub(crate) fn changed_keys(&self) -> impl Iterator<Item = (TreeId, Key)> {
        let changed = self.inodes.iter().filter(|(_, state)| state.changed);
        changed.map(|((tree, inode), _)| (*tree, InodeItem::key(*inode)))
    }

    /// How many inodes are in memory.
    pub(crate) fn len(&self) -> usize {
        self.inodes.len()
    }

    /// Whether somebody holds the inode open.
    pub(crate) fn is_held(&self, location: Location) -> bool {
        self.held.contains_key(&id_of(location))
    }

    pub(super) fn hold(&mut self, location: Location) {
        let count = self.held.entry(id_of(location)).or_default();
        *count = count.saturating_add(1);
    }

    /// Lets go of an inode; says whether nobody holds it any more.
    pub(super) fn release(&mut self, location: Location) -> bool {
        let id = id_of(location);
        match self.held.get_mut(&id) {
            Some(count) if *count > 1 => {
                *count = count.saturating_sub(1);
                false
            }
            _ => {
                self.held.remove(&id);
                true
            }
        }
    }

    pub(super) fn inherited(&self, location: Location) -> Option<Arc<Inherited>> {
        self.inodes.get(&id_of(location))?.inherited.clone()
    }

    /// Keeps what a directory gives to new inodes, or, with `None`, forgets it because it changes.
    pub(super) fn set_inherited(&mut self, location: Location, inherited: Option<Arc<Inherited>>) {
        if let Some(state) = self.inodes.get_mut(&id_of(location)) {
            state.inherited = inherited;
        }
    }

    /// Forgets what can be looked up again when there are very many: a look may call this, so nothing is edited. What
    /// changed stays until a commit, which comes when that takes too much memory.
    fn make_room(&mut self) {
        let most = INODES_MAX.max(self.kept.saturating_mul(2));
        if self.inodes.len() >= most {
            self.inodes.retain(|_, state| state.changed);
            self.kept = self.inodes.len();
        }
    }

    /// Forgets indexes that can be looked up again when there are very many; not while an operation may have taken some.
    pub(crate) fn forget_indexes(&mut self) {
        if self.next_indexes.len() >= INODES_MAX {
            self.next_indexes.clear();
        }
    }

    /// Forgets an inode whose items are gone.
    pub(super) fn forget(&mut self, location: Location) {
        let id = id_of(location);
        if self.inodes.remove(&id).is_some_and(|state| state.changed) {
            self.changed = self.changed.saturating_sub(1);
        }
        self.next_indexes.remove(&id);
    }

    /// Forgets all that is known of a tree that is going to be dropped.
    pub(crate) fn forget_tree(&mut self, tree: TreeId) {
        self.inodes.retain(|(of, _), _| *of != tree);
        self.next_indexes.retain(|(of, _), _| *of != tree);
        self.next_numbers.remove(&tree);
        let changed = self.inodes.values().filter(|state| state.changed).count();
        self.changed = u64::try_from(changed).unwrap_or(u64::MAX);
    }
}

impl Running {
    /// The newest item of an inode.
    ///
    /// # Errors
    /// [`Error::InodeNotFound`], or that the tree cannot be read.
    pub(crate) fn inode(&mut self, location: Location) -> Result<InodeItem> {
        let id = id_of(location);
        if let Some(state) = self.inodes.inodes.get(&id) {
            return Ok(state.item);
        }
        if location.placeholder().is_some() {
            return Err(Error::InodeNotFound { location });
        }
        let key = InodeItem::key(location.inode);
        let found = self.get(id.0, &key)?.ok_or(Error::InodeNotFound { location })?;
        let item =
            InodeItem::parse(&key, found.data()).map_err(|error| Corruption::Item { tree: id.0, error })?;
        drop(found);
        self.inodes.make_room();
        self.inodes.inodes.insert(
            id,
            InodeState {
                item,
                changed: false,
                inherited: None,
            },
        );
        Ok(item)
    }

    /// Changes the item of an inode, which then counts as changed by the running transaction.
    ///
    /// # Errors
    /// As [`Running::inode`].
    pub(crate) fn change_inode(
        &mut self,
        location: Location,
        change: impl FnOnce(&mut InodeItem),
    ) -> Result<()> {
        self.inode(location)?;
        let generation = self.core.generation;
        let Some(state) = self.inodes.inodes.get_mut(&id_of(location)) else {
            return Err(Error::InodeNotFound { location });
        };
        change(&mut state.item);
        if !buttress_faults::on("inode-transid-kept") {
            state.item.transid = generation;
        }
        if !state.changed {
            state.changed = true;
            self.inodes.changed = self.inodes.changed.saturating_add(1);
        }
        Ok(())
    }

    /// Takes in a new inode whose item was just put into the tree.
    pub(super) fn know_inode(&mut self, location: Location, item: InodeItem) {
        self.inodes.make_room();
        let state = InodeState {
            item,
            changed: false,
            inherited: None,
        };
        self.inodes.inodes.insert(id_of(location), state);
    }

    /// Puts all changed inode items into their trees.
    ///
    /// # Errors
    /// That a tree cannot be read, or an item is not there: then the transaction must not be committed.
    pub(crate) fn write_back_inodes(&mut self) -> Result<()> {
        if self.inodes.changed == 0 {
            return Ok(());
        }
        let mut inodes = core::mem::take(&mut self.inodes.inodes);
        let written =
            inodes
                .iter_mut()
                .filter(|(_, state)| state.changed)
                .try_for_each(|((tree, inode), state)| {
                    self.write_back_inode(*tree, *inode, &state.item)?;
                    state.changed = false;
                    Ok(())
                });
        self.inodes.changed = if written.is_ok() { 0 } else { self.inodes.changed };
        self.inodes.inodes = inodes;
        written
    }

    /// Records in its root item when a subvolume was changed.
    pub(super) fn touch_root(&mut self, tree: TreeId, now: Timestamp) -> Result<()> {
        let generation = self.core.generation;
        if buttress_faults::on("root-change-unnoted") {
            return Ok(());
        }
        let root = self.root_item_mut(tree)?;
        root.ctransid = generation;
        root.ctime = now;
        Ok(())
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
    pub(crate) fn next_inode_number(&mut self, tree: TreeId) -> Result<u64> {
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
    pub(crate) fn free_inode_number(&mut self, tree: TreeId) -> Result<InodeNumber> {
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
    pub(super) fn next_index(&mut self, directory: Location) -> Result<u64> {
        let id = id_of(directory);
        if let Some(next) = self.inodes.next_indexes.get(&id) {
            return Ok(*next);
        }
        let next = self
            .highest_index(directory)?
            .map_or(FIRST_INDEX, |last| last.saturating_add(1));
        if self.inodes.next_indexes.len() >= INODES_MAX {
            self.inodes.next_indexes.clear();
        }
        self.inodes.next_indexes.insert(id, next);
        Ok(next)
    }

    /// The next index of a directory. Indexes are not given twice while the directory is in memory.
    ///
    /// # Errors
    /// That the tree cannot be read.
    pub(super) fn free_index(&mut self, directory: Location) -> Result<u64> {
        let index = self.next_index(directory)?;
        if buttress_faults::on("directory-index-given-twice") {
            self.inodes.next_indexes.remove(&id_of(directory));
            return Ok(index);
        }
        self.inodes
            .next_indexes
            .insert(id_of(directory), index.saturating_add(1));
        Ok(index)
    }

    /// A directory that was just made holds nothing: its first index needs no search.
    pub(super) fn know_empty_directory(&mut self, directory: Location) {
        self.inodes.next_indexes.insert(id_of(directory), FIRST_INDEX);
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
    pub(super) const fn running_generation(&self) -> Generation {
        self.core.generation
    }
}
