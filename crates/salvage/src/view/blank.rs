//! A superblock for devices that have none: the identity of the file system, and no roots.

use crate::identity::Identity;
use buttress_format::superblock::{RawBackupRoot, SuperblockFlags};
use buttress_format::{
    BackupRoot, BackupTree, ByteCount, Checksum, DeviceId, DeviceItem, Generation, Incompat, Logical,
    ObjectId, Physical, Superblock, TreeId,
};
use uuid::Uuid;
use zerocopy::FromZeros as _;

/// Returns a superblock of the file system, without roots and system chunks.
pub(super) fn superblock(identity: &Identity) -> Superblock {
    let sum = |sizes: &mut dyn Iterator<Item = u64>| sizes.fold(0_u64, u64::saturating_add); // Clamp: for display.
    let total = sum(&mut identity.devices.iter().map(|device| device.size.get()));
    let backup = BackupRoot::from_raw(&RawBackupRoot::new_zeroed());
    let mut incompat = identity.incompat;
    incompat.set(Incompat::METADATA_UUID, identity.fsid != identity.metadata_uuid);
    Superblock {
        checksum: Checksum::of(&[]),
        checksum_type: identity.checksum_type,
        fsid: identity.fsid,
        metadata_uuid: identity.metadata_uuid,
        physical: Physical::MIN,
        flags: SuperblockFlags::WRITTEN,
        generation: Generation::MIN,
        root: Logical::MIN,
        root_level: 0,
        chunk_root: Logical::MIN,
        chunk_root_level: 0,
        chunk_root_generation: Generation::MIN,
        log_root: Logical::MIN,
        log_root_level: 0,
        log_root_transid: Generation::MIN,
        total_bytes: ByteCount::new(total),
        bytes_used: ByteCount::ZERO,
        root_dir_objectid: ObjectId::new(TreeId::ROOT_DIRECTORY.get()),
        num_devices: ByteCount::of(identity.devices.len()).get(),
        sector_bytes: identity.sector_bytes,
        node_bytes: identity.node_bytes,
        stripe_bytes: identity.sector_bytes,
        compat: 0,
        compat_ro: identity.compat_ro,
        incompat,
        device_item: no_device(identity),
        label: Vec::new(),
        cache_generation: Generation::MAX,
        uuid_tree_generation: Generation::MIN,
        global_root_count: 0,
        remap_root: BackupTree::default(),
        system_chunk_array_bytes: 0,
        system_chunks: Vec::new(),
        backup_roots: [backup; 4],
    }
}

/// Returns a device item that names no device.
fn no_device(identity: &Identity) -> DeviceItem {
    DeviceItem {
        device: DeviceId::MIN,
        total_bytes: ByteCount::ZERO,
        bytes_used: ByteCount::ZERO,
        io_align: identity.sector_bytes,
        io_width: identity.sector_bytes,
        sector_bytes: identity.sector_bytes,
        device_type: 0,
        generation: Generation::MIN,
        start_offset: 0,
        device_group: 0,
        seek_speed: 0,
        bandwidth: 0,
        uuid: Uuid::nil(),
        fsid: identity.fsid,
    }
}
