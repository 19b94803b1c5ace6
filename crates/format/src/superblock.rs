//! The superblock: where everything else is found from.
//!
//! Each device carries up to three copies at fixed places ([`SUPERBLOCK_OFFSETS`]); each copy names its own
//! place. A checked [`Superblock`] has a right checksum, sizes that are powers of two in range, aligned
//! roots, levels in range, features whose needs are met, and a system chunk array of valid chunks: what the
//! kernel asks for before it mounts, but for what reading can do without: a wrong count of bytes in use
//! ([`Superblock::used_bytes_problem`]) and changes that were begun and not ended ([`SuperblockFlags::unfinished`]).
//! It may still use features that this version does not know, which [`Incompat::require_readable`] refuses; a damaged one
//! can be looked at through [`Superblock::raw`].
//!
//! Source: on-disk format documentation, section "Superblock".

mod check;
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

/// The size of a superblock.
pub const SUPERBLOCK_BYTES: usize = 4096;

/// The first byte of a device that chunks may use: boot loaders live below.
///
/// Source: btrfs(5), section "Bootloader support".
pub const DEVICE_RESERVED_BYTES: u64 = 1 << 20;

/// Where the copies lie on a device, the primary one first. A device has those that fit.
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

/// A tree root as a backup remembers it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BackupTree {
    /// Address of the root block.
    pub logical: Logical,
    /// Its generation.
    pub generation: Generation,
    /// Its level.
    pub level: u8,
}

/// One of the four backups: the roots as an earlier commit left them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BackupRoot {
    /// The root tree.
    pub tree_root: BackupTree,
    /// The chunk tree.
    pub chunk_root: BackupTree,
    /// The extent tree.
    pub extent_root: BackupTree,
    /// The top-level subvolume.
    pub fs_root: BackupTree,
    /// The device tree.
    pub dev_root: BackupTree,
    /// The checksum tree.
    pub csum_root: BackupTree,
    /// Size of all devices.
    pub total_bytes: ByteCount,
    /// Bytes in use.
    pub bytes_used: ByteCount,
    /// How many devices there were.
    pub num_devices: u64,
}

impl BackupRoot {
    /// The backup as typed fields, nothing checked: backups may be empty or stale.
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
    /// The stored checksum, which is right.
    pub checksum: Checksum,
    /// The type of all checksums of the volume.
    pub checksum_type: ChecksumType,
    /// The volume's uuid as users see it.
    pub fsid: Uuid,
    /// The uuid that tree blocks and device items carry: the metadata uuid field where the feature is set,
    /// else the fsid.
    pub metadata_uuid: Uuid,
    /// Where this copy lies.
    pub physical: Physical,
    /// State.
    pub flags: SuperblockFlags,
    /// The last committed generation.
    pub generation: Generation,
    /// Root of the root tree.
    pub root: Logical,
    /// Its level.
    pub root_level: u8,
    /// Root of the chunk tree.
    pub chunk_root: Logical,
    /// Its level.
    pub chunk_root_level: u8,
    /// Its generation.
    pub chunk_root_generation: Generation,
    /// Root of the tree of log trees; zero without a pending log.
    pub log_root: Logical,
    /// Its level.
    pub log_root_level: u8,
    /// No longer used: was the log root's generation.
    pub log_root_transid: Generation,
    /// Size of all devices together.
    pub total_bytes: ByteCount,
    /// Bytes in use by extents, each counted once.
    pub bytes_used: ByteCount,
    /// The directory in the root tree that names the default subvolume.
    pub root_dir_objectid: ObjectId,
    /// How many devices the volume has.
    pub num_devices: u64,
    /// Unit of data extents and checksums, in bytes.
    pub sector_bytes: u32,
    /// Size of tree blocks, in bytes.
    pub node_bytes: u32,
    /// The field that became the stripe size; its value has no effect.
    pub stripe_bytes: u32,
    /// Features that anyone may ignore; none exist.
    pub compat: u64,
    /// Features that writers must know.
    pub compat_ro: CompatRo,
    /// Features that readers must know.
    pub incompat: Incompat,
    /// The device that this superblock lies on.
    pub device_item: DeviceItem,
    /// The label, up to its first zero byte.
    pub label: Vec<u8>,
    /// The generation of the v1 free space cache; all bits set when there is none.
    pub cache_generation: Generation,
    /// The generation up to which the uuid tree is complete.
    pub uuid_tree_generation: Generation,
    /// With extent-tree-v2: the number of global roots.
    pub global_root_count: u64,
    /// With remap-tree: the root of that tree.
    pub remap_root: BackupTree,
    /// Bytes in use of the system chunk array.
    pub system_chunk_array_bytes: u32,
    /// The chunks that hold the chunk tree.
    pub system_chunks: Vec<(Key, Chunk)>,
    /// Earlier roots.
    pub backup_roots: [BackupRoot; 4],
}

impl Superblock {
    /// The checked superblock of `bytes`, read from a device at `at`. What follows the first
    /// [`SUPERBLOCK_BYTES`] is ignored.
    ///
    /// # Errors
    /// The first check that fails, in the order of [`SuperblockError`]'s variants.
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

    /// The fields of `bytes` as they are, for showing a damaged superblock.
    ///
    /// # Errors
    /// [`SuperblockError::Size`] when there are fewer than [`SUPERBLOCK_BYTES`].
    pub fn raw(bytes: &[u8]) -> Result<&RawSuperblock, SuperblockError> {
        match RawSuperblock::ref_from_prefix(bytes) {
            Ok((raw, _)) => Ok(raw),
            Err(_) => Err(SuperblockError::Size {
                size_bytes: bytes.len(),
            }),
        }
    }

    /// What is wrong with [`Superblock::bytes_used`], as far as the superblock alone can tell.
    #[must_use]
    pub fn used_bytes_problem(&self) -> Option<UsedBytesProblem> {
        check::used_bytes(self)
    }

    /// What the checks of tree blocks need to know of the volume.
    #[must_use]
    pub fn block_format(&self) -> BlockFormat {
        BlockFormat::new(self)
    }

    /// The chunks of a superblock's array that can be made out, up to the first that cannot, and the error
    /// that ends them: for showing a damaged superblock.
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
