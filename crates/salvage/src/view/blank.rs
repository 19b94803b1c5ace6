//! A superblock for devices that have none: the identity of the file system, and no roots.

use crate::identity::Identity;
use buttress_format::{ByteCount, DeviceItem, Incompat, Superblock};

/// Returns a superblock of the file system, without roots and system chunks.
pub(super) fn superblock(identity: &Identity) -> Superblock {
    let sum = |sizes: &mut dyn Iterator<Item = u64>| sizes.fold(0_u64, u64::saturating_add); // Clamp: for display.
    let total = sum(&mut identity.devices.iter().map(|device| device.size.get()));
    let device_item = DeviceItem::empty(identity.fsid, identity.sector_bytes);
    let mut incompat = identity.incompat;
    incompat.set(Incompat::METADATA_UUID, identity.fsid != identity.metadata_uuid);
    Superblock {
        metadata_uuid: identity.metadata_uuid,
        total_bytes: ByteCount::new(total),
        num_devices: ByteCount::of(identity.devices.len()).get(),
        compat_ro: identity.compat_ro,
        incompat,
        ..Superblock::empty(device_item, identity.checksum_type, identity.node_bytes)
    }
}
