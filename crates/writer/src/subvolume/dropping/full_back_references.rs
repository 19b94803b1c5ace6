//! Conversion to full back references: shared blocks that hold references in the dropped tree's
//! name then refer by address.
//!
//! Children come before their parent, so that the walk can stop after any block. Each converted
//! tree block is consistent, whether or not other blocks are converted. If a block above it is not
//! converted yet, that block is consistent too. The walk also visits nodes that already hold full
//! back references.
//!
//! Left out: finding shared blocks, and dropping references to them. The dropper above this module
//! does both.

use super::{CHILDREN_AHEAD, REFERENCES_AT_ONCE, SnapshotDropper};
use buttress_accounts::delayed_references::ExtentKind;
use buttress_engine::cow::Form;
use buttress_engine::running::Running;
use buttress_format::TreeBlock;
use buttress_fs::error::{Corruption, Result};
use buttress_tree::BlockPointer;

/// A block whose subtree the drop converts to full back references.
#[derive(Debug)]
struct ToConvert {
    pointer: BlockPointer,
    block: TreeBlock,
    /// Whether the block already refers by its address.
    is_converted: bool,
    /// The slot of the next child.
    slot: usize,
}

impl SnapshotDropper<'_> {
    /// Converts a shared block, and all blocks below it that hold references in this tree's name,
    /// to full back references. Children precede their parents, so the call can stop after any
    /// block, and a retry finds the remaining blocks. Returns false if it stopped because many
    /// references are pending, so that other threads get the lock.
    pub(super) fn set_full_back_references(
        &mut self,
        running: &mut Running,
        top: &BlockPointer,
    ) -> Result<bool> {
        if buttress_faults::on("drop-converts-nothing") {
            return Ok(true);
        }
        let limit = running.core.references.len().saturating_add(REFERENCES_AT_ONCE);
        let mut way: Vec<ToConvert> = Vec::new();
        let mut next = Some(*top);
        loop {
            if let Some(pointer) = next.take() {
                let block = self.block_to_convert(running, &pointer).inspect_err(|_| {
                    let above = way.last();
                    self.ahead = above.map_or_else(Vec::new, |above| {
                        let slot = above.slot.saturating_sub(1);
                        self.own_children(&above.pointer, &above.block, slot).collect()
                    });
                })?;
                way.extend(block);
            }
            let Some(ToConvert {
                pointer,
                block,
                is_converted,
                slot,
            }) = way.last_mut()
            else {
                self.memory.turned.clear();
                return Ok(true);
            };
            while next.is_none() && *slot < block.item_count() {
                next = pointer
                    .child(block, *slot)
                    .filter(|child| child.generation >= self.origin);
                *slot = slot.saturating_add(1);
            }
            if next.is_some() {
                continue;
            }
            if !*is_converted {
                self.turn(running, pointer, block)?;
            }
            if pointer.level > 0 {
                self.memory.turned.insert(pointer.logical);
            }
            way.pop();
            if running.core.references.len() >= limit {
                return Ok(false);
            }
        }
    }

    /// Returns a block whose subtree may hold references in this tree's name. Blocks that already
    /// refer by their address are visited too: relocation may have moved them, or the kernel, which
    /// begins at the top, may have stopped here.
    fn block_to_convert(&self, running: &Running, pointer: &BlockPointer) -> Result<Option<ToConvert>> {
        if self.memory.turned.contains(&pointer.logical) {
            return Ok(None);
        }
        let kind = ExtentKind::TreeBlock { level: pointer.level };
        let length = running.core.node_bytes();
        let state = running.core.extent_state(pointer.logical, kind, length)?;
        if state.references == 0 {
            let logical = pointer.logical;
            return Err(Corruption::ExtentMissing { logical, length }.into());
        }
        if state.full_backref && pointer.level == 0 {
            return Ok(None);
        }
        let block = running.core.forest.read_block(pointer)?;
        let is_own = block.header().owner == self.tree;
        Ok(is_own.then_some(ToConvert {
            pointer: *pointer,
            block,
            is_converted: state.full_backref,
            slot: 0,
        }))
    }

    /// Converts the references of one block to its address.
    fn turn(&self, running: &mut Running, pointer: &BlockPointer, block: &TreeBlock) -> Result<()> {
        let core = &mut running.core;
        core.refer_below(block, Form::FullBackReference(pointer.logical), 1)
            .and_then(|()| match buttress_faults::on("drop-turn-keeps-old-references") {
                true => Ok(()),
                false => core.refer_below(block, Form::Keyed(self.tree), -1),
            })
            .inspect_err(|error| core.forest.volume().stop_writing(error))?;
        let node_bytes = core.node_bytes();
        core.references
            .set_full_backref(pointer.logical, node_bytes, pointer.level);
        Ok(())
    }

    /// Returns the children of a shared block, from a slot on, that this tree may own, to be read
    /// together.
    fn own_children<'a>(
        &self,
        above: &'a BlockPointer,
        block: &'a TreeBlock,
        slot: usize,
    ) -> impl Iterator<Item = BlockPointer> + use<'a> {
        let origin = self.origin;
        (slot..block.item_count())
            .filter_map(|slot| above.child(block, slot))
            .filter(move |child| child.generation >= origin)
            .take(CHILDREN_AHEAD)
    }
}
