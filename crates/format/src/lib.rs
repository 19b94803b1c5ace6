//! The bytes of btrfs as types. No I/O, no threads, no `unsafe`.
#![forbid(unsafe_code)]
#![cfg_attr(
    test,
    allow(clippy::arithmetic_side_effects, reason = "tests compute with known numbers")
)]

pub mod block_group;
pub mod checksum;
pub mod chunk;
pub mod device_item;
pub mod error;
pub mod item_error;
pub mod key;
pub mod node;
mod raw;
pub mod superblock;
mod tree_checker;
pub mod units;

pub use block_group::{BlockGroupFlags, BlockGroupItem, Profile};
pub use checksum::{Checksum, ChecksumType, crc32c, extent_data_reference_hash, extref_hash, name_hash};
pub use chunk::{Chunk, STRIPE_BYTES, Stripe};
pub use device_item::{DeviceExtent, DeviceItem};
pub use error::{ErrorKind, FeatureSet, Unsupported};
pub use item_error::{FileItemProblem, ItemError, ItemProblem};
pub use key::{ItemType, Key};
pub use node::{
    BlockError, BlockFormat, BlockProblem, DamagedBlock, Expectation, Header, HeaderFlags, Item, KeyPointer,
    TreeBlock,
};
pub use superblock::{
    BackupRoot, BackupTree, CompatRo, Incompat, RawSuperblock, SUPERBLOCK_BYTES, SUPERBLOCK_OFFSETS,
    Superblock, SuperblockError, SuperblockFlags,
};
pub use units::{
    ByteCount, DeviceId, FileOffset, Generation, InodeNumber, Logical, ObjectId, Physical, SubvolumeId,
    TreeId,
};
pub use uuid::Uuid;
