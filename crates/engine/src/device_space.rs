//! The devices of a volume, and the ranges of each device that belong to no chunk.
//!
//! Invariants:
//! - Unallocated ranges of a device never overlap device extents, and never begin in its first MiB.
//! - `bytes_used` of a device item is always the sum of its device extents.

use crate::free_ranges::FreeRanges;
use buttress_exact::Exact as _;
use buttress_format::{DEVICE_RESERVED_BYTES, DeviceId, DeviceItem, STRIPE_BYTES, Uuid};
use buttress_fs::error::{Defect, Result};
use buttress_volume::DeviceErrors;
use std::borrow::Cow;
use std::collections::BTreeMap;

/// A device and the ranges of it that are unallocated.
#[derive(Debug)]
pub(crate) struct DeviceSpaceLeft {
    pub item: DeviceItem,
    /// Ranges without a device extent.
    pub free: FreeRanges,
    /// Ranges of a returning device that new chunks must not use: ranges of its own state, and the
    /// new places of moved stripes.
    pub kept: FreeRanges,
    /// While a part of the device is being emptied, the byte from which on the device gets no new
    /// chunks.
    pub chunks_end: Option<u64>,
}

impl DeviceSpaceLeft {
    /// Returns the device ranges that new chunks may use.
    pub(crate) fn allocatable(&self) -> Cow<'_, FreeRanges> {
        if self.kept.total_bytes() == 0 && self.chunks_end.is_none() {
            return Cow::Borrowed(&self.free);
        }
        let mut free = self.free.clone();
        if let Some(end) = self
            .chunks_end
            .filter(|_| !buttress_faults::on("chunk-on-emptied-device"))
        {
            free.remove(end, u64::MAX.exact_sub(end));
        }
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
    /// Device extents of chunks that the running transaction removed.
    pub freed: Vec<(DeviceId, u64, u64)>,
    /// The error counts of devices that the device statistics already record.
    pub recorded: BTreeMap<Uuid, DeviceErrors>,
    /// Devices that the next commit leaves out.
    pub leaving: Vec<Uuid>,
}

impl Devices {
    pub(crate) fn total_bytes(&self) -> u64 {
        self.rooms
            .iter()
            .fold(0, |sum, room| sum.saturating_add(room.item.total_bytes.get()))
    }

    /// The device with this id.
    pub(crate) fn room_mut(&mut self, device: DeviceId) -> Option<&mut DeviceSpaceLeft> {
        self.rooms.iter_mut().find(|room| room.item.device == device)
    }

    /// Allocates `length` bytes on a device. Returns the offset of the range, or `None` if the
    /// device has no free range of this length.
    pub(crate) fn take(&mut self, device: DeviceId, length: u64) -> Option<u64> {
        let mut rooms = self.rooms.iter_mut();
        let room = rooms.find(|room| room.item.device == device)?;
        let mut allocatable = room.allocatable().into_owned();
        let (start, length) = allocatable.allocate(length, length, STRIPE_BYTES, 0)?;
        room.free.remove(start, length);
        Some(start)
    }

    /// Allocates a range of a device. Returns false if a part of the range is not free.
    pub(crate) fn take_at(&mut self, device: DeviceId, start: u64, length: u64) -> bool {
        let Some(room) = self.room_mut(device) else {
            return false;
        };
        let is_free =
            room.free.overlap_bytes(start, length) == length && room.kept.overlap_bytes(start, length) == 0;
        if is_free {
            room.free.remove(start, length);
        }
        is_free
    }

    /// Frees device extents of chunks whose removal is durable. A device extent from older versions
    /// may begin where new extents must not.
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

/// Returns the length of a stripe as a signed change of a device's used bytes.
pub(crate) fn stripe_bytes(length: u64) -> Result<i64, Defect> {
    i64::try_from(length).map_err(|_| Defect::new("a stripe is longer than a device").with("bytes", length))
}
