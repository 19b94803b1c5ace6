//! Nodes with references, and their state.
//!
//! A node's number is computed ([`super::numbers`]), so most calls need no state. This module keeps
//! the following facts about nodes:
//! - the number of references. A node with references stays usable without a name. The caller that
//!   removes an inode's last name therefore opens the inode first ([`Nodes::keep`]), and the last
//!   reference closes it;
//! - for directories, the directory of their lookup;
//! - for files, whether a client may cache some of their content.
//!
//! Leaf locks: the module closes inodes, which may remove them, after it has released the lock.

use crate::vfs::NodeId;
use buttress::Location;
use buttress::unstable::writer::operations::OpenInode;
use core::sync::atomic::{AtomicU64, Ordering};
use parking_lot::Mutex;
use std::collections::HashMap;

const SHARDS: usize = 64;

#[derive(Debug, Default)]
struct Node {
    references: u64,
    parent: Option<NodeId>,
    hold: Option<OpenInode>,
    is_cached: bool,
    /// For a file: the state of capabilities in which the file is known to have none; see
    /// [`super::content`].
    without_capability: u64,
    /// For a listed directory: the index of the first name created after its latest listing began.
    listed_to: Option<u64>,
}

impl Node {
    fn refer(&mut self) {
        self.references = self.references.saturating_add(1);
    }
}

/// All nodes with references.
#[derive(Debug)]
pub(super) struct Nodes {
    shards: [Mutex<HashMap<NodeId, Node>>; SHARDS],
    /// Number of unnamed inodes that are being closed; the next field counts the closed ones.
    going: AtomicU64,
    gone: AtomicU64,
}

impl Nodes {
    pub(super) fn new() -> Self {
        Self {
            shards: core::array::from_fn(|_| Mutex::default()),
            going: AtomicU64::new(0),
            gone: AtomicU64::new(0),
        }
    }

    fn shard(&self, node: NodeId) -> &Mutex<HashMap<NodeId, Node>> {
        let mixed = node.0.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 58;
        let index = usize::try_from(mixed).unwrap_or(0);
        #[allow(
            clippy::indexing_slicing,
            reason = "there is a shard for each index of six bits"
        )]
        &self.shards[index % SHARDS]
    }

    /// Counts a reference to a node and, for a directory, records its parent.
    pub(super) fn refer(&self, node: NodeId, parent: Option<NodeId>) {
        let mut shard = self.shard(node).lock();
        let known = shard.entry(node).or_default();
        known.refer();
        if parent.is_some() {
            known.parent = parent;
        }
    }

    /// Counts a reference to a new node, and records the state of capabilities in which it has
    /// none.
    pub(super) fn refer_to_new(&self, node: NodeId, parent: Option<NodeId>, without_capability: u64) {
        let mut shard = self.shard(node).lock();
        let known = shard.entry(node).or_default();
        known.refer();
        known.parent = parent;
        known.without_capability = without_capability;
    }

    /// Records the state of capabilities in which a file has none.
    pub(super) fn lacks_capability(&self, node: NodeId, state: u64) {
        if let Some(known) = self.shard(node).lock().get_mut(&node) {
            known.without_capability = state;
        }
    }

    /// Returns whether a file is known to have no capability in this state.
    pub(super) fn is_without_capability(&self, node: NodeId, state: u64) -> bool {
        let shard = self.shard(node).lock();
        shard
            .get(&node)
            .is_some_and(|known| known.without_capability == state)
    }

    /// Subtracts references from a node.
    pub(super) fn forget(&self, node: NodeId, references: u64) {
        let mut shard = self.shard(node).lock();
        let Some(known) = shard.get_mut(&node) else {
            return;
        };
        known.references = known.references.saturating_sub(references);
        if known.references > 0 {
            return;
        }
        let hold = shard.remove(&node).and_then(|node| node.hold);
        if hold.is_none() {
            return;
        }
        // Increment the counter while the shard is locked, so that other threads see the inode as
        // kept or as closing.
        self.going.fetch_add(1, Ordering::SeqCst);
        drop(shard);
        // Dropping the hold may remove the inode, which takes time.
        drop(hold);
        self.gone.fetch_add(1, Ordering::SeqCst);
        self.going.fetch_sub(1, Ordering::SeqCst);
    }

    /// Returns the number of unnamed nodes that the mount has closed so far.
    pub(super) fn gone(&self) -> u64 {
        self.gone.load(Ordering::SeqCst)
    }

    /// Records that a client may cache content of a node, until it has no references any more.
    pub(super) fn caches(&self, node: NodeId) {
        if let Some(known) = self.shard(node).lock().get_mut(&node) {
            known.is_cached = true;
        }
    }

    /// Returns whether a client may cache content of a node; true for an unknown node.
    pub(super) fn is_cached(&self, node: NodeId) -> bool {
        self.shard(node)
            .lock()
            .get(&node)
            .is_none_or(|known| known.is_cached)
    }

    pub(super) fn is_referred_to(&self, node: NodeId) -> bool {
        self.shard(node).lock().contains_key(&node)
    }

    /// Keeps a node open that lost its last name, if the kernel refers to it; otherwise closes the
    /// node at once.
    pub(super) fn keep(&self, node: NodeId, hold: OpenInode) {
        let mut shard = self.shard(node).lock();
        let older = match shard.get_mut(&node) {
            Some(known) => known.hold.replace(hold),
            None => Some(hold),
        };
        drop(shard);
        drop(older);
    }

    /// Lists the unnamed inodes that stay open for a client's references.
    pub(super) fn kept(&self) -> Vec<Location> {
        let mut kept = Vec::new();
        for shard in &self.shards {
            let shard = shard.lock();
            let held = shard.values().filter_map(|node| node.hold.as_ref());
            kept.extend(held.map(OpenInode::location));
        }
        kept
    }

    /// Returns whether an unnamed inode is being closed. An inode moves from the kept inodes to the
    /// closing inodes without a gap between the two.
    pub(super) fn is_letting_go(&self) -> bool {
        self.going.load(Ordering::SeqCst) > 0
    }

    /// Returns the parent directory that a directory's lookup named.
    pub(super) fn parent(&self, node: NodeId) -> Option<NodeId> {
        self.shard(node).lock().get(&node)?.parent
    }

    /// Returns the index at which listings of a directory end.
    pub(super) fn listed_to(&self, node: NodeId) -> Option<u64> {
        self.shard(node).lock().get(&node)?.listed_to
    }

    /// Begins a listing of a directory, which ends before the name with the index `end`.
    pub(super) fn lists_to(&self, node: NodeId, end: u64) {
        if let Some(known) = self.shard(node).lock().get_mut(&node) {
            known.listed_to = Some(end);
        }
    }

    /// Records the new parent of a moved directory.
    pub(super) fn moved(&self, node: NodeId, parent: NodeId) {
        if let Some(known) = self.shard(node).lock().get_mut(&node) {
            known.parent = Some(parent);
        }
    }

    /// Drops all nodes, because no client refers to them any more.
    pub(super) fn clear(&self) {
        for shard in &self.shards {
            let all = core::mem::take(&mut *shard.lock());
            drop(all);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cached_nodes_are_known_until_their_last_reference_ends() {
        let (nodes, node) = (Nodes::new(), NodeId(300));
        assert!(nodes.is_cached(node), "of an unknown node anything may be cached");
        nodes.refer(node, None);
        nodes.refer(node, None);
        assert!(!nodes.is_cached(node));
        nodes.caches(node);
        nodes.forget(node, 1);
        assert!(nodes.is_cached(node));
        nodes.forget(node, 1);
        nodes.refer(node, None);
        assert!(!nodes.is_cached(node), "its cache went with the last reference");
    }
}
