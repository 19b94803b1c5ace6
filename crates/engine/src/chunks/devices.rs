//! Device items: loaded at opening, and updated when chunks are made or removed.

use crate::device_space::DeviceSpaceLeft;
use crate::free_ranges::FreeRanges;
use crate::running_parts::DeviceItems;
use buttress_format::{
    ByteCount, DEVICE_RESERVED_BYTES, DeviceExtent, DeviceId, DeviceItem, ItemType, Key, ObjectId, TreeId,
};
use buttress_fs::error::{Corruption, Result};
use buttress_tree::ReadAhead;

impl DeviceItems<'_> {
    /// Loads the list of devices and device extents from the chunk tree and the device tree.
    pub fn load(&mut self) -> Result<()> {
        let chunk_tree = self.running.view(TreeId::CHUNK)?;
        let device_tree = self.running.view(TreeId::DEVICE)?;
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
            rooms.push(DeviceSpaceLeft {
                item,
                free,
                kept,
                chunks_end: None,
            });
        }
        for found in device_tree.range(Key::MIN..=Key::MAX, ReadAhead::Forward) {
            let found = found?;
            let key = found.key();
            if key.item_type != ItemType::DEV_EXTENT {
                continue;
            }
            let extent = DeviceExtent::parse(&key, found.data(), self.running.core.format.sector_bytes)
                .map_err(|error| Corruption::Item {
                    tree: TreeId::DEVICE,
                    error,
                })?;
            let room = rooms
                .iter_mut()
                .find(|room| room.item.device.object_id() == key.objectid);
            if let Some(room) = room {
                room.free.remove(key.offset, extent.length.get());
            }
        }
        self.running.core.devices.rooms = rooms;
        Ok(())
    }

    /// Changes how many bytes of a device chunks use.
    pub fn change_used(&mut self, device: DeviceId, by: i64) -> Result<()> {
        let Some(room) = self
            .running
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
        self.running.put(TreeId::CHUNK, &key, &item.to_bytes())
    }
}
