//! Trimming: devices discard all unused space, so that image files shrink and flash devices wear
//! less.
//!
//! 1. The trim commits, so that space freed before the call is free.
//! 2. Under the edit lock, the trim removes some free ranges from a block group, which excludes
//!    them from allocation.
//! 3. Without the edit lock, the trim checks that the last commit's extent tree has no extent in
//!    these ranges. After this check, the devices discard the ranges of the trim. If the free-space
//!    tree is wrong, the trim ends, because a discard would destroy all data of a used extent.
//! 4. After the discards, the trim acquires the edit lock again and frees the ranges again.
//!
//! After the block groups, the trim discards the unallocated space of each device. A volume opened
//! with [`WriteOptions::discard`](crate::WriteOptions::discard) does steps 2 to 4 after each
//! commit. Steps 2 to 4 of a trim then discard the ranges that the commit itself freed, whatever
//! the free-space tree lists.
//!
//! Invariants:
//! - No write goes to a trimmed range between steps 2 and 4, because the range is not free.
//! - Promises of space stay valid: a trim takes at most the free space beside the promises, and at
//!   most `BYTES_AT_ONCE`.
//! - A trim never causes [`Error::NoSpace`]. An edit that finds no space acquires the lock
//!   `trimming`, under which a trim holds no range, and retries.
//! - Blocks that the last commit's superblock leads to are not free ([`super::pins`]). Ranges
//!   around superblocks do not count as free either.
//!
//! In block groups that need space on the host, a discarded range loses that space and becomes
//! unbacked ([`super::backing`]). A range whose space is promised to edits keeps its host space.
//!
//! Left out: read-only block groups, and devices that are not written.

use super::block_groups::{Group, Purpose, Room, Share};
use super::free_ranges::FreeRanges;
use super::reservation::Need;
use crate::areas::Trims;
use crate::running::Running;
use crate::running_parts::TrimStep;
use buttress_format::{
    ByteCount, ExtentItem, ItemType, Key, Logical, ObjectId, SUPERBLOCK_OFFSETS, TreeId, Uuid,
};
use buttress_fs::error::{Corruption, Error, Result};
use buttress_tree::ReadAhead;
use core::ops::Range;

/// The most bytes that one step of a trim keeps from being allocated.
const BYTES_AT_ONCE: u64 = 64 << 20;

/// The most ranges that one step of a trim keeps from being allocated.
const RANGES_AT_ONCE: usize = 512;

/// The most unallocated bytes of a device that one step keeps. A chunk that is made while a step
/// keeps these bytes uses other space.
const UNALLOCATED_AT_ONCE: u64 = 1 << 30;

/// The bytes from the start of each superblock copy that a trim never discards.
const SUPERBLOCK_KEEPS_BYTES: u64 = 64 << 10;

/// The items for which metadata must have space for other edits while a trim holds ranges.
const OTHER_ITEMS: u64 = 64;

/// The bytes that devices discarded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Trimmed {
    /// The trimmed free space of block groups. Each logical address counts once, for any number of
    /// copies.
    pub block_groups: ByteCount,
    /// Bytes of devices that belong to no chunk.
    pub unallocated: ByteCount,
}

impl Trimmed {
    /// Returns the sum of the discarded bytes of both kinds.
    #[must_use]
    pub const fn total(self) -> ByteCount {
        ByteCount::new(self.block_groups.get().saturating_add(self.unallocated.get()))
    }
}

/// The ranges of block groups to be trimmed.
#[derive(Debug)]
struct Wanted {
    /// Ranges of logical addresses in block groups. A trim skips the parts of these ranges that are
    /// not free.
    ranges: FreeRanges,
    /// The least length of a free range; shorter ranges are skipped.
    shortest: u64,
    /// Whether the trim also checks ranges against the extent tree.
    is_checked: bool,
}

/// Ranges that a trim keeps from being allocated for a while, as start and length.
type Taken = Vec<(u64, u64)>;

impl Trims<'_> {
    /// Commits, then discards free space in `range`, in pieces of at least `shortest` bytes, and
    /// the unallocated space of devices. Devices that cannot discard are skipped.
    ///
    /// # Errors
    /// Fails if writing has stopped or the commit stops it, or with an error of reading free space,
    /// or with an error of a device, which does not stop writing.
    pub fn trim(&self, range: Range<Logical>, shortest: ByteCount) -> Result<Trimmed> {
        self.engine.commit()?;
        let sector_bytes = u64::from(self.engine.forest().block_format().sector_bytes).max(1);
        let (start, end) = (range.start.get(), range.end.get());
        let start = start.checked_next_multiple_of(sector_bytes).unwrap_or(end);
        let end = end.saturating_sub(end.checked_rem(sector_bytes).unwrap_or(0));
        let mut ranges = FreeRanges::default();
        ranges.add(start, end.saturating_sub(start));
        let shortest = shortest.get();
        Ok(Trimmed {
            block_groups: self.trim_groups(&Wanted {
                ranges,
                shortest,
                is_checked: true,
            })?,
            unallocated: self.trim_unallocated()?,
        })
    }

    /// Discards ranges that a commit freed, unless they are in use again.
    pub fn discard_freed(&self, freed: &[(u64, u64)]) {
        let mut ranges = FreeRanges::default();
        for (start, length) in freed {
            ranges.add(*start, *length);
        }
        let told = self.trim_groups(&Wanted {
            ranges,
            shortest: 0,
            is_checked: false,
        });
        // A failed discard loses no data. A wrong ledger is the engine's own defect and stops
        // writing.
        if let Err(error @ Error::Defect(_)) = told {
            self.engine.forest().volume().stop_writing(&error);
        }
    }

    fn trim_groups(&self, wanted: &Wanted) -> Result<ByteCount> {
        let (mut at, mut trimmed) = (0, 0_u64);
        loop {
            let _holds_space = self.engine.shared.trimming.lock();
            let (handle, (next, taken)) = self.engine.retry(self.engine.start_reading(), |running| {
                running.trim_step().take_to_trim(wanted, at)
            })?;
            drop(handle);
            let Some(next) = next else {
                return Ok(ByteCount::new(trimmed));
            };
            at = next;
            let checked = match wanted.is_checked {
                true => self.require_unused(&taken),
                false => Ok(()),
            };
            let told = checked.and_then(|()| self.tell_of_addresses(&taken));
            self.engine
                .start_reading()
                .trim_step()
                .give_back_trimmed(&taken)?;
            trimmed = trimmed.saturating_add(told?);
        }
    }

    /// Requires that the last commit's extent tree has no extent in ranges that the free-space tree
    /// lists as free. No edit can allocate the trimmed ranges during this check.
    fn require_unused(&self, taken: &Taken) -> Result<()> {
        if buttress_faults::on("trim-free-space-trusted") {
            return Ok(());
        }
        let view = self.engine.committed_view();
        let extents = view.tree(TreeId::EXTENT)?;
        let format = self.engine.forest().block_format();
        let key = |logical: u64| Key::new(ObjectId::new(logical), ItemType(0), 0);
        for (start, length) in taken {
            let end = start.saturating_add(*length);
            let mut before = extents.cursor(ReadAhead::None);
            before.seek_at_or_before(&key(*start))?;
            // An extent that begins before the trimmed range may overlap it.
            let first = before.current().map_or(*start, |item| item.key.objectid.get());
            for item in extents.range(key(first)..key(end), ReadAhead::Forward) {
                let item = item?;
                let key = item.key();
                if !matches!(key.item_type, ItemType::EXTENT_ITEM | ItemType::METADATA_ITEM) {
                    continue;
                }
                let extent = ExtentItem::parse(&key, item.data(), format);
                let extent = extent.map_err(|error| Corruption::Item {
                    tree: TreeId::EXTENT,
                    error,
                })?;
                if extent.start.get() < end && extent.end().get() > *start {
                    return Err(Corruption::FreeSpaceDisagrees {
                        logical: extent.start,
                        length: extent.length,
                    }
                    .into());
                }
            }
        }
        Ok(())
    }

    fn tell_of_addresses(&self, taken: &Taken) -> Result<u64> {
        let mut bytes = 0_u64;
        for (start, length) in taken {
            self.engine
                .forest()
                .volume()
                .discard(Logical::new(*start), ByteCount::new(*length))?;
            bytes = bytes.saturating_add(*length);
        }
        Ok(bytes)
    }

    fn trim_unallocated(&self) -> Result<ByteCount> {
        let mut trimmed = 0_u64;
        for slot in self.engine.forest().volume().devices() {
            let Some(device) = slot
                .device()
                .filter(|device| slot.is_written() && device.is_writable())
            else {
                continue;
            };
            let mut at = 0;
            loop {
                let _holds_space = self.engine.shared.trimming.lock();
                let taken = self
                    .engine
                    .start_reading()
                    .trim_step()
                    .take_unallocated(slot.uuid(), at);
                let Some((start, length)) = taken else { break };
                at = start.saturating_add(length);
                let told = device.discard(start, length);
                self.engine
                    .start_reading()
                    .trim_step()
                    .give_back_unallocated(slot.uuid(), start, length);
                told.map_err(buttress_volume::Error::from)?;
                trimmed = trimmed.saturating_add(length);
            }
        }
        Ok(ByteCount::new(trimmed))
    }
}

impl TrimStep<'_> {
    /// Takes the next free ranges at or after `at` out of the free space, so that nothing can
    /// allocate them. Returns the taken ranges, and the address at which the trim continues; `None`
    /// at the end. If a tree block is missing, the call ends before it takes any range.
    fn take_to_trim(&mut self, wanted: &Wanted, at: u64) -> Result<(Option<u64>, Taken)> {
        let Some((start, length)) = wanted.ranges.from(at).next() else {
            return Ok((None, Taken::new()));
        };
        let (at, end) = (start.max(at), start.saturating_add(length));
        let found = self
            .running
            .core
            .groups
            .iter()
            .find(|group| group.end() > at && group.start < end)
            .map(|group| (group.start, group.free.is_none() && !group.read_only));
        let Some((start, is_unloaded)) = found else {
            return Ok((Some(end), Taken::new()));
        };
        if is_unloaded {
            self.running.load_group(start)?;
        }
        let Some(group) = self.running.core.groups.holding(start) else {
            return Ok((None, Taken::new()));
        };
        let group_end = group.end();
        let most = self.spare_bytes(group).min(BYTES_AT_ONCE);
        let most_unbacked = self.spare_with_unbacked(group).min(BYTES_AT_ONCE);
        let free = group.free.as_ref().filter(|_| !group.read_only);
        let mut taken = free.map_or_else(Taken::new, |free| pieces(free, wanted, at..group_end, most));
        let mut from = Share::Free;
        if group.is_backed {
            // A trim turns unreserved free space into unbacked space first, and then discards it
            // like other unbacked space.
            for (start, length) in &taken {
                self.running
                    .core
                    .groups
                    .shift(*start, *length, Share::Free, Share::Unbacked)?;
            }
            from = Share::Unbacked;
            let group = self
                .running
                .core
                .groups
                .holding(start)
                .filter(|group| !group.read_only);
            taken = group.map_or_else(Taken::new, |group| {
                pieces(&group.unbacked, wanted, at..group_end, most_unbacked)
            });
        }
        for (start, length) in &taken {
            self.running
                .core
                .groups
                .shift(*start, *length, from, Share::Trimming)?;
        }
        let last = taken.last();
        let next = last.map_or(group_end, |(start, length)| start.saturating_add(*length));
        Ok((Some(next), taken))
    }

    /// Returns the free bytes of a group's kind that no promise needs.
    fn spare_bytes(&self, group: &Group) -> u64 {
        let metadata = |running: &Running| match group.is_backed {
            true => running.block_reserve().backed_bytes(Need::places(OTHER_ITEMS)),
            false => running.block_reserve().metadata_bytes(Need::places(OTHER_ITEMS)),
        };
        self.beside_promises(group, |room| room.free_bytes, metadata)
    }

    /// Returns the free bytes of a group's kind that no promise needs, with or without space on the
    /// host.
    fn spare_with_unbacked(&self, group: &Group) -> u64 {
        let metadata = |running: &Running| running.block_reserve().metadata_bytes(Need::places(OTHER_ITEMS));
        self.beside_promises(group, Room::with_unbacked, metadata)
    }

    /// Subtracts from the free space of a group's kind the promises to each purpose that the group
    /// serves. A mixed block group serves two purposes.
    fn beside_promises(
        &self,
        group: &Group,
        room: impl Fn(Room) -> u64,
        metadata: impl Fn(&Running) -> u64,
    ) -> u64 {
        let promised = |purpose| match purpose {
            Purpose::Data => self.running.core.reserved_data_bytes,
            Purpose::Metadata => metadata(self.running),
            Purpose::System => self.running.core.node_bytes().get().saturating_mul(OTHER_ITEMS),
        };
        let served = [Purpose::Data, Purpose::Metadata, Purpose::System]
            .into_iter()
            .filter(|purpose| group.serves(*purpose));
        let rooms = served
            .clone()
            .map(|purpose| room(self.running.core.groups.room(purpose)));
        // Clamp: the promises of metadata include a reserve, and may exceed the free space.
        served.fold(rooms.min().unwrap_or(0), |spare, purpose| {
            spare.saturating_sub(promised(purpose))
        })
    }

    fn give_back_trimmed(&mut self, taken: &Taken) -> Result<()> {
        for (start, length) in taken {
            let is_backed = self
                .running
                .core
                .groups
                .holding(*start)
                .is_some_and(|group| group.is_backed);
            let to = if is_backed { Share::Unbacked } else { Share::Free };
            self.running
                .core
                .groups
                .shift(*start, *length, Share::Trimming, to)?;
        }
        Ok(())
    }

    /// Takes the next range at or after `at` without a chunk and without a superblock; `None` at
    /// the end.
    fn take_unallocated(&mut self, device: Uuid, at: u64) -> Option<(u64, u64)> {
        let rooms = &mut self.running.core.devices.rooms;
        let room = rooms.iter_mut().find(|room| room.item.uuid == device)?;
        let (start, length) = without_superblocks(&room.free, at)?;
        let length = length.min(UNALLOCATED_AT_ONCE);
        room.free.remove(start, length);
        Some((start, length))
    }

    fn give_back_unallocated(&mut self, device: Uuid, start: u64, length: u64) {
        let rooms = &mut self.running.core.devices.rooms;
        if let Some(room) = rooms.iter_mut().find(|room| room.item.uuid == device) {
            room.free.add(start, length);
        }
    }
}

/// Returns the ranges of a block group to trim: wanted, free, long enough, in `within`, and at most
/// `most` bytes in all.
fn pieces(free: &FreeRanges, wanted: &Wanted, within: Range<u64>, most: u64) -> Taken {
    let (mut left, mut taken) = (most, Taken::new());
    for (wanted_start, wanted_length) in wanted.ranges.from(within.start) {
        if wanted_start >= within.end {
            break;
        }
        let wanted_end = wanted_start.saturating_add(wanted_length).min(within.end);
        for (start, length) in free.from(wanted_start.max(within.start)) {
            if start >= wanted_end {
                break;
            }
            if left == 0 || taken.len() == RANGES_AT_ONCE {
                return taken;
            }
            let from = start.max(wanted_start).max(within.start);
            let to = start.saturating_add(length).min(wanted_end);
            let piece = to.saturating_sub(from).min(left);
            // The length of the whole free range counts, so a short remainder of a cut range also
            // qualifies.
            if length >= wanted.shortest && piece > 0 {
                taken.push((from, piece));
                left = left.saturating_sub(piece);
            }
        }
    }
    taken
}

/// Returns the first free range at or after `at`, without the bytes around superblocks.
fn without_superblocks(free: &FreeRanges, at: u64) -> Option<(u64, u64)> {
    let kept = SUPERBLOCK_OFFSETS.map(|at| at.get()..at.get().saturating_add(SUPERBLOCK_KEEPS_BYTES));
    free.from(at).find_map(|(start, length)| {
        let end = start.saturating_add(length);
        let mut from = start.max(at);
        for kept in &kept {
            if kept.contains(&from) {
                from = kept.end;
            }
        }
        let stops = kept.iter().map(|kept| kept.start).filter(|stop| *stop > from);
        let to = stops.min().map_or(end, |stop| stop.min(end));
        (from < to).then(|| (from, to.saturating_sub(from)))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const KIB: u64 = 1 << 10;
    const MIB: u64 = 1 << 20;

    fn free(ranges: &[(u64, u64)]) -> FreeRanges {
        let mut free = FreeRanges::default();
        for (start, length) in ranges {
            free.add(*start, *length);
        }
        free
    }

    #[test]
    fn pieces_are_wanted_and_within_spare_bytes() {
        let some = free(&[(0, 8), (16, 4), (32, 64), (128, 64)]);
        let wanted = |ranges: &[(u64, u64)], shortest| Wanted {
            ranges: free(ranges),
            shortest,
            is_checked: false,
        };
        let all = [(0, 8), (16, 4), (32, 64), (128, 64)];
        let everything = |shortest| wanted(&[(0, u64::MAX)], shortest);
        assert_eq!(pieces(&some, &everything(0), 0..192, 1000), all);
        assert_eq!(
            pieces(&some, &everything(8), 0..192, 1000),
            [(0, 8), (32, 64), (128, 64)]
        );
        assert_eq!(
            pieces(&some, &everything(0), 0..192, 20),
            [(0, 8), (16, 4), (32, 8)]
        );
        // The remainder of a long range still counts as long enough.
        assert_eq!(pieces(&some, &everything(8), 90..192, 20), [(90, 6), (128, 14)]);
        assert_eq!(pieces(&some, &everything(0), 0..192, 0), []);
        assert_eq!(pieces(&some, &everything(0), 192..300, 10), []);
        let part = wanted(&[(4, 146)], 0);
        assert_eq!(
            pieces(&some, &part, 0..192, 1000),
            [(4, 4), (16, 4), (32, 64), (128, 22)]
        );
        let freed = wanted(&[(2, 2), (6, 12), (60, 4), (70, 4), (300, 4)], 0);
        assert_eq!(
            pieces(&some, &freed, 0..192, 1000),
            [(2, 2), (6, 2), (16, 2), (60, 4), (70, 4)]
        );
    }

    #[test]
    fn unallocated_ranges_exclude_superblocks() {
        let some = free(&[(MIB, 9 * MIB), (60 * MIB, 100 * MIB)]);
        let next = |at| without_superblocks(&some, at);
        assert_eq!(next(0), Some((MIB, 9 * MIB)));
        assert_eq!(next(10 * MIB), Some((60 * MIB, 4 * MIB)));
        let behind = 64 * MIB + 64 * KIB;
        assert_eq!(next(64 * MIB), Some((behind, 160 * MIB - behind)));
        assert_eq!(next(160 * MIB), None);
        assert_eq!(without_superblocks(&free(&[(64 * MIB, 64 * KIB)]), 0), None);
    }
}
