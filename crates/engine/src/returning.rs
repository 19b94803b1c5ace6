//! A device that missed commits: its own state is preserved until the device has the volume's
//! state.
//!
//! The superblock of a device that missed commits leads to an older state. If the profiles allow,
//! the returning device alone can be read in its older state. The volume may since have freed
//! blocks of the device's older state and reused their addresses. Invariants while such a device is
//! brought up to date:
//!
//! - No address that the device's own state uses is allocated. Free ranges of the returning
//!   device's own state are pinned. A hold on the device's generation keeps ranges pinned that later
//!   commits free. [`Pins`](super::pins::Pins) enforces that no address of this state is allocated.
//! - On the returning device, the return overwrites no byte that the device's own state uses. If
//!   the volume reuses an address, the chunk's whole stripe on the device moves to a place that
//!   neither state uses.
//! - In a return, the device's superblock is written last ([`buttress_volume::returning`]).
//!
//! | step | state after a crash that follows the step |
//! |---|---|
//! | [begin](MemberDevices::begin_return) | the device at its own state |
//! | a job above writes what the device missed | as before |
//! | [end](MemberDevices::end_return): chunk items of moved stripes, a commit | as before; the volume names the new places |
//! | the device's superblock | the device at the volume's state |
//!
//! Comparing extents shows whether the device's state is an older state of this volume. The states
//! of volume and device must both contain the volume's extents up to the device's generation.
//! Otherwise the histories of volume and device diverged, and the return refuses the device.
//!
//! Left out: data that is overwritten in place, of which the device's own state may show newer
//! bytes.

mod comparing;

use super::block_groups::Share;
use super::free_ranges::FreeRanges;
use super::pins::Hold;
use crate::areas::MemberDevices;
use crate::running_parts::ReturningDevice;
use buttress_format::{
    BlockGroupFlags, ByteCount, Chunk, DeviceExtent, Generation, ItemType, Key, Logical, ObjectId, Physical,
    STRIPE_BYTES, SUPERBLOCK_OFFSETS, TreeId, Uuid,
};
use buttress_fs::Progress;
use buttress_fs::error::{Error, Result, WritingRefusal};
use buttress_locks::Excused;
use buttress_tree::NonBlocking;
use buttress_volume::{ChunkMap, DeviceSlot, DevicesError, MappedChunk, Replacement, Volume, WriteRefusal};
use comparing::{compare, own_state};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// A device that is being brought up to date. If this value is dropped before the end of the
/// return, the device stays stale.
#[derive(Debug)]
pub struct Return {
    volume: Arc<Volume>,
    replacement: Arc<Replacement>,
    missed: ByteCount,
    _hold: Hold,
}

impl Return {
    /// Returns the device that receives the volume's writes.
    #[must_use]
    pub const fn replacement(&self) -> &Arc<Replacement> {
        &self.replacement
    }

    /// Returns how many bytes of extents are newer than the returning device.
    #[must_use]
    pub const fn missed(&self) -> ByteCount {
        self.missed
    }
}

impl Drop for Return {
    fn drop(&mut self) {
        let current = self.volume.replacement();
        if current.is_some_and(|current| Arc::ptr_eq(&current, &self.replacement)) {
            self.volume.give_up_replacement();
        }
    }
}

impl MemberDevices<'_> {
    /// Begins to bring the device with this uuid up to date. From this call on, the device receives
    /// the volume's writes. A job above the engine copies the writes that the returning device
    /// missed.
    ///
    /// # Errors
    /// Fails with [`Error::Cancelled`]; [`DevicesError::Diverged`] for a device whose history
    /// diverged from the volume's. Fails with [`WritingRefusal::NoPlaceOnDevice`] if the device has
    /// no place for stripes that would overwrite its own state. Fails with
    /// [`MembershipRefusal::Busy`](buttress_volume::MembershipRefusal::Busy) while a change of the
    /// devices runs. Also fails with an error of reading the extent tree, or as
    /// [`Volume::begin_return`] does.
    pub fn begin_return(&self, device: Uuid, progress: &Progress) -> Result<Return> {
        // A removed device would get a superblock at the end of its return. From the return's
        // beginning on, changes of the devices find it themselves.
        let _no_change = self.engine.begin_resync_beside_no_change()?;
        let volume = Arc::clone(self.engine.forest().volume());
        let slots = volume.devices();
        let slot = slots.iter().find(|slot| slot.uuid() == device);
        let behind = slot.and_then(|slot| Some((slot, slot.stale()?, slot.device()?)));
        let Some((slot, stale, own)) = behind else {
            let refusal = WriteRefusal::NotBehind { uuid: device };
            return Err(buttress_volume::Error::from(refusal).into());
        };
        let hold = self.engine.shared.readers.hold(stale.generation);
        self.engine.commit()?;
        let own = own_state(own, progress)?;
        let view = self.engine.committed_view();
        let diverged = || DevicesError::Diverged {
            first: volume_name(&volume),
            first_generation: view.superblock().generation,
            second: slot.name().to_string(),
            second_generation: stale.generation,
        };
        let compared = compare(&view, own.as_ref(), stale.generation, progress)?;
        let compared = compared.filter(|compared| compared.is_of_one_history(&view, own.as_ref()));
        let compared = compared.ok_or_else(|| buttress_volume::Error::from(diverged()))?;
        let moved = match &own {
            None => BTreeMap::new(),
            Some(own) => {
                let _excused = Excused::from_device_rule();
                let mut running = self.engine.shared.running.lock();
                let own = own.filesystem.volume().chunk_map();
                let conflicts = NonBlocking::lifted(|| {
                    running
                        .returning_device()
                        .keep_own_state(&own, &compared.gone, device, stale.generation)
                });
                let mut step = running.returning_device();
                let moved = conflicts.and_then(|conflicts| step.places_for_moved(&own, &conflicts, slot));
                moved.inspect_err(|_| step.keep_no_more(device))?
            }
        };
        let begun = volume.begin_return(device, moved);
        let replacement = begun.inspect_err(|_| {
            let mut running = self.engine.shared.running.lock();
            running.returning_device().keep_no_more(device);
        })?;
        let returning = Return {
            volume,
            replacement,
            missed: ByteCount::new(compared.missed),
            _hold: hold,
        };
        // This commit puts all earlier writes into the extent tree, and leaves no log that the
        // returning device lacks.
        self.engine.commit()?;
        Ok(returning)
    }

    /// Ends the return: commits, and writes the device's superblock. The device must have all of
    /// the volume's used bytes before this call.
    ///
    /// # Errors
    /// Fails if the commit fails. Also fails if the returning device failed; that device then stays
    /// stale.
    pub fn end_return(&self, returning: Return) -> Result<()> {
        let moved = returning
            .replacement
            .returning()
            .map(|returning| returning.moved.clone());
        let moved = moved.unwrap_or_default();
        if !moved.is_empty() {
            let _excused = Excused::from_device_rule();
            let mut handle = self.engine.start_unchecked();
            let edited = NonBlocking::lifted(|| {
                moved.iter().try_for_each(|((chunk, stripe), to)| {
                    handle.returning_device().move_stripe(*chunk, *stripe, *to)
                })
            });
            drop(handle);
            // Edits that an operation has begun cannot be undone.
            edited.inspect_err(|error| self.engine.forest().volume().stop_writing(error))?;
        }
        self.engine.commit()?;
        returning.volume.end_return()?;
        let device = returning.replacement.source().uuid();
        self.engine
            .shared
            .running
            .lock()
            .returning_device()
            .keep_no_more(device);
        Ok(())
    }
}

fn volume_name(volume: &Volume) -> String {
    let slots = volume.devices();
    let lead = slots.iter().find(|slot| slot.is_written());
    lead.map_or_else(|| "the volume".to_owned(), |slot| slot.name().to_string())
}

/// Returns whether both chunks place a device's stripes at the same offsets, for the same
/// addresses.
fn lies_alike(one: &MappedChunk, other: &MappedChunk, device: Uuid) -> bool {
    let own = |chunk: &MappedChunk| -> Vec<(usize, Physical)> {
        let stripes = chunk.chunk().stripes.iter().enumerate();
        let own = stripes.filter(|(_, stripe)| stripe.device_uuid == device);
        own.map(|(index, stripe)| (index, stripe.physical)).collect()
    };
    let shape = |chunk: &MappedChunk| {
        let item = chunk.chunk();
        (chunk.start(), chunk.length(), item.profile, item.stripes.len())
    };
    shape(one) == shape(other) && own(one) == own(other)
}

/// Returns the device extents that a chunk has on one device, as stripe index, offset and length.
fn parts_on(chunk: &MappedChunk, device: Uuid) -> impl Iterator<Item = (usize, u64, u64)> {
    let length = chunk.layout().device_extent_bytes().get();
    let stripes = chunk.chunk().stripes.iter().enumerate();
    stripes
        .filter(move |(_, stripe)| stripe.device_uuid == device)
        .map(move |(index, stripe)| (index, stripe.physical.get(), length))
}

impl ReturningDevice<'_> {
    /// Pins the free parts of the ranges that only a device's own state uses. Returns the chunks in
    /// which some of the device's own ranges are in use again.
    fn keep_own_state(
        &mut self,
        own: &ChunkMap,
        gone: &[(u64, u64)],
        device: Uuid,
        since: Generation,
    ) -> Result<BTreeSet<Logical>> {
        let map = self.running.core.forest.volume().chunk_map();
        let mut pinned = FreeRanges::default();
        for (start, length) in self.running.core.pins.iter() {
            pinned.add(start, length);
        }
        let mut conflicts = BTreeSet::new();
        for chunk in own.chunks() {
            let parts: Vec<_> = parts_on(chunk, device).collect();
            let now = map
                .find(chunk.start())
                .filter(|now| lies_alike(now, chunk, device));
            if now.is_none() {
                let overlaps = |(_, start, length): (usize, u64, u64)| {
                    let end = start.saturating_add(length);
                    parts
                        .iter()
                        .any(|(_, own, length)| start < own.saturating_add(*length) && *own < end)
                };
                let over_it = map
                    .chunks()
                    .iter()
                    .filter(|now| parts_on(now, device).any(overlaps));
                conflicts.extend(over_it.map(|now| now.start()));
                continue;
            }
            let first = gone.partition_point(|(start, _)| *start < chunk.start().get());
            let here = gone.iter().skip(first);
            for (start, length) in here.take_while(|(start, _)| *start < chunk.end().get()) {
                if !self.keep_range(*start, *length, since, &pinned)? {
                    conflicts.insert(chunk.start());
                }
            }
        }
        Ok(conflicts)
    }

    /// Pins the free parts of a range of the returning device. Returns whether no extent uses any
    /// part of the range.
    fn keep_range(
        &mut self,
        start: u64,
        length: u64,
        since: Generation,
        pinned: &FreeRanges,
    ) -> Result<bool> {
        let end = start.saturating_add(length);
        let Some(group) = self.running.core.groups.holding(start) else {
            return Ok(true);
        };
        let (group_start, is_loaded) = (group.start, group.free.is_some());
        if !is_loaded {
            self.running.load_group(group_start)?;
        }
        let free = self
            .running
            .core
            .groups
            .holding(start)
            .and_then(|group| group.free.as_ref());
        let mut rest = FreeRanges::default();
        rest.add(start, length);
        let clipped = |ranges: &FreeRanges| -> Vec<(u64, u64)> {
            let overlapping = ranges.from(start).take_while(|(from, _)| *from < end);
            let clip = |(from, length): (u64, u64)| {
                let (first, last) = (from.max(start), from.saturating_add(length).min(end));
                (first, last.saturating_sub(first))
            };
            overlapping.map(clip).collect()
        };
        let generation = self.running.core.generation;
        for (from, bytes) in free.map(clipped).unwrap_or_default() {
            self.running
                .core
                .groups
                .shift(from, bytes, Share::Free, Share::Pinned)?;
            self.running.core.pins.add(generation, from, bytes, since);
            rest.remove(from, bytes);
        }
        for (from, bytes) in clipped(pinned) {
            rest.remove(from, bytes);
        }
        Ok(rest.total_bytes() == 0)
    }

    /// Finds places on a device for its stripes of some chunks. Neither the volume nor the device's
    /// own state uses the places that this function returns. New chunks avoid the returned places
    /// and the device's own state, until [`ReturningDevice::keep_no_more`].
    fn places_for_moved(
        &mut self,
        own: &ChunkMap,
        chunks: &BTreeSet<Logical>,
        slot: &DeviceSlot,
    ) -> Result<BTreeMap<(Logical, usize), Physical>> {
        let device = slot.uuid();
        let mut moved = BTreeMap::new();
        let mut rooms = self.running.core.devices.rooms.iter_mut();
        let Some(room) = rooms.find(|room| room.item.uuid == device) else {
            return Ok(moved);
        };
        room.kept = FreeRanges::default();
        for chunk in own.chunks() {
            for (_, start, length) in parts_on(chunk, device) {
                room.kept.add(start, length);
            }
        }
        let mut free = room.allocatable().into_owned();
        for at in SUPERBLOCK_OFFSETS {
            free.remove(at.get(), STRIPE_BYTES);
        }
        let map = self.running.core.forest.volume().chunk_map();
        let in_the_way = chunks.iter().filter_map(|start| map.find(*start));
        let parts: Vec<_> = in_the_way
            .flat_map(|chunk| {
                parts_on(chunk, device).map(move |(index, _, length)| (chunk.start(), index, length))
            })
            .collect();
        let needed = parts
            .iter()
            .fold(0_u64, |sum, (.., length)| sum.saturating_add(*length));
        let no_place = Error::WritingRefused(WritingRefusal::NoPlaceOnDevice {
            device: slot.name().to_string(),
            needed,
            found: free.total_bytes(),
        });
        for (start, index, length) in parts {
            let place = free.allocate(length, length, STRIPE_BYTES, 0);
            let (place, _) = place.ok_or_else(|| no_place.clone())?;
            room.kept.add(place, length);
            moved.insert((start, index), Physical::new(place));
        }
        Ok(moved)
    }

    /// Ends the reservation of the returned device's ranges: new chunks may use all of its
    /// unallocated ranges.
    fn keep_no_more(&mut self, device: Uuid) {
        let rooms = self.running.core.devices.rooms.iter_mut();
        for room in rooms.filter(|room| room.item.uuid == device) {
            room.kept = FreeRanges::default();
        }
    }

    /// Records a new place for a stripe: in the chunk item, device extents, the superblock's copy,
    /// and the live chunk map.
    fn move_stripe(&mut self, start: Logical, index: usize, to: Physical) -> Result<()> {
        let volume = Arc::clone(self.running.core.forest.volume());
        let map = volume.chunk_map();
        let Some(mapped) = map.find(start) else {
            return Ok(());
        };
        let mut chunk: Chunk = mapped.chunk().clone();
        let length = mapped.layout().device_extent_bytes();
        let Some(stripe) = chunk.stripes.get_mut(index) else {
            return Ok(());
        };
        let (device, from) = (stripe.device, stripe.physical);
        stripe.physical = to;
        let key = Key::new(ObjectId::FIRST_CHUNK_TREE, ItemType::CHUNK_ITEM, start.get());
        self.running.put(TreeId::CHUNK, &key, &chunk.encode())?;
        let place = |at: Physical| Key::new(device.object_id(), ItemType::DEV_EXTENT, at.get());
        self.running.remove(TreeId::DEVICE, &place(from))?;
        let extent = DeviceExtent {
            device,
            physical: to,
            chunk_tree: TreeId::CHUNK,
            chunk_objectid: ObjectId::FIRST_CHUNK_TREE,
            chunk: start,
            length,
            chunk_tree_uuid: self.running.core.chunk_tree_uuid,
        };
        self.running
            .insert(TreeId::DEVICE, &place(to), &extent.to_bytes())?;
        if let Some(room) = self
            .running
            .core
            .devices
            .rooms
            .iter_mut()
            .find(|room| room.item.device == device)
        {
            room.free.remove(to.get(), length.get());
        }
        self.running
            .core
            .devices
            .freed
            .push((device, from.get(), length.get()));
        if chunk.profile.contains(BlockGroupFlags::SYSTEM) {
            let mut known = self.running.core.system_chunks.iter_mut();
            if let Some((_, known)) = known.find(|(known, _)| *known == key) {
                known.clone_from(&chunk);
            }
            self.running.core.superblock_changed = true;
        }
        volume.move_stripes(start, chunk)?;
        Ok(())
    }
}
