//! Raid stripe items: the locations of an extent's stripes, on volumes with the raid-stripe-tree
//! feature.
//!
//! In the raid stripe tree, the key is `(logical RAID_STRIPE length)`. The item holds a device and
//! an address, 16 bytes, for each copy that the chunk's profile requires. The item's addresses
//! replace the stripe addresses of the chunk for this extent.
//!
//! Source: btrfs-progs' documentation, "BTRFS RAID Stripe Tree Design", for the key and its
//! meaning. The items in that design also have an encoding and a length in each stripe, which the
//! final format does not have. The first kernels with this feature (6.7 to 6.10, for testing only)
//! put 8 bytes before the stripes. This module does not read the old form with these 8 bytes.

use crate::item_error::{ItemError, ItemProblem};
use crate::key::{ItemType, Key};
use crate::raw;
use crate::units::{ByteCount, DeviceId, Logical, ObjectId, Physical};
use zerocopy::little_endian::U64;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// The on-disk layout of one stripe.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct RawRaidStride {
    /// The device.
    pub devid: U64,
    /// The address on the device.
    pub physical: U64,
}

const _: () = assert!(size_of::<RawRaidStride>() == 16);

/// A stripe of an extent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RaidStride {
    /// The device.
    pub device: DeviceId,
    /// The first byte of the stripe on its device.
    pub physical: Physical,
}

/// The stripes that hold the logical range `[start, start + length)`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RaidStripeExtent {
    /// The first byte, from the key.
    pub start: Logical,
    /// The length of the range in bytes, from the key.
    pub length: ByteCount,
    /// The stripes, in the same order as in the chunk.
    pub stripes: Vec<RaidStride>,
}

impl RaidStripeExtent {
    /// Parses a `RAID_STRIPE`.
    ///
    /// # Errors
    /// Fails if the data is not whole stripes, or if the range is empty, not aligned or beyond
    /// 2^64.
    pub fn parse(key: &Key, data: &[u8], sector_bytes: u32) -> Result<Self, ItemError> {
        raw::require_aligned_objectid(key, sector_bytes)?;
        raw::require_aligned_offset(key, sector_bytes)?;
        if key.offset == 0 {
            return Err(ItemError::new(key, ItemProblem::OffsetZero));
        }
        raw::range_end(key, key.objectid.get(), key.offset)?;
        let stripes = raw::row::<RawRaidStride>(key, data)?
            .iter()
            .map(|raw| RaidStride {
                device: DeviceId::new(raw.devid.get()),
                physical: Physical::new(raw.physical.get()),
            })
            .collect();
        Ok(Self {
            start: Logical::new(key.objectid.get()),
            length: ByteCount::new(key.offset),
            stripes,
        })
    }

    /// The end of the range, exclusive.
    #[must_use]
    pub const fn end(&self) -> Logical {
        self.start.saturating_add(self.length)
    }
}

impl RaidStripeExtent {
    /// Returns the key `(start RAID_STRIPE length)`.
    #[must_use]
    pub const fn key(&self) -> Key {
        Key::new(
            ObjectId::new(self.start.get()),
            ItemType::RAID_STRIPE,
            self.length.get(),
        )
    }

    /// Returns the item's bytes in their on-disk layout.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let raw = |stripe: &RaidStride| RawRaidStride {
            devid: U64::new(stripe.device.get()),
            physical: U64::new(stripe.physical.get()),
        };
        self.stripes
            .iter()
            .flat_map(|stripe| raw(stripe).as_bytes().to_vec())
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::key::ItemType;
    use crate::units::ObjectId;

    #[test]
    fn stripes_are_read_and_checked() {
        let parse = |start: u64, length: u64, data: &[u8]| {
            let key = Key::new(ObjectId::new(start), ItemType::RAID_STRIPE, length);
            RaidStripeExtent::parse(&key, data, 4096).map_err(|error| error.problem)
        };
        let data: Vec<u8> = [1, 65536, 2, 131_072_u64]
            .into_iter()
            .flat_map(u64::to_le_bytes)
            .collect();
        let extent = parse(1 << 20, 8192, &data).unwrap();
        assert_eq!(extent.end().get(), (1 << 20) + 8192);
        assert_eq!(
            extent.stripes.last(),
            Some(&RaidStride {
                device: DeviceId::new(2),
                physical: Physical::new(131_072)
            })
        );
        let sector_bytes = 4096;
        let cases = [
            (
                parse(1, 4096, &data),
                ItemProblem::ObjectIdUnaligned {
                    objectid: 1,
                    sector_bytes,
                },
            ),
            (
                parse(0, 1, &data),
                ItemProblem::OffsetUnaligned {
                    offset: 1,
                    sector_bytes,
                },
            ),
            (parse(0, 0, &data), ItemProblem::OffsetZero),
            (
                parse(0, 4096, &[]),
                ItemProblem::SizeNotMultiple {
                    size_bytes: 0,
                    unit_bytes: 16,
                },
            ),
            (
                parse(0, 4096, &data[..31]),
                ItemProblem::SizeNotMultiple {
                    size_bytes: 31,
                    unit_bytes: 16,
                },
            ),
        ];
        for (found, expected) in cases {
            assert_eq!(found, Err(expected));
        }
    }
}
