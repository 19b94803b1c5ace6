//! The errors of a volume above the level of single items: one variant for each check.

use super::Name;
use crate::location::Location;
use buttress_format::{
    ByteCount, CompressionError, DeviceId, FileOffset, InodeNumber, ItemError, Key, Logical, SubvolumeId,
    TreeId,
};

/// A violated rule of the format above the level of single items.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Corruption {
    /// An item fails its checks, although its tree block passed them.
    #[error("tree {tree}: {error}")]
    Item {
        /// The tree that holds the item.
        tree: TreeId,
        /// The failed check.
        error: ItemError,
    },
    /// A mandatory item does not exist.
    #[error("tree {tree}: item {key} is missing ({what})")]
    ItemMissing {
        /// The tree that lacks the item.
        tree: TreeId,
        /// The key of the item.
        key: Key,
        /// The content that the item should have.
        what: &'static str,
    },
    /// A referenced extent has no item in the extent tree, or an item without references.
    #[error("extent [{logical}, +{length}) has no item in the extent tree, or no references left")]
    ExtentMissing {
        /// The first byte of the extent.
        logical: Logical,
        /// The length of the extent.
        length: ByteCount,
    },
    /// A reference to drop does not exist.
    #[error("extent {logical} has no reference {reference}")]
    ReferenceMissing {
        /// The extent.
        logical: Logical,
        /// The reference.
        reference: String,
    },
    /// The log refers to data that is no extent, in a range that is not free.
    #[error("the log refers to data at [{logical}, +{length}), which is no extent and is not free")]
    LoggedRangeInUse {
        /// The first byte of the data.
        logical: Logical,
        /// The length of the data.
        length: ByteCount,
    },
    /// The free-space tree and the extent tree contradict each other on a range.
    #[error("the free-space tree disagrees with the extent tree at [{logical}, +{length})")]
    FreeSpaceDisagrees {
        /// The first byte of the range.
        logical: Logical,
        /// The length of the range.
        length: ByteCount,
    },
    /// The log tree holds an item that no log can hold.
    #[error("log tree, at {key}: {what}")]
    Log {
        /// The key of the item.
        key: Key,
        /// The error of the item.
        what: &'static str,
    },
    /// A mandatory tree has no root item, or an unusable one.
    #[error("tree {tree} has no root item")]
    TreeMissing {
        /// The tree.
        tree: TreeId,
    },
    /// The name of an entry is invalid.
    #[error("{directory}, index {index}: the entry's name \"{name}\" is not a valid name")]
    NameInvalid {
        /// The directory that holds it.
        directory: Location,
        /// The index of the entry; 0 if it was found by hash.
        index: u64,
        /// The name.
        name: Name,
    },
    /// The target of a directory entry is invalid.
    #[error(
        "{directory}: the entry \"{name}\" points at {target}, which is neither an inode nor a subvolume"
    )]
    EntryTargetInvalid {
        /// The directory.
        directory: Location,
        /// The name of the entry.
        name: Name,
        /// The key of the target.
        target: Key,
    },
    /// An entry's file type differs from the mode of its inode.
    #[error(
        "{directory}: the entry \"{name}\" has file type {entry_kind}, but inode {inode} has mode {mode:#o}"
    )]
    EntryKindWrong {
        /// The directory.
        directory: Location,
        /// The name.
        name: Name,
        /// The type that the entry holds.
        entry_kind: &'static str,
        /// The inode of the entry.
        inode: InodeNumber,
        /// The mode of the inode.
        mode: u32,
    },
    /// The index of a directory holds an entry that cannot be found by name.
    #[error("{directory}: \"{name}\" has index {index} but no entry by name (DIR_ITEM is missing)")]
    DirItemMissing {
        /// The directory.
        directory: Location,
        /// The name.
        name: Name,
        /// The index of the entry.
        index: u64,
    },
    /// An entry can be found by name, but the index of the directory lacks it.
    #[error("{directory}: \"{name}\" is not in the index of the directory (DIR_INDEX is missing)")]
    DirIndexMissing {
        /// The directory.
        directory: Location,
        /// The name.
        name: Name,
    },
    /// A directory is reached by another entry than the one that the directory itself names.
    /// Following directory entries of this kind could lead in circles.
    #[error("{directory}: \"{name}\" points to directory {target}, which has another parent")]
    DirectoryLinkedTwice {
        /// The directory that holds the entry.
        directory: Location,
        /// The name of the entry.
        name: Name,
        /// The directory to which the entry leads.
        target: Location,
    },
    /// Too many directories lack a record of their own place, so the walk cannot detect cycles.
    #[error("{directory}: more than {limit} directories without an INODE_REF; skipped")]
    DirectoriesUnverified {
        /// The first directory over the limit.
        directory: Location,
        /// The limit.
        limit: usize,
    },
    /// A directory is nested deeper than any path can reach.
    #[error("{directory}: nested too deeply ({depth} levels, {path_bytes} bytes of path); skipped")]
    DirectoryTooDeep {
        /// The directory.
        directory: Location,
        /// The number of levels above the directory.
        depth: usize,
        /// The length of the directory's path.
        path_bytes: usize,
    },
    /// Two extents of a file overlap, or an extent ends beyond 2^64.
    #[error(
        "{location}: the extent [{offset}, +{length}) overlaps the extent before it, which ends at {previous_end}"
    )]
    ExtentOverlap {
        /// The file.
        location: Location,
        /// The file offset of the extent.
        offset: FileOffset,
        /// The length of the extent.
        length: ByteCount,
        /// The end of the previous extent.
        previous_end: FileOffset,
    },
    /// A compressed extent is larger than any that btrfs makes.
    #[error(
        "{location}, offset {offset}: compressed extent is too long (found {disk_bytes} bytes on disk and {ram_bytes} in memory, expected at most {limit})"
    )]
    CompressedTooLarge {
        /// The file.
        location: Location,
        /// The file offset of the extent.
        offset: FileOffset,
        /// The extent's size on disk.
        disk_bytes: ByteCount,
        /// The extent's size in memory.
        ram_bytes: ByteCount,
        /// The limit on the lengths before and after compression.
        limit: ByteCount,
    },
    /// A file range lies outside its extent.
    #[error(
        "{location}, offset {offset}: [{extent_offset}, +{length}) is outside of the extent's {ram_bytes} bytes"
    )]
    ExtentOutOfBounds {
        /// The file.
        location: Location,
        /// The file offset of the range.
        offset: FileOffset,
        /// The offset of the range in the extent.
        extent_offset: ByteCount,
        /// The length of the range.
        length: ByteCount,
        /// The size of the extent in memory.
        ram_bytes: ByteCount,
    },
    /// A compressed extent does not decompress.
    #[error("{location}, offset {offset}: extent at {logical}: {error}")]
    Decompression {
        /// The file.
        location: Location,
        /// The file offset of the extent.
        offset: FileOffset,
        /// The address of the extent; 0 for inline content.
        logical: Logical,
        /// The error of decompression.
        error: CompressionError,
    },
    /// No copy of a file's data has the correct checksum.
    #[error(
        "{location}, offset {offset}: {length} bytes at logical {logical} fail their checksum in every copy"
    )]
    DataChecksum {
        /// The file.
        location: Location,
        /// The file offset of the lost bytes.
        offset: FileOffset,
        /// The number of lost bytes.
        length: ByteCount,
        /// The address of the lost bytes.
        logical: Logical,
    },
    /// A file's data lacks checksums that it should have.
    #[error(
        "{location}, offset {offset}: no checksums for {length} bytes at logical {logical} \
         (rescue=ignoredatacsums reads them unverified)"
    )]
    DataChecksumMissing {
        /// The file.
        location: Location,
        /// The file offset of the data.
        offset: FileOffset,
        /// The number of bytes without checksums.
        length: ByteCount,
        /// The address of the data.
        logical: Logical,
    },
    /// A symlink has no target, or one that is longer than a path can be.
    #[error(
        "{location}: the target of the symbolic link has an invalid length (found {length} bytes, expected 1 to {limit})"
    )]
    SymlinkLength {
        /// The symlink.
        location: Location,
        /// The length of the target.
        length: ByteCount,
        /// The limit.
        limit: ByteCount,
    },
    /// A subvolume appears at a second place, or contains itself.
    #[error("subvolume {subvolume} is in several directories, the second one {directory}; skipped")]
    SubvolumeLinkedTwice {
        /// The subvolume.
        subvolume: SubvolumeId,
        /// The directory whose entry leads to the subvolume.
        directory: Location,
    },
    /// The ascent from an inode or a subvolume to the top does not end.
    #[error("{location}: the path to the top level has more than {limit} components")]
    ParentLoop {
        /// The inode or directory at which the ascent started.
        location: Location,
        /// The number of steps after which the ascent to an inode's path stopped.
        limit: usize,
    },
    /// The free and used bytes of a block group exceed its length. Allocating the free bytes would
    /// overwrite data.
    #[error(
        "block group {group}: free and used bytes do not fit its length (found {free} free and {used} used or pending bytes, expected {length} in total); run `buttress check`"
    )]
    FreeSpaceInUse {
        /// The block group's address.
        group: Logical,
        /// The block group's length.
        length: ByteCount,
        /// The used bytes according to the block group's item, plus the bytes pending for a commit.
        used: ByteCount,
        /// The number of free bytes according to the free-space tree or the extent tree.
        free: ByteCount,
    },
    /// More bytes of a block group are freed than its item counts as used.
    #[error(
        "block group {group}: {freed} bytes are freed, but only {used} are recorded as used; run `buttress check`"
    )]
    GroupUsedTooLow {
        /// The block group's address.
        group: Logical,
        /// The block group's used bytes according to its item, minus the bytes freed so far.
        used: ByteCount,
        /// The number of bytes to free.
        freed: ByteCount,
    },
    /// No block group contains the whole extent.
    #[error("extent {logical}: no block group has its {length} bytes")]
    OutsideGroups {
        /// The extent.
        logical: Logical,
        /// The length of the extent.
        length: ByteCount,
    },
    /// An extent has fewer references than are dropped.
    #[error(
        "extent {logical}: its reference count is {references}, and a change by {change} is impossible; run `buttress check`"
    )]
    ReferencesTooFew {
        /// The extent.
        logical: Logical,
        /// The recorded number of references.
        references: u64,
        /// The change of the number.
        change: i64,
    },
    /// A device's item counts fewer bytes than are freed.
    #[error(
        "device {device}: its item has {used} used bytes of {total}, and a change by {change} is impossible"
    )]
    DeviceUsedWrong {
        /// The device.
        device: DeviceId,
        /// The recorded number of bytes.
        used: ByteCount,
        /// The device's size.
        total: ByteCount,
        /// The impossible change of the number of used bytes.
        change: i64,
    },
    /// The target of a back reference does not refer to the extent.
    #[error("extent {logical}: the reference {reference} points to nothing")]
    BackReferenceDangling {
        /// The extent.
        logical: Logical,
        /// The invalid reference, as text.
        reference: String,
    },
    /// An extent has more references than the limit up to which references are followed.
    #[error("extent {logical}: more than {limit} blocks refer to it; further references are ignored")]
    BackReferencesTooMany {
        /// The extent.
        logical: Logical,
        /// The limit.
        limit: usize,
    },
}
