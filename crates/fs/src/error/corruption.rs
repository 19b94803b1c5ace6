//! What can be wrong with a volume above the level of single items: one variant per check.

use super::Name;
use crate::location::Location;
use buttress_format::{
    ByteCount, CompressionError, DeviceId, FileOffset, InodeNumber, ItemError, Key, Logical, SubvolumeId,
    TreeId,
};

/// A rule of the format that the volume breaks above the level of single items.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Corruption {
    /// An item fails its checks although its block passed them.
    #[error("tree {tree}: {error}")]
    Item {
        /// The tree that holds the item.
        tree: TreeId,
        /// The check.
        error: ItemError,
    },
    /// An item that must exist does not.
    #[error("tree {tree}: item {key} is missing ({what})")]
    ItemMissing {
        /// The tree.
        tree: TreeId,
        /// The key.
        key: Key,
        /// What the item would say.
        what: &'static str,
    },
    /// An extent that is referred to has no item in the extent tree, or one without references.
    #[error("extent [{logical}, +{length}) has no item in the extent tree, or no references left")]
    ExtentMissing {
        /// Where the extent begins.
        logical: Logical,
        /// How long it is.
        length: ByteCount,
    },
    /// A reference that is to be dropped is not there.
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
        /// Where the data begins.
        logical: Logical,
        /// How long it is.
        length: ByteCount,
    },
    /// The free-space tree says something else of a range than the extent tree.
    #[error("the free-space tree disagrees with the extent tree at [{logical}, +{length})")]
    FreeSpaceDisagrees {
        /// Where the range begins.
        logical: Logical,
        /// How long it is.
        length: ByteCount,
    },
    /// The log tree says what no log can say.
    #[error("log tree, at {key}: {what}")]
    Log {
        /// Where in the log.
        key: Key,
        /// What is wrong.
        what: &'static str,
    },
    /// A tree that the volume needs has no root item, or one that cannot be used.
    #[error("tree {tree} has no root item")]
    TreeMissing {
        /// The tree.
        tree: TreeId,
    },
    /// The name of an entry could not be a name.
    #[error("{directory}, index {index}: the entry's name \"{name}\" is not a valid name")]
    NameInvalid {
        /// The directory that holds it.
        directory: Location,
        /// The index of the entry, 0 where it was found by hash.
        index: u64,
        /// The name.
        name: Name,
    },
    /// An entry of a directory points at something that no entry can point at.
    #[error(
        "{directory}: the entry \"{name}\" points at {target}, which is neither an inode nor a subvolume"
    )]
    EntryTargetInvalid {
        /// The directory.
        directory: Location,
        /// The name of the entry.
        name: Name,
        /// The key that it points at.
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
        /// The inode that it points at.
        inode: InodeNumber,
        /// The mode of the inode.
        mode: u32,
    },
    /// An entry is in the index of a directory but cannot be found by name.
    #[error("{directory}: \"{name}\" has index {index} but no entry by name (DIR_ITEM is missing)")]
    DirItemMissing {
        /// The directory.
        directory: Location,
        /// The name.
        name: Name,
        /// Its index.
        index: u64,
    },
    /// An entry can be found by name but is not in the index of the directory.
    #[error("{directory}: \"{name}\" is not in the index of the directory (DIR_INDEX is missing)")]
    DirIndexMissing {
        /// The directory.
        directory: Location,
        /// The name.
        name: Name,
    },
    /// A directory is entered by an entry that is not the one that the directory itself names: following
    /// such entries could lead in circles.
    #[error("{directory}: \"{name}\" points to directory {target}, which has another parent")]
    DirectoryLinkedTwice {
        /// The directory that holds the entry.
        directory: Location,
        /// The name of the entry.
        name: Name,
        /// The directory that it leads to.
        target: Location,
    },
    /// Directories that do not name their own place are so many that circles cannot be told.
    #[error("{directory}: more than {limit} directories without an INODE_REF; skipped")]
    DirectoriesUnverified {
        /// The first directory over the limit.
        directory: Location,
        /// The limit.
        limit: usize,
    },
    /// A directory lies deeper than any path can reach.
    #[error("{directory}: nested too deeply ({depth} levels, {path_bytes} bytes of path); skipped")]
    DirectoryTooDeep {
        /// The directory.
        directory: Location,
        /// How many levels lie above it.
        depth: usize,
        /// The length of its path.
        path_bytes: usize,
    },
    /// Two extents of a file overlap, or an extent ends beyond 2^64.
    #[error(
        "{location}: the extent [{offset}, +{length}) overlaps the extent before it, which ends at {previous_end}"
    )]
    ExtentOverlap {
        /// The file.
        location: Location,
        /// Where the extent begins.
        offset: FileOffset,
        /// Its length.
        length: ByteCount,
        /// Where the extent before it ends.
        previous_end: FileOffset,
    },
    /// A compressed extent is larger than any that btrfs makes.
    #[error(
        "{location}, offset {offset}: compressed extent is too long (found {disk_bytes} bytes on disk and {ram_bytes} in memory, expected at most {limit})"
    )]
    CompressedTooLarge {
        /// The file.
        location: Location,
        /// Where the extent begins.
        offset: FileOffset,
        /// Its size on disk.
        disk_bytes: ByteCount,
        /// Its size in memory.
        ram_bytes: ByteCount,
        /// The limit for both.
        limit: ByteCount,
    },
    /// A file range points outside its extent.
    #[error(
        "{location}, offset {offset}: [{extent_offset}, +{length}) is outside of the extent's {ram_bytes} bytes"
    )]
    ExtentOutOfBounds {
        /// The file.
        location: Location,
        /// Where the range begins in the file.
        offset: FileOffset,
        /// Where it begins in the extent.
        extent_offset: ByteCount,
        /// Its length.
        length: ByteCount,
        /// The size of the extent in memory.
        ram_bytes: ByteCount,
    },
    /// A compressed extent does not decompress.
    #[error("{location}, offset {offset}: extent at {logical}: {error}")]
    Decompression {
        /// The file.
        location: Location,
        /// Where the extent begins in the file.
        offset: FileOffset,
        /// Where it lies, 0 for inline.
        logical: Logical,
        /// What is wrong with it.
        error: CompressionError,
    },
    /// Data of a file for which no copy has the right checksum.
    #[error(
        "{location}, offset {offset}: {length} bytes at logical {logical} fail their checksum in every copy"
    )]
    DataChecksum {
        /// The file.
        location: Location,
        /// Where in the file the loss begins.
        offset: FileOffset,
        /// How many bytes are lost.
        length: ByteCount,
        /// Where they lie.
        logical: Logical,
    },
    /// Data of a file that should have checksums and has none.
    #[error(
        "{location}, offset {offset}: no checksums for {length} bytes at logical {logical} \
         (rescue=ignoredatacsums reads them unverified)"
    )]
    DataChecksumMissing {
        /// The file.
        location: Location,
        /// Where in the file.
        offset: FileOffset,
        /// How many bytes.
        length: ByteCount,
        /// Where they lie.
        logical: Logical,
    },
    /// A symlink without a target, or with one that is longer than a path can be.
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
    /// A subvolume is found at a second place, or contains itself.
    #[error("subvolume {subvolume} is in several directories, the second one {directory}; skipped")]
    SubvolumeLinkedTwice {
        /// The subvolume.
        subvolume: SubvolumeId,
        /// The directory that leads to it.
        directory: Location,
    },
    /// Climbing from an inode or a subvolume to the top does not end.
    #[error("{location}: the path to the top level has more than {limit} components")]
    ParentLoop {
        /// Where the climb began.
        location: Location,
        /// After how many steps it was given up.
        limit: usize,
    },
    /// More of a block group is free and used than it is long: what is free would be overwritten.
    #[error(
        "block group {group}: free and used bytes do not fit its length (found {free} free and {used} used or pending bytes, expected {length} in total); run `buttress check`"
    )]
    FreeSpaceInUse {
        /// Its address.
        group: Logical,
        /// Its length.
        length: ByteCount,
        /// What its item says, and what waits for a commit.
        used: ByteCount,
        /// What the free-space tree, or the extent tree, leaves.
        free: ByteCount,
    },
    /// More of a block group is freed than its item says is used.
    #[error(
        "block group {group}: {freed} bytes are freed, but only {used} are recorded as used; run `buttress check`"
    )]
    GroupUsedTooLow {
        /// Its address.
        group: Logical,
        /// What its item says, less what was freed.
        used: ByteCount,
        /// What is freed.
        freed: ByteCount,
    },
    /// An extent that no block group holds as a whole.
    #[error("extent {logical}: no block group has its {length} bytes")]
    OutsideGroups {
        /// The extent.
        logical: Logical,
        /// Its length.
        length: ByteCount,
    },
    /// An extent has fewer references than go.
    #[error(
        "extent {logical}: its reference count is {references}, and a change by {change} is impossible; run `buttress check`"
    )]
    ReferencesTooFew {
        /// The extent.
        logical: Logical,
        /// What is recorded.
        references: u64,
        /// The change.
        change: i64,
    },
    /// A device's item counts fewer bytes than go.
    #[error(
        "device {device}: its item has {used} used bytes of {total}, and a change by {change} is impossible"
    )]
    DeviceUsedWrong {
        /// The device.
        device: DeviceId,
        /// What is recorded.
        used: ByteCount,
        /// The device's size.
        total: ByteCount,
        /// The change.
        change: i64,
    },
    /// References from the extent tree do not lead to what they say.
    #[error("extent {logical}: the reference {reference} points to nothing")]
    BackReferenceDangling {
        /// The extent.
        logical: Logical,
        /// The reference, as text.
        reference: String,
    },
    /// An extent has more sharers than are followed.
    #[error("extent {logical}: more than {limit} blocks refer to it; further references are ignored")]
    BackReferencesTooMany {
        /// The extent.
        logical: Logical,
        /// The limit.
        limit: usize,
    },
}
