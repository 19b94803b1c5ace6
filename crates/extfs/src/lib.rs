//! Reads ext2, ext3 and ext4.
//!
//! [`Ext`] opens a volume on a [`Device`](buttress_device::Device) and returns:
//!
//! - the used blocks, by the bitmaps ([`Ext::used_blocks`]);
//! - the inodes in order of their numbers ([`Ext::inodes`]), or one ([`Ext::inode`]);
//! - the extents of a file, from an extent tree or a block map ([`Ext::extents`]);
//! - the entries of a directory ([`Ext::entries`]), the target of a link ([`Ext::link_target`]), the
//!   content of a small file ([`Ext::content`]), and extended attributes ([`Ext::attributes`]).
//!
//! Supported: blocks of 4 KiB to 64 KiB; `64bit`, `dir_index`, `ea_inode`, `extent`, `extra_isize`,
//! `flex_bg`, `huge_file`, `inline_data`, `large_dir`, `metadata_csum`, `metadata_csum_seed`,
//! `meta_bg`, `mmp`, `project`, `quota`, `resize_inode`, `sparse_super`, `sparse_super2`,
//! `uninit_bg`. [`Refusal`] lists the refused features and states.
//!
//! Invariants:
//!
//! - Bytes on disk are not trusted: each structure is checked before its use, and each walk has a
//!   bound. Damage is an error with its place and numbers.
//! - Checksums are verified as far as the volume has them.
//! - An [`Ext`] is `Send` and `Sync`, and holds no block of the volume.
//!
//! Left out: writing, the journal, hash lookups in directories, and btrfs.
//!
//! Source of the format: the kernel's documentation, "ext4 Data Structures and Algorithms". Modules
//! cite its sections as "ext4 documentation".
#![forbid(unsafe_code)]
#![cfg_attr(
    test,
    allow(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::panic,
        clippy::indexing_slicing,
        clippy::arithmetic_side_effects,
        reason = "tests"
    )
)]

mod attributes;
mod bitmaps;
mod bytes;
mod checksum;
mod content;
mod directory;
mod error;
mod extents;
mod groups;
mod inode;
mod inodes;
mod refusal;
mod superblock;
mod units;
mod volume;

pub use attributes::{ExtAttribute, VALUE_BYTES_MAX, VALUES_BYTES_MAX};
pub use bitmaps::UsedBlocks;
pub use directory::{Entries, ExtEntry};
pub use error::{ExtError, Place, Problem};
pub use extents::{ExtExtent, Extents};
pub use groups::{Group, Groups};
pub use inode::{ExtInode, FileKind, InodeFlags};
pub use inodes::Inodes;
pub use refusal::{FeatureSet, Refusal, RefusedFeature};
pub use superblock::{
    Compat, Incompat, MAX_BLOCK_BYTES, MIN_BLOCK_BYTES, RoCompat, SUPERBLOCK_BYTES, SUPERBLOCK_OFFSET,
    Superblock,
};
pub use units::{BlockNumber, BlockRange, ExtTime, FileBlock, GroupNumber, InodeNumber};
pub use volume::Ext;

const _: () = {
    const fn is_shared<T: Send + Sync>() {}
    is_shared::<Ext>();
};
