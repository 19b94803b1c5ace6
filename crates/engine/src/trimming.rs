//! Trimming: devices are told of everything that nothing uses, so that images give the space back and flash is spared.
//!
//! 1. A commit, so that what was freed before the call is free.
//! 2. Under the edit lock: some free ranges of a block group are taken, so that nobody else can.
//! 3. Without the lock: the extent tree of the last commit must have no extent there; then the devices discard the
//!    ranges. A wrong free-space tree ends the trim: allocation destroys data little by little, a trim at once.
//! 4. Under the lock again: the ranges are free as before.
//!
//! Afterwards the trim discards the space of each device that no chunk has. A volume that is opened with
//! [`WriteOptions::discard`](crate::WriteOptions::discard) does steps 2 to 4 after each commit. These steps discard the
//! ranges that the commit itself freed, whatever the free-space tree lists.
//!
//! Invariants:
//! - Nobody writes to a range between 2 and 4: it is not free.
//! - Space that was promised stays: a trim takes at most what is free beside the promises, and at most `BYTES_AT_ONCE`.
//! - A trim causes no [`Error::NoSpace`]. An edit that finds no space takes the lock `trimming`, under which a trim holds
//!   nothing, and retries.
//! - What the last commit's superblock leads to is not free ([`super::pins`]), and neither is what superblocks lie behind.
//!
//! In block groups whose addresses need space of the host, a discarded range loses that space and becomes unbacked
//! ([`super::backing`]). Space that edits were promised stays.
//!
//! Left out: read-only block groups, and devices that nothing is written to.

use super::block_groups::{Group, Purpose, Room, Share};
use super::free_ranges::FreeRanges;
use super::reservation::Need;
use super::running::Running;
use crate::engine::Engine;
use buttress_format::{
    ByteCount, ExtentItem, ItemType, Key, Logical, ObjectId, SUPERBLOCK_OFFSETS, TreeId, Uuid,
};
use buttress_fs::error::{Corruption, Error, Result};
use buttress_tree::ReadAhead;
use core::ops::Range;

/// How much is kept from being allocated at once.
const BYTES_AT_ONCE: u64 = 64 << 20;

/// How many ranges are.
const RANGES_AT_ONCE: usize = 512;

/// The same of what no chunk has: a chunk that is made meanwhile finds its place elsewhere.
const UNALLOCATED_AT_ONCE: u64 = 1 << 30;

/// What of a device a superblock copy keeps from being trimmed.
const SUPERBLOCK_KEEPS_BYTES: u64 = 64 << 10;

/// What else edits may want of metadata while ranges are taken.
const OTHER_ITEMS: u64 = 64;

/// How much devices were told of.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Trimmed {
    /// Free space of block groups, each address once, however many copies it has.
    pub block_groups: ByteCount,
    /// Bytes of devices that no chunk has.
    pub unallocated: ByteCount,
}

impl Trimmed {
    /// All of it.
    #[must_use]
    pub const fn total(self) -> ByteCount {
        ByteCount::new(self.block_groups.get().saturating_add(self.unallocated.get()))
    }
}

/// What is to be trimmed of block groups.
#[derive(Debug)]
struct Wanted {
    /// Addresses; what of them is not free is left alone.
    ranges: FreeRanges,
    /// Free ranges that are shorter are left alone.
    shortest: u64,
    /// Whether the extent tree is asked, too.
    is_checked: bool,
}

/// Ranges that are not free for a while, as start and length.
type Taken = Vec<(u64, u64)>;

impl Engine {
    /// Tells the devices of free space in block groups at `range`, as far as it is at least `shortest` in one piece, and of
    /// all that no chunk has. Commits first. Devices that cannot be told of unused space do nothing.
    ///
    /// # Errors
    /// When writing has stopped, or stops with the commit; what reading free space fails with; what a device answers, which
    /// does not stop writing.
    pub fn trim(&self, range: Range<Logical>, shortest: ByteCount) -> Result<Trimmed> {
        self.commit()?;
        let sector_bytes = u64::from(self.forest().block_format().sector_bytes).max(1);
        let (start, end) = (range.start.get(), range.end.get());
        let start = start.checked_next_multiple_of(sector_bytes).unwrap_or(end);
        let end = end.saturating_sub(end.checked_rem(sector_bytes).unwrap_or(0));
        let mut ranges = FreeRanges::default();
        ranges.add(start, end.saturating_sub(start));
        let shortest = shortest.get();
        Ok(Trimmed {
            block_groups: self.trim_block_groups(&Wanted {
                ranges,
                shortest,
                is_checked: true,
            })?,
            unallocated: self.trim_unallocated()?,
        })
    }

    /// Tells the devices of what a commit freed, as far as nobody uses it again yet.
    pub fn discard_freed(&self, freed: &[(u64, u64)]) {
        let mut ranges = FreeRanges::default();
        for (start, length) in freed {
            ranges.add(*start, *length);
        }
        let told = self.trim_block_groups(&Wanted {
            ranges,
            shortest: 0,
            is_checked: false,
        });
        // Nothing is lost if a device does not hear of it; ledgers that are wrong are no matter of devices.
        if let Err(error @ Error::Defect(_)) = told {
            self.forest().volume().stop_writing(&error);
        }
    }

    fn trim_block_groups(&self, wanted: &Wanted) -> Result<ByteCount> {
        let (mut at, mut trimmed) = (0, 0_u64);
        loop {
            let _holds_space = self.shared.trimming.lock();
            let (handle, (next, taken)) =
                self.retry(self.start_to_look(), |running| running.take_to_trim(wanted, at))?;
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
            self.start_to_look().give_back_trimmed(&taken)?;
            trimmed = trimmed.saturating_add(told?);
        }
    }

    /// Requires that the extent tree of the last commit has nothing in ranges that are free by the free-space tree. No
    /// edit can allocate these ranges at this time.
    fn require_unused(&self, taken: &Taken) -> Result<()> {
        if buttress_faults::on("trim-free-space-trusted") {
            return Ok(());
        }
        let view = self.committed_view();
        let extents = view.tree(TreeId::EXTENT)?;
        let format = self.forest().block_format();
        let key = |logical: u64| Key::new(ObjectId::new(logical), ItemType(0), 0);
        for (start, length) in taken {
            let end = start.saturating_add(*length);
            let mut before = extents.cursor(ReadAhead::None);
            before.seek_at_or_before(&key(*start))?;
            // An extent that begins before the range may reach into it.
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
            self.forest()
                .volume()
                .discard(Logical::new(*start), ByteCount::new(*length))?;
            bytes = bytes.saturating_add(*length);
        }
        Ok(bytes)
    }

    fn trim_unallocated(&self) -> Result<ByteCount> {
        let mut trimmed = 0_u64;
        for slot in self.forest().volume().devices() {
            let Some(device) = slot
                .device()
                .filter(|device| slot.is_written() && device.is_writable())
            else {
                continue;
            };
            let mut at = 0;
            loop {
                let _holds_space = self.shared.trimming.lock();
                let taken = self.start_to_look().take_unallocated(slot.uuid(), at);
                let Some((start, length)) = taken else { break };
                at = start.saturating_add(length);
                let told = device.discard(start, length);
                self.start_to_look()
                    .give_back_unallocated(slot.uuid(), start, length);
                told.map_err(buttress_volume::Error::from)?;
                trimmed = trimmed.saturating_add(length);
            }
        }
        Ok(ByteCount::new(trimmed))
    }
}

impl Running {
    /// Takes the next free ranges at or after `at` out of what can be allocated, and gives where to go on; `None` at the end.
    /// A block that is missing ends it before anything is taken.
    fn take_to_trim(&mut self, wanted: &Wanted, at: u64) -> Result<(Option<u64>, Taken)> {
        let Some((start, length)) = wanted.ranges.from(at).next() else {
            return Ok((None, Taken::new()));
        };
        let (at, end) = (start.max(at), start.saturating_add(length));
        let found = self
            .core
            .groups
            .iter()
            .find(|group| group.end() > at && group.start < end)
            .map(|group| (group.start, group.free.is_none() && !group.read_only));
        let Some((start, is_unloaded)) = found else {
            return Ok((Some(end), Taken::new()));
        };
        if is_unloaded {
            self.load_group(start)?;
        }
        let Some(group) = self.core.groups.holding(start) else {
            return Ok((None, Taken::new()));
        };
        let group_end = group.end();
        let most = self.spare_bytes(group).min(BYTES_AT_ONCE);
        let most_unbacked = self.spare_with_unbacked(group).min(BYTES_AT_ONCE);
        let free = group.free.as_ref().filter(|_| !group.read_only);
        let mut taken = free.map_or_else(Taken::new, |free| pieces(free, wanted, at..group_end, most));
        let mut from = Share::Free;
        if group.is_backed {
            // Free space beside the promises becomes unbacked, and is then discarded with the unbacked space.
            for (start, length) in &taken {
                self.core
                    .groups
                    .shift(*start, *length, Share::Free, Share::Unbacked)?;
            }
            from = Share::Unbacked;
            let group = self.core.groups.holding(start).filter(|group| !group.read_only);
            taken = group.map_or_else(Taken::new, |group| {
                pieces(&group.unbacked, wanted, at..group_end, most_unbacked)
            });
        }
        for (start, length) in &taken {
            self.core.groups.shift(*start, *length, from, Share::Trimming)?;
        }
        let last = taken.last();
        let next = last.map_or(group_end, |(start, length)| start.saturating_add(*length));
        Ok((Some(next), taken))
    }

    /// Returns the free bytes of a group's kind that no promise needs.
    fn spare_bytes(&self, group: &Group) -> u64 {
        let metadata = |running: &Self| match group.is_backed {
            true => running.backed_reservation_bytes(Need::places(OTHER_ITEMS)),
            false => running.metadata_reservation_bytes(Need::places(OTHER_ITEMS)),
        };
        self.beside_promises(group, |room| room.free_bytes, metadata)
    }

    /// Returns the free bytes of a group's kind that no promise needs, with and without space of the host.
    fn spare_with_unbacked(&self, group: &Group) -> u64 {
        let metadata = |running: &Self| running.metadata_reservation_bytes(Need::places(OTHER_ITEMS));
        self.beside_promises(group, Room::with_unbacked, metadata)
    }

    /// Subtracts from the room of a group's kind what each purpose that the group serves was promised. Mixed groups serve
    /// two.
    fn beside_promises(
        &self,
        group: &Group,
        room: impl Fn(Room) -> u64,
        metadata: impl Fn(&Self) -> u64,
    ) -> u64 {
        let promised = |purpose| match purpose {
            Purpose::Data => self.core.reserved_data_bytes,
            Purpose::Metadata => metadata(self),
            Purpose::System => self.core.node_bytes().get().saturating_mul(OTHER_ITEMS),
        };
        let served = [Purpose::Data, Purpose::Metadata, Purpose::System]
            .into_iter()
            .filter(|purpose| group.serves(*purpose));
        let rooms = served.clone().map(|purpose| room(self.core.groups.room(purpose)));
        // Clamp: the promises of metadata include a reserve, and may be larger than the room.
        served.fold(rooms.min().unwrap_or(0), |spare, purpose| {
            spare.saturating_sub(promised(purpose))
        })
    }

    fn give_back_trimmed(&mut self, taken: &Taken) -> Result<()> {
        for (start, length) in taken {
            let is_backed = self
                .core
                .groups
                .holding(*start)
                .is_some_and(|group| group.is_backed);
            let to = if is_backed { Share::Unbacked } else { Share::Free };
            self.core.groups.shift(*start, *length, Share::Trimming, to)?;
        }
        Ok(())
    }

    /// Takes the next range at or after `at` that no chunk has and no superblock lies in; `None` at the end.
    fn take_unallocated(&mut self, device: Uuid, at: u64) -> Option<(u64, u64)> {
        let rooms = &mut self.core.devices.rooms;
        let room = rooms.iter_mut().find(|room| room.item.uuid == device)?;
        let (start, length) = without_superblocks(&room.free, at)?;
        let length = length.min(UNALLOCATED_AT_ONCE);
        room.free.remove(start, length);
        Some((start, length))
    }

    fn give_back_unallocated(&mut self, device: Uuid, start: u64, length: u64) {
        let rooms = &mut self.core.devices.rooms;
        if let Some(room) = rooms.iter_mut().find(|room| room.item.uuid == device) {
            room.free.add(start, length);
        }
    }
}

/// Ranges of a group to take: wanted, free, long enough, in `within`, and no more than `most` in all.
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
            // The whole range counts: what is left of one that was cut is not too short.
            if length >= wanted.shortest && piece > 0 {
                taken.push((from, piece));
                left = left.saturating_sub(piece);
            }
        }
    }
    taken
}

/// The first range at or after `at` with what superblocks keep cut out.
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
    fn pieces_are_wanted_and_no_more_than_there_is_to_spare() {
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
        // The rest of a long range is not too short.
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
    fn superblocks_are_cut_out_of_what_no_chunk_has() {
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
