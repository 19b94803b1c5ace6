//! The geometry of chunks: how a profile places stripes on devices, for the allocator that makes
//! chunks.
//!
//! | profile | stripes on `n` devices | data stripes |
//! |---|---|---|
//! | single | 1 | 1 |
//! | DUP | 2, on one device | 1 |
//! | RAID1, RAID1C3, RAID1C4 | 2, 3, 4 | 1 |
//! | RAID0 | `n` | `n` |
//! | RAID10 | `n` rounded down to even | half of them |
//! | RAID5, RAID6 | `n` | all but one, but two |
//!
//! Every stripe takes a device extent of the same length. A chunk of `d` data stripes with device
//! extents of `x` bytes has `d · x` bytes. All functions of this module are pure; the allocator
//! chooses devices with free space.

use crate::layout::{Layout, LayoutError};
use crate::parity::MAX_RAID6_DATA_BLOCKS;
use buttress_exact::{Exact as _, u64_of};
use buttress_format::ByteCount;
use buttress_format::block_group::Profile;
use buttress_format::chunk::STRIPE_BYTES;

/// The geometry of a chunk: its profile and its number of stripes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StripeGeometry {
    profile: Profile,
    stripes: usize,
    data_stripes: usize,
}

impl StripeGeometry {
    /// Makes the geometry of chunks with `stripes` stripes.
    ///
    /// # Errors
    /// Returns [`LayoutError`] if the profile does not allow this number.
    pub fn new(profile: Profile, stripes: usize) -> Result<Self, LayoutError> {
        let row = ByteCount::new(STRIPE_BYTES);
        let layout = Layout::new(profile, row, stripes, sub_stripes(profile), STRIPE_BYTES)?;
        Ok(Self {
            profile,
            stripes,
            data_stripes: layout.data_columns(),
        })
    }

    /// Makes the geometry of chunks that use as many of `devices` devices as the profile can.
    /// Returns `None` if the profile needs more devices.
    #[must_use]
    pub fn widest(profile: Profile, devices: usize) -> Option<Self> {
        if devices < usize::from(profile.min_devices()) {
            return None;
        }
        let stripes = match (profile, profile.max_stripes()) {
            (_, Some(fixed)) => usize::from(fixed),
            (Profile::Raid10, None) => devices.exact_sub(devices & 1),
            (Profile::Raid6, None) => devices.min(MAX_RAID6_DATA_BLOCKS + 2),
            (_, None) => devices,
        };
        Self::new(profile, stripes).ok()
    }

    /// Returns the profile.
    #[must_use]
    pub const fn profile(&self) -> Profile {
        self.profile
    }

    /// Returns the number of stripes of a chunk.
    #[must_use]
    pub const fn stripes(&self) -> usize {
        self.stripes
    }

    /// Returns the number of different devices that a chunk needs: one for each stripe. DUP has
    /// both stripes on one device.
    #[must_use]
    pub const fn devices(&self) -> usize {
        match self.profile {
            Profile::Dup => 1,
            _ => self.stripes,
        }
    }

    /// Returns the number of stripes of data that a chunk holds.
    #[must_use]
    pub const fn data_stripes(&self) -> usize {
        self.data_stripes
    }

    /// Returns the chunk item's `sub_stripes`.
    #[must_use]
    pub const fn sub_stripes(&self) -> u16 {
        sub_stripes(self.profile)
    }

    /// Returns the bytes of one full row. RAID5 and RAID6 write full rows without reading, and
    /// striped profiles use all devices for a full row. For profiles without rows, it is one stripe
    /// unit.
    #[must_use]
    pub fn row_bytes(&self) -> ByteCount {
        ByteCount::new(u64_of(self.data_stripes).exact_mul(STRIPE_BYTES))
    }

    /// Returns the length of a chunk whose device extents have this length. Returns `None` if that
    /// length exceeds the address space.
    #[must_use]
    pub fn chunk_bytes(&self, device_extent: ByteCount) -> Option<ByteCount> {
        let bytes = device_extent
            .get()
            .checked_mul(ByteCount::of(self.data_stripes).get())?;
        Some(ByteCount::new(bytes))
    }

    /// Returns the length of the device extents of a chunk of this length.
    #[must_use]
    pub fn device_extent_bytes(&self, chunk: ByteCount) -> ByteCount {
        let layout = Layout::new(
            self.profile,
            chunk,
            self.stripes,
            self.sub_stripes(),
            STRIPE_BYTES,
        );
        layout.map_or(ByteCount::ZERO, |layout| layout.device_extent_bytes())
    }

    /// Returns the bytes on all devices that a chunk of this length takes.
    #[must_use]
    pub fn raw_bytes(&self, chunk: ByteCount) -> ByteCount {
        let extent = self.device_extent_bytes(chunk).get();
        // Clamp: the length in a chunk item from disk can be any number.
        ByteCount::new(extent.saturating_mul(u64_of(self.stripes)))
    }
}

/// Returns `sub_stripes` of the profile's chunk items: copies of each unit for RAID10, 1 otherwise.
const fn sub_stripes(profile: Profile) -> u16 {
    match profile {
        Profile::Raid10 => 2,
        _ => 1,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shapes_of_all_profiles() {
        // The columns of this table are profile, devices; stripes, data stripes, devices used.
        let table = [
            (Profile::Single, 3, Some((1, 1, 1))),
            (Profile::Dup, 1, Some((2, 1, 1))),
            (Profile::Dup, 3, Some((2, 1, 1))),
            (Profile::Raid0, 1, Some((1, 1, 1))),
            (Profile::Raid0, 5, Some((5, 5, 5))),
            (Profile::Raid1, 1, None),
            (Profile::Raid1, 5, Some((2, 1, 2))),
            (Profile::Raid1C3, 2, None),
            (Profile::Raid1C3, 3, Some((3, 1, 3))),
            (Profile::Raid1C4, 4, Some((4, 1, 4))),
            (Profile::Raid10, 1, None),
            (Profile::Raid10, 2, Some((2, 1, 2))),
            (Profile::Raid10, 5, Some((4, 2, 4))),
            (Profile::Raid5, 2, Some((2, 1, 2))),
            (Profile::Raid5, 4, Some((4, 3, 4))),
            (Profile::Raid6, 2, None),
            (Profile::Raid6, 4, Some((4, 2, 4))),
            (Profile::Raid6, 300, Some((257, 255, 257))),
        ];
        for (profile, devices, expected) in table {
            let geometry = StripeGeometry::widest(profile, devices);
            let found = geometry.map(|shape| (shape.stripes(), shape.data_stripes(), shape.devices()));
            assert_eq!(found, expected, "{profile} on {devices}");
        }
    }

    #[test]
    fn lengths_of_chunks_and_device_extents_fit_each_other() {
        for profile in Profile::ALL {
            let shape = StripeGeometry::widest(profile, 6).unwrap();
            let extent = ByteCount::new(7 * STRIPE_BYTES);
            let chunk = shape.chunk_bytes(extent).unwrap();
            assert_eq!(shape.device_extent_bytes(chunk), extent, "{profile}");
            assert_eq!(
                shape.raw_bytes(chunk).get(),
                extent.get() * shape.stripes() as u64,
                "{profile}"
            );
            assert_eq!(chunk.get() % shape.row_bytes().get(), 0, "{profile}");
        }
    }
}
