//! Devices that join a volume, and devices that leave it.
//!
//! A new device gets the superblock in use, with a device item of its own, before any commit lists
//! the device ([`Volume::join`]). Every crash therefore leaves one of two states:
//!
//! - the last commit does not list the device. The volume opens without the device, and also with
//!   the device, which it ignores;
//! - the commit lists the device, and the device carries the volume's fsid, its own id and its own uuid.
//!
//! A commit writes the superblock of a device without device extents after those of other devices
//! ([`crate::write`]), unless the commit itself takes the last of these extents away. An interrupted
//! commit therefore never leaves the newest superblock only on a device without device extents.
//!
//! A commit that removes a device writes no superblock to that device
//! ([`Volume::write_superblocks_without`]). The device's superblock then belongs to the commit
//! before its removal. The caller wipes the removed device last.
//!
//! After a crash, opening counts a device without device extents as current, although the device's
//! superblock may be older.
//!
//! Left out: the items of devices in trees, and the decision which devices may leave.

use crate::Volume;
use crate::devices::DeviceSlot;
use crate::error::Error;
use crate::membership_refusal::MembershipRefusal;
use buttress_device::Device;
use buttress_format::device_item::DeviceItem;
use buttress_format::{ByteCount, Logical, Superblock};
use std::sync::Arc;
use uuid::Uuid;

impl Volume {
    /// Writes the superblock in use to a new device, with the device's own item and the volume's
    /// future number of devices. Linux registers no second device by fsid for a volume with one
    /// device. From this call on, the device is flushed and gets superblocks like the volume's
    /// other devices. The chunk tree does not list the new device yet.
    ///
    /// # Errors
    /// Fails if the device fails or is read-only, or if writing has stopped.
    pub fn join(&self, device: Device, item: DeviceItem, num_devices: u64) -> Result<Arc<DeviceSlot>, Error> {
        let _alone = self.writes().write();
        let superblock = Superblock {
            num_devices,
            ..(*self.superblock()).clone()
        };
        let slot = DeviceSlot::given(item.device, item.uuid, superblock.fsid, device, None);
        let slot = Arc::new(slot);
        self.require_own(&slot)?;
        // Only primary superblocks name a log.
        let without_log = Superblock {
            log_root: Logical::MIN,
            log_root_level: 0,
            ..superblock.clone()
        };
        self.write_superblocks_of_joining(&slot, &superblock, &without_log, &item)?;
        self.device_table().write().add(&slot, item);
        Ok(slot)
    }

    /// Removes a device from the table: the volume no longer flushes it and writes no superblocks
    /// to it. No chunk may have a stripe on a removed device.
    pub fn leave(&self, device: Uuid) {
        let _alone = self.writes().write();
        self.device_table().write().remove(device);
    }

    /// Counts stale devices as current if they hold no device extents, neither at their own
    /// generation nor now, because they missed nothing of their own. A commit that is interrupted
    /// after the superblocks of other devices leaves a new device with an older generation.
    pub(crate) fn settle_idle_devices(&self) -> Result<(), Error> {
        let map = self.chunk_map();
        let is_used = |slot: &Arc<DeviceSlot>| {
            let mut devices = map.chunks().iter().flat_map(|chunk| chunk.devices());
            devices.any(|other| Arc::ptr_eq(other, slot))
        };
        let idle = |slot: &Arc<DeviceSlot>| slot.is_idle() && slot.stale().is_some();
        for slot in self.devices().into_iter().filter(idle) {
            let Some(item) = slot.item() else { continue };
            let is_empty = item.bytes_used == ByteCount::ZERO && !is_used(&slot);
            match slot.as_current().map(Arc::new).filter(|_| is_empty) {
                Some(current) => self.exchange_slot(&slot, &current, |map| Ok(map.clone()))?,
                None => self.notices_of_stale(&slot),
            }
        }
        Ok(())
    }

    /// Returns whether trees list a device, or a chunk names it.
    pub(crate) fn is_member(&self, slot: &Arc<DeviceSlot>) -> bool {
        slot.item().is_some() || {
            let map = self.chunk_map();
            let mut devices = map.chunks().iter().flat_map(|chunk| chunk.devices());
            devices.any(|other| Arc::ptr_eq(other, slot))
        }
    }

    /// Writes superblocks like [`write_superblocks`](Self::write_superblocks), except to the
    /// devices that leave with this commit, and removes these from the table.
    ///
    /// # Errors
    /// Fails as [`write_superblocks`](Self::write_superblocks) does.
    pub fn write_superblocks_without(
        &self,
        superblock: &Superblock,
        items: &[DeviceItem],
        leaving: &[Uuid],
    ) -> Result<(), Error> {
        let _writes = self.writes().read();
        self.write_all_superblocks(superblock, items, None, leaving)?;
        let mut table = self.device_table().write();
        leaving.iter().for_each(|device| table.remove(*device));
        Ok(())
    }
}

impl From<MembershipRefusal> for Error {
    fn from(refusal: MembershipRefusal) -> Self {
        Self::Membership(Box::new(refusal))
    }
}
