//! The leaves of a subvolume's tree that no newer state shares.
//!
//! States are visited from the newest to the oldest. A block is known by address and generation, so a
//! block that several states share is visited once, with everything below it.
//!
//! # Bounds
//!
//! All trees together remember at most [`KNOWN_MAX`] blocks. Further blocks count as unknown: their
//! leaves are read again, and hold only versions that are known already.

use crate::error::Result;
use crate::indexed::is_inside;
use buttress_exact::Exact as _;
use buttress_format::node::TreeBlock;
use buttress_format::{ByteCount, Generation, Logical};
use buttress_fs::Progress;
use buttress_tree::{BlockPointer, Forest};
use std::collections::HashSet;
use std::sync::Arc;

/// The largest number of remembered blocks.
pub(super) const KNOWN_MAX: usize = 1 << 22;

/// The number of blocks that are requested together.
const REQUESTED: usize = 64;

/// The known blocks of one subvolume.
#[derive(Debug, Default)]
pub(super) struct KnownBlocks {
    blocks: HashSet<(Logical, Generation)>,
}

/// A walk over the unknown blocks of a tree.
pub(super) struct NewLeaves<'a> {
    pub(super) forest: &'a Arc<Forest>,
    pub(super) known: &'a mut KnownBlocks,
    /// The number of blocks that all trees may still remember.
    pub(super) room: &'a mut usize,
    /// False if leaves only become known, and are not read.
    pub(super) reads_leaves: bool,
    /// The number of blocks that could not be read.
    pub(super) unreadable: u64,
    pub(super) progress: &'a Progress,
}

impl NewLeaves<'_> {
    /// Passes each unknown leaf below `pointer` to `take`, which may stop the walk by an error. The
    /// level of the pointer bounds the depth.
    pub(super) fn walk(
        &mut self,
        pointer: &BlockPointer,
        take: &mut dyn FnMut(&TreeBlock) -> Result<()>,
    ) -> Result<()> {
        if !self.is_new(pointer) {
            return Ok(());
        }
        self.progress.check()?;
        if pointer.level == 0 && !self.reads_leaves {
            return Ok(());
        }
        let block = match self.forest.read_block(pointer) {
            Ok(block) if is_inside(pointer, &block) => block,
            Ok(_) | Err(_) => {
                self.unreadable = self.unreadable.exact_add(1);
                return Ok(());
            }
        };
        self.progress.advance(1, ByteCount::ZERO);
        if pointer.level == 0 {
            return take(&block);
        }
        let children: Vec<BlockPointer> = (0..block.item_count())
            .map_while(|slot| pointer.child(&block, slot))
            .collect();
        let reads_children = pointer.level > 1 || self.reads_leaves;
        for group in children.chunks(REQUESTED) {
            let is_known = |child: &&BlockPointer| self.known.blocks.contains(&place(child));
            let wanted: Vec<BlockPointer> = group.iter().filter(|child| !is_known(child)).copied().collect();
            // The blocks stay in memory until the walk reads them.
            let _read = reads_children.then(|| self.forest.fault_in(&wanted));
            for child in group {
                self.walk(child, take)?;
            }
        }
        Ok(())
    }

    /// Remembers a block. Returns whether it was unknown.
    fn is_new(&mut self, pointer: &BlockPointer) -> bool {
        if *self.room == 0 {
            return !self.known.blocks.contains(&place(pointer));
        }
        let is_new = self.known.blocks.insert(place(pointer));
        if is_new {
            *self.room = self.room.exact_sub(1);
        }
        is_new
    }
}

const fn place(pointer: &BlockPointer) -> (Logical, Generation) {
    (pointer.logical, pointer.generation)
}
