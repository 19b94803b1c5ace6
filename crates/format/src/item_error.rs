//! The error of one item: its key, and the check that it failed.
//!
//! A check that several item types share is a variant of [`ItemProblem`]. Checks of one concept
//! form an enum beside the concept's parser, which [`ItemProblem`] wraps. This module knows no
//! slots and no blocks: the same error serves items in leaves, in the superblock's chunk array and
//! in tests. [`crate::BlockError`] adds the block and the slot.

use crate::block_group::BlockGroupProblem;
use crate::chunk::ChunkProblem;
use crate::device_item::DeviceProblem;
use crate::directory::DirectoryProblem;
use crate::extent::ExtentProblem;
use crate::file_extent::FileExtentProblem;
use crate::free_space::FreeSpaceProblem;
use crate::inode::InodeProblem;
use crate::key::Key;
use crate::log::LogProblem;
use crate::names::NameProblem;
use crate::root::RootProblem;

mod file;

pub use file::FileItemProblem;

/// An item that fails a check.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("item {key}: {problem}")]
pub struct ItemError {
    /// The item's key.
    pub key: Key,
    /// The check that the item fails.
    pub problem: ItemProblem,
}

impl ItemError {
    /// Makes the error of the item `key`.
    #[must_use]
    pub fn new(key: &Key, problem: impl Into<ItemProblem>) -> Self {
        Self {
            key: *key,
            problem: problem.into(),
        }
    }
}

/// The check that an item fails.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ItemProblem {
    /// An item of fixed size has another size.
    #[error("size is {size_bytes} bytes, expected {expected_bytes}")]
    SizeWrong {
        /// The item's size.
        size_bytes: usize,
        /// The size that the item's type prescribes.
        expected_bytes: usize,
    },
    /// The item is shorter than its minimum content.
    #[error("size is {size_bytes} bytes, expected at least {needed_bytes}")]
    SizeTooSmall {
        /// The item's size.
        size_bytes: usize,
        /// The bytes that its content needs.
        needed_bytes: usize,
    },
    /// The item is an array of equal parts, but ends inside a part or holds no part.
    #[error("size is {size_bytes} bytes, expected a multiple of {unit_bytes} above zero")]
    SizeNotMultiple {
        /// The item's size.
        size_bytes: usize,
        /// The size of one part.
        unit_bytes: usize,
    },
    /// This item type cannot have the object id in the key.
    #[error("objectid {objectid} is not valid for the item type")]
    ObjectIdInvalid {
        /// The key's first field.
        objectid: u64,
    },
    /// The object id in the key is an address that is not sector-aligned.
    #[error("objectid {objectid} is not a multiple of the sector size {sector_bytes}")]
    ObjectIdUnaligned {
        /// The key's first field.
        objectid: u64,
        /// The volume's sector size.
        sector_bytes: u32,
    },
    /// The offset in the key differs from the only value that is valid.
    #[error("key offset is {offset}, expected {expected}")]
    OffsetWrong {
        /// The key's last field.
        offset: u64,
        /// The only valid value.
        expected: u64,
    },
    /// The offset in the key is an address or a length that is not whole sectors.
    #[error("key offset {offset} is not a multiple of the sector size {sector_bytes}")]
    OffsetUnaligned {
        /// The key's last field.
        offset: u64,
        /// The volume's sector size.
        sector_bytes: u32,
    },
    /// The offset in the key is a length, and zero.
    #[error("key offset is 0: the range has no length")]
    OffsetZero,
    /// The range that the key names ends beyond 2^64.
    #[error("range starts at {start} and is {length_bytes} bytes long: it ends past 2^64")]
    RangeOverflow {
        /// The first byte of the range.
        start: u64,
        /// The length of the range in bytes.
        length_bytes: u64,
    },
    /// The ranges of the item and of the previous item overlap.
    #[error("starts at {start}, but the item before it ends at {previous_end}")]
    OverlapsPrevious {
        /// The first byte of this item's range.
        start: u64,
        /// The exclusive end of the previous item's range.
        previous_end: u64,
    },
    /// A generation is newer than the volume.
    #[error("{field} is generation {generation}, expected at most {limit}")]
    GenerationInFuture {
        /// The name of the generation's field.
        field: &'static str,
        /// The generation that the field holds.
        generation: u64,
        /// The largest generation that the volume can hold.
        limit: u64,
    },
    /// The item needs a feature that the superblock does not list.
    #[error("the item type needs the feature {feature}, which the superblock does not have")]
    FeatureMissing {
        /// The feature, as btrfs-progs names it.
        feature: &'static str,
    },
    /// See [`ChunkProblem`].
    #[error(transparent)]
    Chunk(#[from] ChunkProblem),
    /// See [`DeviceProblem`].
    #[error(transparent)]
    Device(#[from] DeviceProblem),
    /// See [`BlockGroupProblem`].
    #[error(transparent)]
    BlockGroup(#[from] BlockGroupProblem),
    /// See [`InodeProblem`].
    #[error(transparent)]
    Inode(#[from] InodeProblem),
    /// See [`NameProblem`].
    #[error(transparent)]
    Name(#[from] NameProblem),
    /// See [`DirectoryProblem`].
    #[error(transparent)]
    Directory(#[from] DirectoryProblem),
    /// See [`FileExtentProblem`].
    #[error(transparent)]
    FileExtent(#[from] FileExtentProblem),
    /// See [`RootProblem`].
    #[error(transparent)]
    Root(#[from] RootProblem),
    /// See [`LogProblem`].
    #[error(transparent)]
    Log(#[from] LogProblem),
    /// See [`ExtentProblem`].
    #[error(transparent)]
    Extent(#[from] ExtentProblem),
    /// See [`FreeSpaceProblem`].
    #[error(transparent)]
    FreeSpace(#[from] FreeSpaceProblem),
    /// See [`FileItemProblem`].
    #[error(transparent)]
    File(#[from] FileItemProblem),
}
