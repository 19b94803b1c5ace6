//! The choice of profile, devices and size of a new chunk.
//!
//! The devices with the largest unallocated ranges come first in the choice. Sizes of new chunks
//! equal the kernel's. A device extent has at most 1 GiB for data, 256 MiB for metadata (1 GiB on
//! volumes over 50 GiB), and 32 MiB for system. A chunk of data has at most 10 GiB. A chunk never
//! has more than a tenth of the volume. Planning changes nothing; only allocating the planned
//! device extents does.
//!
//! Source: sizes from mkfs.btrfs(8) and btrfs(5).

use super::super::block_groups::Purpose;
use crate::device_space::DeviceSpaceLeft;
use crate::running_parts::ChunkPlanner;
use buttress_exact::{Exact as _, u64_of};
use buttress_format::{BlockGroupFlags, ByteCount, DeviceId, Profile, STRIPE_BYTES, Superblock, Uuid};

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;

/// The most devices in a chunk: its item must fit the smallest leaf.
const STRIPES_MAX: usize = 32;

/// The plan of a new chunk.
#[derive(Debug)]
pub(crate) struct Plan {
    pub profile: Profile,
    /// The device, offset and device uuid of each stripe.
    pub stripes: Vec<(DeviceId, u64, Uuid)>,
    pub stripe_length: u64,
    pub length: u64,
}

/// Returns how many stripes hold data, without copies and parity.
const fn data_stripes(profile: Profile, stripes: u64) -> u64 {
    match profile {
        Profile::Raid5 => stripes.saturating_sub(1),
        Profile::Raid6 => stripes.saturating_sub(2),
        Profile::Raid10 => stripes >> 1,
        Profile::Raid0 => stripes,
        Profile::Single | Profile::Dup | Profile::Raid1 | Profile::Raid1C3 | Profile::Raid1C4 => 1,
    }
}

/// Returns how many of the `available` devices a profile uses, and how many stripes it puts on
/// each.
fn device_count(profile: Profile, available: usize, stripes_max: usize) -> Option<(usize, usize)> {
    let available = available.min(STRIPES_MAX).min(stripes_max);
    let (wanted, each) = match profile {
        Profile::Single => (1, 1),
        Profile::Dup => (1, 2),
        Profile::Raid1 => (2, 1),
        Profile::Raid1C3 => (3, 1),
        Profile::Raid1C4 => (4, 1),
        Profile::Raid10 => (available & !1, 1),
        Profile::Raid0 | Profile::Raid5 | Profile::Raid6 => (available, 1),
    };
    let least = usize::from(profile.min_devices()).max(1);
    let is_possible = wanted >= least && wanted <= available && wanted.exact_mul(each) <= stripes_max;
    is_possible.then_some((wanted, each))
}

/// Returns the most redundant of some profiles.
pub(crate) fn most_redundant(profiles: impl Iterator<Item = Profile>) -> Option<Profile> {
    const ORDER: [Profile; 9] = [
        Profile::Raid1C4,
        Profile::Raid6,
        Profile::Raid1C3,
        Profile::Raid5,
        Profile::Raid10,
        Profile::Raid1,
        Profile::Dup,
        Profile::Raid0,
        Profile::Single,
    ];
    profiles.min_by_key(|profile| ORDER.iter().position(|other| other == profile))
}

impl ChunkPlanner<'_> {
    /// Returns the profile of new chunks for a purpose: the most redundant profile of its existing
    /// chunks.
    pub fn profile_for(&self, purpose: Purpose) -> (BlockGroupFlags, Profile) {
        let groups = || self.core.groups.iter().filter(|group| group.serves(purpose));
        let types = groups()
            .next()
            .map_or(purpose.flag(), |group| group.flags & BlockGroupFlags::TYPES);
        if let Some(target) = self.target_for(purpose, types) {
            return (types, target);
        }
        let profile = most_redundant(groups().filter_map(|group| group.flags.profile()));
        (types, profile.unwrap_or(Profile::Single))
    }

    /// Returns the profile that a conversion set for new chunks of this purpose. Mixed block groups
    /// have one target profile for data and metadata together.
    fn target_for(&self, purpose: Purpose, types: BlockGroupFlags) -> Option<Profile> {
        let targets = self.core.groups.targets();
        let is_mixed = types.contains(BlockGroupFlags::DATA | BlockGroupFlags::METADATA);
        match is_mixed {
            true => targets.data.or(targets.metadata),
            false => targets.of(purpose),
        }
    }

    /// Whether devices have space for another chunk.
    pub(in super::super) fn can_make(&self, purpose: Purpose) -> bool {
        self.plan(purpose).is_some()
    }

    /// Returns whether devices have unallocated space for `chunks` more chunks of the size of the
    /// next chunk. Returns false if no device has space for these chunks.
    pub(in super::super) fn has_space_for(&self, purpose: Purpose, chunks: u64) -> bool {
        self.plan(purpose).is_some_and(|plan| {
            let chunk_bytes = plan.stripe_length.exact_mul(u64_of(plan.stripes.len()));
            let rooms = self.core.devices.rooms.iter();
            let unallocated = rooms.map(|room| room.allocatable().total_bytes());
            unallocated.fold(0, u64::exact_add) >= chunk_bytes.exact_mul(chunks)
        })
    }

    /// Returns the most stripes of the next system chunk. The superblock has an array of all system
    /// chunks, of which `planned_bytes` are planned for others.
    pub(crate) fn system_stripes_max(&self, planned_bytes: usize) -> usize {
        // Clamp: what is planned may fill the array.
        let bytes = self.core.system_array_free_bytes().saturating_sub(planned_bytes);
        Superblock::system_chunk_stripes_max(bytes)
    }

    pub(crate) fn plan(&self, purpose: Purpose) -> Option<Plan> {
        self.plan_beside(purpose, 0)
    }

    /// Plans a chunk beside planned system chunks, which take `planned_bytes` of the superblock's
    /// array.
    pub(crate) fn plan_beside(&self, purpose: Purpose, planned_bytes: usize) -> Option<Plan> {
        let (_, profile) = self.profile_for(purpose);
        let total = self.core.devices.total_bytes();
        let (stripe_limit, chunk_limit) = match purpose {
            Purpose::Data => (GIB, 10 * GIB),
            Purpose::Metadata if total > 50 * GIB => (GIB, GIB),
            Purpose::Metadata => (256 * MIB, 256 * MIB),
            Purpose::System => (32 * MIB, 64 * MIB),
        };
        let tenth = total.checked_div(10).unwrap_or(0).max(16 * STRIPE_BYTES);
        let chunk_limit = chunk_limit.min(tenth);
        let mut rooms: Vec<(&DeviceSpaceLeft, u64, u64)> = self
            .core
            .devices
            .rooms
            .iter()
            .filter(|room| self.core.device_takes_chunks(room.item.uuid, profile))
            .map(|room| {
                let free = room.allocatable();
                (room, free.largest_bytes(), free.total_bytes())
            })
            .filter(|(_, largest, _)| *largest >= STRIPE_BYTES)
            .collect();
        rooms.sort_by_key(|(room, largest, total)| {
            (
                core::cmp::Reverse((*largest).min(stripe_limit)),
                core::cmp::Reverse(*total),
                room.item.device,
            )
        });
        let stripes_max = match purpose {
            Purpose::System => self.system_stripes_max(planned_bytes),
            Purpose::Data | Purpose::Metadata => STRIPES_MAX,
        };
        let (devices, each) = device_count(profile, rooms.len(), stripes_max)?;
        rooms.truncate(devices);
        let each_bytes = ByteCount::of(each).get();
        let smallest = rooms.iter().map(|(_, largest, _)| *largest).min()?;
        let stripes = ByteCount::of(devices.saturating_mul(each)).get();
        let columns = data_stripes(profile, stripes).max(1);
        let mut stripe_length = smallest.checked_div(each_bytes)?.min(stripe_limit);
        if stripe_length.saturating_mul(columns) > chunk_limit {
            stripe_length = chunk_limit.checked_div(columns)?;
        }
        stripe_length = stripe_length.saturating_sub(stripe_length.checked_rem(STRIPE_BYTES)?);
        if stripe_length == 0 {
            return None;
        }
        Some(Plan {
            profile,
            stripes: rooms
                .iter()
                .flat_map(|(room, ..)| core::iter::repeat_n((room.item.device, 0, room.item.uuid), each))
                .collect(),
            stripe_length,
            length: stripe_length.saturating_mul(columns),
        })
    }
}
