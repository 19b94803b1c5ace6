//! A part of a device is emptied, and goes.
//!
//! While an [`Emptying`] exists, no new chunk is placed on the part of the device that it empties.
//! A job above moves the content of the chunks that are there. After the job, the device leaves the
//! volume, or is cut to its new size.
//!
//! Invariant: the emptied part holds no device extent, neither of the running transaction nor of
//! the last durable state.

use super::{item_key, no_such, refused};
use crate::areas::MemberDevices;
use crate::block_groups::Group;
use crate::core_state::Core;
use crate::engine::Engine;
use crate::exclusive::{Change, Changing};
use crate::replacement::wipe_superblocks_past;
use buttress_device::Device;
use buttress_exact::Exact as _;
use buttress_format::{BlockGroupFlags, ByteCount, DeviceId, DeviceStatistics, Logical, TreeId};
use buttress_fs::error::Result;
use buttress_volume::{DeviceSlot, MembershipRefusal, Volume};
use std::collections::BTreeSet;
use std::io::ErrorKind;
use std::sync::Arc;
use uuid::Uuid;

/// The part of a device from a byte on, which gets no new chunks until this is dropped.
#[derive(Debug)]
pub struct Emptying<'a> {
    engine: &'a Engine,
    slot: Arc<DeviceSlot>,
    end: ByteCount,
    _alone: Changing<'a>,
}

impl Drop for Emptying<'_> {
    fn drop(&mut self) {
        let mut running = self.engine.shared.running.lock();
        if let Some(room) = running.core.devices.room_mut(self.slot.id()) {
            room.chunks_end = None;
        }
    }
}

/// A chunk with device extents on a part of a device that is being emptied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChunkInTheWay {
    /// The chunk's start.
    pub chunk: Logical,
    /// The bytes of the chunk's device extents on the part to be emptied.
    pub bytes: ByteCount,
}

impl Emptying<'_> {
    /// The device; it may be missing.
    #[must_use]
    pub const fn slot(&self) -> &Arc<DeviceSlot> {
        &self.slot
    }

    /// Returns the chunks whose device extents are still on the part, in order of address. A job
    /// above the engine moves the content of these chunks.
    #[must_use]
    pub fn chunks(&self) -> Vec<ChunkInTheWay> {
        chunks_past(self.engine.forest().volume(), &self.slot, self.end)
    }

    /// Fails if block groups and unallocated space elsewhere are certainly too small for the
    /// content on the part. A volume that passes this check may still have too little space, since
    /// profiles divide devices.
    ///
    /// # Errors
    /// [`MembershipRefusal::NoPlace`].
    pub fn require_places(&self) -> Result<()> {
        let going: BTreeSet<u64> = self.chunks().iter().map(|chunk| chunk.chunk.get()).collect();
        let running = self.engine.shared.running.lock();
        let core = &running.core;
        let kinds: BTreeSet<u64> = groups(core, &going, true)
            .map(|group| (group.flags & BlockGroupFlags::TYPES).bits())
            .collect();
        let (mut content, mut wanted) = (0_u64, 0_u64);
        for kind in kinds {
            let is_kind = |group: &&Group| (group.flags & BlockGroupFlags::TYPES).bits() == kind;
            let used = groups(core, &going, true)
                .filter(is_kind)
                .fold(0_u64, |sum, group| sum.exact_add(group.used));
            let free = groups(core, &going, false)
                .filter(is_kind)
                .fold(0_u64, |sum, group| {
                    sum.exact_add(group.free_bytes())
                        .exact_add(group.unbacked_bytes())
                });
            let copies = groups(core, &going, true)
                .filter(is_kind)
                .filter_map(|group| group.flags.profile())
                .map(|profile| u64::from(profile.copies()))
                .min();
            content = content.exact_add(used);
            // Clamp: block groups that have enough free need no new chunk.
            let lacking = used.saturating_sub(free);
            wanted = wanted.exact_add(lacking.exact_mul(copies.unwrap_or(1)));
        }
        let rooms = core.devices.rooms.iter();
        let found = rooms.fold(0_u64, |sum, room| sum.exact_add(room.allocatable().total_bytes()));
        if wanted <= found {
            return Ok(());
        }
        Err(refused(MembershipRefusal::NoPlace {
            device: self.slot.id(),
            content: ByteCount::new(content),
            wanted: ByteCount::new(wanted),
            found: ByteCount::new(found),
        }))
    }

    /// Removes the device from the volume, and commits the removal. Returns the removed device's
    /// slot; the caller that holds the device wipes it.
    ///
    /// # Errors
    /// The call fails if device extents are still on the device, or if the commit fails.
    pub fn remove(self) -> Result<Arc<DeviceSlot>> {
        self.require_empty()?;
        let (key, statistics) = (item_key(self.slot.id()), DeviceStatistics::key(self.slot.id()));
        self.engine.devices().edit(self.slot.id(), |running| {
            running.remove(TreeId::CHUNK, &key)?;
            running.remove(TreeId::DEVICE, &statistics)?;
            let devices = &mut running.core.devices;
            devices.rooms.retain(|room| room.item.device != self.slot.id());
            devices.leaving.push(self.slot.uuid());
            Ok(())
        })?;
        self.engine.commit_metadata()?;
        Ok(Arc::clone(&self.slot))
    }

    /// Cuts the device at the new end. Commits the cut, wipes superblock copies past the new end,
    /// and cuts an image file.
    ///
    /// # Errors
    /// Fails if device extents are still past the new end, or if the commit, the wiping or the
    /// cutting of the file fails.
    pub fn cut(self) -> Result<()> {
        self.require_empty()?;
        self.engine.devices().set_bytes(self.slot.id(), self.end)?;
        self.engine.commit_metadata()?;
        // A device that failed during the job keeps its older state whole.
        if let Some(device) = self.slot.device().filter(|_| self.slot.is_written()) {
            cut_file(device, self.slot.uuid(), self.end)?;
        }
        Ok(())
    }

    /// Commits, so that the last durable state also has no device extents on the part. Refuses a
    /// part that still has device extents.
    fn require_empty(&self) -> Result<()> {
        self.engine.commit_metadata()?;
        require_no_chunk_past(self.engine.forest().volume(), &self.slot, self.end)
    }
}

/// Refuses to cut a device at an end past which it still has device extents.
pub(crate) fn require_no_chunk_past(volume: &Volume, slot: &DeviceSlot, end: ByteCount) -> Result<()> {
    let chunks = chunks_past(volume, slot, end);
    let Some(first) = chunks.first() else {
        return Ok(());
    };
    let bytes = chunks.iter().fold(0_u64, |sum, chunk| {
        // Clamp: the sum is shown only.
        sum.saturating_add(chunk.bytes.get())
    });
    Err(refused(MembershipRefusal::Occupied {
        device: slot.id(),
        end,
        bytes: ByteCount::new(bytes),
        chunk: first.chunk,
    }))
}

/// Wipes superblock copies past the end of a device that was cut, and cuts an image file. A device of
/// a fixed size, such as a block device, keeps its size. The caller excludes other changes of the
/// devices, since one that grows this device needs the file.
pub(crate) fn cut_file(device: &Device, uuid: Uuid, end: ByteCount) -> Result<()> {
    wipe_superblocks_past(device, uuid, end)?;
    if device.size_bytes() <= end.get() {
        return Ok(());
    }
    match device.set_size(end.get()) {
        Err(error) if error.kind != ErrorKind::Unsupported => Err(error.into()),
        _ => Ok(()),
    }
}

impl<'e> MemberDevices<'e> {
    /// Keeps new chunks from a device that is to be removed. The device to be removed may be
    /// missing.
    ///
    /// # Errors
    /// Fails if the volume lacks the device or needs it, if no other device can be written, or if
    /// another change of devices is in progress.
    pub fn begin_removal(&self, device: DeviceId) -> Result<Emptying<'e>> {
        let alone = self.engine.begin_change(Change::Remove)?;
        let slot = self.member(device)?;
        self.require_others(&slot)?;
        self.empty(slot, ByteCount::ZERO, alone)
    }

    /// Keeps new chunks off the part of a device that is to be cut.
    ///
    /// # Errors
    /// As for [`grow`](Self::grow).
    pub fn begin_cut(&self, device: DeviceId, size: ByteCount) -> Result<Emptying<'e>> {
        let alone = self.engine.begin_change(Change::Resize)?;
        let slot = self.member(device)?;
        let size = self.require_size(&slot, size)?;
        self.empty(slot, size, alone)
    }

    fn empty(&self, slot: Arc<DeviceSlot>, end: ByteCount, alone: Changing<'e>) -> Result<Emptying<'e>> {
        self.engine.require_writing()?;
        let mut running = self.engine.shared.running.lock();
        let room = running.core.devices.room_mut(slot.id());
        let room = room.ok_or_else(|| no_such(slot.id()))?;
        if !buttress_faults::on("membership-emptied-part-allocated") {
            room.chunks_end = Some(end.get());
        }
        drop(running);
        Ok(Emptying {
            engine: self.engine,
            slot,
            end,
            _alone: alone,
        })
    }

    /// Refuses the removal of a device that the volume needs.
    fn require_others(&self, slot: &DeviceSlot) -> Result<()> {
        let device = slot.id();
        let volume = self.engine.forest().volume();
        let fsid = volume.superblock().fsid;
        let slots = volume.devices();
        let mut others = slots
            .iter()
            .filter(|other| other.uuid() != slot.uuid() && other.fsid() == fsid);
        if !others.any(|other| other.is_written()) {
            return Err(refused(MembershipRefusal::LastDevice { device }));
        }
        let running = self.engine.shared.running.lock();
        let core = &running.core;
        let left = core
            .devices
            .rooms
            .iter()
            .filter(|room| room.item.device != device);
        let left = left.count();
        let profiles = core.groups.iter().filter_map(|group| group.flags.profile());
        let needy = profiles
            .map(|profile| (usize::from(profile.min_devices()), profile))
            .max_by_key(|(needed, _)| *needed)
            .filter(|(needed, _)| *needed > left);
        match needy {
            None => Ok(()),
            Some((needed, profile)) => Err(refused(MembershipRefusal::Profile {
                device,
                profile: profile.name(),
                needed,
                left,
            })),
        }
    }
}

/// Returns the block groups that are in `going`, or those that are not.
fn groups<'a>(core: &'a Core, going: &'a BTreeSet<u64>, goes: bool) -> impl Iterator<Item = &'a Group> {
    core.groups
        .iter()
        .filter(move |group| going.contains(&group.start) == goes)
}

/// The chunks with device extents past `end` on a device.
fn chunks_past(volume: &Volume, slot: &DeviceSlot, end: ByteCount) -> Vec<ChunkInTheWay> {
    let map = volume.chunk_map();
    let in_the_way = map.chunks().iter().filter_map(|chunk| {
        let length = chunk.layout().device_extent_bytes().get();
        let stripes = chunk.chunk().stripes.iter();
        let past = stripes.filter(|stripe| {
            // Clamp: an end past the last address is past every device.
            let stripe_end = stripe.physical.get().saturating_add(length);
            stripe.device_uuid == slot.uuid() && stripe_end > end.get()
        });
        let count = ByteCount::of(past.count()).get();
        (count > 0).then(|| ChunkInTheWay {
            chunk: chunk.start(),
            // Clamp: a figure for messages; a chunk item can claim any length.
            bytes: ByteCount::new(length.saturating_mul(count)),
        })
    });
    in_the_way.collect()
}
