//! A superblock without roots, which new volumes and volumes without superblocks begin with.

use super::{BackupRoot, BackupTree, CompatRo, Incompat, Superblock, SuperblockFlags};
use crate::checksum::{Checksum, ChecksumType};
use crate::device_item::DeviceItem;
use crate::units::{ByteCount, Generation, Logical, ObjectId, Physical, TreeId};

/// A backup root that names no tree.
const NO_BACKUP: BackupRoot = BackupRoot {
    tree_root: NO_TREE,
    chunk_root: NO_TREE,
    extent_root: NO_TREE,
    fs_root: NO_TREE,
    dev_root: NO_TREE,
    csum_root: NO_TREE,
    total_bytes: ByteCount::ZERO,
    bytes_used: ByteCount::ZERO,
    num_devices: 0,
};

const NO_TREE: BackupTree = BackupTree {
    logical: Logical::MIN,
    generation: Generation::MIN,
    level: 0,
};

impl Superblock {
    /// Returns a superblock of one device, without roots, chunks and features. The device item
    /// gives the uuid, the sector size and the total size.
    #[must_use]
    pub fn empty(device_item: DeviceItem, checksum_type: ChecksumType, node_bytes: u32) -> Self {
        Self {
            checksum: Checksum::of(&[]),
            checksum_type,
            fsid: device_item.fsid,
            metadata_uuid: device_item.fsid,
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
            total_bytes: device_item.total_bytes,
            bytes_used: ByteCount::ZERO,
            root_dir_objectid: ObjectId::new(TreeId::ROOT_DIRECTORY.get()),
            num_devices: 1,
            sector_bytes: device_item.sector_bytes,
            node_bytes,
            stripe_bytes: device_item.sector_bytes,
            compat: 0,
            compat_ro: CompatRo::empty(),
            incompat: Incompat::empty(),
            device_item,
            label: Vec::new(),
            cache_generation: Generation::MAX,
            uuid_tree_generation: Generation::MIN,
            global_root_count: 0,
            remap_root: NO_TREE,
            system_chunk_array_bytes: 0,
            system_chunks: Vec::new(),
            backup_roots: [NO_BACKUP; 4],
        }
    }
}
