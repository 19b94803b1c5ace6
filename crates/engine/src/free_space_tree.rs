//! The free-space tree, kept equal to the ranges that the extent tree leaves free.
//!
//! Each block group has an info item, and either one item for each free range or bitmaps. Groups
//! with many small ranges use bitmaps. The changes that a commit applied to the extent tree are
//! merged for each block group ([`super::block_groups`]), so adjacent extents make one edit. A
//! block group switches to free-space bitmaps and back at the same numbers of ranges as in the
//! kernel.
//!
//! Source: on-disk format documentation, sections "Free space info", "Free space extent", "Free
//! space bitmap".

use super::block_groups::Group;
use super::free_ranges::FreeRanges;
use crate::running_parts::FreeSpaceTree;
use buttress_exact::Exact as _;
use buttress_format::free_space::BITMAP_MAX_BYTES;
use buttress_format::{ByteCount, FreeSpaceBitmap, FreeSpaceInfo, ItemType, Key, Logical, ObjectId, TreeId};
use buttress_fs::error::{Corruption, Error, Result};
use buttress_tree::BlockPointer;

/// The bytes of an item header in a leaf.
const ITEM_BYTES: u64 = 25;

/// The number of ranges of a block group that one part of the work applies.
const RANGES_AT_ONCE: usize = 1024;

/// The range of a block group, as the key of its free-space items.
#[derive(Clone, Copy, Debug)]
struct Extent {
    start: u64,
    length: u64,
}

impl Extent {
    const fn end(self) -> u64 {
        self.start.saturating_add(self.length)
    }

    fn info_key(self) -> Key {
        key(self.start, ItemType::FREE_SPACE_INFO, self.length)
    }
}

fn key(start: u64, item_type: ItemType, length: u64) -> Key {
    Key::new(ObjectId::new(start), item_type, length)
}

fn broken(logical: u64, length: u64) -> Error {
    Corruption::FreeSpaceDisagrees {
        logical: Logical::new(logical),
        length: ByteCount::new(length),
    }
    .into()
}

/// Returns the number of free ranges above which bitmaps take less space than range items.
fn bitmap_threshold(length: u64, sector_bytes: u64) -> u64 {
    let bitmap_range = bitmap_range_bytes(sector_bytes);
    let bitmaps = length.div_ceil(bitmap_range.max(1));
    let bitmap_bytes = ByteCount::of(BITMAP_MAX_BYTES).get().saturating_add(ITEM_BYTES);
    bitmaps
        .saturating_mul(bitmap_bytes)
        .checked_div(ITEM_BYTES)
        .unwrap_or(0)
}

/// Returns the length of the address range that one full bitmap covers.
fn bitmap_range_bytes(sector_bytes: u64) -> u64 {
    ByteCount::of(BITMAP_MAX_BYTES)
        .get()
        .saturating_mul(8)
        .saturating_mul(sector_bytes)
}

impl FreeSpaceTree<'_> {
    fn insert(&mut self, key: &Key, data: &[u8]) -> Result<()> {
        self.running.insert(TreeId::FREE_SPACE, key, data)
    }

    fn put(&mut self, key: &Key, data: &[u8]) -> Result<()> {
        self.running.put(TreeId::FREE_SPACE, key, data)
    }

    /// Returns the first block group with changes that the free-space tree lacks, and the number of
    /// its changed ranges.
    fn changed_group(&self) -> Option<(Extent, usize)> {
        self.running.core.groups.iter().find_map(|group| {
            let ranges = group
                .became_used
                .count()
                .saturating_add(group.became_free.count());
            let extent = Extent {
                start: group.start,
                length: group.length,
            };
            (ranges > 0 || group.needs_free_space_info).then_some((extent, ranges))
        })
    }

    /// Returns the missing blocks for the next part of updating the free-space tree.
    pub fn missing(&mut self) -> Result<Vec<BlockPointer>> {
        if !self.running.core.has_free_space_tree() {
            return Ok(Vec::new());
        }
        let Some((extent, count)) = self.changed_group() else {
            return Ok(Vec::new());
        };
        let Some(group) = self.running.core.groups.holding(extent.start) else {
            return Ok(Vec::new());
        };
        let sector_bytes = self.running.core.sector_bytes();
        let is_new = group.needs_free_space_info;
        let used = group.became_used.iter().take(RANGES_AT_ONCE);
        let rest = RANGES_AT_ONCE.saturating_sub(group.became_used.count());
        let mut ranges: Vec<(u64, u64)> = used.chain(group.became_free.iter().take(rest)).collect();
        ranges.sort_unstable();
        let mut places = vec![(extent.info_key(), extent.info_key())];
        // A range may merge with the free ranges directly before and after it.
        places.extend(ranges.iter().map(|(start, length)| {
            (
                key(start.saturating_sub(sector_bytes), ItemType(0), 0),
                key(
                    start.saturating_add(*length),
                    ItemType::FREE_SPACE_BITMAP,
                    u64::MAX,
                ),
            )
        }));
        let missing = self.running.missing_along(TreeId::FREE_SPACE, places)?;
        if !missing.is_empty() || is_new || count > RANGES_AT_ONCE {
            return Ok(missing);
        }
        // If a block group may switch between ranges and bitmaps, its free space is read and
        // written as a whole.
        let info = self.info(extent)?;
        let (extents, more) = (
            u64::from(info.extent_count),
            ByteCount::of(count).get().saturating_mul(2),
        );
        let high = bitmap_threshold(extent.length, sector_bytes);
        let may_turn = if info.uses_bitmaps() {
            extents.saturating_sub(more) < high
        } else {
            extents.saturating_add(more) > high
        };
        let whole = may_turn.then(|| {
            (
                key(extent.start, ItemType(0), 0),
                key(extent.end(), ItemType(0), 0),
            )
        });
        self.running.missing_along(TreeId::FREE_SPACE, whole)
    }

    /// Does the next part of updating the free-space tree: a whole group, or some ranges of a
    /// group. Returns whether any change of the free-space tree was pending.
    pub fn update(&mut self) -> Result<bool> {
        if !self.running.core.has_free_space_tree() {
            for group in self.running.core.groups.iter_mut() {
                group.needs_free_space_info = false;
                group.became_used = FreeRanges::default();
                group.became_free = FreeRanges::default();
            }
            return Ok(false);
        }
        let Some((extent, count)) = self.changed_group() else {
            return Ok(false);
        };
        let Some(group) = self.running.core.groups.get_mut(extent.start) else {
            return Ok(false);
        };
        let is_new = core::mem::take(&mut group.needs_free_space_info);
        let used = group.became_used.take_first(RANGES_AT_ONCE);
        let rest = RANGES_AT_ONCE.saturating_sub(used.len());
        let freed = group.became_free.take_first(rest);
        if is_new {
            let info = FreeSpaceInfo {
                start: Logical::new(extent.start),
                length: ByteCount::new(extent.length),
                extent_count: 1,
                flags: 0,
            };
            self.insert(&extent.info_key(), &info.to_bytes())?;
            let whole = key(extent.start, ItemType::FREE_SPACE_EXTENT, extent.length);
            self.insert(&whole, &[])?;
        }
        self.apply(extent, &used, &freed, count <= RANGES_AT_ONCE)?;
        Ok(true)
    }

    /// Applies ranges. After the last range of a group, switches the group between ranges and
    /// bitmaps if needed.
    fn apply(
        &mut self,
        group: Extent,
        used: &[(u64, u64)],
        freed: &[(u64, u64)],
        are_last: bool,
    ) -> Result<()> {
        let mut info = self.info(group)?;
        let mut count = i64::from(info.extent_count);
        for (start, length) in used.iter().copied() {
            let change = if info.uses_bitmaps() {
                self.set_bits(group, start, length, false)?
            } else {
                self.take_extent(start, length)?
            };
            count = count.saturating_add(change);
        }
        for (start, length) in freed.iter().copied() {
            if buttress_faults::on("free-space-tree-misses-freed") {
                break;
            }
            let change = if info.uses_bitmaps() {
                self.set_bits(group, start, length, true)?
            } else {
                self.add_extent(group, start, length)?
            };
            count = count.saturating_add(change);
        }
        info.extent_count = u32::try_from(count).map_err(|_| broken(group.start, group.length))?;
        if are_last {
            self.convert(group, &mut info)?;
        }
        self.put(&group.info_key(), &info.to_bytes())
    }

    fn info(&mut self, group: Extent) -> Result<FreeSpaceInfo> {
        let info_key = group.info_key();
        let sector_bytes = self.running.core.format.sector_bytes;
        let found = self
            .running
            .get(TreeId::FREE_SPACE, &info_key)?
            .ok_or(Corruption::ItemMissing {
                tree: TreeId::FREE_SPACE,
                key: info_key,
                what: "how the free space of a block group is stored",
            })?;
        let info = FreeSpaceInfo::parse(&info_key, found.data(), sector_bytes);
        Ok(info.map_err(|error| Corruption::Item {
            tree: TreeId::FREE_SPACE,
            error,
        })?)
    }

    /// Removes a range from the free range that contains it. Returns the change of the number of
    /// ranges.
    fn take_extent(&mut self, start: u64, length: u64) -> Result<i64> {
        let end = start.saturating_add(length);
        let wanted = key(start, ItemType::FREE_SPACE_EXTENT, u64::MAX);
        let found = self
            .running
            .at_or_before(TreeId::FREE_SPACE, &wanted)?
            .map(|item| item.key())
            .filter(|found| found.item_type == ItemType::FREE_SPACE_EXTENT)
            .ok_or_else(|| broken(start, length))?;
        let (first, last) = (
            found.objectid.get(),
            found.objectid.get().saturating_add(found.offset),
        );
        if last < end {
            return Err(broken(start, length));
        }
        self.running.remove(TreeId::FREE_SPACE, &found)?;
        let mut change = -1_i64;
        for (from, to) in [(first, start), (end, last)] {
            if from < to {
                let rest = key(from, ItemType::FREE_SPACE_EXTENT, to.saturating_sub(from));
                self.insert(&rest, &[])?;
                change = change.saturating_add(1);
            }
        }
        Ok(change)
    }

    /// Adds a free range, and merges it with its neighbours. Returns the change of the number of
    /// free ranges.
    fn add_extent(&mut self, group: Extent, start: u64, length: u64) -> Result<i64> {
        let (mut first, mut end) = (start, start.saturating_add(length));
        let mut change = 1_i64;
        let before = self.running.at_or_before(
            TreeId::FREE_SPACE,
            &key(start, ItemType::FREE_SPACE_EXTENT, u64::MAX),
        )?;
        if let Some(before) = before.map(|item| item.key()).filter(|before| {
            before.item_type == ItemType::FREE_SPACE_EXTENT && before.objectid.get() >= group.start
        }) {
            let before_end = before.objectid.get().saturating_add(before.offset);
            if before_end > start {
                return Err(broken(start, length));
            }
            if before_end == start {
                self.running.remove(TreeId::FREE_SPACE, &before)?;
                first = before.objectid.get();
                change = change.saturating_sub(1);
            }
        }
        if end < group.end() {
            // Search at the range itself, so that no leaf is read that is not edited.
            let after = self.running.at_or_before(
                TreeId::FREE_SPACE,
                &key(end, ItemType::FREE_SPACE_EXTENT, u64::MAX),
            )?;
            if let Some(after) = after
                .map(|item| item.key())
                .filter(|after| after.item_type == ItemType::FREE_SPACE_EXTENT && after.objectid.get() == end)
            {
                self.running.remove(TreeId::FREE_SPACE, &after)?;
                end = end.saturating_add(after.offset);
                change = change.saturating_sub(1);
            }
        }
        let whole = key(first, ItemType::FREE_SPACE_EXTENT, end.saturating_sub(first));
        self.insert(&whole, &[])?;
        Ok(change)
    }

    /// Returns the bitmap that covers an address: its key and bits.
    fn bitmap_at(&mut self, logical: u64) -> Result<(Key, Vec<u8>)> {
        let wanted = key(logical, ItemType::FREE_SPACE_BITMAP, u64::MAX);
        let sector_bytes = self.running.core.format.sector_bytes;
        let found = self
            .running
            .at_or_before(TreeId::FREE_SPACE, &wanted)?
            .filter(|item| item.key().item_type == ItemType::FREE_SPACE_BITMAP)
            .ok_or_else(|| broken(logical, 0))?;
        let bitmap = FreeSpaceBitmap::parse(&found.key(), found.data(), sector_bytes).map_err(|error| {
            Corruption::Item {
                tree: TreeId::FREE_SPACE,
                error,
            }
        })?;
        if logical >= bitmap.start.get().saturating_add(bitmap.length.get()) {
            return Err(broken(logical, 0));
        }
        Ok((found.key(), bitmap.bits.to_vec()))
    }

    fn bit_at(&mut self, logical: u64) -> Result<bool> {
        let sector_bytes = self.running.core.sector_bytes();
        let (key, bits) = self.bitmap_at(logical)?;
        let sector = logical
            .saturating_sub(key.objectid.get())
            .checked_div(sector_bytes)
            .unwrap_or(0);
        Ok(bit(&bits, sector))
    }

    /// Sets or clears the bits of a range. Returns the change of the number of free ranges.
    fn set_bits(&mut self, group: Extent, start: u64, length: u64, free: bool) -> Result<i64> {
        let sector_bytes = self.running.core.sector_bytes();
        let end = start.saturating_add(length);
        let before = start > group.start && self.bit_at(start.saturating_sub(sector_bytes))?;
        let after = end < group.end() && self.bit_at(end)?;
        let mut position = start;
        while position < end {
            let (key, mut bits) = self.bitmap_at(position)?;
            let first = key.objectid.get();
            let stop = end.min(first.saturating_add(key.offset));
            let sectors = |logical: u64| {
                logical
                    .saturating_sub(first)
                    .checked_div(sector_bytes)
                    .unwrap_or(0)
            };
            for sector in sectors(position)..sectors(stop) {
                if bit(&bits, sector) == free {
                    return Err(broken(start, length));
                }
                flip(&mut bits, sector);
            }
            self.put(&key, &bits)?;
            position = stop;
        }
        let touching = i64::from(before).saturating_add(i64::from(after));
        Ok(if free {
            1_i64.saturating_sub(touching)
        } else {
            touching.saturating_sub(1)
        })
    }

    /// Inserts all items of a group into a new free-space tree.
    pub(crate) fn insert_ranges(&mut self, start: u64, length: u64, free: &FreeRanges) -> Result<()> {
        let group = Extent { start, length };
        let mut info = FreeSpaceInfo {
            start: Logical::new(start),
            length: ByteCount::new(length),
            extent_count: u32::try_from(free.count()).map_err(|_| broken(start, length))?,
            flags: 0,
        };
        let high = bitmap_threshold(length, self.running.core.sector_bytes());
        if u64::from(info.extent_count) > high {
            info.flags |= FreeSpaceInfo::USING_BITMAPS;
            self.write_bitmaps(group, free)?;
        } else {
            for (start, length) in free.iter() {
                let key = key(start, ItemType::FREE_SPACE_EXTENT, length);
                self.insert(&key, &[])?;
            }
        }
        self.insert(&group.info_key(), &info.to_bytes())
    }

    /// Switches a group between ranges and bitmaps if the other form takes less space.
    fn convert(&mut self, group: Extent, info: &mut FreeSpaceInfo) -> Result<()> {
        let high = bitmap_threshold(group.length, self.running.core.sector_bytes());
        let count = u64::from(info.extent_count);
        if !info.uses_bitmaps() && count > high {
            let free = self.stored_ranges(group)?;
            self.clear(group)?;
            info.flags |= FreeSpaceInfo::USING_BITMAPS;
            return self.write_bitmaps(group, &free);
        }
        if info.uses_bitmaps() && count < high.saturating_sub(100) {
            let free = self.stored_ranges(group)?;
            self.clear(group)?;
            info.flags &= !FreeSpaceInfo::USING_BITMAPS;
            for (start, length) in free.iter() {
                self.insert(&key(start, ItemType::FREE_SPACE_EXTENT, length), &[])?;
            }
        }
        Ok(())
    }

    fn write_bitmaps(&mut self, group: Extent, free: &FreeRanges) -> Result<()> {
        let sector_bytes = self.running.core.sector_bytes();
        let range = bitmap_range_bytes(sector_bytes);
        let mut first = group.start;
        while first < group.end() {
            let length = range.min(group.end().saturating_sub(first));
            let sectors = length.checked_div(sector_bytes).unwrap_or(0);
            let bytes = sectors.div_ceil(8).narrow::<usize>();
            let mut bits = vec![0_u8; bytes];
            for (start, free_length) in free.iter() {
                let from = start.max(first);
                let to = start
                    .saturating_add(free_length)
                    .min(first.saturating_add(length));
                let mut at = from;
                while at < to {
                    let sector = at.saturating_sub(first).checked_div(sector_bytes).unwrap_or(0);
                    flip(&mut bits, sector);
                    at = at.saturating_add(sector_bytes);
                }
            }
            self.insert(&key(first, ItemType::FREE_SPACE_BITMAP, length), &bits)?;
            first = first.saturating_add(length);
        }
        Ok(())
    }

    /// Removes all range and bitmap items of a group. The info item of the block group remains.
    fn clear(&mut self, group: Extent) -> Result<()> {
        let info = self.info(group)?;
        self.remove_items(group.start, group.end())?;
        self.insert(&group.info_key(), &info.to_bytes())
    }

    /// Removes all free-space items of a group that is being removed.
    pub fn remove_group(&mut self, group: &Group) -> Result<()> {
        if !self.running.core.has_free_space_tree() || group.needs_free_space_info {
            return Ok(());
        }
        self.remove_items(group.start, group.end())
    }

    fn remove_items(&mut self, start: u64, end: u64) -> Result<()> {
        let all = key(start, ItemType(0), 0)..key(end, ItemType(0), 0);
        self.running
            .remove_range(TreeId::FREE_SPACE, all, &mut |_, _| {})
            .map(drop)
    }

    /// Returns the free ranges of a group as the free-space tree records them.
    fn stored_ranges(&mut self, group: Extent) -> Result<FreeRanges> {
        let tree = self.running.view(TreeId::FREE_SPACE)?;
        let sector_bytes = self.running.core.format.sector_bytes;
        super::loading::free_ranges_of_tree(&tree, group.start, group.length, sector_bytes)
    }
}

fn place(sector: u64) -> (usize, u8) {
    ((sector >> 3).narrow::<usize>(), 1_u8 << (sector & 7))
}

fn bit(bits: &[u8], sector: u64) -> bool {
    let (byte, mask) = place(sector);
    bits.get(byte).is_some_and(|byte| byte & mask != 0)
}

fn flip(bits: &mut [u8], sector: u64) {
    let (byte, mask) = place(sector);
    if let Some(byte) = bits.get_mut(byte) {
        *byte ^= mask;
    }
}
