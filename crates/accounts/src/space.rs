//! The use of a volume's space: the figures of `btrfs filesystem df`, `usage` and `show`.
//!
//! The volume allocates space in chunks. Each chunk is a block group, whose item counts the bytes
//! in use. `df` prints these counts by type and profile. `usage` prints these counts for each
//! device, including copies and parity. Sizes of chunks are logical; *raw* sizes count every copy
//! and parity block.
//!
//! [`crate::back_references`] has the space and sharedness of single files. [`accounting`] has the
//! space of subvolumes, snapshots and directories.
//!
//! Source: on-disk format documentation, section "BLOCK_GROUP_ITEM"; manual page
//! btrfs-filesystem(8), `df` and `usage`, for what the figures mean.
//!
//! Clamps: sums of lengths from disk, which are only shown. A hostile volume can make such sums
//! overflow.

pub mod accounting;
mod available;
mod totals;

use buttress_format::{BlockGroupFlags, ByteCount, CompatRo, DeviceId, Profile, TreeId, Uuid};
use buttress_fs::BlockGroups;
use buttress_fs::error::{Error, Result};
use buttress_fs::filesystem::Filesystem;
use buttress_volume::MappedChunk;
use std::collections::BTreeMap;

pub use totals::Totals;

/// The space of one type and profile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GroupSpace {
    /// The type and the profile.
    pub flags: BlockGroupFlags,
    /// The number of block groups.
    pub block_groups: u64,
    /// The size of all these block groups.
    pub total: ByteCount,
    /// The bytes in use.
    pub used: ByteCount,
    /// The raw size of the block groups on the devices, including all copies and parity.
    pub raw: ByteCount,
}

/// The space of one device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceSpace {
    /// The device's id.
    pub id: DeviceId,
    /// The device's uuid.
    pub uuid: Uuid,
    /// The device's name, if the device is present.
    pub name: Option<String>,
    /// The bytes of the device that the volume may use, as the device item records.
    pub size: ByteCount,
    /// The real size of the device, if it is present.
    pub device_bytes: Option<ByteCount>,
    /// The raw bytes of chunks on the device, by type and profile.
    pub allocated: Vec<(BlockGroupFlags, ByteCount)>,
}

impl DeviceSpace {
    /// Returns the raw bytes of all chunks on the device.
    #[must_use]
    pub fn allocated_total(&self) -> ByteCount {
        self.allocated
            .iter()
            .fold(ByteCount::ZERO, |sum, (_, bytes)| sum.saturating_add(*bytes))
    }

    /// Returns the bytes of the device that no chunk uses.
    #[must_use]
    pub fn unallocated(&self) -> ByteCount {
        self.size
            .checked_sub(self.allocated_total())
            .unwrap_or(ByteCount::ZERO)
    }

    /// Returns by how many bytes the device exceeds the size that the volume may use.
    #[must_use]
    pub fn slack(&self) -> ByteCount {
        self.device_bytes
            .and_then(|bytes| bytes.checked_sub(self.size))
            .unwrap_or(ByteCount::ZERO)
    }

    /// Returns whether the device is missing.
    #[must_use]
    pub const fn is_missing(&self) -> bool {
        self.device_bytes.is_none()
    }
}

/// The use of a volume's space.
#[derive(Clone, Debug)]
pub struct Space {
    /// The space by type and profile, in the order of `btrfs filesystem df`.
    pub groups: Vec<GroupSpace>,
    /// The space by device, in the order of their ids.
    pub devices: Vec<DeviceSpace>,
    /// The global reserve of a mount, estimated from the state on disk.
    pub global_reserve: ByteCount,
    /// Errors of unreadable block groups, which count as unused.
    pub failures: Vec<Error>,
}

/// Returns the position of a type and profile in the order of `btrfs filesystem df`.
fn order_of(flags: BlockGroupFlags) -> (u8, u8) {
    let kind = match flags.type_name() {
        "Data" => 0,
        "System" => 1,
        "Metadata" => 2,
        _ => 3,
    };
    let profile = match flags.profile() {
        Some(Profile::Raid10) => 0,
        Some(Profile::Raid1) => 1,
        Some(Profile::Dup) => 2,
        Some(Profile::Raid0) => 3,
        Some(Profile::Single) => 4,
        Some(Profile::Raid5) => 5,
        Some(Profile::Raid6) => 6,
        Some(Profile::Raid1C3) => 7,
        Some(Profile::Raid1C4) => 8,
        None => 9,
    };
    (kind, profile)
}

/// Returns the flag bits by which `df` groups block groups.
fn kind_of(flags: BlockGroupFlags) -> BlockGroupFlags {
    flags & (BlockGroupFlags::TYPES | BlockGroupFlags::PROFILES)
}

/// Returns the raw bytes of a chunk on all devices.
fn raw_bytes(chunk: &MappedChunk) -> ByteCount {
    let stripe = chunk.layout().device_extent_bytes().get();
    let stripes = ByteCount::of(chunk.layout().stripe_count()).get();
    ByteCount::new(stripe.saturating_mul(stripes))
}

/// Returns the space of a volume by type and profile, and by device.
///
/// # Errors
/// Fails if the tree with the block groups is missing. Single unreadable block groups are listed.
pub(crate) fn space(filesystem: &Filesystem) -> Result<Space> {
    let block_groups = BlockGroups::of(filesystem)?;
    let mut failures = Vec::new();
    let mut groups: BTreeMap<(u8, u8, u64), GroupSpace> = BTreeMap::new();
    let mut allocated: BTreeMap<(DeviceId, u64), ByteCount> = BTreeMap::new();
    for chunk in filesystem.volume().chunk_map().chunks() {
        let flags = kind_of(chunk.flags());
        let used = match block_groups.get(chunk) {
            Ok(item) => item.used,
            Err(error) => {
                failures.push(error);
                ByteCount::ZERO
            }
        };
        let (kind, profile) = order_of(flags);
        let group = groups.entry((kind, profile, flags.bits())).or_insert(GroupSpace {
            flags,
            block_groups: 0,
            total: ByteCount::ZERO,
            used: ByteCount::ZERO,
            raw: ByteCount::ZERO,
        });
        group.block_groups = group.block_groups.saturating_add(1);
        group.total = group.total.saturating_add(chunk.length());
        group.used = group.used.saturating_add(used);
        group.raw = group.raw.saturating_add(raw_bytes(chunk));
        for stripe in &chunk.chunk().stripes {
            let bytes = allocated.entry((stripe.device, flags.bits())).or_default();
            *bytes = bytes.saturating_add(chunk.layout().device_extent_bytes());
        }
    }
    Ok(Space {
        groups: groups.into_values().collect(),
        devices: devices_space(filesystem, &allocated),
        global_reserve: global_reserve(filesystem),
        failures,
    })
}

fn devices_space(
    filesystem: &Filesystem,
    allocated: &BTreeMap<(DeviceId, u64), ByteCount>,
) -> Vec<DeviceSpace> {
    let mut devices: Vec<DeviceSpace> = filesystem
        .volume()
        .devices()
        .iter()
        .map(|slot| DeviceSpace {
            id: slot.id(),
            uuid: slot.uuid(),
            name: slot.device().map(|device| device.name().to_owned()),
            size: slot.item().map_or(ByteCount::ZERO, |item| item.total_bytes),
            device_bytes: slot.device().map(|device| ByteCount::new(device.size_bytes())),
            allocated: allocated
                .range((slot.id(), 0)..=(slot.id(), u64::MAX))
                .map(|((_, flags), bytes)| (BlockGroupFlags::from_bits_retain(*flags), *bytes))
                .collect(),
        })
        .collect();
    for device in &mut devices {
        device.allocated.sort_by_key(|(flags, _)| order_of(*flags));
    }
    devices.sort_by_key(|device| device.id);
    devices
}

/// Returns the global reserve of a mount: the size of the global trees, at least enough to delete a
/// file, and at most 512 MiB. Changing an item is estimated as two nodes on each of eight levels.
fn global_reserve(filesystem: &Filesystem) -> ByteCount {
    const LIMIT_BYTES: u64 = 512 << 20;
    const NODES_PER_ITEM: u64 = 16;
    const ITEMS_TO_UNLINK: u64 = 6;
    let superblock = filesystem.superblock();
    let mut trees = vec![TreeId::EXTENT, TreeId::CHECKSUM, TreeId::FREE_SPACE];
    if superblock.compat_ro.contains(CompatRo::BLOCK_GROUP_TREE) {
        trees.push(TreeId::BLOCK_GROUP);
    }
    trees.push(TreeId::RAID_STRIPE);
    let sizes: Vec<u64> = trees
        .iter()
        .filter_map(|id| filesystem.root_item(*id).ok())
        .map(|item| item.bytes_used.get())
        .collect();
    let trees_bytes = sizes.iter().fold(0_u64, |sum, bytes| sum.saturating_add(*bytes));
    let items = ByteCount::of(sizes.len())
        .get()
        .saturating_add(1)
        .saturating_add(ITEMS_TO_UNLINK);
    // The estimate counts references twice if the free-space tree changes with the extents.
    let has_free_space_tree = superblock.compat_ro.contains(CompatRo::FREE_SPACE_TREE);
    let references = ITEMS_TO_UNLINK.saturating_mul(if has_free_space_tree { 2 } else { 1 });
    let item_bytes = u64::from(superblock.node_bytes).saturating_mul(NODES_PER_ITEM);
    let least = items.saturating_add(references).saturating_mul(item_bytes);
    ByteCount::new(trees_bytes.max(least).min(LIMIT_BYTES))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_are_ordered_as_df_prints_them() {
        let data = BlockGroupFlags::DATA;
        let mut flags = [
            BlockGroupFlags::METADATA | BlockGroupFlags::DUP,
            data | BlockGroupFlags::RAID5,
            BlockGroupFlags::SYSTEM,
            data,
            data | BlockGroupFlags::RAID1,
        ];
        flags.sort_by_key(|flags| order_of(*flags));
        let names: Vec<String> = flags.iter().map(ToString::to_string).collect();
        assert_eq!(
            names,
            [
                "DATA|RAID1",
                "DATA|single",
                "DATA|RAID5",
                "SYSTEM|single",
                "METADATA|DUP"
            ]
        );
    }
}
