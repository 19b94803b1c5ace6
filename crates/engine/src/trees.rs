//! Open trees, which many threads read while one thread edits them.
//!
//! The writer keeps an open tree as a [`LiveTree`]: the newest version behind a lock. Lookups share
//! the lock, and one edit holds it exclusively while it changes this tree. [`OpenTrees`] are the
//! writer's trees in order. Readers find the same trees by id in [`LiveTrees`].
//!
//! Invariants:
//! - [`OpenTrees`] and [`LiveTrees`] contain the same trees, except the extent tree, which only the
//!   writer reads.
//! - A tree that the writer closes is clean, so a thread that still holds it sees the version that
//!   the root tree names.
//! - An edit of a tree may read the extent tree; an edit of the extent tree reads no other tree.

use super::waiting_names::WaitingNames;
use crate::entry::Entry;
use crate::look_ups;
use buttress_exact::u64_of;
use buttress_format::node::Header;
use buttress_format::{Generation, Key, Logical, RootItem, SubvolumeId, TreeId};
use buttress_fs::{Error, Location};
use buttress_locks::atomic::{AtomicBool, AtomicU64, Ordering};
use buttress_locks::{Rank, RwLock, lock_class};
use buttress_tree::{BlockPointer, EditableTree, OwnedItem, Result, Tree};
use core::ops::ControlFlow;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

lock_class!(TreeEditsLock, "edits", Rank::new(48).several());
lock_class!(TreeLock, "tree", Rank::new(48).several());
lock_class!(WaitingNamesLock, "names", Rank::LEAF);
lock_class!(LiveTreesLock, "LiveTrees", Rank::LEAF);

/// The number of blocks read between two lookups, small enough for a small cache to hold them.
pub const BLOCKS_AT_ONCE: usize = 256;

/// The newest version of a tree. See the module's documentation.
#[derive(Clone, Debug)]
pub struct LiveTree(Arc<Live>);

#[derive(Debug)]
struct Live {
    /// Held exclusively during several edits that readers must see together.
    edits: RwLock<(), TreeEditsLock>,
    tree: RwLock<EditableTree, TreeLock>,
    /// Set when an operation found the subvolume existing and not read-only, and cleared when its
    /// root item may change.
    is_writable: AtomicBool,
    /// The writer closed the tree: a later edit may use another object.
    is_closed: AtomicBool,
    /// The tree's subvolume was deleted. The tree of a deleted subvolume exists until it is
    /// dropped, and no call uses it.
    is_deleted: AtomicBool,
    /// The tree's subvolume is being made, and no reader sees it yet.
    is_unfinished: AtomicBool,
    /// For an unfinished subvolume: whether new names are deferred, how many are deferred, and
    /// which.
    defers_names: AtomicBool,
    names_waiting: AtomicU64,
    names: RwLock<WaitingNames, WaitingNamesLock>,
}

impl LiveTree {
    /// Returns the object of a tree that was just opened or made.
    pub fn new(tree: EditableTree) -> Self {
        // A thread that locks several trees locks them in the order of this number, each after its
        // own `edits` lock.
        let place = match tree.id() {
            TreeId::EXTENT => 4,
            id if id.holds_files() => 0,
            _ => 2,
        };
        Self(Arc::new(Live {
            edits: RwLock::with_place((), place),
            tree: RwLock::with_place(tree, place.saturating_add(1)),
            is_writable: AtomicBool::new(false),
            is_closed: AtomicBool::new(false),
            is_deleted: AtomicBool::new(false),
            is_unfinished: AtomicBool::new(false),
            defers_names: AtomicBool::new(false),
            names_waiting: AtomicU64::new(0),
            names: RwLock::new(WaitingNames::default()),
        }))
    }

    /// Returns whether the subvolume is known to exist and not to be read-only.
    pub fn is_known_writable(&self) -> bool {
        self.0.is_writable.load(Ordering::Acquire)
    }

    /// Records that the subvolume exists and is not read-only. The caller holds the edit lock while
    /// it records this.
    pub fn know_writable(&self) {
        self.0.is_writable.store(true, Ordering::Release);
    }

    /// Clears the record that the subvolume is writable, because the root item may change or the
    /// tree closes. A holder of this tree object then fetches the current one. The caller holds the
    /// edit lock while the record is removed.
    pub fn forget_writable(&self) {
        self.0.is_writable.store(false, Ordering::Release);
    }

    /// Closes this open tree: the next edit of the tree opens another object. The caller holds the
    /// edit lock while it closes the object.
    fn close(&self) {
        self.forget_writable();
        self.0.is_closed.store(true, Ordering::Release);
    }

    /// Returns whether this object is still the open tree of its id.
    pub fn is_open(&self) -> bool {
        !self.0.is_closed.load(Ordering::Acquire)
    }

    /// Marks the subvolume as deleted. Later lookups, between two operations, do not find the
    /// deleted subvolume.
    pub fn set_deleted(&self) {
        self.0.is_deleted.store(true, Ordering::Release);
    }

    /// Records whether the subvolume is still being made. The caller holds the edit lock while it
    /// records this state.
    pub fn set_unfinished(&self, is_unfinished: bool) {
        self.0.is_unfinished.store(is_unfinished, Ordering::Release);
    }

    /// Returns whether the subvolume is still being made, so that no reader sees it.
    pub fn is_unfinished(&self) -> bool {
        self.0.is_unfinished.load(Ordering::Acquire)
    }

    /// Sets whether new names of the unfinished subvolume are deferred. The caller must hold the
    /// edit lock.
    pub fn set_defers_names(&self, defers: bool) {
        self.0.defers_names.store(defers, Ordering::Release);
    }

    /// Returns whether the subvolume defers the insertion of new names into its tree.
    pub fn defers_names(&self) -> bool {
        self.0.defers_names.load(Ordering::Acquire)
    }

    /// Returns the number of keys with waiting names.
    pub fn names_waiting(&self) -> u64 {
        self.0.names_waiting.load(Ordering::Acquire)
    }

    /// Returns the directory entry of a waiting name.
    pub fn waiting_name(&self, directory: Location, key: &Key, name: &[u8]) -> Result<Option<Entry>, Error> {
        if self.names_waiting() == 0 {
            return Ok(None);
        }
        self.0.names.read().find(directory, key, name)
    }

    /// Runs `read` on the deferred names of the subvolume.
    pub fn with_names<T>(&self, read: impl FnOnce(&WaitingNames) -> T) -> T {
        read(&self.0.names.read())
    }

    /// Changes the deferred names of the tree. The caller holds the edit lock during the change of
    /// names.
    pub fn change_names<T>(&self, change: impl FnOnce(&mut WaitingNames) -> T) -> T {
        let mut names = self.0.names.write();
        let changed = change(&mut names);
        let count = u64_of(names.count());
        self.0.names_waiting.store(count, Ordering::Release);
        changed
    }

    /// Returns an error for the tree of a deleted subvolume.
    pub fn require_subvolume(&self, subvolume: SubvolumeId) -> Result<(), Error> {
        if self.0.is_deleted.load(Ordering::Acquire) && !buttress_faults::on("live-deleted-subvolume-seen") {
            return Err(Error::SubvolumeNotFound { subvolume });
        }
        Ok(())
    }

    /// Runs several edits of a tree, which [`read_between_edits`](Self::read_between_edits) shows
    /// as one.
    pub fn edit_as_one<T>(&self, edits: impl FnOnce() -> T) -> T {
        let _whole = self.0.edits.write();
        edits()
    }

    /// Reads the tree as [`with`](Self::with) does, while no [joint edit](Self::edit_as_one) is in
    /// progress.
    pub fn read_between_edits<T>(&self, read: impl FnOnce(&EditableTree) -> T) -> T {
        let _whole = self.0.edits.read();
        read(&self.0.tree.read())
    }

    /// Runs one edit on the newest version of the tree. Lookups in the tree block until the edit
    /// ends.
    pub fn edit<T>(&self, edit: impl FnOnce(&mut EditableTree) -> T) -> T {
        edit(&mut self.0.tree.write())
    }

    /// Runs `read` on the tree, for more than one lookup.
    pub fn with<T>(&self, read: impl FnOnce(&EditableTree) -> T) -> T {
        read(&self.0.tree.read())
    }

    /// Returns the item with exactly this key.
    pub fn get(&self, key: &Key) -> Result<Option<OwnedItem>> {
        self.0.tree.read().get(key)
    }

    /// Runs `read` on the data of the item with exactly this key, without keeping its leaf. Returns
    /// whether the item exists.
    pub fn with_item(&self, key: &Key, read: impl FnOnce(&[u8])) -> Result<bool> {
        look_ups::count(|counts| &mut counts.items);
        self.0.tree.read().with_item(key, read)
    }

    /// Runs `read` on each item from a key on, until `read` breaks.
    pub fn scan(&self, from: &Key, read: impl FnMut(&Key, &[u8]) -> ControlFlow<()>) -> Result<()> {
        look_ups::count(|counts| &mut counts.items);
        self.0.tree.read().scan(from, read)
    }

    /// Returns the last item whose key is not above `key`.
    ///
    /// # Errors
    /// Fails with an error of the tree.
    pub fn at_or_before(&self, key: &Key) -> Result<Option<OwnedItem>> {
        self.0.tree.read().at_or_before(key)
    }

    /// Returns the first item whose key is not below `key`.
    ///
    /// # Errors
    /// Fails with an error of the tree.
    pub fn at_or_after(&self, key: &Key) -> Result<Option<OwnedItem>> {
        self.0.tree.read().at_or_after(key)
    }

    /// Descends to the place of `key`.
    pub fn reach(&self, key: &Key, visit: impl FnMut(&BlockPointer, &Header)) -> Result<Option<Key>> {
        self.0.tree.read().reach(key, visit)
    }

    /// Returns the first missing block on the path of each key. The keys must be in order. Reads
    /// nothing.
    pub fn missing_along(&self, keys: &[Key]) -> Result<Vec<BlockPointer>> {
        let tree = self.0.tree.read();
        let mut missing = Vec::new();
        // The end of the range of known keys; `None` at the end of the tree.
        let mut known_to = Some(Key::MIN);
        for key in keys {
            if known_to.is_none_or(|end| *key < end) {
                continue;
            }
            known_to = match tree.reach(key, |_, _| ()) {
                Ok(end) => end,
                Err(error) => {
                    let Some(pointer) = error.would_block().copied() else {
                        return Err(error);
                    };
                    missing.push(pointer);
                    pointer.end_key
                }
            };
            if missing.len() >= BLOCKS_AT_ONCE {
                break;
            }
        }
        Ok(missing)
    }

    /// Returns the current version of the tree, as a held root.
    pub fn view(&self) -> Tree {
        self.0.tree.read().view()
    }

    /// Returns whether the tree changed since the last commit.
    pub fn is_dirty(&self) -> bool {
        self.0.tree.read().is_dirty()
    }

    /// Returns whether the root block is in memory: it is dirty, or the cache has kept it since its
    /// write.
    pub fn is_in_memory(&self) -> bool {
        self.0.tree.read().is_in_memory()
    }

    /// Returns the level of the root.
    pub fn level(&self) -> u8 {
        self.0.tree.read().level()
    }

    pub(crate) fn root_logical(&self) -> Option<Logical> {
        self.0.tree.read().root_logical()
    }

    pub(crate) fn root_generation(&self) -> Generation {
        self.0.tree.read().root_generation()
    }

    pub(crate) fn unassigned_nodes(&self) -> u64 {
        self.0.tree.read().unassigned_nodes()
    }

    /// Returns the level of the root, and the number of nodes without an address.
    pub(crate) fn level_and_unassigned_nodes(&self) -> (u8, u64) {
        let tree = self.0.tree.read();
        (tree.level(), tree.unassigned_nodes())
    }

    pub(crate) fn unfrozen_nodes(&self) -> u64 {
        self.0.tree.read().unfrozen_nodes()
    }
}

/// The open trees, for readers.
#[derive(Debug, Default)]
pub struct LiveTrees(RwLock<HashMap<TreeId, LiveTree>, LiveTreesLock>);

impl LiveTrees {
    /// Returns a tree, if it is open.
    pub fn get(&self, id: TreeId) -> Option<LiveTree> {
        look_ups::count(|counts| &mut counts.trees);
        self.0.read().get(&id).cloned()
    }
}

/// The writer's open trees, in order of id.
#[derive(Debug, Default)]
pub struct OpenTrees {
    open: BTreeMap<TreeId, OpenTree>,
    live: Arc<LiveTrees>,
}

/// A tree that was opened for writing.
#[derive(Debug)]
pub struct OpenTree {
    /// The newest version of the tree.
    pub tree: LiveTree,
    /// The root item is `None` for the root tree and the chunk tree.
    pub item: Option<RootItem>,
    /// The offset in the key of the tree's root item.
    pub item_offset: u64,
    /// Whether the root item differs from the one in the root tree.
    pub item_changed: bool,
}

impl OpenTree {
    /// Returns the generation of the last snapshot of the tree. Snapshots may share blocks that are
    /// not newer than this generation.
    pub fn last_snapshot(&self) -> Generation {
        self.item
            .as_ref()
            .map_or(Generation::MIN, |item| item.last_snapshot)
    }
}

impl OpenTrees {
    /// Returns the same open trees, for readers.
    pub fn live(&self) -> Arc<LiveTrees> {
        Arc::clone(&self.live)
    }

    /// Adds a tree that was just opened or made.
    pub fn insert(&mut self, id: TreeId, open: OpenTree) {
        self.live.0.write().insert(id, open.tree.clone());
        self.open.insert(id, open);
    }

    /// Closes a tree.
    pub fn remove(&mut self, id: TreeId) {
        let gone = self.live.0.write().remove(&id);
        gone.iter().for_each(LiveTree::close);
        self.open.remove(&id);
    }

    /// Closes the trees for which `keep` returns false.
    pub fn retain(&mut self, mut keep: impl FnMut(TreeId, &OpenTree) -> bool) {
        // `keep` locks the trees themselves, so it runs without the lock of the table of trees.
        let mut gone = Vec::new();
        self.open.retain(|id, open| {
            let stays = keep(*id, open);
            if !stays {
                gone.push(*id);
            }
            stays
        });
        let mut live = self.live.0.write();
        for id in gone {
            let gone = live.remove(&id);
            gone.iter().for_each(LiveTree::close);
        }
    }

    /// Returns an open tree.
    pub fn get(&self, id: TreeId) -> Option<&OpenTree> {
        self.open.get(&id)
    }

    /// Returns an open tree for a change.
    pub fn get_mut(&mut self, id: TreeId) -> Option<&mut OpenTree> {
        self.open.get_mut(&id)
    }

    /// Returns whether the tree is open.
    pub fn contains(&self, id: TreeId) -> bool {
        self.open.contains_key(&id)
    }

    pub(crate) fn len(&self) -> usize {
        self.open.len()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (&TreeId, &OpenTree)> {
        self.open.iter()
    }

    pub(crate) fn values(&self) -> impl Iterator<Item = &OpenTree> {
        self.open.values()
    }
}
