//! Loading what a volume says of its block groups and their free space.
//!
//! Items of block groups are read when the volume is opened for writing; the free ranges of a group when something is to
//! be allocated from it. With a free-space tree they are read from there; without one, they are what the extent tree
//! leaves. In both cases what is pinned and what superblock copies cover is taken out.

use super::block_groups::{BlockGroups, Group};
use super::free_ranges::FreeRanges;
use super::running::Running;
use crate::error::{Corruption, Result};
use buttress_format::{
    BlockGroupItem, ExtentItem, FreeSpaceBitmap, FreeSpaceExtent, ItemType, Key, ObjectId,
    SUPERBLOCK_OFFSETS, TreeId,
};
use buttress_tree::{ReadAhead, Tree};
use buttress_volume::Volume;
use buttress_volume::layout::{ChunkOffset, Content, StripeOffset};
use std::ops::Range;

/// A superblock copy keeps a whole stripe unit from being used.
const SUPERBLOCK_KEEPS_BYTES: u64 = 64 << 10;

fn corrupt(tree: TreeId, error: buttress_format::ItemError) -> Corruption {
    Corruption::Item { tree, error }
}

/// Reads all block groups.
pub(crate) fn load_block_groups(tree_id: TreeId, tree: &Tree, volume: &Volume) -> Result<BlockGroups> {
    let mut groups = BlockGroups::default();
    let map = volume.chunk_map();
    for chunk in map.chunks() {
        let key = Key::new(
            ObjectId::new(chunk.start().get()),
            ItemType::BLOCK_GROUP_ITEM,
            chunk.length().get(),
        );
        let Some(found) = tree.get(&key)? else {
            return Err(Corruption::ItemMissing {
                tree: tree_id,
                key,
                what: "the block group of a chunk",
            }
            .into());
        };
        let item = BlockGroupItem::parse(&key, found.data()).map_err(|error| corrupt(tree_id, error))?;
        let mut group = Group::from_item(&item);
        group.superblocks = superblock_copies(chunk);
        groups.insert(group);
    }
    Ok(groups)
}

/// The ranges of a chunk's addresses that superblock copies lie behind.
pub(crate) fn superblock_copies(chunk: &buttress_volume::MappedChunk) -> Vec<Range<u64>> {
    let mut ranges: Vec<Range<u64>> = Vec::new();
    let device_extent_bytes = chunk.layout().device_extent_bytes().get();
    for (index, stripe) in chunk.chunk().stripes.iter().enumerate() {
        for superblock in SUPERBLOCK_OFFSETS {
            let start = superblock.get();
            let end = start.saturating_add(SUPERBLOCK_KEEPS_BYTES);
            let mut at = start.max(stripe.physical.get());
            let stop = end.min(stripe.physical.get().saturating_add(device_extent_bytes));
            while at < stop {
                let offset = StripeOffset::new(at.saturating_sub(stripe.physical.get()));
                // Sector by sector, since a unit of striping may begin anywhere in it.
                if let Some(Content::Data(data)) = chunk.layout().content(index, offset) {
                    push_range(&mut ranges, logical_of(chunk, data));
                }
                at = at.saturating_add(4096);
            }
        }
    }
    ranges
}

fn logical_of(chunk: &buttress_volume::MappedChunk, offset: ChunkOffset) -> Range<u64> {
    let start = chunk.start().get().saturating_add(offset.get());
    start..start.saturating_add(4096)
}

fn push_range(ranges: &mut Vec<Range<u64>>, range: Range<u64>) {
    match ranges.last_mut() {
        Some(last) if last.end == range.start => last.end = range.end,
        _ => ranges.push(range),
    }
}

/// The free ranges that a free-space tree has for `[start, start + length)`.
pub(crate) fn free_ranges_of_tree(
    tree: &Tree,
    start: u64,
    length: u64,
    sector_bytes: u32,
) -> Result<FreeRanges> {
    let mut free = FreeRanges::default();
    let from = Key::new(ObjectId::new(start), ItemType(0), 0);
    let to = Key::new(ObjectId::new(start.saturating_add(length)), ItemType(0), 0);
    let broken = |error| corrupt(TreeId::FREE_SPACE, error);
    for item in tree.range(from..to, ReadAhead::Forward) {
        let item = item?;
        let key = item.key();
        match key.item_type {
            ItemType::FREE_SPACE_EXTENT => {
                let extent = FreeSpaceExtent::parse(&key, item.data(), sector_bytes).map_err(broken)?;
                free.add(extent.start.get(), extent.length.get());
            }
            ItemType::FREE_SPACE_BITMAP => {
                let bitmap = FreeSpaceBitmap::parse(&key, item.data(), sector_bytes).map_err(broken)?;
                add_bitmap(&mut free, &bitmap, u64::from(sector_bytes));
            }
            _ => {}
        }
    }
    Ok(free)
}

fn add_bitmap(free: &mut FreeRanges, bitmap: &FreeSpaceBitmap<'_>, sector_bytes: u64) {
    let sectors = bitmap.length.get().checked_div(sector_bytes).unwrap_or(0);
    let mut run: Option<u64> = None;
    for sector in 0..=sectors {
        let is_free = sector < sectors && bitmap.is_free(usize::try_from(sector).unwrap_or(usize::MAX));
        match (run, is_free) {
            (None, true) => run = Some(sector),
            (Some(first), false) => {
                let start = bitmap
                    .start
                    .get()
                    .saturating_add(first.saturating_mul(sector_bytes));
                free.add(start, sector.saturating_sub(first).saturating_mul(sector_bytes));
                run = None;
            }
            _ => {}
        }
    }
}

/// What the extent tree leaves of `[start, start + length)`.
fn free_ranges_of_extents(
    tree: &Tree,
    start: u64,
    length: u64,
    format: &buttress_format::BlockFormat,
) -> Result<FreeRanges> {
    let mut free = FreeRanges::default();
    free.add(start, length);
    let from = Key::new(ObjectId::new(start), ItemType(0), 0);
    let to = Key::new(ObjectId::new(start.saturating_add(length)), ItemType(0), 0);
    for item in tree.range(from..to, ReadAhead::Forward) {
        let item = item?;
        let key = item.key();
        if matches!(key.item_type, ItemType::EXTENT_ITEM | ItemType::METADATA_ITEM) {
            let extent = ExtentItem::parse(&key, item.data(), format)
                .map_err(|error| corrupt(TreeId::EXTENT, error))?;
            free.remove(extent.start.get(), extent.length.get());
        }
    }
    Ok(free)
}

impl Running {
    /// Loads the free ranges of the group that starts here.
    pub(crate) fn load_group(&mut self, start: u64) -> Result<()> {
        let Some(group) = self.core.groups.get_mut(start) else {
            return Ok(());
        };
        let (length, is_new) = (group.length, group.needs_free_space_info);
        let mut free = if is_new {
            let mut free = FreeRanges::default();
            free.add(start, length);
            free
        } else if self.has_free_space_tree() {
            let tree = self.view(TreeId::FREE_SPACE)?;
            free_ranges_of_tree(&tree, start, length, self.core.format.sector_bytes)?
        } else {
            let tree = self.core.extent.tree.view();
            free_ranges_of_extents(&tree, start, length, &self.core.format)?
        };
        for (pinned, pinned_length) in self.core.pins.iter() {
            free.remove(pinned, pinned_length);
        }
        if let Some(group) = self.core.groups.get_mut(start) {
            for superblock in &group.superblocks {
                free.remove(superblock.start, superblock.end.saturating_sub(superblock.start));
            }
            // What waits for the free-space tree to hear of it.
            for (used, used_length) in group.became_used.iter() {
                free.remove(used, used_length);
            }
            group.free = Some(free);
        }
        Ok(())
    }
}
