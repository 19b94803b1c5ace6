//! The block groups of the rebuilt volume, and the addresses of new tree blocks.

use buttress_exact::Exact as _;
use buttress_format::{BlockGroupFlags, BlockGroupItem, ByteCount, Key, Logical, ObjectId};
use buttress_tree::Sectors;
use buttress_volume::Volume;
use core::ops::Range;

/// A block group: the chunk that it belongs to, and its used bytes.
#[derive(Clone, Debug)]
pub(super) struct Group {
    pub(super) start: u64,
    pub(super) end: u64,
    pub(super) flags: BlockGroupFlags,
    /// The bytes of the extents that stay.
    pub(super) used: u64,
    /// Addresses that no extent may have.
    excluded: Vec<Range<u64>>,
}

impl Group {
    /// Returns the block groups of all chunks, in order and without used bytes.
    pub(super) fn all(volume: &Volume) -> Vec<Self> {
        let map = volume.chunk_map();
        let group = |chunk: &std::sync::Arc<buttress_volume::MappedChunk>| Self {
            start: chunk.start().get(),
            end: chunk.end().get(),
            flags: chunk.chunk().profile,
            used: 0,
            excluded: buttress_volume::excluded_ranges::of_chunk(chunk),
        };
        map.chunks().iter().map(group).collect()
    }

    pub(super) const fn length(&self) -> ByteCount {
        // Clamp: a chunk ends after its start.
        ByteCount::new(self.end.saturating_sub(self.start))
    }

    /// Returns the item of the block group with `more` used bytes.
    pub(super) fn item(&self, more: u64) -> (Key, Vec<u8>) {
        let item = BlockGroupItem {
            start: Logical::new(self.start),
            length: self.length(),
            used: ByteCount::new(self.used.exact_add(more)),
            chunk_objectid: ObjectId::FIRST_CHUNK_TREE,
            flags: self.flags,
        };
        (item.key(), item.to_bytes().to_vec())
    }

    /// Returns whether the block group may hold extents of this kind.
    pub(super) const fn holds(&self, is_data: bool) -> bool {
        let wanted = match is_data {
            true => BlockGroupFlags::DATA,
            false => BlockGroupFlags::METADATA.union(BlockGroupFlags::SYSTEM),
        };
        self.flags.intersects(wanted)
    }

    /// Sets the type of the block group to that of its extents, if it may hold none of them.
    /// Returns whether the type is right afterwards.
    pub(super) fn settle_type(&mut self, has_data: bool, has_blocks: bool) -> bool {
        let fits = |group: &Self| (!has_data || group.holds(true)) && (!has_blocks || group.holds(false));
        if !fits(self) && has_data != has_blocks {
            let wanted = match has_data {
                true => BlockGroupFlags::DATA,
                false => BlockGroupFlags::METADATA,
            };
            self.flags = self.flags.difference(BlockGroupFlags::TYPES).union(wanted);
        }
        fits(self)
    }
}

/// The free addresses for new tree blocks, in ascending order.
#[derive(Debug)]
pub(super) struct FreePlaces<'a> {
    groups: core::slice::Iter<'a, Group>,
    /// The type of the block groups.
    wanted: BlockGroupFlags,
    group: Option<&'a Group>,
    at: u64,
    reserved: &'a Sectors,
    node_bytes: u64,
    sector_bytes: u64,
}

impl<'a> FreePlaces<'a> {
    /// Returns the free addresses in block groups of a type.
    pub(super) fn new(
        groups: &'a [Group],
        wanted: BlockGroupFlags,
        reserved: &'a Sectors,
        node_bytes: u32,
        sector_bytes: u32,
    ) -> Self {
        Self {
            groups: groups.iter(),
            wanted,
            group: None,
            at: 0,
            reserved,
            node_bytes: node_bytes.into(),
            sector_bytes: sector_bytes.into(),
        }
    }

    fn is_free(&self, group: &Group, at: u64) -> bool {
        let end = at.exact_add(self.node_bytes);
        if buttress_faults::on("repair-rebuild-overwrites") {
            return true;
        }
        let is_excluded = group
            .excluded
            .iter()
            .any(|range| range.start < end && at < range.end);
        let mut sectors = (at..end).step_by(self.sector_bytes.narrow());
        !is_excluded && !sectors.any(|sector| self.reserved.contains(Logical::new(sector)))
    }
}

impl Iterator for FreePlaces<'_> {
    type Item = Logical;

    fn next(&mut self) -> Option<Logical> {
        loop {
            let Some(group) = self.group else {
                let group = self.groups.find(|group| group.flags.contains(self.wanted))?;
                self.group = Some(group);
                // Linux expects blocks at multiples of their size.
                self.at = group.start.checked_next_multiple_of(self.node_bytes)?;
                continue;
            };
            let at = self.at;
            let end = at.checked_add(self.node_bytes)?;
            if end > group.end {
                self.group = None;
                continue;
            }
            self.at = end;
            if self.is_free(group, at) {
                return Some(Logical::new(at));
            }
        }
    }
}
