//! The error of one item: its key, and the check that it failed.
//!
//! Checks that several item types share are variants of [`ItemProblem`]; those of one concept are an enum
//! beside the concept's parser, wrapped here. Nothing here knows slots or blocks: the same error serves items
//! in leaves, in the superblock's chunk array and in tests. [`crate::BlockError`] adds the place.

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
    /// The check that it fails.
    pub problem: ItemProblem,
}

impl ItemError {
    /// The error of the item `key`.
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
        /// The size that its type has.
        expected_bytes: usize,
    },
    /// An item ends before what it must at least hold.
    #[error("size is {size_bytes} bytes, expected at least {needed_bytes}")]
    SizeTooSmall {
        /// The item's size.
        size_bytes: usize,
        /// The bytes that its content needs.
        needed_bytes: usize,
    },
    /// An item that is a row of equal parts ends inside a part, or holds none.
    #[error("size is {size_bytes} bytes, expected a multiple of {unit_bytes} above zero")]
    SizeNotMultiple {
        /// The item's size.
        size_bytes: usize,
        /// The size of one part.
        unit_bytes: usize,
    },
    /// The key's first field is not one that this item type can have.
    #[error("objectid {objectid} does not fit the item type")]
    ObjectIdInvalid {
        /// The key's first field.
        objectid: u64,
    },
    /// The key's first field is an address that no sector begins at.
    #[error("objectid {objectid} is not a multiple of the sector size {sector_bytes}")]
    ObjectIdUnaligned {
        /// The key's first field.
        objectid: u64,
        /// The volume's sector size.
        sector_bytes: u32,
    },
    /// The key's last field has one possible value and not that one.
    #[error("key offset is {offset}, expected {expected}")]
    OffsetWrong {
        /// The key's last field.
        offset: u64,
        /// What it must be.
        expected: u64,
    },
    /// The key's last field is an address or a length that is not whole sectors.
    #[error("key offset {offset} is not a multiple of the sector size {sector_bytes}")]
    OffsetUnaligned {
        /// The key's last field.
        offset: u64,
        /// The volume's sector size.
        sector_bytes: u32,
    },
    /// The key's last field is a length, and zero.
    #[error("key offset is 0: the range has no length")]
    OffsetZero,
    /// The range that the key names ends beyond 2^64.
    #[error("range starts at {start} and is {length_bytes} bytes long: it ends beyond 2^64")]
    RangeOverflow {
        /// Where the range begins.
        start: u64,
        /// Its length.
        length_bytes: u64,
    },
    /// The item covers bytes that the item before it covers too.
    #[error("starts at {start}, but the item before it reaches up to {previous_end}")]
    OverlapsPrevious {
        /// Where this item's range begins.
        start: u64,
        /// The end (exclusive) of the range of the item before it.
        previous_end: u64,
    },
    /// A generation lies in the future of the volume.
    #[error("{field} is generation {generation}, the volume has only reached {limit}")]
    GenerationInFuture {
        /// The name of the field.
        field: &'static str,
        /// Its value.
        generation: u64,
        /// The largest generation that the volume can hold.
        limit: u64,
    },
    /// The item needs a feature that the superblock does not announce.
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
