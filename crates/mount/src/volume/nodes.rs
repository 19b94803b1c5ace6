//! The nodes that somebody refers to, and what is kept for them.
//!
//! A node's number is computed ([`super::numbers`]), so most calls need nothing from here. What is kept:
//! - how many references are out: as long as there is one, the node stays usable without a name. So whoever takes its last name
//!   holds the inode open first ([`Nodes::keep`]), and the last reference lets go of it;
//! - of directories, the one that they were found in.
//!
//! The locks are leaves: inodes are let go of, which may remove them, outside.

use crate::vfs::NodeId;
use buttress::writer::operations::OpenInode;
use parking_lot::Mutex;
use std::collections::HashMap;

const SHARDS: usize = 64;

#[derive(Debug, Default)]
struct Node {
    references: u64,
    parent: Option<NodeId>,
    hold: Option<OpenInode>,
}

/// See the module.
#[derive(Debug)]
pub(super) struct Nodes {
    shards: [Mutex<HashMap<NodeId, Node>>; SHARDS],
}

impl Nodes {
    pub(super) fn new() -> Self {
        Self {
            shards: core::array::from_fn(|_| Mutex::default()),
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
        known.references = known.references.saturating_add(1);
        if parent.is_some() {
            known.parent = parent;
        }
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
        let gone = shard.remove(&node);
        drop(shard);
        // It may be removed now, which takes its time.
        drop(gone);
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

    /// Whether a node without a name is kept for somebody who has a reference still.
    pub(super) fn keeps_any(&self) -> bool {
        let keeps = |shard: &Mutex<HashMap<NodeId, Node>>| {
            let shard = shard.lock();
            shard.values().any(|node| node.hold.is_some())
        };
        self.shards.iter().any(keeps)
    }

    /// The directory in which a directory was found.
    pub(super) fn parent(&self, node: NodeId) -> Option<NodeId> {
        self.shard(node).lock().get(&node)?.parent
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
