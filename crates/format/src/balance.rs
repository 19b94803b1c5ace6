//! The balance item: the parameters of a balance that runs or is paused. The item lies in the root
//! tree under `(BALANCE TEMPORARY_ITEM 0)`.
//!
//! Source: btrfs-balance(8), section "Filters"; on-disk format documentation, section "Balance
//! item".

use crate::block_group::{BlockGroupFlags, Profile};
use crate::item_error::ItemError;
use crate::key::{ItemType, Key};
use crate::raw;
use crate::units::{DeviceId, Logical, ObjectId, Physical};
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

bitflags::bitflags! {
    /// The kinds of block groups that a balance works on, and its options. Balance flags without a
    /// name are kept.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub struct BalanceFlags: u64 {
        /// Data block groups.
        const DATA = 1 << 0;
        /// System block groups.
        const SYSTEM = 1 << 1;
        /// The balance includes metadata block groups.
        const METADATA = 1 << 2;
        /// Conversions to a profile with less redundancy are accepted.
        const FORCE = 1 << 3;
        /// A paused balance that resumes.
        const RESUME = 1 << 4;
        const _ = !0;
    }
}

bitflags::bitflags! {
    /// The balance filters that are set. Bits without a name are kept.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub struct BalanceArgumentFlags: u64 {
        /// Filter block groups by profile.
        const PROFILES = 1 << 0;
        /// Filter block groups by fill, up to a percentage.
        const USAGE = 1 << 1;
        /// Filter block groups by device.
        const DEVID = 1 << 2;
        /// Filter block groups by a byte range on a device.
        const DRANGE = 1 << 3;
        /// Filter block groups by a range of logical addresses.
        const VRANGE = 1 << 4;
        /// Stop after a maximum number of block groups.
        const LIMIT = 1 << 5;
        /// Relocate between a minimum and a maximum number of block groups.
        const LIMIT_RANGE = 1 << 6;
        /// Filter block groups by the number of their stripes.
        const STRIPES_RANGE = 1 << 7;
        /// Convert block groups to another profile.
        const CONVERT = 1 << 8;
        /// Convert only block groups that do not have the target profile yet.
        const SOFT = 1 << 9;
        /// Filter block groups by fill, between two percentages.
        const USAGE_RANGE = 1 << 10;
        const _ = !0;
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RawBalanceArguments {
    profiles: U64,
    usage_min: U32,
    usage_max: U32,
    devid: U64,
    pstart: U64,
    pend: U64,
    vstart: U64,
    vend: U64,
    target: U64,
    flags: U64,
    limit_min: U32,
    limit_max: U32,
    stripes_min: U32,
    stripes_max: U32,
    unused: [U64; 6],
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RawBalanceItem {
    flags: U64,
    data: RawBalanceArguments,
    metadata: RawBalanceArguments,
    system: RawBalanceArguments,
    unused: [U64; 4],
}

const _: () = assert!(size_of::<RawBalanceArguments>() == 136);
const _: () = assert!(size_of::<RawBalanceItem>() == 448);

/// The balance filters for one type of block group. A filter applies only if its flag is set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BalanceArguments {
    /// The filters that are set.
    pub flags: BalanceArgumentFlags,
    /// The profiles that the filter selects. A bit of its own stands for the profile single.
    pub profiles: BlockGroupFlags,
    /// The minimum fill in per cent. With the flag `USAGE`, this field and the next form one
    /// number: the maximum fill.
    pub usage_min: u32,
    /// The maximum fill of selected block groups, in per cent.
    pub usage_max: u32,
    /// The device whose stripes the filter selects.
    pub device: DeviceId,
    /// The first byte of the selected range on the device.
    pub physical_start: Physical,
    /// The end of the selected range on the device, exclusive.
    pub physical_end: Physical,
    /// The first byte of the selected logical range.
    pub logical_start: Logical,
    /// The end of the selected logical range, exclusive.
    pub logical_end: Logical,
    /// The profile to which the balance converts.
    pub target: BlockGroupFlags,
    /// The minimum number of block groups. With the flag `LIMIT`, this field and the next form one
    /// number: the maximum.
    pub limit_min: u32,
    /// The maximum number of block groups.
    pub limit_max: u32,
    /// The minimum number of stripes.
    pub stripes_min: u32,
    /// The maximum number of stripes of a selected chunk.
    pub stripes_max: u32,
}

impl BalanceArguments {
    /// The absence of filters.
    pub const NONE: Self = Self {
        flags: BalanceArgumentFlags::empty(),
        profiles: BlockGroupFlags::empty(),
        usage_min: 0,
        usage_max: 0,
        device: DeviceId::new(0),
        physical_start: Physical::MIN,
        physical_end: Physical::MIN,
        logical_start: Logical::MIN,
        logical_end: Logical::MIN,
        target: BlockGroupFlags::empty(),
        limit_min: 0,
        limit_max: 0,
        stripes_min: 0,
        stripes_max: 0,
    };

    fn from_raw(raw: &RawBalanceArguments) -> Self {
        Self {
            flags: BalanceArgumentFlags::from_bits_retain(raw.flags.get()),
            profiles: BlockGroupFlags::from_bits_retain(raw.profiles.get()),
            usage_min: raw.usage_min.get(),
            usage_max: raw.usage_max.get(),
            device: DeviceId::new(raw.devid.get()),
            physical_start: Physical::new(raw.pstart.get()),
            physical_end: Physical::new(raw.pend.get()),
            logical_start: Logical::new(raw.vstart.get()),
            logical_end: Logical::new(raw.vend.get()),
            target: BlockGroupFlags::from_bits_retain(raw.target.get()),
            limit_min: raw.limit_min.get(),
            limit_max: raw.limit_max.get(),
            stripes_min: raw.stripes_min.get(),
            stripes_max: raw.stripes_max.get(),
        }
    }

    /// Sets the filter by maximum fill, in per cent.
    #[must_use]
    pub const fn with_usage(self, percent: u32) -> Self {
        Self {
            flags: self
                .flags
                .difference(BalanceArgumentFlags::USAGE_RANGE)
                .union(BalanceArgumentFlags::USAGE),
            usage_min: percent,
            usage_max: 0,
            ..self
        }
    }

    /// Sets the filter by maximum number of block groups.
    #[must_use]
    pub const fn with_limit(self, groups: u32) -> Self {
        Self {
            flags: self
                .flags
                .difference(BalanceArgumentFlags::LIMIT_RANGE)
                .union(BalanceArgumentFlags::LIMIT),
            limit_min: groups,
            limit_max: 0,
            ..self
        }
    }

    /// Sets the profile to which the balance converts.
    #[must_use]
    pub fn with_target(self, profile: Profile) -> Self {
        Self {
            flags: self.flags | BalanceArgumentFlags::CONVERT,
            target: profile.flag().profile_in_set(),
            ..self
        }
    }

    /// Returns the profile to which the balance converts, if the flag `CONVERT` is set and the
    /// target is a single valid profile.
    #[must_use]
    pub fn target_profile(&self) -> Option<Profile> {
        self.flags
            .contains(BalanceArgumentFlags::CONVERT)
            .then(|| self.target.only_profile_of_set())
            .flatten()
    }

    /// Returns the maximum fill in per cent, which applies if the flag `USAGE` is set.
    #[must_use]
    pub const fn usage(&self) -> u64 {
        whole(self.usage_min, self.usage_max)
    }

    /// Returns the maximum number of block groups, which applies if the flag `LIMIT` is set.
    #[must_use]
    pub const fn limit(&self) -> u64 {
        whole(self.limit_min, self.limit_max)
    }
}

/// Joins the two halves of a number that the item stores in two fields.
const fn whole(low: u32, high: u32) -> u64 {
    ((high as u64) << u32::BITS) | low as u64
}

/// The parameters of a balance: its options, and the filters for each type of block group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BalanceItem {
    /// The types of block groups, and the options.
    pub flags: BalanceFlags,
    /// Filters for data block groups.
    pub data: BalanceArguments,
    /// Filters for metadata block groups.
    pub metadata: BalanceArguments,
    /// Filters for system block groups.
    pub system: BalanceArguments,
}

impl BalanceItem {
    /// Parses the item of `(BALANCE TEMPORARY_ITEM 0)`.
    ///
    /// # Errors
    /// Fails if the balance item has a wrong size.
    pub fn parse(key: &Key, data: &[u8]) -> Result<Self, ItemError> {
        let raw = raw::exactly::<RawBalanceItem>(key, data)?;
        Ok(Self {
            flags: BalanceFlags::from_bits_retain(raw.flags.get()),
            data: BalanceArguments::from_raw(&raw.data),
            metadata: BalanceArguments::from_raw(&raw.metadata),
            system: BalanceArguments::from_raw(&raw.system),
        })
    }
}

impl BalanceArguments {
    fn to_raw(self) -> RawBalanceArguments {
        RawBalanceArguments {
            profiles: U64::new(self.profiles.bits()),
            usage_min: U32::new(self.usage_min),
            usage_max: U32::new(self.usage_max),
            devid: U64::new(self.device.get()),
            pstart: U64::new(self.physical_start.get()),
            pend: U64::new(self.physical_end.get()),
            vstart: U64::new(self.logical_start.get()),
            vend: U64::new(self.logical_end.get()),
            target: U64::new(self.target.bits()),
            flags: U64::new(self.flags.bits()),
            limit_min: U32::new(self.limit_min),
            limit_max: U32::new(self.limit_max),
            stripes_min: U32::new(self.stripes_min),
            stripes_max: U32::new(self.stripes_max),
            unused: [U64::ZERO; 6],
        }
    }
}

impl BalanceItem {
    /// `(BALANCE TEMPORARY_ITEM 0)`, in the root tree.
    pub const KEY: Key = Key::new(ObjectId::BALANCE, ItemType::TEMPORARY_ITEM, 0);

    /// Returns the item's bytes in their on-disk layout.
    #[must_use]
    pub fn to_bytes(self) -> [u8; size_of::<RawBalanceItem>()] {
        zerocopy::transmute!(RawBalanceItem {
            flags: U64::new(self.flags.bits()),
            data: self.data.to_raw(),
            metadata: self.metadata.to_raw(),
            system: self.system.to_raw(),
            unused: [U64::ZERO; 4],
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::item_error::ItemProblem;
    use crate::key::ItemType;
    use crate::units::ObjectId;

    #[test]
    fn fields_lie_where_they_should() {
        let key = Key::new(ObjectId::BALANCE, ItemType::TEMPORARY_ITEM, 0);
        let data: Vec<u8> = (1..=56_u64).flat_map(u64::to_le_bytes).collect();
        let item = BalanceItem::parse(&key, &data).unwrap();
        assert_eq!(item.flags.bits(), 1);
        assert_eq!(
            (
                item.data.profiles.bits(),
                item.data.usage(),
                item.data.device.get()
            ),
            (2, 3, 4)
        );
        assert_eq!(
            (item.data.target.bits(), item.data.flags.bits(), item.data.limit()),
            (9, 10, 11)
        );
        assert_eq!((item.data.stripes_min, item.data.stripes_max), (12, 0));
        assert_eq!(
            (item.metadata.profiles.bits(), item.system.profiles.bits()),
            (19, 36)
        );
        assert_eq!(
            BalanceItem::parse(&key, &data[1..]).unwrap_err().problem,
            ItemProblem::SizeWrong {
                size_bytes: 447,
                expected_bytes: 448
            }
        );
    }
}
