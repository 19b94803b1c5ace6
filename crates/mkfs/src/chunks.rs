//! The placement of a new volume's first chunks.
//!
//! The places equal those of mkfs.btrfs, which makes a small volume on the first device and then
//! lets it grow:
//!
//! 1. on the first device, from 1 MiB on, single: a system chunk of 4 MiB, a metadata chunk and
//!    (unless groups are mixed) a data chunk of 8 MiB each, or a tenth of the device if that is
//!    less;
//! 2. if the metadata profile is not single: a system chunk and a metadata chunk of that profile.
//!    If the data profile is not single: a data chunk;
//! 3. of the first chunks, only those with the requested profile remain.
//!
//! A chunk of step 2 takes the last devices with enough space, in id order, and from each an extent
//! of
//!
//! | chunk | at first | whole chunk at most | at least |
//! |---|---|---|---|
//! | system | 8 MiB | 16 MiB | 1 MiB |
//! | data, or mixed | 1 GiB | 10 GiB | 64 MiB |
//! | metadata | 256 MiB; 1 GiB on volumes larger than 50 GiB | the same | 32 MiB |
//!
//! A chunk is also never larger than a tenth of the volume. If a chunk exceeds the limit, it is cut
//! to the limit, which is divided over all its stripes. If the devices have less space than the
//! limit, the chunk takes all of it. A chunk skips devices whose free space is below the minimum.
//! All lengths are multiples of 64 KiB.

use super::device_id;
use super::options::Settings;
use buttress_format::DEVICE_RESERVED_BYTES;
use buttress_format::{
    BlockGroupFlags, ByteCount, Chunk, Logical, Physical, Profile, STRIPE_BYTES, Stripe, TreeId, Uuid,
};
use buttress_volume::StripeGeometry;
use std::cmp::Reverse;

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;

/// The first address of chunks on a device. Boot loaders and the superblock are located below this
/// address.
const FIRST_PHYSICAL: u64 = DEVICE_RESERVED_BYTES;

/// A chunk of the new volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlannedChunk {
    /// The chunk's logical address.
    pub logical: Logical,
    /// The chunk's type and profile.
    pub flags: BlockGroupFlags,
    /// The chunk's length.
    pub length: ByteCount,
    /// The length of each of its device extents.
    pub device_extent: ByteCount,
    /// The chunk's stripes: the index of the device, and the address on it.
    pub stripes: Vec<(usize, Physical)>,
    /// True for the system chunk of the first step, which mkfs.btrfs describes differently.
    pub(super) first_system: bool,
}

impl PlannedChunk {
    /// Makes a chunk in the form of all chunks of mkfs.btrfs except the first one.
    #[must_use]
    pub const fn new(
        logical: Logical,
        flags: BlockGroupFlags,
        length: ByteCount,
        device_extent: ByteCount,
        stripes: Vec<(usize, Physical)>,
    ) -> Self {
        Self {
            logical,
            flags,
            length,
            device_extent,
            stripes,
            first_system: false,
        }
    }

    /// Returns the chunk's profile.
    #[must_use]
    pub fn profile(&self) -> Profile {
        self.flags.profile().unwrap_or(Profile::Single)
    }

    /// Returns the chunk item. `uuids` are the device uuids, by index.
    #[must_use]
    pub fn item(&self, uuids: &[Uuid], sector_bytes: u32) -> Chunk {
        let stripes = self.stripes.iter().map(|(device, physical)| Stripe {
            device: device_id(*device),
            physical: *physical,
            device_uuid: uuids.get(*device).copied().unwrap_or_default(),
        });
        let unit = u32::try_from(STRIPE_BYTES).unwrap_or(u32::MAX);
        let (alignment, sub_stripes) = match (self.first_system, self.profile()) {
            (true, _) => (sector_bytes, 0),
            (false, Profile::Raid10) => (unit, 2),
            (false, _) => (unit, 1),
        };
        Chunk {
            length: self.length,
            owner: TreeId::EXTENT,
            stripe_bytes: STRIPE_BYTES,
            profile: self.flags,
            io_align: alignment,
            io_width: alignment,
            sector_bytes,
            sub_stripes,
            stripes: stripes.collect(),
        }
    }
}

/// The kind of chunk that the layout places.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    System,
    Metadata,
    Data,
    Mixed,
}

impl Kind {
    const fn flags(self) -> BlockGroupFlags {
        match self {
            Self::System => BlockGroupFlags::SYSTEM,
            Self::Metadata => BlockGroupFlags::METADATA,
            Self::Data => BlockGroupFlags::DATA,
            Self::Mixed => BlockGroupFlags::DATA.union(BlockGroupFlags::METADATA),
        }
    }

    /// Returns the initial extent, the maximum for a chunk, and the minimum for an extent.
    const fn limits(self, volume_bytes: u64) -> (u64, u64, u64) {
        match self {
            Self::System => (8 * MIB, 16 * MIB, MIB),
            Self::Data | Self::Mixed => (GIB, 10 * GIB, 64 * MIB),
            Self::Metadata if volume_bytes > 50 * GIB => (GIB, GIB, 32 * MIB),
            Self::Metadata => (256 * MIB, 256 * MIB, 32 * MIB),
        }
    }
}

/// The state of placing chunks one after another.
struct Planner {
    sizes: Vec<u64>,
    /// The first free address of each device.
    next_physical: Vec<u64>,
    next_logical: u64,
}

/// Places all chunks, in address order. `sizes` are the device sizes in bytes.
///
/// # Errors
/// Returns the index of a device that has no space.
pub(super) fn plan(sizes: &[u64], settings: &Settings) -> Result<Vec<PlannedChunk>, usize> {
    let mut planner = Planner {
        sizes: sizes.to_vec(),
        next_physical: vec![FIRST_PHYSICAL; sizes.len()],
        next_logical: FIRST_PHYSICAL,
    };
    let trees = if settings.mixed {
        Kind::Mixed
    } else {
        Kind::Metadata
    };
    let mut chunks = vec![(planner.first(Kind::System, 4 * MIB)?, settings.metadata)];
    chunks.push((planner.first(trees, planner.small())?, settings.metadata));
    if !settings.mixed {
        chunks.push((planner.first(Kind::Data, planner.small())?, settings.data));
    }
    chunks.retain(|(_, wanted)| *wanted == Profile::Single);
    let mut chunks: Vec<PlannedChunk> = chunks.into_iter().map(|(chunk, _)| chunk).collect();
    if settings.metadata != Profile::Single {
        chunks.push(planner.chunk(Kind::System, settings.metadata)?);
        chunks.push(planner.chunk(trees, settings.metadata)?);
    }
    if settings.data != Profile::Single && !settings.mixed {
        chunks.push(planner.chunk(Kind::Data, settings.data)?);
    }
    chunks.sort_by_key(|chunk| chunk.logical);
    Ok(chunks)
}

/// Returns the minimum size that each of `devices` devices must have.
pub(super) fn least_bytes(devices: usize, settings: &Settings) -> ByteCount {
    least_bytes_where(devices, settings, |_| true)
}

/// Returns the minimum device size with which a file can be written, by this program and by Linux.
/// Both programs reserve space for the nodes that an operation changes in its worst case. The
/// numbers were measured with nodes of 4, 16 and 64 KiB.
pub(super) fn least_bytes_for_a_file(devices: usize, settings: &Settings) -> ByteCount {
    const NODES: u64 = 100;
    const MORE_BYTES: u64 = 768 << 10;
    let wanted = NODES
        .saturating_mul(u64::from(settings.node_bytes))
        .saturating_add(MORE_BYTES);
    least_bytes_where(devices, settings, |chunks| {
        let of_trees = |chunk: &&PlannedChunk| chunk.flags.contains(BlockGroupFlags::METADATA);
        let bytes = chunks.iter().filter(of_trees).map(|chunk| chunk.length.get());
        bytes.fold(0, u64::saturating_add) >= wanted
    })
}

fn least_bytes_where(
    devices: usize,
    settings: &Settings,
    is_enough: impl Fn(&[PlannedChunk]) -> bool,
) -> ByteCount {
    let sector_bytes = u64::from(settings.sector_bytes).max(1);
    let fits = |sectors: u64| {
        plan(&vec![sectors.saturating_mul(sector_bytes); devices], settings)
            .is_ok_and(|chunks| is_enough(&chunks))
    };
    // The search starts from a bound on the least extents that holds for all profiles.
    let (mut low, mut high) = (0, 1 << 20);
    while !fits(high) && high < 1 << 40 {
        high = high.saturating_mul(2);
    }
    while high.saturating_sub(low) > 1 {
        let middle = low.midpoint(high);
        if fits(middle) {
            high = middle;
        } else {
            low = middle;
        }
    }
    ByteCount::new(high.saturating_mul(sector_bytes))
}

const fn align(bytes: u64) -> u64 {
    bytes & !(STRIPE_BYTES - 1)
}

impl Planner {
    /// Returns the length of the first metadata and data chunks.
    fn small(&self) -> u64 {
        let first = self.sizes.first().copied().unwrap_or(0);
        align((8 * MIB).min(first / 10))
    }

    /// Places a single chunk on the first device.
    fn first(&mut self, kind: Kind, length: u64) -> Result<PlannedChunk, usize> {
        let mut chunk = self.place(kind, Profile::Single, &[0], length, length)?;
        chunk.first_system = kind == Kind::System;
        Ok(chunk)
    }

    /// Places a chunk of a profile other than single, as large as the rules and the devices' space
    /// allow.
    fn chunk(&mut self, kind: Kind, profile: Profile) -> Result<PlannedChunk, usize> {
        let volume_bytes = self
            .sizes
            .iter()
            .fold(0_u64, |sum, size| sum.saturating_add(*size));
        let (extent, most, least) = kind.limits(volume_bytes);
        let halved = u32::from(profile == Profile::Dup);
        let usable = |planner: &Self, device: usize| planner.room(device).wrapping_shr(halved);
        let mut rooms: Vec<u64> = (0..self.sizes.len()).map(|device| usable(self, device)).collect();
        rooms.sort_unstable_by_key(|room| Reverse(*room));
        let fullest = (0..self.sizes.len())
            .min_by_key(|device| self.room(*device))
            .unwrap_or(0);
        let candidates = rooms.iter().filter(|room| **room >= least).count();
        let geometry = StripeGeometry::widest(profile, candidates).ok_or(fullest)?;
        let most = most.min(volume_bytes / 10);
        let whole = |extent| {
            geometry
                .chunk_bytes(ByteCount::new(extent))
                .map_or(u64::MAX, ByteCount::get)
        };
        let extent = if whole(extent) > most {
            let shared = most.checked_div(ByteCount::of(geometry.stripes()).get());
            shared.unwrap_or(0).max(least)
        } else {
            extent
        };
        // At least the required number of devices has this much space.
        let most_room = rooms
            .get(geometry.devices().saturating_sub(1))
            .copied()
            .unwrap_or(0);
        let extent = align(extent.min(most_room));
        let with_room = (0..self.sizes.len())
            .rev()
            .filter(|device| usable(self, *device) >= extent);
        let mut devices: Vec<usize> = with_room.take(geometry.devices()).collect();
        devices.sort_unstable();
        let stripes: Vec<usize> = match profile {
            Profile::Dup => devices.iter().flat_map(|device| [*device; 2]).collect(),
            _ => devices,
        };
        self.place(kind, profile, &stripes, extent, whole(extent))
    }

    fn room(&self, device: usize) -> u64 {
        let size = self.sizes.get(device).copied().unwrap_or(0);
        size.saturating_sub(self.next_physical.get(device).copied().unwrap_or(u64::MAX))
    }

    /// Takes the next `extent` bytes of each device.
    fn place(
        &mut self,
        kind: Kind,
        profile: Profile,
        devices: &[usize],
        extent: u64,
        length: u64,
    ) -> Result<PlannedChunk, usize> {
        let mut stripes = Vec::with_capacity(devices.len());
        for device in devices {
            if extent == 0 || self.room(*device) < extent {
                return Err(*device);
            }
            if let Some(next) = self.next_physical.get_mut(*device) {
                stripes.push((*device, Physical::new(*next)));
                *next = next.saturating_add(extent);
            }
        }
        let logical = Logical::new(self.next_logical);
        self.next_logical = self.next_logical.saturating_add(length);
        Ok(PlannedChunk {
            logical,
            flags: kind.flags() | profile.flag(),
            length: ByteCount::new(length),
            device_extent: ByteCount::new(extent),
            stripes,
            first_system: false,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::Options;
    use super::*;

    type Seen = (u64, u64, Vec<(usize, u64)>);

    fn planned(size: u64, devices: usize, options: &Options) -> Vec<Seen> {
        let settings = Settings::new(options, devices).unwrap();
        let chunks = plan(&vec![size; devices], &settings).unwrap();
        let seen = |chunk: &PlannedChunk| {
            let stripes = chunk
                .stripes
                .iter()
                .map(|(device, at)| (*device + 1, at.get()))
                .collect();
            (chunk.logical.get(), chunk.length.get(), stripes)
        };
        chunks.iter().map(seen).collect()
    }

    fn profiles(data: Profile, metadata: Profile) -> Options {
        Options {
            data: Some(data),
            metadata: Some(metadata),
            ..Options::default()
        }
    }

    /// The expected values were observed with mkfs.btrfs 6.14.
    #[test]
    fn places_and_lengths_are_those_of_mkfs_btrfs() {
        let default = Options::default();
        assert_eq!(
            planned(1 << 30, 1, &default),
            [
                (13_631_488, 8_388_608, vec![(1, 13_631_488)]),
                (22_020_096, 8_388_608, vec![(1, 22_020_096), (1, 30_408_704)]),
                (30_408_704, 53_673_984, vec![(1, 38_797_312), (1, 92_471_296)]),
            ]
        );
        assert_eq!(planned(256 << 20, 1, &default)[2].1, 32 << 20);
        assert_eq!(planned(60 << 30, 1, &default)[2].1, 1 << 30);
        assert_eq!(
            planned(1 << 30, 3, &default)[1..],
            [
                (22_020_096, 8_388_608, vec![(2, 1_048_576), (3, 1_048_576)]),
                (30_408_704, 268_435_456, vec![(2, 9_437_184), (3, 9_437_184)]),
            ]
        );
        let raid10 = profiles(Profile::Raid0, Profile::Raid10);
        let chunks = planned(60 << 30, 6, &raid10);
        let lengths: Vec<_> = chunks.iter().map(|(at, length, _)| (*at, *length)).collect();
        assert_eq!(
            lengths,
            [
                (22_020_096, 8_257_536),
                (30_277_632, 536_739_840),
                (567_017_472, 6 << 30)
            ]
        );
        assert_eq!(chunks[2].2[..2], [(1, 203_685_888), (2, 182_714_368)]);
        let raid5 = planned(2 << 30, 3, &profiles(Profile::Raid5, Profile::Raid5));
        assert_eq!(raid5[1].1, 178_913_280);
        assert_eq!(
            raid5[2],
            (
                217_710_592,
                429_391_872,
                vec![(1, 119_865_344), (2, 98_893_824), (3, 98_893_824)]
            )
        );
        let dup = planned(1 << 30, 3, &profiles(Profile::Dup, Profile::Raid1));
        assert_eq!(
            dup[2],
            (298_844_160, 161_021_952, vec![(3, 277_872_640), (3, 438_894_592)])
        );
        let single = planned(64 << 20, 1, &profiles(Profile::Single, Profile::Single));
        assert_eq!(
            single,
            [
                (1_048_576, 4_194_304, vec![(1, 1_048_576)]),
                (5_242_880, 6_684_672, vec![(1, 5_242_880)]),
                (11_927_552, 6_684_672, vec![(1, 11_927_552)]),
            ]
        );
    }

    #[test]
    fn the_least_size_works_and_a_sector_less_does_not() {
        for metadata in Profile::ALL {
            for data in Profile::ALL {
                for devices in [1, 2, 3, 4, 7] {
                    let Ok(settings) = Settings::new(&profiles(data, metadata), devices) else {
                        continue;
                    };
                    let least = least_bytes(devices, &settings).get();
                    assert!(least < 512 << 20, "{data} {metadata} {devices}: {least}");
                    assert!(plan(&vec![least; devices], &settings).is_ok());
                    assert!(plan(&vec![least - 4096; devices], &settings).is_err());
                    for more in [65536, 1 << 20, 77 << 20, 1 << 30, 200 << 30_u64] {
                        let chunks = plan(&vec![least + more; devices], &settings);
                        assert!(chunks.is_ok(), "{data} {metadata} {devices}: {least} + {more}");
                    }
                }
            }
        }
    }
}
