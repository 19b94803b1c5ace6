//! Device statistics: the counters of a device's faults. The item lies in the device tree under `(0
//! PERSISTENT_ITEM devid)`.
//!
//! Source: on-disk format documentation, section "Device statistics"; btrfs-device(8), "stats".

use crate::item_error::ItemError;
use crate::key::{ItemType, Key};
use crate::raw;
use crate::units::{DeviceId, ObjectId};
use zerocopy::little_endian::U64;

/// The number of failures of a device, by kind. Counters that an old volume does not have are zero.
/// Parsing ignores counters that a later version may add.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DeviceStatistics {
    /// The device, from the key.
    pub device: DeviceId,
    /// Failed writes.
    pub write_errors: u64,
    /// Failed reads.
    pub read_errors: u64,
    /// Failed flushes.
    pub flush_errors: u64,
    /// Blocks with a wrong checksum or content.
    pub corruption_errors: u64,
    /// Blocks of an older generation than expected.
    pub generation_errors: u64,
}

impl DeviceStatistics {
    /// Parses the counters of a `PERSISTENT_ITEM` with object id 0.
    ///
    /// # Errors
    /// Fails if the data is not a whole number of counters.
    pub fn parse(key: &Key, data: &[u8]) -> Result<Self, ItemError> {
        let counters = raw::row::<U64>(key, data)?;
        let at = |index: usize| counters.get(index).map_or(0, |counter| counter.get());
        Ok(Self {
            device: DeviceId::new(key.offset),
            write_errors: at(0),
            read_errors: at(1),
            flush_errors: at(2),
            corruption_errors: at(3),
            generation_errors: at(4),
        })
    }
}

impl DeviceStatistics {
    /// `(0 PERSISTENT_ITEM devid)`, in the device tree.
    #[must_use]
    pub const fn key(device: DeviceId) -> Key {
        Key::new(
            ObjectId::DEVICE_STATISTICS,
            ItemType::PERSISTENT_ITEM,
            device.get(),
        )
    }

    /// Returns the item's bytes in their on-disk layout: five counters.
    #[must_use]
    pub fn to_bytes(self) -> [u8; 40] {
        zerocopy::transmute!(
            [
                self.write_errors,
                self.read_errors,
                self.flush_errors,
                self.corruption_errors,
                self.generation_errors,
            ]
            .map(U64::new)
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::item_error::ItemProblem;
    use crate::key::ItemType;
    use crate::units::ObjectId;

    #[test]
    fn counters_lie_where_they_should() {
        let key = Key::new(ObjectId::DEVICE_STATISTICS, ItemType::PERSISTENT_ITEM, 3);
        let data: Vec<u8> = (1..=6_u64).flat_map(u64::to_le_bytes).collect();
        let all = DeviceStatistics::parse(&key, &data).unwrap();
        assert_eq!(
            (all.device.get(), all.write_errors, all.generation_errors),
            (3, 1, 5)
        );
        let few = DeviceStatistics::parse(&key, &data[..16]).unwrap();
        assert_eq!((few.read_errors, few.flush_errors), (2, 0));
        assert_eq!(
            DeviceStatistics::parse(&key, &data[..15]).unwrap_err().problem,
            ItemProblem::SizeNotMultiple {
                size_bytes: 15,
                unit_bytes: 8
            }
        );
    }
}
