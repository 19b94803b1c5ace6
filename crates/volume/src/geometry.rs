//! How chunks of a profile lie on devices: what an allocator has to know to make one.
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
//! Every stripe takes an extent of the same length on its device; a chunk of `d` data stripes whose device extents are
//! of `x` bytes has `d · x` bytes. Pure functions; which devices have room is the allocator's affair.

use crate::layout::{Layout, LayoutError};
use crate::parity::MAX_RAID6_DATA_BLOCKS;
use buttress_exact::{Exact as _, u64_of};
use buttress_format::ByteCount;
use buttress_format::block_group::Profile;
use buttress_format::chunk::STRIPE_BYTES;

/// The shape of chunks of a profile with a number of stripes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StripeGeometry {
    profile: Profile,
    stripes: usize,
    data_stripes: usize,
}

impl StripeGeometry {
    /// Chunks of `stripes` stripes.
    ///
    /// # Errors
    /// [`LayoutError`] when the profile cannot have so many.
    pub fn new(profile: Profile, stripes: usize) -> Result<Self, LayoutError> {
        let row = ByteCount::new(STRIPE_BYTES);
        let layout = Layout::new(profile, row, stripes, sub_stripes(profile), STRIPE_BYTES)?;
        Ok(Self {
            profile,
            stripes,
            data_stripes: layout.data_columns(),
        })
    }

    /// Chunks that use as many of `devices` devices as the profile can; `None` when it needs more.
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

    /// The profile.
    #[must_use]
    pub const fn profile(&self) -> Profile {
        self.profile
    }

    /// How many stripes a chunk has.
    #[must_use]
    pub const fn stripes(&self) -> usize {
        self.stripes
    }

    /// How many different devices a chunk needs: one for each stripe, except that DUP has both on one.
    #[must_use]
    pub const fn devices(&self) -> usize {
        match self.profile {
            Profile::Dup => 1,
            _ => self.stripes,
        }
    }

    /// How many stripes' worth of data a chunk holds.
    #[must_use]
    pub const fn data_stripes(&self) -> usize {
        self.data_stripes
    }

    /// The chunk item's `sub_stripes`.
    #[must_use]
    pub const fn sub_stripes(&self) -> u16 {
        sub_stripes(self.profile)
    }

    /// The bytes of one full row: the unit in which RAID5 and RAID6 are written without reading, and in which striped
    /// profiles use all devices. One unit for profiles without rows.
    #[must_use]
    pub fn row_bytes(&self) -> ByteCount {
        ByteCount::new(u64_of(self.data_stripes).exact_mul(STRIPE_BYTES))
    }

    /// The length of a chunk whose device extents have this length; `None` past the address space.
    #[must_use]
    pub fn chunk_bytes(&self, device_extent: ByteCount) -> Option<ByteCount> {
        let bytes = device_extent
            .get()
            .checked_mul(ByteCount::of(self.data_stripes).get())?;
        Some(ByteCount::new(bytes))
    }

    /// How long the device extents of a chunk of this length are.
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

    /// How many bytes of device a chunk of this length takes in all.
    #[must_use]
    pub fn raw_bytes(&self, chunk: ByteCount) -> ByteCount {
        let extent = self.device_extent_bytes(chunk).get();
        // Clamp: the length of a chunk item from disk can be any number.
        ByteCount::new(extent.saturating_mul(u64_of(self.stripes)))
    }
}

/// What chunk items of a profile say: copies of each unit for RAID10, 1 otherwise.
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
        // Profile, devices; stripes, data stripes, devices used.
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
