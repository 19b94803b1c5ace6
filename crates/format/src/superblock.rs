//! The superblock: the ids, features and root addresses of a volume.
//!
//! Each device holds up to three copies at fixed addresses ([`SUPERBLOCK_OFFSETS`]). Each copy
//! holds its own address. A checked [`Superblock`] has:
//!
//! - a correct checksum;
//! - sizes that are powers of two in range, aligned roots, and levels in range;
//! - features whose dependencies are met;
//! - a system chunk array of valid chunks.
//!
//! The kernel requires all of these properties of a superblock before it mounts. The kernel also
//! refuses two states that reading tolerates: a wrong [count of used
//! bytes](Superblock::used_bytes_problem), and [unfinished changes](SuperblockFlags::unfinished).
//! [`Incompat::require_readable`] refuses features that this version does not support.
//! [`Superblock::raw`] shows a damaged superblock.
//!
//! Source: on-disk format documentation, section "Superblock".

mod check;
mod empty;
mod encode;
mod error;
mod features;
mod raw;

pub use error::{SuperblockError, UsedBytesProblem};
pub use features::{CompatRo, Incompat, SuperblockFlags, UnfinishedChange};
pub use raw::{RawBackupRoot, RawSuperblock, SYSTEM_CHUNK_ARRAY_BYTES};

use crate::checksum::{Checksum, ChecksumType};
use crate::chunk::Chunk;
use crate::device_item::DeviceItem;
use crate::key::Key;
use crate::node::BlockFormat;
use crate::units::{ByteCount, Generation, Logical, ObjectId, Physical};
use uuid::Uuid;
use zerocopy::FromBytes;

/// The size of a superblock in bytes.
pub const SUPERBLOCK_BYTES: usize = 4096;

/// The first byte of a device that chunks may use. The bytes below are reserved for boot loaders.
///
/// Source: btrfs(5), section "Bootloader support".
pub const DEVICE_RESERVED_BYTES: u64 = 1 << 20;

/// The addresses of the superblock copies on a device, the primary first. A device holds those
/// copies that are located before its end.
pub const SUPERBLOCK_OFFSETS: [Physical; 3] = [
    Physical::new(64 << 10),
    Physical::new(64 << 20),
    Physical::new(256 << 30),
];

/// The bytes that mark a btrfs superblock.
pub const SUPERBLOCK_MAGIC: [u8; 8] = *b"_BHRfS_M";

/// The highest level that a tree's root can have.
pub const HIGHEST_LEVEL: u8 = 7;

/// The smallest sector size.
pub const MIN_SECTOR_BYTES: u32 = 4096;

/// The largest sector and node size.
pub const MAX_NODE_BYTES: u32 = 65536;

/// A tree root as a backup root stores it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BackupTree {
    /// Address of the root block.
    pub logical: Logical,
    /// The generation of the root block.
    pub generation: Generation,
    /// The level of the root block.
    pub level: u8,
}

/// One of the four backup roots: the tree roots of an earlier commit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BackupRoot {
    /// The root of the root tree.
    pub tree_root: BackupTree,
    /// The root of the chunk tree.
    pub chunk_root: BackupTree,
    /// The root of the extent tree.
    pub extent_root: BackupTree,
    /// The root of the top-level subvolume.
    pub fs_root: BackupTree,
    /// The root of the device tree.
    pub dev_root: BackupTree,
    /// The root of the checksum tree.
    pub csum_root: BackupTree,
    /// The total size of all devices in bytes.
    pub total_bytes: ByteCount,
    /// The bytes in use.
    pub bytes_used: ByteCount,
    /// The number of devices at that commit.
    pub num_devices: u64,
}

impl BackupRoot {
    /// Returns the backup as typed fields without checks. A backup may be empty or stale.
    #[must_use]
    pub fn from_raw(raw: &RawBackupRoot) -> Self {
        let tree = |logical: u64, generation: u64, level: u8| BackupTree {
            logical: Logical::new(logical),
            generation: Generation::new(generation),
            level,
        };
        Self {
            tree_root: tree(raw.tree_root.get(), raw.tree_root_gen.get(), raw.tree_root_level),
            chunk_root: tree(
                raw.chunk_root.get(),
                raw.chunk_root_gen.get(),
                raw.chunk_root_level,
            ),
            extent_root: tree(
                raw.extent_root.get(),
                raw.extent_root_gen.get(),
                raw.extent_root_level,
            ),
            fs_root: tree(raw.fs_root.get(), raw.fs_root_gen.get(), raw.fs_root_level),
            dev_root: tree(raw.dev_root.get(), raw.dev_root_gen.get(), raw.dev_root_level),
            csum_root: tree(raw.csum_root.get(), raw.csum_root_gen.get(), raw.csum_root_level),
            total_bytes: ByteCount::new(raw.total_bytes.get()),
            bytes_used: ByteCount::new(raw.bytes_used.get()),
            num_devices: raw.num_devices.get(),
        }
    }
}

/// A checked superblock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Superblock {
    /// The stored checksum of the superblock, which is correct.
    pub checksum: Checksum,
    /// The type of all checksums of the volume.
    pub checksum_type: ChecksumType,
    /// The volume's uuid that users see.
    pub fsid: Uuid,
    /// The uuid that tree blocks and device items carry. The uuid is the metadata uuid field if the
    /// feature METADATA_UUID is set, otherwise the fsid.
    pub metadata_uuid: Uuid,
    /// The address of this copy on its device.
    pub physical: Physical,
    /// The flags for the state of the superblock.
    pub flags: SuperblockFlags,
    /// The last committed generation.
    pub generation: Generation,
    /// The address of the root tree's root block.
    pub root: Logical,
    /// The level of the root tree's root block.
    pub root_level: u8,
    /// The address of the chunk tree's root block.
    pub chunk_root: Logical,
    /// The level of the chunk tree's root block.
    pub chunk_root_level: u8,
    /// The generation of the chunk tree's root block.
    pub chunk_root_generation: Generation,
    /// The address of the root block of the tree of log trees. Zero if no log is pending.
    pub log_root: Logical,
    /// The level of the root block of the tree of log trees.
    pub log_root_level: u8,
    /// The former generation of the log root, no longer used.
    pub log_root_transid: Generation,
    /// The total size of all devices in bytes.
    pub total_bytes: ByteCount,
    /// The bytes that extents use. An extent with several references counts once.
    pub bytes_used: ByteCount,
    /// The directory in the root tree that names the default subvolume.
    pub root_dir_objectid: ObjectId,
    /// The number of devices of the volume.
    pub num_devices: u64,
    /// The unit of data extents and checksums, in bytes.
    pub sector_bytes: u32,
    /// The size of tree blocks in bytes.
    pub node_bytes: u32,
    /// The former stripe size field, whose value has no effect.
    pub stripe_bytes: u32,
    /// Compatible features, which readers and writers may ignore. None exist.
    pub compat: u64,
    /// Read-only compatible features, which writers must support.
    pub compat_ro: CompatRo,
    /// Incompatible features, which readers must support.
    pub incompat: Incompat,
    /// The device that holds this superblock.
    pub device_item: DeviceItem,
    /// The label, up to its first zero byte.
    pub label: Vec<u8>,
    /// The generation of the v1 free space cache. All bits are set if the volume has no cache.
    pub cache_generation: Generation,
    /// The generation up to which the uuid tree is complete.
    pub uuid_tree_generation: Generation,
    /// The number of global roots, with extent-tree-v2.
    pub global_root_count: u64,
    /// The root of the remap tree, with the remap-tree feature.
    pub remap_root: BackupTree,
    /// The bytes in use of the system chunk array.
    pub system_chunk_array_bytes: u32,
    /// The chunks that hold the chunk tree.
    pub system_chunks: Vec<(Key, Chunk)>,
    /// The roots of the last commits.
    pub backup_roots: [BackupRoot; 4],
}

impl Superblock {
    /// Checks the superblock in `bytes`, read from a device at `at`. Bytes after the first
    /// [`SUPERBLOCK_BYTES`] are ignored.
    ///
    /// # Errors
    /// Returns the first check that fails, in the order of [`SuperblockError`]'s variants.
    pub fn check(bytes: &[u8], at: Physical) -> Result<Self, SuperblockError> {
        let raw = Self::raw(bytes)?;
        let checksum_type = check::identity(raw, bytes, at)?;
        let superblock = Self::from_raw(raw, checksum_type);
        check::sizes(raw)?;
        check::roots(&superblock)?;
        check::totals(&superblock)?;
        check::features(&superblock)?;
        let system_chunks = check::system_chunks(raw)?;
        Ok(Self {
            system_chunks,
            ..superblock
        })
    }

    /// Returns the fields of `bytes` unchecked, to show a damaged superblock.
    ///
    /// # Errors
    /// Returns [`SuperblockError::Size`] if `bytes` has fewer than [`SUPERBLOCK_BYTES`] bytes.
    pub fn raw(bytes: &[u8]) -> Result<&RawSuperblock, SuperblockError> {
        match RawSuperblock::ref_from_prefix(bytes) {
            Ok((raw, _)) => Ok(raw),
            Err(_) => Err(SuperblockError::Size {
                size_bytes: bytes.len(),
            }),
        }
    }

    /// Returns the error of [`Superblock::bytes_used`] that the superblock alone can prove.
    #[must_use]
    pub fn used_bytes_problem(&self) -> Option<UsedBytesProblem> {
        check::used_bytes(self)
    }

    /// Returns the fsid that tree blocks may still carry, while a change of the fsid is unfinished.
    #[must_use]
    pub fn former_fsid(&self) -> Option<Uuid> {
        let former = self.device_item.fsid;
        let is_changing = self.flags.contains(SuperblockFlags::CHANGING_FSID);
        (is_changing && former != self.metadata_uuid).then_some(former)
    }

    /// Returns the fields of the superblock that the checks of tree blocks need.
    #[must_use]
    pub fn block_format(&self) -> BlockFormat {
        BlockFormat::new(self)
    }

    /// Returns the valid chunks at the beginning of a superblock's chunk array, and the error of
    /// the first invalid chunk. The result serves to show a damaged superblock.
    #[must_use]
    pub fn inspect_system_chunks(raw: &RawSuperblock) -> (Vec<(Key, Chunk)>, Option<SuperblockError>) {
        let mut chunks = Vec::new();
        let end = check::each_system_chunk(raw, &mut |key, chunk| chunks.push((key, chunk)));
        (chunks, end.err())
    }

    fn from_raw(raw: &RawSuperblock, checksum_type: ChecksumType) -> Self {
        let incompat = Incompat::from_bits_retain(raw.incompat_flags.get());
        let fsid = Uuid::from_bytes(raw.fsid);
        let metadata_uuid = if incompat.contains(Incompat::METADATA_UUID) {
            Uuid::from_bytes(raw.metadata_uuid)
        } else {
            fsid
        };
        let [backup0, backup1, backup2, backup3] = &raw.super_roots;
        Self {
            checksum: check::stored_checksum(raw, checksum_type),
            checksum_type,
            fsid,
            metadata_uuid,
            physical: Physical::new(raw.bytenr.get()),
            flags: SuperblockFlags::from_bits_retain(raw.flags.get()),
            generation: Generation::new(raw.generation.get()),
            root: Logical::new(raw.root.get()),
            root_level: raw.root_level,
            chunk_root: Logical::new(raw.chunk_root.get()),
            chunk_root_level: raw.chunk_root_level,
            chunk_root_generation: Generation::new(raw.chunk_root_generation.get()),
            log_root: Logical::new(raw.log_root.get()),
            log_root_level: raw.log_root_level,
            log_root_transid: Generation::new(raw.log_root_transid.get()),
            total_bytes: ByteCount::new(raw.total_bytes.get()),
            bytes_used: ByteCount::new(raw.bytes_used.get()),
            root_dir_objectid: ObjectId::new(raw.root_dir_objectid.get()),
            num_devices: raw.num_devices.get(),
            sector_bytes: raw.sectorsize.get(),
            node_bytes: raw.nodesize.get(),
            stripe_bytes: raw.stripesize.get(),
            compat: raw.compat_flags.get(),
            compat_ro: CompatRo::from_bits_retain(raw.compat_ro_flags.get()),
            incompat,
            device_item: DeviceItem::from_raw(&raw.dev_item),
            label: raw.label.iter().copied().take_while(|byte| *byte != 0).collect(),
            cache_generation: Generation::new(raw.cache_generation.get()),
            uuid_tree_generation: Generation::new(raw.uuid_tree_generation.get()),
            global_root_count: raw.nr_global_roots.get(),
            remap_root: BackupTree {
                logical: Logical::new(raw.remap_root.get()),
                generation: Generation::new(raw.remap_root_generation.get()),
                level: raw.remap_root_level,
            },
            system_chunk_array_bytes: raw.sys_chunk_array_size.get(),
            system_chunks: Vec::new(),
            backup_roots: [backup0, backup1, backup2, backup3].map(BackupRoot::from_raw),
        }
    }
}

#[cfg(test)]
mod tests;
