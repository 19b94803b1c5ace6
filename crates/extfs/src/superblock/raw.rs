//! The bytes of the superblock.
//!
//! Source: ext4 documentation, section "Super Block".

use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// The size of the superblock in bytes.
pub const SUPERBLOCK_BYTES: usize = 1024;

/// The smallest supported size of a block in bytes.
pub const MIN_BLOCK_BYTES: u32 = 4096;

/// The largest size of a block in bytes.
pub const MAX_BLOCK_BYTES: u32 = 65536;

/// A superblock as the device holds it.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(super) struct RawSuperblock {
    pub(super) inodes: U32,
    pub(super) blocks_low: U32,
    pub(super) reserved_blocks_low: U32,
    pub(super) free_blocks_low: U32,
    pub(super) free_inodes: U32,
    pub(super) first_data_block: U32,
    pub(super) log_block_size: U32,
    pub(super) log_cluster_size: U32,
    pub(super) blocks_per_group: U32,
    pub(super) clusters_per_group: U32,
    pub(super) inodes_per_group: U32,
    pub(super) mount_time: U32,
    pub(super) write_time: U32,
    pub(super) mounts: U16,
    pub(super) mounts_max: U16,
    pub(super) magic: U16,
    pub(super) state: U16,
    pub(super) error_policy: U16,
    pub(super) minor_revision: U16,
    pub(super) check_time: U32,
    pub(super) check_interval: U32,
    pub(super) creator: U32,
    pub(super) revision: U32,
    pub(super) reserved_uid: U16,
    pub(super) reserved_gid: U16,
    pub(super) first_inode: U32,
    pub(super) inode_size: U16,
    pub(super) own_group: U16,
    pub(super) compat: U32,
    pub(super) incompat: U32,
    pub(super) ro_compat: U32,
    pub(super) uuid: [u8; 16],
    pub(super) label: [u8; 16],
    pub(super) last_mounted: [u8; 64],
    pub(super) algorithms: U32,
    pub(super) preallocated: [u8; 2],
    pub(super) reserved_descriptor_blocks: U16,
    pub(super) journal_uuid: [u8; 16],
    pub(super) journal_inode: U32,
    pub(super) journal_device: U32,
    pub(super) last_orphan: U32,
    pub(super) hash_seed: [U32; 4],
    pub(super) hash_version: u8,
    pub(super) journal_backup_type: u8,
    pub(super) descriptor_size: U16,
    pub(super) mount_options: U32,
    pub(super) first_meta_group: U32,
    pub(super) created: U32,
    pub(super) journal_blocks: [U32; 17],
    pub(super) blocks_high: U32,
    pub(super) reserved_blocks_high: U32,
    pub(super) free_blocks_high: U32,
    pub(super) min_extra_size: U16,
    pub(super) wanted_extra_size: U16,
    pub(super) flags: U32,
    pub(super) stride: U16,
    pub(super) mount_protection_interval: U16,
    pub(super) mount_protection_block: U64,
    pub(super) stripe_width: U32,
    pub(super) log_groups_per_flex: u8,
    pub(super) checksum_type: u8,
    pub(super) padding: U16,
    pub(super) written_kib: U64,
    pub(super) snapshots: [u8; 20],
    pub(super) errors: [u8; 0x200 - 0x194],
    pub(super) mount_option_text: [u8; 64],
    pub(super) user_quota_inode: U32,
    pub(super) group_quota_inode: U32,
    pub(super) overhead: U32,
    pub(super) copies: [U32; 2],
    pub(super) encryption: [u8; 20],
    pub(super) lost_and_found: U32,
    pub(super) project_quota_inode: U32,
    pub(super) checksum_seed: U32,
    pub(super) high_times: [u8; 8],
    pub(super) encoding: [u8; 4],
    pub(super) orphan_file_inode: U32,
    pub(super) reserved: [U32; 94],
    pub(super) checksum: U32,
}

const _: () = assert!(size_of::<RawSuperblock>() == SUPERBLOCK_BYTES);
const _: () = assert!(core::mem::offset_of!(RawSuperblock, blocks_high) == 0x150);
const _: () = assert!(core::mem::offset_of!(RawSuperblock, user_quota_inode) == 0x240);
const _: () = assert!(core::mem::offset_of!(RawSuperblock, checksum_seed) == 0x270);
