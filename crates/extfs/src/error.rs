//! The errors of this crate.
//!
//! The kinds are never mixed: a failed device, a broken rule of the format, a refused feature or
//! state, and a broken invariant of this program. A caller's limit is an error of its own.
//!
//! Each message names the place, the problem with its numbers, and the remedy.

use crate::refusal::Refusal;
use crate::units::{BlockNumber, FileBlock, GroupNumber, InodeNumber};
use buttress_device::IoError;
use buttress_exact::Defect;
use core::fmt;

/// A failure to read an ext2, ext3 or ext4 volume.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ExtError {
    /// The device failed.
    #[error(transparent)]
    Io(#[from] IoError),
    /// The device holds no ext2, ext3 or ext4 superblock.
    #[error(
        "byte 1080 of the device holds 0x{found:04x}, not 0xef53: this is no ext2, ext3 or ext4 \
         volume. Name the partition or image that holds the volume"
    )]
    NotExt {
        /// The number in place of the magic number.
        found: u16,
    },
    /// Bytes on disk violate a rule of the format.
    #[error("{place}: {problem}. To repair, run `e2fsck -f` on the unmounted volume")]
    Corrupt {
        /// The structure that breaks the rule.
        place: Place,
        /// The rule, with the numbers.
        problem: Problem,
    },
    /// The volume is valid, but has a feature or state that this crate does not read.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// The caller's limit is lower than the size of the content.
    #[error(
        "inode {inode}: the content has {size_bytes} bytes, more than the {limit_bytes} that the caller accepts"
    )]
    TooLarge {
        /// The inode.
        inode: InodeNumber,
        /// The size of the content.
        size_bytes: u64,
        /// The largest size that the caller accepts.
        limit_bytes: u64,
    },
    /// An invariant of this program is broken.
    #[error(transparent)]
    Defect(#[from] Defect),
}

impl ExtError {
    /// Makes the error of the structure at `place`.
    pub(crate) const fn corrupt(place: Place, problem: Problem) -> Self {
        Self::Corrupt { place, problem }
    }
}

/// The structure that an error concerns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// The superblock at byte 1024.
    Superblock,
    /// The block of multiple-mount protection.
    MountProtection(BlockNumber),
    /// A group descriptor.
    Group(GroupNumber),
    /// The bitmap of a group's blocks.
    BlockBitmap(GroupNumber),
    /// The bitmap of a group's inodes.
    InodeBitmap(GroupNumber),
    /// An inode.
    Inode(InodeNumber),
    /// A block of the tree or map that holds a file's extents.
    MapBlock {
        /// The file.
        inode: InodeNumber,
        /// The place of the block.
        block: BlockNumber,
    },
    /// A block of a directory.
    DirectoryBlock {
        /// The directory.
        inode: InodeNumber,
        /// The block of the directory's content.
        block: FileBlock,
    },
    /// The entries in the inode of a directory.
    InlineDirectory(InodeNumber),
    /// The extended attributes in an inode.
    InodeAttributes(InodeNumber),
    /// The block of an inode's extended attributes.
    AttributeBlock {
        /// The owner of the attributes.
        inode: InodeNumber,
        /// The place of the block.
        block: BlockNumber,
    },
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Superblock => write!(f, "superblock at byte 1024"),
            Self::MountProtection(block) => write!(f, "multiple-mount protection in block {block}"),
            Self::Group(group) => write!(f, "descriptor of group {group}"),
            Self::BlockBitmap(group) => write!(f, "block bitmap of group {group}"),
            Self::InodeBitmap(group) => write!(f, "inode bitmap of group {group}"),
            Self::Inode(inode) => write!(f, "inode {inode}"),
            Self::MapBlock { inode, block } => write!(f, "inode {inode}, extent or map block {block}"),
            Self::DirectoryBlock { inode, block } => {
                write!(f, "directory {inode}, block {block} of its content")
            }
            Self::InlineDirectory(inode) => write!(f, "directory {inode}, entries in the inode"),
            Self::InodeAttributes(inode) => write!(f, "inode {inode}, attributes in the inode"),
            Self::AttributeBlock { inode, block } => write!(f, "inode {inode}, attribute block {block}"),
        }
    }
}

/// The rule that a structure breaks.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Problem {
    /// A checksum does not match its bytes.
    #[error("the checksum is wrong (found {found:#x}, expected {expected:#x})")]
    Checksum {
        /// The stored checksum.
        found: u32,
        /// The checksum of the bytes.
        expected: u32,
    },
    /// A field has a value that no valid structure has.
    #[error("{field} is {found}, expected {least} to {most}")]
    Field {
        /// The field.
        field: &'static str,
        /// The stored value.
        found: u64,
        /// The lowest valid value.
        least: u64,
        /// The highest valid value.
        most: u64,
    },
    /// A field has another value than the only valid one.
    #[error("{field} is {found}, expected {expected}")]
    Differs {
        /// The field.
        field: &'static str,
        /// The stored value.
        found: u64,
        /// The valid value.
        expected: u64,
    },
    /// A size is neither a power of two nor in range.
    #[error("{field} is {found}, expected a power of two from {least} to {most}")]
    PowerOfTwo {
        /// The field.
        field: &'static str,
        /// The stored value.
        found: u64,
        /// The lowest valid value.
        least: u64,
        /// The highest valid value.
        most: u64,
    },
    /// A pointer leads out of the volume.
    #[error("{count} blocks from block {first} for {what} are not all in the volume of {end} blocks")]
    Outside {
        /// The target of the pointer.
        what: &'static str,
        /// The first block.
        first: u64,
        /// The number of blocks.
        count: u64,
        /// The number of blocks of the volume.
        end: u64,
    },
    /// A part of a structure passes the end of the structure.
    #[error("the end of {what} ({length} bytes at byte {offset}) is after byte {end}")]
    Bounds {
        /// The part.
        what: &'static str,
        /// The first byte of the part.
        offset: u64,
        /// The length of the part.
        length: u64,
        /// The end of the structure.
        end: u64,
    },
    /// Entries that must ascend do not.
    #[error("the order of entries is wrong ({what} {found}, expected {least} to {most})")]
    Order {
        /// The entries.
        what: &'static str,
        /// The entry's number.
        found: u64,
        /// The lowest number after the entries before.
        least: u64,
        /// The highest number before the next entry.
        most: u64,
    },
    /// The extents of a file need more blocks than its inode counts. A circle of blocks ends here.
    #[error("the extents use more than the {counted} blocks that the inode counts")]
    MoreBlocks {
        /// The number of blocks by the inode.
        counted: u64,
    },
    /// A name is empty, too long, or has bytes that names cannot have.
    #[error("the name at byte {offset} is empty or contains `/` or NUL")]
    Name {
        /// The first byte of the entry.
        offset: u64,
    },
    /// The target of a symbolic link is empty or has a NUL byte.
    #[error("the link target is empty or contains NUL")]
    Target,
    /// A directory block has no checksum, although the volume has checksums.
    #[error("the block has no space for its checksum. `e2fsck -fD` adds the space")]
    NoTail,
    /// A directory, an attribute or a link is stored in unwritten extents or holes.
    #[error("the content has a hole or unwritten blocks at block {at} of the content")]
    Hole {
        /// The first block without content.
        at: u64,
    },
    /// The inode of an attribute's value is not marked as one.
    #[error("inode {inode} holds no value of an attribute")]
    NotAValue {
        /// The inode that the attribute names.
        inode: InodeNumber,
    },
    /// The inode has inline content, but no attribute `system.data`.
    #[error("the inode has inline content, but no attribute `system.data`")]
    NoInlineAttribute,
    /// The inode's type does not fit the request.
    #[error("the mode is {mode:#o}, expected {expected}")]
    Kind {
        /// The inode's mode.
        mode: u16,
        /// The expected type.
        expected: &'static str,
    },
}
