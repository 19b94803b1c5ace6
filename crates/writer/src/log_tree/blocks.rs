//! Blocks of logs: they lie in metadata's block groups like other tree blocks, and belong to no extent.
//!
//! A block is pinned when it gets its address, and stays so until the commit. An address that no durable log leads to any more
//! is *spare*: the next log takes those first. So a transaction with very many syncs needs no more room than the logs that
//! there are at once, and writes to the same few places.

use crate::transaction::block_groups::{Found, Purpose, Share};
use crate::transaction::reservation::Need;
use crate::transaction::running::Running;
use buttress_format::{ByteCount, Generation, Logical, TreeId};
use buttress_fs::error::{Defect, Error, Result};
use buttress_tree::EditableTree;

/// Where a block of a log may go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) logical: Logical,
    /// An earlier log of the transaction had it: it is pinned already.
    pub(super) is_spare: bool,
}

impl Running {
    /// An empty tree for a log.
    pub(super) fn new_log(&self, generation: Generation) -> EditableTree {
        let core = &self.core;
        EditableTree::new_empty(&core.forest, TreeId::TREE_LOG, generation, core.chunk_tree_uuid)
    }

    /// Takes room for blocks of logs. `None` when there is none beside what the commit needs.
    pub(super) fn take_log_blocks(&mut self, count: u64) -> Result<Option<Vec<Place>>> {
        let node_bytes = self.core.node_bytes().get();
        let reserved = self.metadata_reservation_bytes(Need::freeing(0));
        let room = self.core.groups.room(Purpose::Metadata);
        // Edits would have chunks made for want of what a commit gives back.
        let is_pinned = room.pinned_bytes > room.total_bytes >> 1;
        if is_pinned || room.free_bytes < reserved.saturating_add(count.saturating_mul(node_bytes)) {
            return Ok(None);
        }
        let mut places: Vec<Place> = Vec::new();
        let taken = self.take_places(count, &mut places);
        if !matches!(taken, Ok(true)) {
            self.give_back_log_blocks(places);
            return taken.map(|_| None);
        }
        Ok(Some(places))
    }

    fn take_places(&mut self, count: u64, places: &mut Vec<Place>) -> Result<bool> {
        let node_bytes = self.core.node_bytes().get();
        while let Some(left) = count
            .checked_sub(ByteCount::of(places.len()).get())
            .filter(|left| *left > 0)
        {
            let wanted = left.saturating_mul(node_bytes);
            match self
                .core
                .groups
                .allocate(Purpose::Metadata, wanted, node_bytes, node_bytes)?
            {
                Found::Range(start, length) => {
                    let blocks = length.checked_div(node_bytes).unwrap_or(0).max(1);
                    let place = |index: u64| Place {
                        logical: Logical::new(start.saturating_add(index.saturating_mul(node_bytes))),
                        is_spare: false,
                    };
                    places.extend((0..blocks).map(place));
                }
                Found::Load(group) => self.load_group(group)?,
                Found::Nothing => return Ok(false),
            }
        }
        Ok(true)
    }

    /// Gives room back that was taken and not used. What is spare stays pinned.
    pub(super) fn give_back_log_blocks(&mut self, places: impl IntoIterator<Item = Place>) {
        let node_bytes = self.core.node_bytes().get();
        for place in places.into_iter().filter(|place| !place.is_spare) {
            let given = self.core.groups.give_back(place.logical.get(), node_bytes);
            self.core.settle(given);
        }
    }

    /// Gives the blocks of a log that have none addresses, and pins them.
    pub(super) fn assign_log(
        &mut self,
        tree: &mut EditableTree,
        places: &mut impl Iterator<Item = Place>,
    ) -> Result<()> {
        let node_bytes = self.core.node_bytes().get();
        let mut used = Vec::new();
        let assigned = tree.for_each_unassigned(&mut |_, _| {
            let place = places
                .next()
                .ok_or_else(|| Error::from(Defect::new("a log found fewer places than it has blocks")))?;
            used.push(place);
            Ok(place.logical)
        });
        for place in used.into_iter().filter(|place| !place.is_spare) {
            self.keep_log_block(place.logical.get(), node_bytes, Share::Allocated)?;
        }
        Ok(assigned?)
    }
}
