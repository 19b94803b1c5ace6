//! The errors of superblocks: one variant for each check.

use crate::checksum::Checksum;
use crate::error::ErrorKind;
use crate::item_error::ItemError;
use uuid::Uuid;

/// The check that a superblock fails.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[expect(
    missing_docs,
    reason = "the fields are the numbers of the message beside them"
)]
pub enum SuperblockError {
    /// The buffer holds fewer bytes than a superblock has.
    #[error("superblock is {size_bytes} bytes long, expected {}", super::SUPERBLOCK_BYTES)]
    Size { size_bytes: usize },
    /// The magic of a btrfs superblock is missing.
    #[error("magic is 0x{:016x}, expected 0x{:016x}: no btrfs superblock", u64::from_le_bytes(*found), u64::from_le_bytes(super::SUPERBLOCK_MAGIC))]
    Magic { found: [u8; 8] },
    /// The checksum type is an unknown number.
    #[error("checksum type {number} is unknown")]
    ChecksumType { number: u16 },
    /// The stored checksum differs from the computed one.
    #[error("checksum is {stored}, computed {computed}")]
    Checksum { stored: Checksum, computed: Checksum },
    /// The superblock names another address than the one at which it was read.
    #[error("superblock at {physical} has the address {stored} in its header")]
    Address { stored: u64, physical: u64 },
    /// The sector size is not a power of two in range.
    #[error("sector size is {bytes} bytes, expected a power of two from 4096 to 65536")]
    SectorSize { bytes: u32 },
    /// The node size is not a power of two in range.
    #[error(
        "node size is {bytes} bytes, expected a power of two from the sector size {sector_bytes} to 65536"
    )]
    NodeSize { bytes: u32, sector_bytes: u32 },
    /// The old leaf size field differs from the node size.
    #[error("leaf size is {leaf_bytes} bytes, expected the node size {node_bytes}")]
    LeafSize { leaf_bytes: u32, node_bytes: u32 },
    /// The stripe size is not a power of two.
    #[error("stripe size is {bytes} bytes, expected a power of two")]
    StripeSize { bytes: u32 },
    /// A root's address is not a multiple of the sector size.
    #[error("{tree} root is at {logical}, not a multiple of the sector size {sector_bytes}")]
    RootUnaligned {
        tree: &'static str,
        logical: u64,
        sector_bytes: u32,
    },
    /// The address of the root tree's or chunk tree's root block is zero.
    #[error("{tree} root is at address 0")]
    RootMissing { tree: &'static str },
    /// A root's level exceeds the highest level that a tree can have.
    #[error("{tree} root has level {level}, expected at most {}", super::HIGHEST_LEVEL)]
    Level { tree: &'static str, level: u8 },
    /// The superblock counts no devices, or more than 2^31.
    #[error("number of devices is {count}, expected 1 to 2147483648")]
    DeviceCount { count: u64 },
    /// The superblock's own device belongs to another volume.
    #[error("device item has fsid {device_fsid}, expected {metadata_uuid}")]
    DeviceFsid { device_fsid: Uuid, metadata_uuid: Uuid },
    /// A feature is set, but a feature that it depends on is not.
    #[error("feature {feature} needs {needed}, which is not set")]
    FeatureDependency {
        feature: &'static str,
        needed: &'static str,
    },
    /// Mixed block groups are set, but the node size exceeds the sector size.
    #[error("mixed block groups need equal node and sector sizes (found {node_bytes} and {sector_bytes})")]
    MixedNodeSize { node_bytes: u32, sector_bytes: u32 },
    /// The stated size of the system chunk array exceeds the array's field, or is smaller than one
    /// chunk.
    #[error("system chunk array is {size_bytes} bytes, expected {least_bytes} to {capacity_bytes}")]
    SystemArraySize {
        size_bytes: u32,
        least_bytes: usize,
        capacity_bytes: usize,
    },
    /// The system chunk array ends inside a key.
    #[error("system chunk array ends {rest_bytes} bytes after a chunk, inside a key")]
    SystemArrayCut { rest_bytes: usize },
    /// The system chunk array holds an item that is no chunk.
    #[error("system chunk array has an item of type {item_type} at byte {offset_bytes}, expected a chunk")]
    SystemArrayType { item_type: u8, offset_bytes: usize },
    /// The system chunk array holds a chunk that is not of type system.
    #[error("system chunk array has a chunk at {logical} of type 0x{flags:x}, expected system")]
    SystemChunkType { logical: u64, flags: u64 },
    /// A chunk of the system chunk array fails a check of its own.
    #[error("system chunk array: {0}")]
    SystemChunk(#[from] ItemError),
}

impl SuperblockError {
    /// Returns [`ErrorKind::Corrupt`], or [`ErrorKind::Unsupported`] for a checksum type of a later
    /// version.
    #[must_use]
    pub const fn kind(&self) -> ErrorKind {
        match self {
            Self::ChecksumType { .. } => ErrorKind::Unsupported,
            _ => ErrorKind::Corrupt,
        }
    }
}

/// An impossible count of the bytes in use. Only the accounting of space depends on this count, so
/// readers ignore the error.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UsedBytesProblem {
    /// The count is smaller than the bytes that an empty volume uses.
    #[error("{used_bytes} bytes are used, expected at least {least_bytes}")]
    TooSmall {
        /// The count in the superblock.
        used_bytes: u64,
        /// The bytes that an empty volume uses.
        least_bytes: u64,
    },
    /// The count exceeds the size of all devices.
    #[error("{used_bytes} bytes are used, expected at most {total_bytes} on the devices")]
    ExceedsTotal {
        /// The count of used bytes in the superblock.
        used_bytes: u64,
        /// The total size of all devices in bytes.
        total_bytes: u64,
    },
}
