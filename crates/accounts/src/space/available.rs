//! The available space of a mount as `df(1)` shows it.
//!
//! The available space is the free space in data block groups, plus what unallocated space would
//! give in chunks of the data profile. The estimate uses the devices with the most space first, as
//! many at once as the profile wants, until too few are left. The kernel reserves the first MiB of
//! each device, and counts in stripes of 64 KiB.
//!
//! Clamps: estimates from lengths on disk, which are only shown.

use super::Space;
use buttress_format::DEVICE_RESERVED_BYTES;
use buttress_format::{BlockGroupFlags, ByteCount, Profile};

/// The unit of chunk allocation on a device.
const STRIPE_BYTES: u64 = 64 << 10;

impl Space {
    /// Returns how much more data fits, as `statfs(2)` reports it.
    #[must_use]
    pub fn available(&self) -> ByteCount {
        let data = self
            .groups
            .iter()
            .filter(|group| group.flags.contains(BlockGroupFlags::DATA));
        let mut free = 0_u64;
        let mut profile = Profile::Single;
        for group in data {
            free = free.saturating_add(group.total.get().saturating_sub(group.used.get()));
            profile = group.flags.profile().unwrap_or(profile);
        }
        let spaces = self
            .devices
            .iter()
            .filter(|device| !device.is_missing())
            .map(|device| device.unallocated().get().saturating_sub(DEVICE_RESERVED_BYTES));
        ByteCount::new(free.saturating_add(Self::allocatable_bytes(profile, spaces)))
    }

    /// Returns the bytes that fit into new chunks of `profile`. `spaces` has the unallocated bytes
    /// of each device, without its first MiB.
    #[must_use]
    pub fn allocatable_bytes(profile: Profile, spaces: impl Iterator<Item = u64>) -> u64 {
        let per_device = if profile == Profile::Dup {
            STRIPE_BYTES.saturating_mul(2)
        } else {
            STRIPE_BYTES
        };
        let mut spaces: Vec<u64> = spaces
            .filter_map(|free| {
                let free = free.saturating_sub(free.checked_rem(STRIPE_BYTES).unwrap_or(0));
                (free > per_device).then_some(free)
            })
            .collect();
        spaces.sort_unstable_by(|a, b| b.cmp(a));
        let mut width = match profile {
            Profile::Raid0 => spaces.len(),
            Profile::Raid1 => 2,
            Profile::Raid1C3 => 3,
            Profile::Raid1C4 | Profile::Raid10 => 4,
            Profile::Single | Profile::Dup | Profile::Raid5 | Profile::Raid6 => 1,
        };
        let least = usize::from(profile.min_devices()).max(1);
        let mut sum = 0_u64;
        // The smallest device limits how far all devices of a chunk can be filled.
        while spaces.len() >= least {
            width = width.min(spaces.len());
            let Some(smallest) = spaces.last().copied() else {
                break;
            };
            if smallest >= per_device {
                let stripes = ByteCount::of(width).get();
                sum = sum.saturating_add(smallest.saturating_mul(stripes));
                for space in spaces.iter_mut().rev().take(width) {
                    *space = space.saturating_sub(smallest);
                }
            }
            spaces.pop();
        }
        // Parity does not reduce the shown free space, because the kernel divides by copies only.
        sum.checked_div(u64::from(profile.copies().max(1))).unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::space::{DeviceSpace, GroupSpace};
    use buttress_format::{DeviceId, Uuid};

    fn space(profile: Profile, devices_mib: &[u64]) -> Space {
        let mib = |count: u64| ByteCount::new(count << 20);
        let flags = BlockGroupFlags::DATA | profile.flag();
        Space {
            groups: vec![GroupSpace {
                flags,
                block_groups: 1,
                total: mib(8),
                used: mib(5),
                raw: mib(8),
            }],
            devices: devices_mib
                .iter()
                .zip(1..)
                .map(|(size, id)| DeviceSpace {
                    id: DeviceId::new(id),
                    uuid: Uuid::nil(),
                    name: None,
                    size: mib(*size),
                    device_bytes: Some(mib(*size)),
                    allocated: Vec::new(),
                })
                .collect(),
            global_reserve: ByteCount::ZERO,
            failures: Vec::new(),
        }
    }

    #[test]
    fn devices_are_filled_as_the_profile_wants() {
        let mib = |profile, devices: &[u64]| space(profile, devices).available().get() >> 20;
        assert_eq!(mib(Profile::Single, &[424]), 3 + 423);
        assert_eq!(mib(Profile::Single, &[101, 201]), 3 + 100 + 200);
        assert_eq!(mib(Profile::Raid1, &[101, 201]), 3 + 100);
        assert_eq!(mib(Profile::Raid1, &[101, 201, 301]), 3 + 200);
        assert_eq!(mib(Profile::Raid1, &[101]), 3);
        assert_eq!(mib(Profile::Raid0, &[101, 201]), 3 + 300);
        assert_eq!(mib(Profile::Dup, &[201]), 3 + 100);
        assert_eq!(mib(Profile::Single, &[1]), 3);
    }
}
