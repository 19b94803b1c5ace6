//! The root of an edited tree, on disk and in memory.

use super::node::Node;
use crate::pointer::RootPointer;
use buttress_format::TreeId;
use std::sync::Arc;

/// The root of the tree, on disk and in memory.
#[derive(Debug)]
pub(super) struct Root {
    /// The committed root. The pointer is out of date while `node` is set.
    pub(super) pointer: RootPointer,
    /// The root block in memory.
    pub(super) node: Option<Arc<Node>>,
}

impl Root {
    /// Returns the pointer to the current root. While the root may still change, the pointer has a
    /// placeholder address.
    pub(super) fn pointer(&self, tree: TreeId, epoch: u64) -> RootPointer {
        match &self.node {
            None => self.pointer,
            Some(node) => RootPointer {
                tree,
                logical: match node.address() {
                    Some(address) if node.epoch < epoch => address,
                    _ => node.block.logical(),
                },
                generation: node.generation(),
                level: node.level(),
            },
        }
    }
}
