//! A new device joins the volume.
//!
//! Order: the device's old content is wiped; the device gets the superblock in use with its own
//! item ([`Volume::join`](buttress_volume::Volume::join)); a commit lists the device. All checks
//! that can refuse the new device run before that superblock write. After a crash before the commit,
//! the same call continues: the device carries a superblock of the volume, and no content.

use super::{LEAST_DEVICE_BYTES, item_key, refused, whole_sectors};
use crate::areas::MemberDevices;
use crate::device_space::DeviceSpaceLeft;
use crate::exclusive::Change;
use crate::free_ranges::FreeRanges;
use buttress_device::{Device, IoError};
use buttress_exact::Exact as _;
use buttress_format::{
    ByteCount, DEVICE_RESERVED_BYTES, DeviceId, DeviceItem, DeviceStatistics, Superblock, TreeId,
};
use buttress_fs::error::{Defect, Result};
use buttress_volume::wiping::{forget, forget_superblocks, zero_ends};
use buttress_volume::{MembershipRefusal, WriteRefusal, signatures, superblocks};
use std::sync::Arc;

/// The fate of the former content of a device that joins.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct JoinOptions {
    /// Overwrite a device that seems to hold a file system or other content.
    pub overwrites: bool,
    /// Whether to discard the whole device, if it supports discard.
    pub discards: bool,
}

impl MemberDevices<'_> {
    /// Refuses a device that cannot join the volume, before anything changes.
    ///
    /// # Errors
    /// Fails if the device is read-only or too small, belongs to the volume, or cannot be read.
    /// Without [`overwrites`](JoinOptions::overwrites), also fails if it seems to hold other
    /// content.
    pub fn require_new(&self, device: &Device, options: JoinOptions) -> Result<()> {
        let volume = self.engine.forest().volume();
        let name = || device.name().to_owned();
        if !device.is_writable() {
            let device = device.name().into();
            return Err(buttress_volume::Error::from(WriteRefusal::ReadOnlyDevice { device }).into());
        }
        if ByteCount::new(device.size_bytes()) < LEAST_DEVICE_BYTES {
            return Err(refused(MembershipRefusal::TooSmall {
                device: name(),
                size: ByteCount::new(device.size_bytes()),
                least: LEAST_DEVICE_BYTES,
            }));
        }
        if let Ok(found) = superblocks::choose(device) {
            let uuid = found.superblock.device_item.uuid;
            let slots = volume.devices();
            let mut given = slots
                .iter()
                .filter(|slot| slot.device().is_some() && slot.item().is_some());
            if let Some(slot) = given.find(|slot| slot.uuid() == uuid) {
                let id = slot.id();
                return Err(refused(MembershipRefusal::Member { device: name(), id }));
            }
            if self.is_half_joined(device, &found.superblock)? {
                return Ok(());
            }
        }
        let found = signatures::find(device).map_err(buttress_volume::Error::from)?;
        match found.filter(|_| !options.overwrites) {
            None => Ok(()),
            Some(found) => Err(refused(MembershipRefusal::Holds {
                device: name(),
                found,
            })),
        }
    }

    /// Returns whether a device carries a superblock of this volume that no chunk uses: a crash
    /// interrupted its joining, or its removal after the commit. Nothing on such a device is lost.
    fn is_half_joined(&self, device: &Device, superblock: &Superblock) -> Result<bool> {
        let volume = self.engine.forest().volume();
        let item = &superblock.device_item;
        let is_used =
            item.bytes_used > ByteCount::ZERO && !buttress_faults::on("membership-used-device-joins");
        let is_empty = superblock.fsid == volume.superblock().fsid && !is_used;
        let is_listed = {
            let running = self.engine.shared.running.lock();
            let mut rooms = running.core.devices.rooms.iter();
            rooms.any(|room| room.item.uuid == item.uuid)
        };
        if !is_empty || is_listed {
            return Ok(false);
        }
        let other = signatures::other_filesystem(device).map_err(buttress_volume::Error::from)?;
        Ok(other.is_none())
    }

    /// Adds a device, whose former content is lost, and commits. New chunks may use the added
    /// device from then on.
    ///
    /// # Errors
    /// Fails as [`require_new`](Self::require_new) does; also if the device fails, if
    /// another change of devices is in progress, or if the commit fails. If the commit fails, the
    /// device may carry a superblock of the volume although the volume does not list it.
    pub fn add(&self, device: Device, options: JoinOptions) -> Result<DeviceId> {
        let _alone = self.engine.begin_change(Change::Add)?;
        self.engine.require_writing()?;
        self.require_new(&device, options)?;
        let volume = Arc::clone(self.engine.forest().volume());
        let size = whole_sectors(device.size_bytes(), volume.block_format().sector_bytes);
        let item = self.new_item(size)?;
        forget_all(&device, options).map_err(buttress_volume::Error::from)?;
        let slot = {
            // Under this lock, no log exists on the other devices alone.
            let _no_logs = self.engine.superblocks().lock();
            volume.join(device, item, self.listed().exact_add(1))?
        };
        let (key, statistics) = (item_key(item.device), DeviceStatistics::key(item.device));
        let edited = self.edit(item.device, |running| {
            running.insert(TreeId::CHUNK, &key, &item.to_bytes())?;
            // Removes the statistics of an earlier device with this id.
            running.remove(TreeId::DEVICE, &statistics)?;
            running.core.devices.rooms.push(DeviceSpaceLeft::of_empty(item));
            Ok(())
        });
        if let Err(error) = edited {
            volume.leave(item.uuid);
            slot.device().into_iter().for_each(forget_superblocks);
            return Err(error);
        }
        self.engine.commit_metadata()?;
        match slot.failure() {
            None => Ok(item.device),
            Some(failure) => Err(buttress_volume::Error::from(failure.clone()).into()),
        }
    }

    /// The number of devices that the chunk tree lists.
    fn listed(&self) -> u64 {
        ByteCount::of(self.engine.shared.running.lock().core.devices.rooms.len()).get()
    }

    /// An item for a device that has no extents yet, with the id after the highest.
    fn new_item(&self, size: ByteCount) -> Result<DeviceItem> {
        let uuid = self.engine.new_uuid();
        let volume = self.engine.forest().volume();
        let sector_bytes = volume.block_format().sector_bytes;
        let fsid = volume.superblock().metadata_uuid;
        let running = self.engine.shared.running.lock();
        let rooms = running.core.devices.rooms.iter();
        let slots = volume.devices();
        let ids = rooms
            .map(|room| room.item.device)
            .chain(slots.iter().map(|slot| slot.id()));
        let last = ids.map(DeviceId::get).max();
        let next = last.and_then(|last| last.checked_add(1));
        let next = next.ok_or_else(|| Defect::new("the volume has no id for a new device"))?;
        Ok(DeviceItem {
            device: DeviceId::new(next),
            total_bytes: size,
            bytes_used: ByteCount::ZERO,
            io_align: sector_bytes,
            io_width: sector_bytes,
            sector_bytes,
            device_type: 0,
            generation: running.core.generation,
            start_offset: 0,
            device_group: 0,
            seek_speed: 0,
            bandwidth: 0,
            uuid,
            fsid,
        })
    }
}

impl DeviceSpaceLeft {
    fn of_empty(item: DeviceItem) -> Self {
        let mut free = FreeRanges::default();
        // A joining device has at least the least size, which is above the reserved bytes.
        let usable = item.total_bytes.get().exact_sub(DEVICE_RESERVED_BYTES);
        free.add(DEVICE_RESERVED_BYTES, usable);
        Self {
            item,
            free,
            kept: FreeRanges::default(),
            chunks_end: None,
        }
    }
}

/// Makes a device forget its former content. No moment leaves a half-erased volume that could pass
/// for a whole volume.
fn forget_all(device: &Device, options: JoinOptions) -> core::result::Result<(), IoError> {
    forget(device)?;
    if options.discards {
        // If a device cannot discard, joining erases only the places with signatures and
        // superblocks.
        let _cannot = device.discard(0, device.size_bytes());
        // Wipe again, because discarded bytes may return.
        zero_ends(device)?;
    }
    device.flush()
}
