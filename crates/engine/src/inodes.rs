//! The live inodes: one object for each inode in use.
//!
//! [`LiveInodes`] finds an inode's state by subvolume and number, in shards, so that threads that
//! use different inodes seldom share a lock. The state holds the newest inode item, pending times,
//! dirty data, the number of open handles, and the directory's next index. For a directory, the
//! inode's state also holds the attributes that new inodes inherit. Any thread reads an inode's
//! state, and an edit changes it under the edit lock. The lock of the file protects its content and
//! its pending times. Any thread that needs an inode item may load it.
//!
//! Invariants:
//! - An inode item in memory is never older than the item in its tree: loading and changing an item
//!   both hold the state's lock.
//! - Each inode has at most one object in memory. The inode's object leaves the table only if no
//!   other thread has the object and its tree has all of its state.
//!
//! Memory is bounded: a full shard drops objects whose state is in their trees.

use super::known_names::KnownNames;
use super::pending_times::PendingTimes;
use crate::file_content::FileContent;
use crate::inherited::Inherited;
use crate::log_state::LogState;
use crate::look_ups;
use buttress_exact::Exact as _;
use buttress_format::{InodeItem, InodeNumber, TreeId};
use buttress_fs::location::Location;
use buttress_locks::{Rank, RwLock, RwLockReadGuard, RwLockWriteGuard, lock_class};
use core::sync::atomic::{AtomicUsize, Ordering};
use std::collections::HashMap;
use std::sync::Arc;

lock_class!(ShardLock, "shards", Rank::new(44));
lock_class!(pub InodeLock, "LiveInode", Rank::new(46));

/// The number of inodes above which the table drops unchanged inodes.
pub const INODES_MAX: usize = 1 << 16;

/// The number of shards is large, so threads with separate files seldom write to one shard's lock.
const SHARD_BITS: u32 = 10;
const SHARDS: usize = 1 << SHARD_BITS;

/// The tree and the number of an inode.
pub type InodeId = (TreeId, InodeNumber);

/// Returns the key of an inode in the table.
pub fn id_of(location: Location) -> InodeId {
    (location.subvolume.tree(), location.inode)
}

/// The state of a live inode.
#[derive(Clone, Debug, Default)]
pub struct InodeState {
    /// The newest inode item, once a thread has loaded it.
    pub item: Option<InodeItem>,
    /// Whether the inode item in memory is newer than the item in the tree.
    pub changed: bool,
    /// The times that writes set and that the inode item does not record yet.
    pub pending: PendingTimes,
    /// The content of a file with dirty data, or with a call in progress.
    pub content: Option<Arc<FileContent>>,
    /// How many calls that may change content found no content in this state and stored their own.
    /// A reader whose second read of this count differs has seen two states.
    pub calls: u64,
    /// Whether the inode's items are being removed from the tree.
    pub is_going: bool,
    /// The number of open handles of the inode.
    pub held: u32,
    /// The attributes that new inodes inherit from this directory, if cached.
    pub inherited: Option<Arc<Inherited>>,
    /// The index of the next name in this directory, if cached.
    pub next_index: Option<u64>,
    /// The state of the inode in the running transaction's log.
    pub log: LogState,
}

impl InodeState {
    /// Returns the newest inode item, including pending times, as `stat(2)` shows it.
    pub fn newest(&self) -> Option<InodeItem> {
        let mut item = self.item?;
        self.pending.merge_into(&mut item);
        Some(item)
    }

    /// Returns whether another thread is removing the inode's items or may begin to at any time. No
    /// caller can open the inode any more.
    pub fn is_gone(&self) -> bool {
        self.is_going || self.held == 0 && self.item.is_some_and(|item| item.nlink == 0)
    }

    /// Returns whether the tree has all of the inode's state in memory.
    const fn is_in_tree(&self) -> bool {
        let is_settled = !self.changed && self.pending.is_empty();
        let is_plain = is_settled && self.content.is_none() && self.held == 0;
        is_plain && self.next_index.is_none() && self.log.is_none()
    }
}

/// An inode in use. See the module's documentation.
#[derive(Debug, Default)]
pub struct LiveInode(RwLock<InodeState, InodeLock>);

impl LiveInode {
    /// Locks the inode's state for reading.
    pub fn read(&self) -> RwLockReadGuard<'_, InodeState, InodeLock> {
        self.0.read()
    }

    /// Locks the inode's state for a change.
    pub fn write(&self) -> RwLockWriteGuard<'_, InodeState, InodeLock> {
        self.0.write()
    }
}

/// A shard with its lock, aligned to cache lines of its own.
#[derive(Debug)]
#[repr(align(128))]
struct Shard {
    inodes: HashMap<InodeId, Arc<LiveInode>>,
    /// The number of inodes that the last cleanup of this shard left.
    kept: usize,
}

impl Shard {
    fn new() -> Self {
        Self {
            inodes: HashMap::new(),
            kept: 0,
        }
    }
}

/// The inodes in use. See the module's documentation.
#[derive(Debug)]
pub struct LiveInodes {
    shards: Box<[RwLock<Shard, ShardLock>]>,
    count: AtomicUsize,
    names: KnownNames,
}

impl Default for LiveInodes {
    fn default() -> Self {
        Self {
            shards: (0..SHARDS).map(|_| RwLock::new(Shard::new())).collect(),
            count: AtomicUsize::new(0),
            names: KnownNames::default(),
        }
    }
}

impl LiveInodes {
    /// Returns the cache of names that lead to inodes.
    pub const fn names(&self) -> &KnownNames {
        &self.names
    }

    fn shard(&self, (tree, inode): InodeId) -> &RwLock<Shard, ShardLock> {
        let mixed = tree
            .get()
            .rotate_left(32)
            .wrapping_add(inode.get())
            .wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let index = (mixed >> (u64::BITS - SHARD_BITS)).narrow::<usize>();
        #[allow(
            clippy::indexing_slicing,
            reason = "there is a shard for each index of so many bits"
        )]
        &self.shards[index % SHARDS]
    }

    /// Returns the number of inodes in memory.
    pub fn count(&self) -> usize {
        self.count.load(Ordering::Relaxed)
    }

    /// Runs `read` on the state of an inode that is in memory.
    pub fn with<T>(&self, id: InodeId, read: impl FnOnce(&InodeState) -> T) -> Option<T> {
        look_ups::count(|counts| &mut counts.inodes);
        let shard = self.shard(id).read();
        let inode = shard.inodes.get(&id)?;
        Some(read(&inode.read()))
    }

    /// Changes the state of an inode, if the inode is in memory.
    pub fn update<T>(&self, id: InodeId, update: impl FnOnce(&mut InodeState) -> T) -> Option<T> {
        look_ups::count(|counts| &mut counts.inodes);
        let shard = self.shard(id).read();
        let inode = shard.inodes.get(&id)?;
        Some(update(&mut inode.write()))
    }

    /// Returns the object of an inode, created if necessary.
    pub fn entry(&self, id: InodeId) -> Arc<LiveInode> {
        look_ups::count(|counts| &mut counts.inodes);
        let lock = self.shard(id);
        if let Some(inode) = lock.read().inodes.get(&id) {
            return Arc::clone(inode);
        }
        let mut shard = lock.write();
        self.make_room(&mut shard);
        let inode = shard.inodes.entry(id).or_insert_with(|| {
            self.count.fetch_add(1, Ordering::Relaxed);
            Arc::default()
        });
        Arc::clone(inode)
    }

    /// Drops inode objects that can be loaded again, if the shard has very many.
    fn make_room(&self, shard: &mut Shard) {
        let most = (INODES_MAX / SHARDS).max(shard.kept.saturating_mul(2));
        if shard.inodes.len() >= most {
            let before = shard.inodes.len();
            shard
                .inodes
                .retain(|_, inode| Arc::strong_count(inode) > 1 || !inode.read().is_in_tree());
            shard.kept = shard.inodes.len();
            self.count
                .fetch_sub(before.saturating_sub(shard.kept), Ordering::Relaxed);
        }
    }

    /// Drops the object of an inode that turned out not to exist, unless another thread has the
    /// object. Another thread may be about to store state in this live inode, and later lookups
    /// must find that state.
    pub fn forget_unknown(&self, id: InodeId) {
        let mut shard = self.shard(id).write();
        let is_unknown = |inode: &Arc<LiveInode>| {
            let is_alone =
                Arc::strong_count(inode) == 1 || buttress_faults::on("live-inode-forgotten-in-use");
            let state = inode.read();
            is_alone && state.item.is_none() && state.is_in_tree()
        };
        if shard.inodes.get(&id).is_some_and(is_unknown) {
            shard.inodes.remove(&id);
            self.count.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// Removes from the table an inode whose items were removed.
    pub fn forget(&self, id: InodeId) {
        if self.shard(id).write().inodes.remove(&id).is_some() {
            self.count.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// Removes all inodes and names of a tree.
    pub fn forget_tree(&self, tree: TreeId) {
        self.names.forget_tree(tree);
        for shard in self.shards.iter() {
            let mut shard = shard.write();
            let before = shard.inodes.len();
            shard.inodes.retain(|(of, _), _| *of != tree);
            self.count
                .fetch_sub(before.saturating_sub(shard.inodes.len()), Ordering::Relaxed);
        }
    }

    /// Drops the cached next indexes of all directories.
    pub fn forget_indexes(&self) {
        for shard in self.shards.iter() {
            for inode in shard.read().inodes.values() {
                inode.write().next_index = None;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Another thread that has the object will store state in it; a second object would lack that
    /// state.
    #[test]
    fn an_object_in_use_is_not_forgotten() {
        let inodes = LiveInodes::default();
        let id = (TreeId::FS, InodeNumber::new(257));
        let entry = inodes.entry(id);
        inodes.forget_unknown(id);
        entry.write().calls = 7;
        assert_eq!(inodes.with(id, |state| state.calls), Some(7));
        drop(entry);
        inodes.forget_unknown(id);
        assert_eq!((inodes.with(id, |_| ()), inodes.count()), (None, 0));
    }
}
