//! The devices of a volume, and the ranges of each that no chunk has.
//!
//! Invariants:
//! - Unallocated ranges of a device never overlap device extents, and never begin in its first MiB.
//! - `bytes_used` of a device item is always the sum of its device extents.

use super::super::free_ranges::FreeRanges;
use super::super::running::Running;
use buttress_format::{
    ByteCount, DEVICE_RESERVED_BYTES, DeviceExtent, DeviceId, DeviceItem, ItemType, Key, ObjectId,
    STRIPE_BYTES, TreeId, Uuid,
};
use buttress_fs::error::{Corruption, Defect, Result};
use buttress_tree::ReadAhead;
use buttress_volume::DeviceErrors;
use std::borrow::Cow;
use std::collections::BTreeMap;

/// A device and what chunks leave of it.
#[derive(Debug)]
pub(crate) struct DeviceSpaceLeft {
    pub item: DeviceItem,
    /// Ranges without a device extent.
    pub free: FreeRanges,
    /// Ranges of a returning device that no new chunk gets: those of its own state, and the new places of moved stripes.
    pub kept: FreeRanges,
}

impl DeviceSpaceLeft {
    /// Returns the ranges that new chunks may get.
    pub(crate) fn allocatable(&self) -> Cow<'_, FreeRanges> {
        if self.kept.total_bytes() == 0 {
            return Cow::Borrowed(&self.free);
        }
        let mut free = self.free.clone();
        for (start, length) in self.kept.iter() {
            free.remove(start, length);
        }
        Cow::Owned(free)
    }
}

/// The devices of the chunk tree, and their unallocated ranges.
#[derive(Debug, Default)]
pub(crate) struct Devices {
    pub rooms: Vec<DeviceSpaceLeft>,
    /// Extents of removed chunks, by the transaction's end.
    pub freed: Vec<(DeviceId, u64, u64)>,
    /// The counted errors that the device statistics already have.
    pub recorded: BTreeMap<Uuid, DeviceErrors>,
}

impl Devices {
    pub(crate) fn total_bytes(&self) -> u64 {
        self.rooms
            .iter()
            .fold(0, |sum, room| sum.saturating_add(room.item.total_bytes.get()))
    }

    /// Takes a place of `length` bytes on a device.
    pub(in super::super) fn take(&mut self, device: DeviceId, length: u64) -> Option<u64> {
        let mut rooms = self.rooms.iter_mut();
        let room = rooms.find(|room| room.item.device == device)?;
        let mut allocatable = room.allocatable().into_owned();
        let (start, length) = allocatable.allocate(length, length, STRIPE_BYTES, 0)?;
        room.free.remove(start, length);
        Some(start)
    }

    /// Device extents of chunks removed in a transaction that is durable now. Old ones may begin where new ones may not.
    pub(crate) fn release(&mut self, freed: &[(DeviceId, u64, u64)]) {
        for (device, start, length) in freed {
            if let Some(room) = self.rooms.iter_mut().find(|room| room.item.device == *device) {
                let first = DEVICE_RESERVED_BYTES.max(*start);
                room.free
                    .add(first, start.saturating_add(*length).saturating_sub(first));
            }
        }
    }
}

/// Returns the length of a stripe as a change of a device's bytes.
pub(crate) fn stripe_bytes(length: u64) -> Result<i64, Defect> {
    i64::try_from(length).map_err(|_| Defect::new("a stripe is longer than a device").with("bytes", length))
}

impl Running {
    /// Reads devices and their extents from the chunk tree and the device tree.
    pub fn load_devices(&mut self) -> Result<()> {
        let chunk_tree = self.view(TreeId::CHUNK)?;
        let device_tree = self.view(TreeId::DEVICE)?;
        let mut rooms = Vec::new();
        let devices = Key::new(ObjectId::DEVICE_ITEMS, ItemType::DEV_ITEM, 0);
        let end = Key::new(ObjectId::DEVICE_ITEMS, ItemType::DEV_ITEM, u64::MAX);
        for found in chunk_tree.range(devices..=end, ReadAhead::None) {
            let found = found?;
            let item = DeviceItem::parse(&found.key(), found.data()).map_err(|error| Corruption::Item {
                tree: TreeId::CHUNK,
                error,
            })?;
            let mut free = FreeRanges::default();
            let usable = item.total_bytes.get().saturating_sub(DEVICE_RESERVED_BYTES);
            free.add(DEVICE_RESERVED_BYTES, usable);
            let kept = FreeRanges::default();
            rooms.push(DeviceSpaceLeft { item, free, kept });
        }
        for found in device_tree.range(Key::MIN..=Key::MAX, ReadAhead::Forward) {
            let found = found?;
            let key = found.key();
            if key.item_type != ItemType::DEV_EXTENT {
                continue;
            }
            let extent =
                DeviceExtent::parse(&key, found.data(), self.core.format.sector_bytes).map_err(|error| {
                    Corruption::Item {
                        tree: TreeId::DEVICE,
                        error,
                    }
                })?;
            let room = rooms
                .iter_mut()
                .find(|room| room.item.device.object_id() == key.objectid);
            if let Some(room) = room {
                room.free.remove(key.offset, extent.length.get());
            }
        }
        self.core.devices.rooms = rooms;
        Ok(())
    }

    /// Changes how many bytes of a device chunks use.
    pub fn change_device_used(&mut self, device: DeviceId, by: i64) -> Result<()> {
        let Some(room) = self
            .core
            .devices
            .rooms
            .iter_mut()
            .find(|room| room.item.device == device)
        else {
            return Ok(());
        };
        let (used, total) = (room.item.bytes_used, room.item.total_bytes);
        let now = used
            .get()
            .checked_add_signed(by)
            .filter(|now| *now <= total.get());
        room.item.bytes_used = ByteCount::new(now.ok_or(Corruption::DeviceUsedWrong {
            device,
            used,
            total,
            change: by,
        })?);
        let item = room.item;
        let key = Key::new(ObjectId::DEVICE_ITEMS, ItemType::DEV_ITEM, device.get());
        self.put(TreeId::CHUNK, &key, &item.to_bytes())
    }
}
