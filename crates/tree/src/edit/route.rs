//! Routes: the path of an edit down to a leaf, looked up before any change.
//!
//! A [`Route`] holds the slots of the path and its clean blocks. The edit after the lookup reads
//! nothing, so it cannot fail half-way because of an unreadable block.

use super::node::Node;
use crate::pointer::BlockPointer;
use buttress_format::Key;
use buttress_format::node::TreeBlock;
use smallvec::SmallVec;

/// A block on the path from a root to a key.
#[derive(Debug)]
pub(super) struct RouteStep {
    /// In a node, the slot of the child on the route. In a leaf, the slot of the key.
    pub(super) slot: usize,
    /// The block on the route, if it is not in memory as a node of the tree.
    pub(super) clean: Option<Box<(BlockPointer, TreeBlock)>>,
}

/// The path from the root to the leaf that covers a key.
#[derive(Debug, Default)]
pub(super) struct Route {
    /// The steps from the root to the leaf.
    pub(super) steps: SmallVec<[RouteStep; 8]>,
    /// True if the leaf of the route has an item with the key.
    pub(super) found: bool,
    /// The exclusive end of the leaf's keys; `None` for the last leaf.
    pub(super) end_key: Option<Key>,
}

impl Route {
    /// Returns the slot of the route in the leaf.
    pub(super) fn leaf_slot(&self) -> usize {
        self.steps.last().map_or(0, |step| step.slot)
    }

    pub(super) fn slot(&self, depth: usize) -> usize {
        self.steps.get(depth).map_or(0, |step| step.slot)
    }
}

/// The result of a descent to a block: its place in memory or on disk.
pub(super) enum Place<'tree> {
    Node(&'tree Node),
    Clean(Box<(BlockPointer, TreeBlock)>),
}

impl Place<'_> {
    pub(super) fn block(&self) -> &TreeBlock {
        match self {
            Self::Node(node) => &node.block,
            Self::Clean(clean) => &clean.1,
        }
    }
}
