//! Loading what a volume says of its block groups and their free space.
//!
//! Items of block groups are read when the volume is opened for writing; the free ranges of a group when something is to
//! be allocated from it. With a free-space tree they are read from there; without one, they are what the extent tree
//! leaves. In both cases what is pinned and what superblock copies cover is taken out.

use super::block_groups::{BlockGroups, Group, Purpose};
use super::free_ranges::FreeRanges;
use super::running::Running;
use crate::error::{Corruption, Result};
use buttress_format::{
    BlockGroupItem, ByteCount, ExtentItem, FreeSpaceBitmap, FreeSpaceExtent, ItemType, Key, ObjectId,
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

/// The ranges of a chunk's addresses that superblock copies lie behind, in order: what shares bytes with one, and, where
/// there is parity, all of its row. Parity over a superblock would be wrong with the next commit, and would overwrite one
/// that lies in its own unit.
pub(crate) fn superblock_copies(chunk: &buttress_volume::MappedChunk) -> Vec<Range<u64>> {
    let mut ranges: Vec<Range<u64>> = Vec::new();
    let layout = chunk.layout();
    let device_extent_bytes = layout.device_extent_bytes().get();
    for (index, stripe) in chunk.chunk().stripes.iter().enumerate() {
        for superblock in SUPERBLOCK_OFFSETS {
            let start = superblock.get();
            let end = start.saturating_add(SUPERBLOCK_KEEPS_BYTES);
            let mut at = start.max(stripe.physical.get());
            let stop = end.min(stripe.physical.get().saturating_add(device_extent_bytes));
            while at < stop {
                let offset = StripeOffset::new(at.saturating_sub(stripe.physical.get()));
                // Sector by sector, since a unit of striping may begin anywhere in it.
                if layout.has_parity() {
                    ranges.push(row_of(chunk, offset));
                } else if let Some(Content::Data(data)) = layout.content(index, offset) {
                    ranges.push(sector_of(chunk, data));
                }
                at = at.saturating_add(4096);
            }
        }
    }
    // Copies on several devices lie behind the same addresses.
    ranges.sort_unstable_by_key(|range| range.start);
    let mut merged: Vec<Range<u64>> = Vec::new();
    for range in ranges {
        match merged.last_mut() {
            Some(last) if last.end >= range.start => last.end = last.end.max(range.end),
            _ => merged.push(range),
        }
    }
    merged
}

fn sector_of(chunk: &buttress_volume::MappedChunk, offset: ChunkOffset) -> Range<u64> {
    let start = chunk.start().get().saturating_add(offset.get());
    start..start.saturating_add(4096)
}

/// The addresses of the row in which an offset of a stripe lies.
fn row_of(chunk: &buttress_volume::MappedChunk, offset: StripeOffset) -> Range<u64> {
    let layout = chunk.layout();
    let row = offset.get().checked_div(layout.stripe_bytes()).unwrap_or(0);
    let row_bytes = ByteCount::of(layout.data_columns())
        .get()
        .saturating_mul(layout.stripe_bytes());
    let start = chunk.start().get().saturating_add(row.saturating_mul(row_bytes));
    start..start.saturating_add(row_bytes).min(chunk.end().get())
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

/// Items that say what is free in a block group.
#[derive(Debug)]
pub(crate) struct FreeSpaceRecord {
    tree: Tree,
    start: u64,
    length: u64,
}

impl FreeSpaceRecord {
    /// Reads them once, so that they are in memory. What is wrong with them is told by whoever needs them.
    pub(crate) fn read_in(&self) {
        let from = Key::new(ObjectId::new(self.start), ItemType(0), 0);
        let to = Key::new(
            ObjectId::new(self.start.saturating_add(self.length)),
            ItemType(0),
            0,
        );
        let items = self.tree.range(from..to, ReadAhead::Forward);
        let _read = items.take_while(core::result::Result::is_ok).count();
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
    /// Where the free ranges are written down of the group that an allocation asks for first, if it is not loaded.
    pub(crate) fn free_space_to_load(
        &mut self,
        purpose: Purpose,
        wanted: u64,
    ) -> Result<Option<FreeSpaceRecord>> {
        let Some(group) = self.core.groups.to_load(purpose, wanted) else {
            return Ok(None);
        };
        let (start, length) = (group.start, group.length);
        if group.needs_free_space_info {
            return Ok(None);
        }
        let tree = if self.has_free_space_tree() {
            self.view(TreeId::FREE_SPACE)?
        } else {
            self.core.extent.tree.view()
        };
        Ok(Some(FreeSpaceRecord { tree, start, length }))
    }

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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mkfs::{self, Identity, Options};
    use buttress_device::{Device, Engine, MemoryBackend};
    use buttress_format::{Profile, SUPERBLOCK_BYTES, Timestamp, Uuid};
    use buttress_volume::MappedChunk;
    use std::sync::Arc;

    fn chunks(profile: Profile, count: u128) -> Vec<Arc<MappedChunk>> {
        let devices: Vec<Device> = (0..count)
            .map(|number| {
                let bytes = vec![0; 300 << 20];
                let backend = MemoryBackend::new(format!("memory-{number}"), bytes);
                Device::with_backend(Arc::new(backend), Engine::Inline)
            })
            .collect();
        let options = Options {
            data: Some(profile),
            metadata: Some(profile),
            ..Options::default()
        };
        let identity = Identity {
            fsid: Uuid::from_u128(1),
            chunk_tree: Uuid::from_u128(2),
            top_level: Uuid::from_u128(3),
            devices: (4..).take(devices.len()).map(Uuid::from_u128).collect(),
            time: Timestamp {
                seconds: 1,
                nanoseconds: 0,
            },
        };
        mkfs::make(&devices, &options, &identity).unwrap();
        let volume = crate::open::OpenOptions::new(devices).open().unwrap();
        volume.volume().chunk_map().chunks().to_vec()
    }

    /// Sector by sector of the addresses: the row that one lies in is kept if and only if any unit of it, parity too, shares
    /// bytes with a superblock.
    #[test]
    fn rows_of_parity_are_kept_whole_where_a_superblock_lies_behind_them() {
        let mut kept = 0;
        for (profile, count, parities) in [(Profile::Raid5, 3, 1), (Profile::Raid6, 4, 2)] {
            for chunk in chunks(profile, count) {
                let units = count as u64 - parities;
                let row_bytes = units * (64 << 10);
                let ranges = superblock_copies(&chunk);
                assert!(
                    ranges.is_sorted_by(|one, next| one.end < next.start),
                    "{ranges:?}"
                );
                for sector in (0..chunk.length().get()).step_by(4096) {
                    let row = sector / row_bytes;
                    let touches = chunk.chunk().stripes.iter().any(|stripe| {
                        let start = stripe.physical.get() + row * (64 << 10);
                        SUPERBLOCK_OFFSETS.iter().any(|at| {
                            at.get() < start + (64 << 10)
                                && start < at.get() + ByteCount::of(SUPERBLOCK_BYTES).get()
                        })
                    });
                    let address = chunk.start().get() + sector;
                    let is_kept = ranges.iter().any(|range| range.contains(&address));
                    assert_eq!(is_kept, touches, "{profile}: {address} in row {row}");
                    kept += u64::from(is_kept);
                }
            }
        }
        assert!(kept > 0, "no chunk holds a superblock copy");
    }
}
