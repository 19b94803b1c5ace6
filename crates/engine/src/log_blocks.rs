//! Blocks of logs, which lie in metadata block groups like other tree blocks, and belong to no
//! extent.
//!
//! A log block is pinned from its allocation until the commit. A log block's address to which no
//! durable log leads any more is *spare*. The next log may reuse a spare address.
//!
//! On devices that do not spin, a log uses spare log blocks first. A device's caches still hold
//! recently written blocks. A log place without earlier writes costs an image file, or a flash
//! drive, space and time.
//!
//! On a spinning disk one separate write costs as much as all blocks together, so the blocks of one
//! sync should lie together. On spinning disks, a log uses adjacent spare blocks, or else a run of
//! free space. While free space is plentiful, logs leave scattered spare blocks unused. When free
//! space is short, logs use these scattered blocks, nearest to each other first, before the rest of
//! free space. A transaction with very many syncs therefore needs only a part of the space for
//! metadata.

use crate::backing::Backing;
use crate::block_groups::{Found, Purpose, Share};
use crate::reservation::Need;
use crate::running_parts::LogSpace;
use buttress_device::Device;
use buttress_exact::Exact as _;
use buttress_format::{ByteCount, Generation, Logical, TreeId};
use buttress_fs::error::{Defect, Error, Result};
use buttress_tree::EditableTree;
use std::collections::BTreeSet;

/// The number of spare blocks, those with the highest addresses, among which a log searches for
/// nearest ones. The log blocks with the highest addresses were written last.
const LOOKED_AT: usize = 256;

/// Blocks count as near each other within this multiple of their own length.
const NEAR: u64 = 4;

/// An address for one log block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// The logical address of the log block.
    pub logical: Logical,
    /// Whether an earlier log of the transaction used the address, which is then pinned already.
    pub is_spare: bool,
}

/// Addresses that earlier logs of the running transaction used and no longer use.
#[derive(Debug, Default)]
pub struct Spare(BTreeSet<Logical>);

impl Spare {
    /// Adds spare addresses for log blocks.
    pub fn extend(&mut self, addresses: impl IntoIterator<Item = Logical>) {
        self.0.extend(addresses);
    }

    /// Takes the `count` spare addresses nearest to each other, in order of address. Returns `None`
    /// if the nearest addresses span more than `span_bytes`.
    fn take_near(&mut self, count: usize, span_bytes: u64) -> Option<Vec<Place>> {
        let mut last: Vec<Logical> = self.0.iter().rev().take(LOOKED_AT.max(count)).copied().collect();
        last.reverse();
        let span = |window: &[Logical]| {
            let (first, last) = (window.first()?, window.last()?);
            Some(last.get().saturating_sub(first.get()))
        };
        let nearest = last.windows(count.max(1)).min_by_key(|window| span(window))?;
        if span(nearest)? > span_bytes {
            return None;
        }
        nearest.iter().for_each(|address| {
            self.0.remove(address);
        });
        Some(nearest.iter().map(|address| Place::spare(*address)).collect())
    }

    /// Removes the lowest spare addresses from the set, at most `count`, and returns them.
    fn take_any(&mut self, count: usize) -> impl Iterator<Item = Place> {
        let next = || self.0.pop_first().map(Place::spare);
        core::iter::from_fn(next).take(count)
    }
}

impl Place {
    const fn spare(logical: Logical) -> Self {
        let is_spare = true;
        Self { logical, is_spare }
    }
}

impl LogSpace<'_> {
    /// Allocates addresses for `count` log blocks, and for some more that the log may need. Returns
    /// `None` if the only free space left is reserved for the commit.
    pub fn take(&mut self, spare: &mut Spare, count: usize, more: usize) -> Result<Option<Vec<Place>>> {
        let node_bytes = self.running.core.node_bytes().get();
        let bytes_of = |count: usize| ByteCount::of(count).get().saturating_mul(node_bytes);
        let all = count.saturating_add(more);
        if !self.has_spinning_device() {
            return self.take_spare_and_new(spare, Vec::new(), all);
        }
        let mut places = spare.take_near(count, bytes_of(count.saturating_sub(1)));
        if places.is_none()
            && self.has_plenty()
            && let Some(run) = self.take_blocks(ByteCount::of(all).get())?
        {
            return Ok(Some(run));
        }
        places = places.or_else(|| spare.take_near(count, bytes_of(count).saturating_mul(NEAR)));
        self.take_spare_and_new(spare, places.unwrap_or_default(), all)
    }

    /// Takes `count` addresses: spare ones first, then new ones.
    fn take_spare_and_new(
        &mut self,
        spare: &mut Spare,
        mut places: Vec<Place>,
        all: usize,
    ) -> Result<Option<Vec<Place>>> {
        places.reserve(all);
        places.extend(spare.take_any(all.saturating_sub(places.len())));
        let missing = ByteCount::of(all.saturating_sub(places.len())).get();
        match self.take_blocks(missing) {
            Ok(Some(new)) => {
                places.extend(new);
                Ok(Some(places))
            }
            other => {
                spare.extend(places.iter().map(|place| place.logical));
                other.map(|_| None)
            }
        }
    }

    fn has_spinning_device(&self) -> bool {
        let devices = self.running.core.forest.volume().devices();
        let spins = |device: &Device| device.is_rotational();
        devices.iter().any(|slot| slot.device().is_some_and(spins))
    }

    /// Returns whether the free space is so large that all spare log blocks can stay unused.
    fn has_plenty(&self) -> bool {
        let room = self.running.core.groups.room(Purpose::Metadata);
        room.pinned_bytes < room.total_bytes >> 2 && room.with_unbacked() > room.total_bytes >> 1
    }

    /// Returns an empty tree for a log.
    pub fn new_log(&self, generation: Generation) -> EditableTree {
        let core = &self.running.core;
        EditableTree::new_empty(&core.forest, TreeId::TREE_LOG, generation, core.chunk_tree_uuid)
    }

    /// Allocates new addresses for log blocks. Returns `None` if the only free space left is
    /// reserved for the commit.
    fn take_blocks(&mut self, count: u64) -> Result<Option<Vec<Place>>> {
        let node_bytes = self.running.core.node_bytes().get();
        let reserved = self.running.block_reserve().metadata_bytes(Need::freeing(0));
        let room = self.running.core.groups.room(Purpose::Metadata);
        // If pinned space is large, edits would make chunks although the next commit frees that
        // space.
        let is_pinned = room.pinned_bytes > room.total_bytes >> 1;
        if is_pinned {
            return Ok(None);
        }
        let wanted = reserved.saturating_add(count.saturating_mul(node_bytes));
        while let Some(lacking) = wanted
            .checked_sub(self.running.core.groups.room(Purpose::Metadata).free_bytes)
            .filter(|lacking| *lacking > 0)
        {
            if self.running.host_space().back_more(Purpose::Metadata, lacking)? != Backing::More {
                return Ok(None);
            }
        }
        let mut places: Vec<Place> = Vec::new();
        let taken = self.take_places(count, &mut places);
        if !matches!(taken, Ok(true)) {
            self.give_back_new(places.iter());
            return taken.map(|_| None);
        }
        Ok(Some(places))
    }

    fn take_places(&mut self, count: u64, places: &mut Vec<Place>) -> Result<bool> {
        let node_bytes = self.running.core.node_bytes().get();
        while let Some(left) = count
            .checked_sub(ByteCount::of(places.len()).get())
            .filter(|left| *left > 0)
        {
            let wanted = left.saturating_mul(node_bytes);
            match self
                .running
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
                Found::Load(group) => self.running.load_group(group)?,
                Found::Nothing => return Ok(false),
            }
        }
        Ok(true)
    }

    /// Frees unused log block addresses, which are the last allocated ones. Spare addresses stay
    /// pinned, and become spare again.
    pub fn give_back(&mut self, spare: &mut Spare, places: &[Place]) {
        let is_spare = |place: &&Place| place.is_spare;
        spare.extend(places.iter().filter(is_spare).map(|place| place.logical));
        self.give_back_new(places.iter().filter(|place| !place.is_spare));
    }

    fn give_back_new<'a>(&mut self, places: impl Iterator<Item = &'a Place>) {
        let node_bytes = self.running.core.node_bytes().get();
        let mut first = None;
        for place in places {
            let given = self
                .running
                .core
                .groups
                .give_back(place.logical.get(), node_bytes);
            self.running.core.settle(given);
            first.get_or_insert(place.logical);
        }
        if let Some(first) = first {
            // The next allocation continues directly after the used blocks.
            self.running.core.groups.go_on_at(Purpose::Metadata, first.get());
        }
    }

    /// Gives addresses to the log's blocks without one, and pins them.
    pub fn assign(
        &mut self,
        tree: &mut EditableTree,
        places: &mut impl Iterator<Item = Place>,
    ) -> Result<()> {
        let node_bytes = self.running.core.node_bytes().get();
        let mut used = Vec::with_capacity(tree.unassigned_nodes().narrow::<usize>());
        let assigned = tree.for_each_unassigned(&mut |_, _| {
            let place = places
                .next()
                .ok_or_else(|| Error::from(Defect::new("a log found fewer places than it has blocks")))?;
            used.push(place);
            Ok(place.logical)
        });
        for place in used.into_iter().filter(|place| !place.is_spare) {
            self.keep_block(place.logical.get(), node_bytes, Share::Allocated)?;
        }
        Ok(assigned?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NODE: u64 = 16_384;

    fn spare(blocks: &[u64]) -> Spare {
        let mut spare = Spare::default();
        spare.extend(blocks.iter().map(|block| Logical::new(block * NODE)));
        spare
    }

    fn blocks(places: &[Place]) -> Vec<u64> {
        assert!(places.iter().all(|place| place.is_spare));
        places.iter().map(|place| place.logical.get() / NODE).collect()
    }

    #[test]
    fn take_near_returns_nearest_spare_blocks() {
        let mut spare = spare(&[1, 20, 22, 23, 25, 60, 62, 90]);
        assert_eq!(spare.take_near(3, 2 * NODE), None);
        assert_eq!(blocks(&spare.take_near(2, NODE).unwrap()), vec![22, 23]);
        // After this call, the remaining spare blocks are 1, 20, 25, 60, 62, 90.
        assert_eq!(blocks(&spare.take_near(2, 8 * NODE).unwrap()), vec![60, 62]);
        assert_eq!(spare.take_near(2, 4 * NODE), None);
        assert_eq!(blocks(&spare.take_any(3).collect::<Vec<_>>()), vec![1, 20, 25]);
        assert_eq!(blocks(&spare.take_any(2).collect::<Vec<_>>()), vec![90]);
        assert_eq!(spare.take_near(1, NODE), None);
    }

    #[test]
    fn of_very_many_the_last_are_looked_at() {
        let many: Vec<u64> = (0..1000).chain((2000..6000).step_by(10)).collect();
        assert_eq!(spare(&many).take_near(3, 2 * NODE), None);
        assert_eq!(spare(&many).take_near(300, 600 * NODE), None);
        let many: Vec<u64> = (0..1000).chain(2000..2010).collect();
        assert!(spare(&many).take_near(900, 2000 * NODE).is_some());
    }
}
