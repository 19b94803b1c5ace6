//! The nodes that somebody refers to, and what is kept for them.
//!
//! A node's number is computed ([`super::numbers`]), so most calls need nothing from here. What is kept:
//! - how many references are out: as long as there is one, the node stays usable without a name. So whoever takes its last name
//!   holds the inode open first ([`Nodes::keep`]), and the last reference lets go of it;
//! - of directories, the one that they were found in;
//! - of files, whether whoever is served may have some of the content in a cache.
//!
//! The locks are leaves: inodes are let go of, which may remove them, outside.

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
    /// Of a file: the state of capabilities in which it is known to have none; see [`super::content`].
    without_capability: u64,
    /// Of a directory that was listed: the index of the first name that came after its latest listing began.
    listed_to: Option<u64>,
}

impl Node {
    fn refer(&mut self) {
        self.references = self.references.saturating_add(1);
    }
}

/// See the module.
#[derive(Debug)]
pub(super) struct Nodes {
    shards: [Mutex<HashMap<NodeId, Node>>; SHARDS],
    /// How many inodes without a name are being let go of right now, and how many have been.
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

    /// One more reference; of a directory, where it was found.
    pub(super) fn refer(&self, node: NodeId, parent: Option<NodeId>) {
        let mut shard = self.shard(node).lock();
        let known = shard.entry(node).or_default();
        known.refer();
        if parent.is_some() {
            known.parent = parent;
        }
    }

    /// Refers to a node that was just made, and notes the state of capabilities in which it has none.
    pub(super) fn refer_to_new(&self, node: NodeId, parent: Option<NodeId>, without_capability: u64) {
        let mut shard = self.shard(node).lock();
        let known = shard.entry(node).or_default();
        known.refer();
        known.parent = parent;
        known.without_capability = without_capability;
    }

    /// Notes the state of capabilities in which a file has none.
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

    /// So many references less.
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
        // Before it is out of the shard: it is seen to be kept or to go.
        self.going.fetch_add(1, Ordering::SeqCst);
        drop(shard);
        // It may be removed now, which takes its time.
        drop(hold);
        self.gone.fetch_add(1, Ordering::SeqCst);
        self.going.fetch_sub(1, Ordering::SeqCst);
    }

    /// How many nodes without a name have been let go of so far.
    pub(super) fn gone(&self) -> u64 {
        self.gone.load(Ordering::SeqCst)
    }

    /// Content of it may be in a cache of whoever is served, until he has no reference any more.
    pub(super) fn caches(&self, node: NodeId) {
        if let Some(known) = self.shard(node).lock().get_mut(&node) {
            known.is_cached = true;
        }
    }

    /// Whether it may be; a node that is not known may.
    pub(super) fn is_cached(&self, node: NodeId) -> bool {
        self.shard(node)
            .lock()
            .get(&node)
            .is_none_or(|known| known.is_cached)
    }

    pub(super) fn is_referred_to(&self, node: NodeId) -> bool {
        self.shard(node).lock().contains_key(&node)
    }

    /// Keeps a node that lost its last name as long as there are references; without any it is let go of at once.
    pub(super) fn keep(&self, node: NodeId, hold: OpenInode) {
        let mut shard = self.shard(node).lock();
        let older = match shard.get_mut(&node) {
            Some(known) => known.hold.replace(hold),
            None => Some(hold),
        };
        drop(shard);
        drop(older);
    }

    /// The inodes without a name that are kept for somebody who has a reference still.
    pub(super) fn kept(&self) -> Vec<Location> {
        let mut kept = Vec::new();
        for shard in &self.shards {
            let shard = shard.lock();
            let held = shard.values().filter_map(|node| node.hold.as_ref());
            kept.extend(held.map(OpenInode::location));
        }
        kept
    }

    /// Whether an inode without a name is being let go of right now. One that goes is among those that are kept until it is here.
    pub(super) fn is_letting_go(&self) -> bool {
        self.going.load(Ordering::SeqCst) > 0
    }

    /// The directory in which a directory was found.
    pub(super) fn parent(&self, node: NodeId) -> Option<NodeId> {
        self.shard(node).lock().get(&node)?.parent
    }

    /// Returns where listings of a directory end.
    pub(super) fn listed_to(&self, node: NodeId) -> Option<u64> {
        self.shard(node).lock().get(&node)?.listed_to
    }

    /// Begins a listing of a directory, which ends before the name with the index `end`.
    pub(super) fn lists_to(&self, node: NodeId, end: u64) {
        if let Some(known) = self.shard(node).lock().get_mut(&node) {
            known.listed_to = Some(end);
        }
    }

    /// A directory has another parent.
    pub(super) fn moved(&self, node: NodeId, parent: NodeId) {
        if let Some(known) = self.shard(node).lock().get_mut(&node) {
            known.parent = Some(parent);
        }
    }

    /// Forgets everything: whoever referred to nodes is gone.
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
    fn what_is_cached_is_known_as_long_as_there_are_references() {
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
