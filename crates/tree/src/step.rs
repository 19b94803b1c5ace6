//! A block of a path from a root down, with the pointer to the block and the position in the block.
//!
//! Invariant: a step holds its block, which stays readable if the cache evicts it.

use crate::edit::Node;
use crate::pointer::BlockPointer;
use buttress_format::node::TreeBlock;
use std::sync::Arc;

/// A block on a path.
#[derive(Clone, Debug)]
pub(crate) struct Step {
    /// The pointer to the block.
    pub(crate) pointer: BlockPointer,
    /// The content of the block in this step.
    pub(crate) block: TreeBlock,
    /// The block's links to children in memory, if the block itself is in memory.
    pub(crate) node: Option<Arc<Node>>,
    /// In a node, the slot of the path's current or next child. In a leaf, the slot of the item.
    pub(crate) slot: usize,
}

impl Step {
    /// Returns the pointer to the child in `slot`. For a child block in memory, the pointer has the
    /// placeholder address. All users of a step's children call this method, because a block in
    /// memory lacks its children's addresses.
    pub(crate) fn child(&self, slot: usize) -> Option<BlockPointer> {
        let pointer = self.pointer.child(&self.block, slot)?;
        Some(match self.link(slot) {
            Some(link) => BlockPointer {
                logical: link.block.logical(),
                generation: link.block.header().generation,
                ..pointer
            },
            None => pointer,
        })
    }

    /// Returns the child node in `slot`, if it is in memory.
    pub(crate) fn link(&self, slot: usize) -> Option<&Arc<Node>> {
        self.node.as_ref()?.link(slot)
    }

    /// Returns the last slot, or 0 in an empty block.
    pub(crate) fn last_slot(&self) -> usize {
        // Clamp: an empty block has no slot, and the callers then find no item in slot 0.
        self.block.item_count().saturating_sub(1)
    }

    /// Returns the next slot, if it exists.
    pub(crate) fn next_slot(&self) -> Option<usize> {
        self.slot
            .checked_add(1)
            .filter(|slot| *slot < self.block.item_count())
    }
}
