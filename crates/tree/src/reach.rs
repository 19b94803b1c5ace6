//! Whether a tree contains a block.
//!
//! A block that other trees share carries the id of the tree that made it. A descent by the
//! block's first key shows whether that tree still contains the block.

use crate::error::Result;
use crate::pointer::BlockPointer;
use crate::tree::Tree;
use buttress_format::TreeBlock;

impl Tree {
    /// Returns whether the tree, which must be on the devices, contains `block`. A block without
    /// keys counts as contained. `is_gone` gets a parent and its child, and returns true for a child
    /// that a deletion has already dropped.
    ///
    /// # Errors
    /// Fails if a block on the path cannot be read.
    pub fn contains_block(
        &self,
        block: &TreeBlock,
        is_gone: impl Fn(&BlockPointer, &BlockPointer) -> bool,
    ) -> Result<bool> {
        let Some(first) = block.key(0) else {
            return Ok(true);
        };
        let mut pointer = BlockPointer::root(self.root());
        while pointer.level > block.level() {
            let node = self.forest().read_block(&pointer)?;
            let slot = match node.search(&first) {
                Ok(slot) => Some(slot),
                Err(next) => next.checked_sub(1),
            };
            let Some(child) = slot.and_then(|slot| pointer.child(&node, slot)) else {
                return Ok(false);
            };
            if is_gone(&pointer, &child) {
                return Ok(false);
            }
            pointer = child;
        }
        Ok(pointer.logical == block.logical())
    }
}
