//! The superblock byte for byte: 4096 bytes, little-endian, without gaps.

use crate::checksum::CHECKSUM_FIELD_BYTES;
use crate::device_item::RawDeviceItem;
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// The size of the system chunk array's field in bytes.
pub const SYSTEM_CHUNK_ARRAY_BYTES: usize = 2048;

/// The on-disk layout of a backup of the tree roots.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
#[expect(
    missing_docs,
    reason = "the fields are those of BackupRoot, which documents them"
)]
pub struct RawBackupRoot {
    pub tree_root: U64,
    pub tree_root_gen: U64,
    pub chunk_root: U64,
    pub chunk_root_gen: U64,
    pub extent_root: U64,
    pub extent_root_gen: U64,
    pub fs_root: U64,
    pub fs_root_gen: U64,
    pub dev_root: U64,
    pub dev_root_gen: U64,
    pub csum_root: U64,
    pub csum_root_gen: U64,
    pub total_bytes: U64,
    pub bytes_used: U64,
    pub num_devices: U64,
    pub unused_64: [U64; 4],
    pub tree_root_level: u8,
    pub chunk_root_level: u8,
    pub extent_root_level: u8,
    pub fs_root_level: u8,
    pub dev_root_level: u8,
    pub csum_root_level: u8,
    pub unused_8: [u8; 10],
}

const _: () = assert!(size_of::<RawBackupRoot>() == 168);

/// The on-disk layout of a superblock. The checksum covers all bytes after the checksum field.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
#[expect(
    missing_docs,
    reason = "the fields are those of Superblock, which documents them"
)]
pub struct RawSuperblock {
    pub csum: [u8; CHECKSUM_FIELD_BYTES],
    pub fsid: [u8; 16],
    pub bytenr: U64,
    pub flags: U64,
    pub magic: [u8; 8],
    pub generation: U64,
    pub root: U64,
    pub chunk_root: U64,
    pub log_root: U64,
    pub log_root_transid: U64,
    pub total_bytes: U64,
    pub bytes_used: U64,
    pub root_dir_objectid: U64,
    pub num_devices: U64,
    pub sectorsize: U32,
    pub nodesize: U32,
    pub leafsize: U32,
    pub stripesize: U32,
    pub sys_chunk_array_size: U32,
    pub chunk_root_generation: U64,
    pub compat_flags: U64,
    pub compat_ro_flags: U64,
    pub incompat_flags: U64,
    pub csum_type: U16,
    pub root_level: u8,
    pub chunk_root_level: u8,
    pub log_root_level: u8,
    pub dev_item: RawDeviceItem,
    pub label: [u8; 256],
    pub cache_generation: U64,
    pub uuid_tree_generation: U64,
    pub metadata_uuid: [u8; 16],
    pub nr_global_roots: U64,
    pub remap_root: U64,
    pub remap_root_generation: U64,
    pub remap_root_level: u8,
    pub reserved: [u8; 199],
    pub sys_chunk_array: [u8; SYSTEM_CHUNK_ARRAY_BYTES],
    pub super_roots: [RawBackupRoot; 4],
    pub padding: [u8; 565],
}

const _: () = assert!(size_of::<RawSuperblock>() == super::SUPERBLOCK_BYTES);
const _: () = assert!(core::mem::offset_of!(RawSuperblock, magic) == 0x40);
const _: () = assert!(core::mem::offset_of!(RawSuperblock, dev_item) == 0xc9);
const _: () = assert!(core::mem::offset_of!(RawSuperblock, sys_chunk_array) == 0x32b);
const _: () = assert!(core::mem::offset_of!(RawSuperblock, super_roots) == 0xb2b);
