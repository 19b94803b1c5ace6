//! The bytes of btrfs as types. No I/O, no threads, no `unsafe`.
//!
//! No bytes from disk are trusted. Each structure has one raw form, with the fields in their
//! on-disk layout, and one checked form. A single function makes the checked form of an item, and
//! has one error variant for each check. Later code does not repeat the checks. Writers encode the
//! checked form: `to_bytes` if the size is fixed, `encode` otherwise. `key` returns the key of the
//! item.
//!
//! | what | where |
//! |---|---|
//! | coordinates, keys | [`units`], [`key`] |
//! | superblock, features | [`superblock`] |
//! | tree blocks; the tree checker runs inside [`TreeBlock::check`] | [`node`] |
//! | items of the volume: chunks, devices, extents, space | [`chunk`], [`device_item`], [`device_statistics`], [`replace`], [`block_group`], [`free_space`], [`extent`], [`raid_stripe`], [`remap`], [`balance`], [`quota`] |
//! | items of files and subvolumes | [`inode`], [`names`], [`directory`], [`file_extent`], [`checksum_item`], [`root`], [`uuid_item`], [`orphan`], [`verity`], [`log`] |
//! | the send stream: its commands and attributes | [`send`] |
//! | checksums and hashes of names | [`checksum`] |
//! | compressed content | [`compression`] |
//! | leaf capacity, limits of items | [`limits`] |
//! | errors, bytes in messages | [`error`], [`item_error`], [`printable`] |
#![forbid(unsafe_code)]
#![cfg_attr(
    test,
    allow(clippy::arithmetic_side_effects, reason = "tests compute with known numbers")
)]

pub mod balance;
pub mod block_group;
pub mod checksum;
pub mod checksum_item;
pub mod chunk;
pub mod compression;
pub mod device_item;
pub mod device_statistics;
pub mod directory;
pub mod error;
pub mod extent;
pub mod file_extent;
pub mod free_space;
pub mod inode;
pub mod item_error;
pub mod key;
pub mod limits;
pub mod log;
pub mod names;
pub mod node;
pub mod orphan;
pub mod printable;
pub mod quota;
pub mod raid_stripe;
mod raw;
pub mod remap;
pub mod replace;
pub mod root;
pub mod send;
pub mod superblock;
mod tree_checker;
pub mod units;
pub mod uuid_item;
pub mod verity;

pub use balance::{BalanceArgumentFlags, BalanceArguments, BalanceFlags, BalanceItem};
pub use block_group::{BlockGroupFlags, BlockGroupItem, Profile};
pub use checksum::{Checksum, ChecksumType, crc32c, extent_data_reference_hash, extref_hash, name_hash};
pub use checksum_item::ChecksumItem;
pub use chunk::{Chunk, STRIPE_BYTES, Stripe};
pub use compression::{
    CompressionError, CompressionMethod, Compressor, Decompressor, Lzo1xError, decompress,
};
pub use device_item::{DeviceExtent, DeviceItem};
pub use device_statistics::DeviceStatistics;
pub use directory::{DirItem, DirItems, DirectoryProblem, FileKind};
pub use error::{ErrorKind, FeatureSet, Unsupported};
pub use extent::keyed::parse_keyed_references;
pub use extent::{ExtentDataReference, ExtentFlags, ExtentItem, InlineReference, TreeBlockInfo};
pub use file_extent::{
    COMPRESSED_EXTENT_BYTES_MAX, Compression, ExtentSlice, FileExtent, FileExtentBody, FileExtentProblem,
};
pub use free_space::{FreeSpaceBitmap, FreeSpaceExtent, FreeSpaceHeader, FreeSpaceInfo};
pub use inode::{InodeFlags, InodeItem, InodeProblem, Timestamp};
pub use item_error::{FileItemProblem, ItemError, ItemProblem};
pub use key::{ItemType, Key};
pub use log::{DirLogRange, LogProblem};
pub use names::{InodeExtrefs, InodeName, InodeRefs, NAME_BYTES_MAX, NameProblem};
pub use node::{
    BlockError, BlockFormat, BlockProblem, CommittedGeneration, DamagedBlock, Expectation, Header,
    HeaderFlags, Item, KeyPointer, TreeBlock,
};
pub use orphan::OrphanItem;
pub use quota::{
    QgroupId, QgroupInfo, QgroupLimit, QgroupLimitFlags, QgroupRelation, QgroupStatus, QgroupStatusFlags,
};
pub use raid_stripe::{RaidStride, RaidStripeExtent};
pub use remap::RemapItem;
pub use replace::{ReplaceItem, ReplaceState};
pub use root::{RootFlags, RootItem, RootProblem, RootRef};
pub use superblock::{
    BackupRoot, BackupTree, CompatRo, DEVICE_RESERVED_BYTES, Incompat, RawSuperblock, SUPERBLOCK_BYTES,
    SUPERBLOCK_OFFSETS, Superblock, SuperblockError, SuperblockFlags, UnfinishedChange, UsedBytesProblem,
};
pub use units::{
    ByteCount, DeviceId, FileOffset, Generation, InodeNumber, Logical, ObjectId, Physical, SubvolumeId,
    TreeId,
};
pub use uuid::Uuid;
pub use uuid_item::{UuidItem, uuid_key, uuid_of};
pub use verity::{VerityDescriptor, VerityMerkle};
