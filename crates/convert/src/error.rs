//! The errors of a conversion.

use crate::layout::NoSpace;
use buttress_device::IoError;
use buttress_exact::Defect;
use buttress_extfs::ExtError;
use buttress_format::{ItemProblem, SuperblockError};

/// A failure of a conversion. The old file system is unchanged.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The free space is too small, or too fragmented, for the new trees.
    #[error(transparent)]
    NoSpace(#[from] NoSpace),
    /// The converted volume cannot be read.
    #[error(transparent)]
    Filesystem(#[from] buttress_fs::Error),
    /// An extent of the saved image is not at its old place.
    #[error(
        "byte {offset} of the saved image is no longer at its place, for example because of a balance. \
         The old file system cannot come back. Copy its files out of the saved image instead"
    )]
    ImageMoved {
        /// The first byte of the extent in the image.
        offset: u64,
    },
    /// The volume has no saved image of an old file system.
    #[error("the volume cannot become the old file system again: {problem}")]
    NoSavedImage {
        /// The reason.
        problem: &'static str,
    },
    /// A block of the old file system is not in the saved image.
    #[error(
        "byte {offset} of the saved image is a hole, but the old file system uses it. The old file \
         system cannot come back. Copy its files out of the saved image instead"
    )]
    ImageHole {
        /// The first byte of the hole.
        offset: u64,
    },
    /// The device holds a btrfs volume.
    #[error("the device holds a btrfs volume, and only ext2, ext3 and ext4 can be converted")]
    IsBtrfs,
    /// A former conversion of the device was interrupted.
    #[error("a conversion of this device was interrupted. Resume it first")]
    Unfinished,
    /// A converted volume cannot have a setting.
    #[error("a conversion cannot have {what}: {reason}")]
    Setting {
        /// The setting.
        what: String,
        /// The reason, or the way to get the setting later.
        reason: &'static str,
    },
    /// The superblock cannot be encoded.
    #[error(transparent)]
    Superblock(#[from] SuperblockError),
    /// The old file system cannot be read.
    #[error(transparent)]
    Ext(#[from] ExtError),
    /// The device failed.
    #[error(transparent)]
    Device(#[from] IoError),
    /// The new volume cannot be written.
    #[error(transparent)]
    Volume(#[from] buttress_volume::Error),
    /// The settings of the new volume contradict each other.
    #[error(transparent)]
    Settings(#[from] buttress_mkfs::Error),
    /// Items cannot be sorted or packed.
    #[error(transparent)]
    Packing(#[from] buttress_packing::Error),
    /// btrfs cannot hold an object of the old file system.
    #[error("inode {inode}: {problem}. Remove or change it before the conversion")]
    Object {
        /// The inode in the old file system.
        inode: u32,
        /// The reason.
        problem: String,
    },
    /// A block of a group's metadata is free in the bitmaps.
    #[error(
        "byte {physical} of the device has metadata of block group {group}, but its block is free. To \
         repair, run `e2fsck -f` on the unmounted volume"
    )]
    FreeMetadata {
        /// The group in the old file system.
        group: u32,
        /// The first free byte on the device.
        physical: u64,
    },
    /// A block of an inode is free in the bitmaps.
    #[error(
        "byte {physical} of the device belongs to inode {inode}, but its block is free. To repair, \
         run `e2fsck -f` on the unmounted volume"
    )]
    FreeBlock {
        /// The inode in the old file system.
        inode: u32,
        /// The first byte of the block.
        physical: u64,
    },
    /// The root directory has the name of the subvolume with the saved image.
    #[error("the root directory has an entry `{name}`, the name of the saved image. Rename the entry")]
    NameTaken {
        /// The name.
        name: String,
    },
    /// An invariant of this program is broken.
    #[error(transparent)]
    Defect(#[from] Defect),
}

impl Error {
    /// Makes the error of an item that btrfs cannot hold.
    pub(crate) fn of_item(inode: u32, problem: impl Into<ItemProblem>) -> Self {
        Self::Object {
            inode,
            problem: problem.into().to_string(),
        }
    }
}

/// The result of a step of a conversion.
pub type Result<T> = core::result::Result<T, Error>;
