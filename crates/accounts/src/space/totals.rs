//! The overall figures of `btrfs filesystem usage`.
//!
//! The free space is an estimate: unallocated space will become chunks of the data profile, or in
//! the worst case of the profile with the most copies. Less than [`WORTH_ALLOCATING`] unallocated
//! bytes do not count.
//!
//! Clamps: sums of lengths from disk, which are only shown. A hostile volume can make such sums
//! overflow.

use super::Space;
use buttress_format::{BlockGroupFlags, ByteCount};

/// Unallocated space below this is not expected to become a chunk.
const WORTH_ALLOCATING: u64 = 16 << 20;

/// The overall figures.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Totals {
    /// The bytes of all devices that the volume may use.
    pub device_size: ByteCount,
    /// The raw bytes of chunks, including copies and parity.
    pub allocated: ByteCount,
    /// The bytes that no chunk uses.
    pub unallocated: ByteCount,
    /// The size of missing devices.
    pub missing: ByteCount,
    /// The bytes by which devices exceed the size that the volume may use.
    pub slack: ByteCount,
    /// The raw bytes in use, including copies and parity.
    pub used: ByteCount,
    /// The raw bytes that the profile uses for one byte of data.
    pub data_ratio: f64,
    /// The raw bytes for one byte of metadata.
    pub metadata_ratio: f64,
    /// The estimated bytes of data that still fit, with the data profile.
    pub free_estimated: ByteCount,
    /// The bytes of data that still fit in the worst case.
    pub free_min: ByteCount,
    /// Whether data, metadata or system chunks have more than one profile.
    pub multiple_profiles: bool,
}

/// The sums over the block groups of one type.
#[derive(Clone, Copy, Default)]
struct Sum {
    total: u64,
    raw: u64,
    raw_used: u64,
    profiles: u32,
}

impl Sum {
    fn ratio(&self) -> f64 {
        if self.total == 0 {
            1.0
        } else {
            to_float(self.raw) / to_float(self.total)
        }
    }
}

#[expect(clippy::cast_precision_loss, reason = "ratios are printed with two digits")]
fn to_float(bytes: u64) -> f64 {
    bytes as f64
}

/// Returns bytes divided by a ratio. The ratio is at least one, or at least zero for corrupt
/// chunks.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "an estimate; the conversion saturates"
)]
fn divide(bytes: u64, ratio: f64) -> u64 {
    if ratio > 0.0 {
        (to_float(bytes) / ratio) as u64
    } else {
        bytes
    }
}

impl Space {
    /// Returns the sum of the block groups with all of `flags`.
    fn sum(&self, flags: BlockGroupFlags) -> Sum {
        let mut sum = Sum::default();
        for group in self.groups.iter().filter(|group| group.flags.intersects(flags)) {
            let (total, raw) = (group.total.get(), group.raw.get());
            let ratio = if total == 0 {
                1.0
            } else {
                to_float(raw) / to_float(total)
            };
            sum.total = sum.total.saturating_add(total);
            sum.raw = sum.raw.saturating_add(raw);
            sum.raw_used = sum.raw_used.saturating_add(raw_used(group.used.get(), ratio));
            sum.profiles = sum.profiles.saturating_add(1);
        }
        sum
    }

    /// Returns the overall figures.
    #[must_use]
    pub fn totals(&self) -> Totals {
        let all = self.sum(BlockGroupFlags::TYPES);
        let data = self.sum(BlockGroupFlags::DATA);
        let metadata = self.sum(BlockGroupFlags::METADATA);
        let system = self.sum(BlockGroupFlags::SYSTEM);
        let device_size = self
            .devices
            .iter()
            .fold(0_u64, |sum, device| sum.saturating_add(device.size.get()));
        let unallocated = device_size.saturating_sub(all.raw);
        let mut inside = divide(data.raw.saturating_sub(data.raw_used), data.ratio());
        let mixed = BlockGroupFlags::DATA | BlockGroupFlags::METADATA;
        if self.groups.iter().any(|group| group.flags.contains(mixed)) {
            // In mixed block groups, the global reserve is part of the free space for data.
            inside = inside.saturating_sub(self.global_reserve.get());
        }
        let worst = self
            .groups
            .iter()
            .filter_map(|group| Some((group.flags, group.flags.profile()?)))
            .map(|(flags, profile)| match profile.parity_stripes() {
                0 => f64::from(profile.copies()),
                // The space of parity depends on how many devices its chunks use.
                _ => self.sum(flags & BlockGroupFlags::TYPES).ratio(),
            })
            .fold(1.0, f64::max);
        let outside = if unallocated >= WORTH_ALLOCATING {
            unallocated
        } else {
            0
        };
        let missing = self.devices.iter().filter(|device| device.is_missing());
        Totals {
            device_size: ByteCount::new(device_size),
            allocated: ByteCount::new(all.raw),
            unallocated: ByteCount::new(unallocated),
            missing: missing.fold(ByteCount::ZERO, |sum, device| sum.saturating_add(device.size)),
            slack: self
                .devices
                .iter()
                .fold(ByteCount::ZERO, |sum, device| sum.saturating_add(device.slack())),
            used: ByteCount::new(all.raw_used),
            data_ratio: data.ratio(),
            metadata_ratio: metadata.ratio(),
            free_estimated: ByteCount::new(inside.saturating_add(divide(outside, data.ratio()))),
            free_min: ByteCount::new(inside.saturating_add(divide(outside, worst))),
            multiple_profiles: [data, metadata, system].iter().any(|sum| sum.profiles > 1),
        }
    }
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "an estimate for parity profiles; exact for whole copies up to 2^53 bytes"
)]
fn raw_used(used: u64, ratio: f64) -> u64 {
    (to_float(used) * ratio) as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::space::{DeviceSpace, GroupSpace};
    use buttress_format::{DeviceId, Uuid};

    #[test]
    fn free_space_is_reckoned_by_the_data_profile_and_by_the_worst() {
        let mib = |count: u64| ByteCount::new(count << 20);
        let group = |flags, total, used, copies| GroupSpace {
            flags,
            block_groups: 1,
            total: mib(total),
            used: mib(used),
            raw: mib(total * copies),
        };
        let space = Space {
            groups: vec![
                group(BlockGroupFlags::DATA, 100, 40, 1),
                group(BlockGroupFlags::METADATA | BlockGroupFlags::DUP, 50, 10, 2),
            ],
            devices: vec![DeviceSpace {
                id: DeviceId::new(1),
                uuid: Uuid::nil(),
                name: None,
                size: mib(1000),
                device_bytes: Some(mib(1001)),
                allocated: Vec::new(),
            }],
            global_reserve: ByteCount::ZERO,
            failures: Vec::new(),
        };
        let totals = space.totals();
        assert_eq!(
            (totals.allocated, totals.unallocated, totals.used),
            (mib(200), mib(800), mib(60))
        );
        assert_eq!((totals.free_estimated, totals.free_min), (mib(860), mib(460)));
        assert_eq!(
            (totals.slack, totals.missing, totals.multiple_profiles),
            (mib(1), mib(0), false)
        );
    }
}
