//! One object for each inode in use.
//!
//! [`LiveInodes`] finds an inode's state by subvolume and number, in shards, so that threads that use different inodes
//! seldom meet. The state holds the newest inode item, pending times, dirty data, the number of open handles, and the
//! directory's next index. It also holds the attributes that new inodes inherit from a directory. Any thread reads the
//! state, and an edit changes it under the edit lock. The file's own lock protects content and pending times. Any
//! thread that needs an item may load it.
//!
//! Invariants:
//! - An item here is never older than the one in its tree: it is taken in while the state is held, and whoever changes the
//!   item in memory holds the state, too.
//! - There is one object for an inode at a time: it leaves the table only while nobody else has it and nothing is in it that
//!   its tree does not have.
//!
//! Memory is bounded: a shard that is full lets go of what its tree has.

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

/// How many inodes are kept before those are let go of that did not change.
pub const INODES_MAX: usize = 1 << 16;

/// Many: threads that work on files of their own write to the same shard's lock seldom.
const SHARD_BITS: u32 = 10;
const SHARDS: usize = 1 << SHARD_BITS;

/// The tree of an inode, and its number.
pub type InodeId = (TreeId, InodeNumber);

/// Where an inode's object is.
pub fn id_of(location: Location) -> InodeId {
    (location.subvolume.tree(), location.inode)
}

/// What is known of an inode.
#[derive(Clone, Debug, Default)]
pub struct InodeState {
    /// The newest item, once somebody looked.
    pub item: Option<InodeItem>,
    /// Whether the item is newer than the one in the tree.
    pub changed: bool,
    /// Times that writes set and that the item lacks.
    pub pending: PendingTimes,
    /// Of a file with dirty data, or with a call under way: that.
    pub content: Option<Arc<FileContent>>,
    /// How often a call that may change content found none here and put its own: a reader who finds another number
    /// afterwards has seen two states.
    pub calls: u64,
    /// Its items are being removed.
    pub is_going: bool,
    /// How often the inode is held open.
    pub held: u32,
    /// Of a directory: what new inodes in it are given, where that is known.
    pub inherited: Option<Arc<Inherited>>,
    /// Of a directory: the index that the next name gets, where that is known.
    pub next_index: Option<u64>,
    /// What the log of the running transaction has of it, and what it lacks.
    pub log: LogState,
}

impl InodeState {
    /// The newest item, with pending times: what `stat(2)` shows.
    pub fn newest(&self) -> Option<InodeItem> {
        let mut item = self.item?;
        self.pending.merge_into(&mut item);
        Some(item)
    }

    /// Whether its items are going, or may go at any time: nobody can come to have it any more.
    pub fn is_gone(&self) -> bool {
        self.is_going || self.held == 0 && self.item.is_some_and(|item| item.nlink == 0)
    }

    /// Whether all of it can be looked up again.
    const fn is_in_tree(&self) -> bool {
        let is_settled = !self.changed && self.pending.is_empty();
        let is_plain = is_settled && self.content.is_none() && self.held == 0;
        is_plain && self.next_index.is_none() && self.log.is_none()
    }
}

/// An inode in use. See the module.
#[derive(Debug, Default)]
pub struct LiveInode(RwLock<InodeState, InodeLock>);

impl LiveInode {
    /// Locks the state for reading.
    pub fn read(&self) -> RwLockReadGuard<'_, InodeState, InodeLock> {
        self.0.read()
    }

    /// Locks the state for a change.
    pub fn write(&self) -> RwLockWriteGuard<'_, InodeState, InodeLock> {
        self.0.write()
    }
}

/// In cache lines of its own, with its lock.
#[derive(Debug)]
#[repr(align(128))]
struct Shard {
    inodes: HashMap<InodeId, Arc<LiveInode>>,
    /// How many were left when room was made last.
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

/// The inodes in use. See the module.
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
    /// Names that lead to inodes.
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

    /// How many inodes are in memory.
    pub fn count(&self) -> usize {
        self.count.load(Ordering::Relaxed)
    }

    /// Looks at an inode that is in memory.
    pub fn look<T>(&self, id: InodeId, look: impl FnOnce(&InodeState) -> T) -> Option<T> {
        look_ups::count(|counts| &mut counts.inodes);
        let shard = self.shard(id).read();
        let inode = shard.inodes.get(&id)?;
        Some(look(&inode.read()))
    }

    /// Changes what is known of an inode that is in memory.
    pub fn update<T>(&self, id: InodeId, update: impl FnOnce(&mut InodeState) -> T) -> Option<T> {
        look_ups::count(|counts| &mut counts.inodes);
        let shard = self.shard(id).read();
        let inode = shard.inodes.get(&id)?;
        Some(update(&mut inode.write()))
    }

    /// The object of an inode, new if there was none.
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

    /// Lets go of what can be looked up again when there are very many.
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

    /// Lets go of the object of an inode that turned out not to exist, unless somebody has it: he may be about to put something
    /// into it, which nobody would find.
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

    /// Forgets an inode whose items are gone.
    pub fn forget(&self, id: InodeId) {
        if self.shard(id).write().inodes.remove(&id).is_some() {
            self.count.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// Forgets all inodes and names of a tree.
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

    /// Forgets the next indexes of all directories.
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

    /// Who has it puts something into it next: a second object would not have that.
    #[test]
    fn an_object_in_use_is_not_forgotten() {
        let inodes = LiveInodes::default();
        let id = (TreeId::FS, InodeNumber::new(257));
        let entry = inodes.entry(id);
        inodes.forget_unknown(id);
        entry.write().calls = 7;
        assert_eq!(inodes.look(id, |state| state.calls), Some(7));
        drop(entry);
        inodes.forget_unknown(id);
        assert_eq!((inodes.look(id, |_| ()), inodes.count()), (None, 0));
    }
}
