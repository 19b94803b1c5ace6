//! The tree checker: all rules for one tree block, checked when the block is read.
//!
//! The tree checker is at least as strict as the tree checker of Linux 6.18: the kernel accepts all
//! blocks that pass here. Every block that the kernel writes passes these checks. The checker sees
//! one block. Rules between two blocks are tested by the tree and by the check job.
//!
//! The rules for nodes: at least one pointer and no more than fit, ascending keys, and pointers to
//! aligned addresses with generations up to the node's own. The rules for leaves: ascending keys,
//! and item data packed from the end of the block towards the item heads, without gaps and
//! overlaps. Each leaf item is also checked alone and against the item before it. The checker walks
//! a leaf once. The checker allocates only for item types that hold a list.

mod items;

use crate::key::Key;
use crate::node::access::data_range;
use crate::node::check::Report;
use crate::node::{BlockFormat, BlockProblem, HEADER_BYTES, HeaderFlags, RawItem, RawKeyPointer, TreeBlock};
use crate::raw;
use crate::superblock::{HIGHEST_LEVEL, Incompat};
use crate::units::{Generation, Logical, ObjectId, TreeId};
use core::ops::ControlFlow;

/// Returns true if a tree holds files: the top level, and ids from 256 on. The id must not be
/// negative as a signed number, and must have no quota group level in its upper 16 bits.
pub(crate) const fn is_file_tree(tree: TreeId) -> bool {
    let id = tree.get();
    id == TreeId::FS.get() || (id >= ObjectId::FIRST_FREE.get() && id >> QGROUP_LEVEL_SHIFT == 0)
}

/// The lowest bit of the level in a quota group id. The groups of subvolumes have level 0.
const QGROUP_LEVEL_SHIFT: u32 = 48;

/// Checks a block, except its checksum and the fields that its parent predicts. Passes failures of
/// the checks to `report`.
pub(crate) fn check_block(block: &TreeBlock, format: &BlockFormat, report: Report<'_>) -> ControlFlow<()> {
    let flags = block.header().flags;
    if !flags.contains(HeaderFlags::WRITTEN) {
        report(BlockProblem::NotWritten { flags: flags.bits() })?;
    }
    match block.level() {
        0 => check_leaf(block, format, report),
        1..=HIGHEST_LEVEL => check_node(block, format, report),
        _ => ControlFlow::Continue(()),
    }
}

fn check_node(block: &TreeBlock, format: &BlockFormat, report: Report<'_>) -> ControlFlow<()> {
    let count = block.header().item_count;
    if count == 0 {
        return report(BlockProblem::NodeEmpty);
    }
    check_count::<RawKeyPointer>(block, report)?;
    let own = block.header().generation;
    let sector_bytes = format.sector_bytes;
    let mut previous: Option<Key> = None;
    for (slot, raw) in block.raw_pointers().iter().enumerate() {
        let key = Key::from(raw.key);
        check_order(slot, previous, key, report)?;
        previous = Some(key);
        let pointer = Logical::new(raw.blockptr.get());
        if pointer == Logical::MIN {
            report(BlockProblem::PointerZero { slot })?;
        } else if !raw::is_aligned(pointer.get(), sector_bytes) {
            report(BlockProblem::PointerUnaligned {
                slot,
                pointer,
                sector_bytes,
            })?;
        }
        let generation = Generation::new(raw.generation.get());
        if generation > own {
            report(BlockProblem::PointerGeneration {
                slot,
                generation,
                own,
            })?;
        }
    }
    ControlFlow::Continue(())
}

fn check_leaf(block: &TreeBlock, format: &BlockFormat, report: Report<'_>) -> ControlFlow<()> {
    if block.header().item_count == 0 {
        return check_empty_leaf(block.header().owner, format, report);
    }
    check_count::<RawItem>(block, report)?;
    let mut expected_bytes = block.bytes().len().saturating_sub(HEADER_BYTES) as u64;
    let heads_end_bytes = (block.raw_items().len() as u64).saturating_mul(size_of::<RawItem>() as u64);
    let mut items = items::Items::new(format, block.header().owner);
    let mut previous: Option<Key> = None;
    for (slot, raw) in block.raw_items().iter().enumerate() {
        let key = Key::from(raw.key);
        check_order(slot, previous, key, report)?;
        let start_bytes = u64::from(raw.offset.get());
        let end_bytes = start_bytes.saturating_add(u64::from(raw.size.get()));
        if end_bytes != expected_bytes && !buttress_faults::on("format-item-bounds-unchecked") {
            report(BlockProblem::DataEnd {
                slot,
                end_bytes,
                expected_bytes,
            })?;
        }
        if start_bytes < heads_end_bytes {
            report(BlockProblem::DataOverlapsHeads {
                slot,
                start_bytes,
                heads_end_bytes,
            })?;
        }
        expected_bytes = start_bytes;
        if let Some(data) = data_range(raw).and_then(|range| block.bytes().get(range))
            && let Err(error) = items.check(previous, &key, data)
        {
            report(BlockProblem::Item { slot, error })?;
        }
        previous = Some(key);
    }
    ControlFlow::Continue(())
}

fn check_count<Raw>(block: &TreeBlock, report: Report<'_>) -> ControlFlow<()> {
    let room = block.bytes().len().saturating_sub(HEADER_BYTES);
    let most = room.checked_div(size_of::<Raw>()).unwrap_or(0);
    let count = block.header().item_count;
    if u32::try_from(most).is_ok_and(|most| count > most) {
        report(BlockProblem::TooManyItems { count, most })?;
    }
    ControlFlow::Continue(())
}

fn check_order(slot: usize, previous: Option<Key>, key: Key, report: Report<'_>) -> ControlFlow<()> {
    match previous {
        Some(previous) if previous >= key && !buttress_faults::on("format-key-order-unchecked") => {
            report(BlockProblem::KeyOrder { slot, previous, key })
        }
        _ => ControlFlow::Continue(()),
    }
}

/// Refuses an empty leaf of a tree that always holds items. Only other trees become empty when
/// their last item is deleted.
fn check_empty_leaf(owner: TreeId, format: &BlockFormat, report: Report<'_>) -> ControlFlow<()> {
    match owner {
        TreeId::MIN => report(BlockProblem::OwnerZero),
        TreeId::EXTENT if format.incompat.contains(Incompat::EXTENT_TREE_V2) => ControlFlow::Continue(()),
        TreeId::ROOT
        | TreeId::CHUNK
        | TreeId::EXTENT
        | TreeId::DEVICE
        | TreeId::FS
        | TreeId::DATA_RELOCATION => report(BlockProblem::LeafEmpty { owner }),
        _ => ControlFlow::Continue(()),
    }
}

#[cfg(test)]
mod tests;
