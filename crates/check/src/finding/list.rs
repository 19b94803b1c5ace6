//! The findings.

use super::{Field, Grade, Reference, Subject, Value, findings};
use crate::report::Step;
use buttress_format::{
    ByteCount, DeviceId, FileOffset, Generation, InodeNumber, Key, Logical, Physical, SubvolumeId, TreeId,
};
use buttress_fs::Name;
use core::fmt;
use uuid::Uuid;

findings! {
    /// A superblock that does not pass its checks, on a device whose other ones do.
    SuperblockDamaged = "superblock-damaged", Redundancy, Roots {
        /// The device.
        device: DeviceId,
        /// Where it lies.
        physical: Physical,
        /// The check that fails.
        reason: String,
    } "device {device}: the superblock at {physical} cannot be used: {reason}"

    /// A superblock of the newest generation that says something else than the one in use.
    SuperblockDiffers = "superblock-differs", Unsafe, Roots {
        /// The device.
        device: DeviceId,
        /// Where it lies.
        physical: Physical,
        /// The field.
        field: &'static str,
        /// What it says.
        found: u64,
        /// What the one in use says.
        expected: u64,
    } "device {device}: {field} in the superblock at {physical} is {found}, expected {expected}"

    /// A device that missed commits.
    DeviceBehind = "device-behind", Redundancy, Roots {
        /// The device.
        device: DeviceId,
        /// Its generation.
        generation: Generation,
        /// The volume's.
        expected: Generation,
    } "device {device} is of generation {generation}, the volume of {expected}"

    /// A device that is not there.
    DeviceMissing = "device-missing", Redundancy, Roots {
        /// The device.
        device: DeviceId,
        /// Its uuid.
        uuid: Uuid,
    } "device {device} ({uuid}) is missing"

    /// A device that is smaller than its item says.
    DeviceTooSmall = "device-too-small", Loss, Roots {
        /// The device.
        device: DeviceId,
        /// Its size.
        size: ByteCount,
        /// What its item says.
        expected: ByteCount,
    } "device {device} has {size} bytes, its item says {expected}"

    /// A superblock and the chunk tree say different things of a device.
    DeviceItemDiffers = "device-item-differs", Inconsistent, Roots {
        /// The device.
        device: DeviceId,
        /// The field.
        field: &'static str,
        /// In its superblock.
        superblock: String,
        /// In the chunk tree.
        item: String,
    } "device {device}: {field} is {superblock} in its superblock and {item} in the chunk tree"

    /// The superblock counts devices wrongly.
    DeviceCount = "device-count", Inconsistent, Roots {
        /// By the superblock.
        stored: u64,
        /// By the chunk tree.
        counted: u64,
    } "the superblock says {stored} devices, the chunk tree has {counted}"

    /// The superblock adds up the devices' sizes wrongly.
    TotalBytes = "total-bytes", Inconsistent, Roots {
        /// By the superblock.
        stored: ByteCount,
        /// By the device items.
        counted: ByteCount,
    } "the superblock says {stored} bytes of devices, their items sum up to {counted}"

    /// A system chunk that the superblock's array and the chunk tree do not agree on.
    SystemChunkDiffers = "system-chunk-differs", Unsafe, Roots {
        /// The chunk.
        logical: Logical,
        /// In which way.
        problem: &'static str,
    } "system chunk {logical}: {problem}"

    /// A tree that the volume must have is not there.
    TreeMissing = "tree-missing", Loss, Roots {
        /// The tree.
        tree: TreeId,
    } "tree {tree} has no root item"

    /// A tree block of which no copy is in order.
    TreeBlockDamaged = "tree-block-damaged", Loss, Roots {
        /// The tree through which it was reached.
        tree: TreeId,
        /// Where it lies.
        logical: Logical,
        /// Its level.
        level: u8,
        /// What is wrong with the last copy.
        reason: String,
    } "tree {tree}: block {logical} (level {level}): {reason}"

    /// A copy of a tree block that is bad while another is good.
    CopyDamaged = "copy-damaged", Redundancy, Roots {
        /// Where it lies.
        logical: Logical,
        /// The device of the bad copy.
        device: DeviceId,
        /// Its place there.
        physical: Physical,
        /// What is wrong with it.
        reason: String,
    } "block {logical}: the copy on device {device} at {physical} is bad: {reason}"

    /// The default subvolume does not exist.
    DefaultSubvolumeMissing = "default-subvolume-missing", Inconsistent, Roots {
        /// What is set.
        subvolume: TreeId,
    } "the default subvolume is {subvolume}, which does not exist"

    /// A root item whose root directory is not the one that all have.
    RootDirectory = "root-directory", Loss, Roots {
        /// The subvolume.
        subvolume: SubvolumeId,
        /// The inode that the item names.
        directory: InodeNumber,
    } "subvolume {subvolume}: its root item says that its root directory is inode {directory}"

    /// A chunk without a block group.
    BlockGroupMissing = "block-group-missing", Unsafe, Extents {
        /// Where the chunk begins.
        logical: Logical,
        /// How long it is.
        length: ByteCount,
    } "chunk {logical} of {length} bytes has no block group"

    /// A block group without a chunk.
    ChunkMissing = "chunk-missing", Loss, Extents {
        /// Where the block group begins.
        logical: Logical,
        /// How long it is.
        length: ByteCount,
    } "block group {logical} of {length} bytes has no chunk"

    /// A block group and its chunk are of different kinds.
    BlockGroupFlagsDiffer = "block-group-flags", Unsafe, Extents {
        /// Where they begin.
        logical: Logical,
        /// The block group's.
        group: String,
        /// The chunk's.
        chunk: String,
    } "block group {logical} is {group}, its chunk is {chunk}"

    /// A block group counts its extents wrongly.
    BlockGroupUsed = "block-group-used", Unsafe, Extents {
        /// Where it begins.
        logical: Logical,
        /// What it says.
        stored: ByteCount,
        /// The sum of its extents.
        counted: ByteCount,
    } "block group {logical} says that {stored} bytes are used, its extents sum up to {counted}"

    /// The superblock counts extents wrongly.
    BytesUsed = "bytes-used", Inconsistent, Extents {
        /// What it says.
        stored: ByteCount,
        /// The sum of all extents.
        counted: ByteCount,
    } "the superblock says that {stored} bytes are used, extents sum up to {counted}"

    /// A stripe of a chunk without the device extent that holds its place.
    DeviceExtentMissing = "device-extent-missing", Unsafe, Extents {
        /// The chunk.
        chunk: Logical,
        /// The device.
        device: DeviceId,
        /// Where the stripe begins on it.
        physical: Physical,
        /// How long it is.
        length: ByteCount,
    } "chunk {chunk}: no device extent for its stripe of {length} bytes on device {device} at {physical}"

    /// A device extent without the stripe of a chunk.
    StripeMissing = "stripe-missing", Inconsistent, Extents {
        /// The device.
        device: DeviceId,
        /// Where the extent begins on it.
        physical: Physical,
        /// How long it is.
        length: ByteCount,
        /// The chunk that it says it belongs to.
        chunk: Logical,
    } "device {device}: the extent of {length} bytes at {physical} belongs to chunk {chunk}, which has no such stripe"

    /// Two device extents overlap.
    DeviceExtentsOverlap = "device-extents-overlap", Loss, Extents {
        /// The device.
        device: DeviceId,
        /// Where the second one begins.
        physical: Physical,
        /// Where the first one ends.
        previous_end: Physical,
    } "device {device}: the extent at {physical} begins before the one before it ends, at {previous_end}"

    /// A device extent that ends past the device.
    DeviceExtentPastEnd = "device-extent-past-end", Loss, Extents {
        /// The device.
        device: DeviceId,
        /// Where the extent ends.
        end: Physical,
        /// How large the device is.
        size: ByteCount,
    } "device {device} of {size} bytes: an extent ends at {end}"

    /// A device extent on a device that the volume does not have.
    DeviceUnknown = "device-unknown", Loss, Extents {
        /// The device.
        device: DeviceId,
    } "there are extents of device {device}, which has no item"

    /// A device item counts its extents wrongly.
    DeviceBytesUsed = "device-bytes-used", Inconsistent, Extents {
        /// The device.
        device: DeviceId,
        /// What its item says.
        stored: ByteCount,
        /// The sum of its extents.
        counted: ByteCount,
    } "device {device}: its item says that {stored} bytes are used, its extents sum up to {counted}"

    /// Two extents overlap.
    ExtentsOverlap = "extents-overlap", Loss, Extents {
        /// Where the second one begins.
        logical: Logical,
        /// Where the first one ends.
        previous_end: Logical,
    } "extent {logical} begins before the one before it ends, at {previous_end}"

    /// An extent that does not lie in one block group.
    ExtentOutsideBlockGroup = "extent-outside-block-group", Loss, Extents {
        /// Where it begins.
        logical: Logical,
        /// How long it is.
        length: ByteCount,
    } "extent {logical} of {length} bytes lies in no block group"

    /// An extent in a block group of another kind.
    ExtentKind = "extent-kind", Inconsistent, Extents {
        /// Where it begins.
        logical: Logical,
        /// What it holds.
        kind: &'static str,
        /// What its block group is for.
        group: String,
    } "extent {logical} holds {kind}, its block group is {group}"

    /// An extent whose number of references is not the sum of those that are recorded.
    ReferenceTotal = "reference-total", Unsafe, Extents {
        /// The extent.
        logical: Logical,
        /// The number that it says.
        stored: u64,
        /// The sum of its references.
        counted: u64,
    } "extent {logical} says that it has {stored} references, {counted} are recorded"

    /// A recorded reference to an extent that there is no item of.
    ReferenceWithoutExtent = "reference-without-extent", Inconsistent, Extents {
        /// The reference's key.
        key: Key,
    } "reference {key} belongs to no extent"

    /// Something is used that no extent says so.
    ExtentMissing = "extent-missing", Unsafe, Extents {
        /// Where it begins.
        logical: Logical,
        /// How long it is.
        length: ByteCount,
        /// One of its users.
        user: Reference,
    } "{length} bytes at {logical} are used by {user}, but there is no extent"

    /// An extent that nothing uses.
    ExtentUnused = "extent-unused", Inconsistent, Extents {
        /// Where it begins.
        logical: Logical,
        /// How long it is.
        length: ByteCount,
    } "extent {logical} of {length} bytes is used by nothing"

    /// A reference that is not recorded, or less often than it is there.
    ReferenceMissing = "reference-missing", Unsafe, Extents {
        /// The extent.
        logical: Logical,
        /// The reference.
        user: Reference,
        /// How often it is recorded.
        recorded: u64,
        /// How often it is there.
        found: u64,
    } "extent {logical}: {user} refers to it {found} times, recorded are {recorded}"

    /// A reference that is recorded more often than it is there.
    ReferenceSurplus = "reference-surplus", Inconsistent, Extents {
        /// The extent.
        logical: Logical,
        /// The reference.
        user: Reference,
        /// How often it is recorded.
        recorded: u64,
        /// How often it is there.
        found: u64,
    } "extent {logical}: {user} is recorded {recorded} times, but refers to it {found} times"

    /// A file's extent that is not as long as the one on disk.
    ExtentLength = "extent-length", Unsafe, Extents {
        /// The extent.
        logical: Logical,
        /// Its length.
        length: ByteCount,
        /// The length that a file extent item says.
        found: ByteCount,
    } "extent {logical} is {length} bytes long, a file extent item says {found}"

    /// An extent item of a tree block that says another level or generation than the block.
    BlockDiffers = "block-differs", Inconsistent, Extents {
        /// The block.
        logical: Logical,
        /// The field.
        field: &'static str,
        /// What the extent item says.
        recorded: u64,
        /// What the block says.
        found: u64,
    } "block {logical}: its extent says {field} {recorded}, the block {found}"

    /// A tree block that counts what is below it for a tree that does not hold the block.
    OwnerWithoutBlock = "owner-without-block", Unsafe, Extents {
        /// The block.
        logical: Logical,
        /// Its level.
        level: u8,
        /// The tree.
        owner: TreeId,
        /// In which way.
        problem: &'static str,
    } "block {logical} (level {level}) counts what is below it for tree {owner}, which {problem}"

    /// More references differ than were looked into.
    ReferencesDiffer = "references-differ", Unsafe, Extents {
        /// In how many stretches of addresses.
        stretches: u64,
    } "references differ in {stretches} more stretches of addresses, which were not looked into"

    /// A block group without free space information.
    FreeSpaceInfoMissing = "free-space-info-missing", Inconsistent, FreeSpace {
        /// The block group.
        logical: Logical,
    } "block group {logical} has no free space information"

    /// Free space information that belongs to no block group.
    FreeSpaceWithoutBlockGroup = "free-space-without-block-group", Unsafe, FreeSpace {
        /// Where it begins.
        logical: Logical,
        /// How long it is.
        length: ByteCount,
    } "free space information at {logical} of {length} bytes belongs to no block group"

    /// A block group whose number of free ranges is wrong.
    FreeSpaceCount = "free-space-count", Inconsistent, FreeSpace {
        /// The block group.
        logical: Logical,
        /// What its information says.
        stored: u64,
        /// How many there are.
        counted: u64,
    } "block group {logical} says that it has {stored} free ranges, there are {counted}"

    /// Space of an extent that is recorded as free.
    FreeSpaceUsed = "free-space-used", Unsafe, FreeSpace {
        /// Where it begins.
        logical: Logical,
        /// How long it is.
        length: ByteCount,
    } "{length} bytes at {logical} are recorded as free, but an extent lies there"

    /// Free space that is not recorded.
    FreeSpaceLost = "free-space-lost", Inconsistent, FreeSpace {
        /// Where it begins.
        logical: Logical,
        /// How long it is.
        length: ByteCount,
    } "{length} bytes at {logical} are free, but not recorded"

    /// Items of an inode without the inode.
    InodeMissing = "inode-missing", Loss, Files {
        /// The subvolume.
        subvolume: SubvolumeId,
        /// The inode.
        inode: InodeNumber,
    } "subvolume {subvolume}: inode {inode} has items, but no inode item"

    /// An inode whose number of links is not the number of its names.
    LinkCount = "link-count", Inconsistent, Files {
        /// The subvolume.
        subvolume: SubvolumeId,
        /// The inode.
        inode: InodeNumber,
        /// What it says.
        stored: u32,
        /// How many names it has.
        counted: u64,
    } "subvolume {subvolume}: inode {inode} says that it has {stored} links, it has {counted} names"

    /// A directory whose size is not the sum of its names.
    DirectorySize = "directory-size", Inconsistent, Files {
        /// The subvolume.
        subvolume: SubvolumeId,
        /// The directory.
        inode: InodeNumber,
        /// What it says.
        stored: ByteCount,
        /// The sum.
        counted: ByteCount,
    } "subvolume {subvolume}: directory {inode} says that its size is {stored}, its names sum up to {counted}"

    /// A file whose count of bytes is not the sum of its extents.
    FileBytes = "file-bytes", Inconsistent, Files {
        /// The subvolume.
        subvolume: SubvolumeId,
        /// The inode.
        inode: InodeNumber,
        /// What it says.
        stored: ByteCount,
        /// The sum.
        counted: ByteCount,
    } "subvolume {subvolume}: inode {inode} says that it has {stored} bytes, its extents sum up to {counted}"

    /// A name of an inode that its directory does not know, or not in both of its forms.
    EntryMissing = "entry-missing", Loss, Files {
        /// The subvolume.
        subvolume: SubvolumeId,
        /// The inode.
        inode: InodeNumber,
        /// The directory.
        directory: InodeNumber,
        /// The name.
        name: Name,
        /// What is missing: `DIR_ITEM`, `DIR_INDEX`, or both.
        missing: &'static str,
    } "subvolume {subvolume}: inode {inode} has the name {name} in directory {directory}, which has no {missing} for it"

    /// An entry of a directory that its inode does not know of.
    LinkMissing = "link-missing", Inconsistent, Files {
        /// The subvolume.
        subvolume: SubvolumeId,
        /// The inode.
        inode: InodeNumber,
        /// The directory.
        directory: InodeNumber,
        /// The name.
        name: Name,
    } "subvolume {subvolume}: directory {directory} has {name} as a name of inode {inode}, which does not know it"

    /// An entry that leads to no inode.
    EntryWithoutInode = "entry-without-inode", Loss, Files {
        /// The subvolume.
        subvolume: SubvolumeId,
        /// The directory.
        directory: InodeNumber,
        /// The name.
        name: Name,
        /// The inode that is not there.
        inode: InodeNumber,
    } "subvolume {subvolume}: directory {directory} has {name}, which leads to inode {inode}, which does not exist"

    /// An entry of another kind than its inode.
    EntryKind = "entry-kind", Inconsistent, Files {
        /// The subvolume.
        subvolume: SubvolumeId,
        /// The directory.
        directory: InodeNumber,
        /// The name.
        name: Name,
        /// The kind that the entry says.
        entry: u8,
        /// The kind of the inode.
        inode: u8,
    } "subvolume {subvolume}: directory {directory} says that {name} is of kind {entry}, the inode is of kind {inode}"

    /// The two forms of an entry do not say the same.
    EntriesDiffer = "entries-differ", Inconsistent, Files {
        /// The subvolume.
        subvolume: SubvolumeId,
        /// The directory.
        directory: InodeNumber,
        /// The name.
        name: Name,
    } "subvolume {subvolume}: directory {directory} has {name} in one of its two forms only, or leading elsewhere"

    /// Entries in what is no directory.
    NotADirectory = "not-a-directory", Inconsistent, Files {
        /// The subvolume.
        subvolume: SubvolumeId,
        /// The inode.
        inode: InodeNumber,
    } "subvolume {subvolume}: inode {inode} is no directory, but has entries"

    /// A subvolume without its root directory.
    RootDirectoryMissing = "root-directory-missing", Loss, Files {
        /// The subvolume.
        subvolume: SubvolumeId,
    } "subvolume {subvolume} has no root directory"

    /// An inode without links that nothing says is to be cleaned up.
    OrphanItemMissing = "orphan-item-missing", Inconsistent, Files {
        /// The subvolume.
        subvolume: SubvolumeId,
        /// The inode.
        inode: InodeNumber,
    } "subvolume {subvolume}: inode {inode} has no links, and no orphan item"

    /// Parts of a file overlap.
    FileExtentsOverlap = "file-extents-overlap", Loss, Files {
        /// The subvolume.
        subvolume: SubvolumeId,
        /// The inode.
        inode: InodeNumber,
        /// Where the second one begins.
        offset: FileOffset,
        /// Where the first one ends.
        previous_end: FileOffset,
    } "subvolume {subvolume}: inode {inode}: the extent at {offset} begins before the one before it ends, at {previous_end}"

    /// A hole that the volume's features ask an item for.
    HoleItemMissing = "hole-item-missing", Inconsistent, Files {
        /// The subvolume.
        subvolume: SubvolumeId,
        /// The inode.
        inode: InodeNumber,
        /// Where the hole begins.
        offset: FileOffset,
        /// Where it ends.
        end: FileOffset,
    } "subvolume {subvolume}: inode {inode} has no extent from {offset} to {end}, and the volume has no NO_HOLES"

    /// File extents in an inode that has no content.
    ContentUnexpected = "content-unexpected", Inconsistent, Files {
        /// The subvolume.
        subvolume: SubvolumeId,
        /// The inode.
        inode: InodeNumber,
    } "subvolume {subvolume}: inode {inode} is neither a file nor a symlink, but has extents"

    /// The sums of a subvolume's items differ, and looking at each of them did not tell why.
    FilesUnexplained = "files-unexplained", Inconsistent, Files {
        /// The subvolume.
        subvolume: SubvolumeId,
    } "subvolume {subvolume}: its inodes, names and extents do not add up"

    /// Checksums of what is no data.
    ChecksumSurplus = "checksum-surplus", Inconsistent, Checksums {
        /// Where they begin.
        logical: Logical,
        /// How much they cover.
        length: ByteCount,
    } "there are checksums for {length} bytes at {logical}, where no data lies"

    /// Data of a file that should have checksums and has none.
    ChecksumMissing = "checksum-missing", Loss, Checksums {
        /// The subvolume.
        subvolume: SubvolumeId,
        /// The inode.
        inode: InodeNumber,
        /// Where in the file.
        offset: FileOffset,
        /// Where on disk.
        logical: Logical,
        /// How much has none.
        length: ByteCount,
    } "subvolume {subvolume}: inode {inode} at {offset}: {length} bytes at {logical} have no checksums"

    /// Data that does not match its checksums.
    DataDamaged = "data-damaged", Loss, Checksums {
        /// Where it begins.
        logical: Logical,
        /// How much.
        length: ByteCount,
    } "{length} bytes of data at {logical} do not match their checksums in any copy"

    /// A copy of data that does not match its checksums while another does.
    DataCopyDamaged = "data-copy-damaged", Redundancy, Checksums {
        /// Where it begins.
        logical: Logical,
        /// How much.
        length: ByteCount,
        /// Which copy, counted from 1.
        copy: u32,
        /// In which way.
        reason: String,
    } "{length} bytes of data at {logical}: copy {copy} is bad: {reason}"

    /// A subvolume's place that only one side knows, or that the sides do not agree on.
    RootReference = "root-reference", Inconsistent, RootReferences {
        /// The parent.
        parent: TreeId,
        /// The subvolume.
        child: TreeId,
        /// In which way.
        problem: &'static str,
    } "subvolume {child} in {parent}: {problem}"

    /// A subvolume's place where the directory has no entry for it.
    SubvolumeEntryMissing = "subvolume-entry-missing", Loss, RootReferences {
        /// The parent.
        parent: TreeId,
        /// The subvolume.
        child: TreeId,
        /// The directory.
        directory: InodeNumber,
        /// The name.
        name: Name,
        /// What is missing: `DIR_ITEM`, `DIR_INDEX`, or both.
        missing: &'static str,
    } "subvolume {child} should be {name} in directory {directory} of {parent}, which has no {missing} for it"

    /// A subvolume that lies nowhere and is not being deleted.
    SubvolumeUnreachable = "subvolume-unreachable", Loss, RootReferences {
        /// The subvolume.
        subvolume: TreeId,
    } "subvolume {subvolume} lies in no directory"

    /// A place of a subvolume that does not exist.
    SubvolumeMissing = "subvolume-missing", Loss, RootReferences {
        /// The parent.
        parent: TreeId,
        /// The subvolume.
        child: TreeId,
    } "subvolume {child}, which has a place in {parent}, does not exist"

    /// A subvolume that cannot be found by its uuid.
    UuidMissing = "uuid-missing", Inconsistent, RootReferences {
        /// The subvolume.
        subvolume: TreeId,
        /// Its uuid, or that which it was received from.
        uuid: Uuid,
    } "subvolume {subvolume} is not in the uuid tree under {uuid}"

    /// A uuid that leads to a subvolume that has another one, or to none.
    UuidWrong = "uuid-wrong", Inconsistent, RootReferences {
        /// The uuid.
        uuid: Uuid,
        /// The subvolume.
        subvolume: TreeId,
    } "the uuid tree has {uuid} for subvolume {subvolume}, which does not have it"

    /// A quota group that counts wrongly.
    QgroupCount = "qgroup-count", Inconsistent, Quotas {
        /// The group: level and number.
        group: String,
        /// Bytes that it says it refers to.
        stored_referenced: ByteCount,
        /// Bytes that it refers to.
        referenced: ByteCount,
        /// Bytes that it says are its own.
        stored_exclusive: ByteCount,
        /// Bytes that are its own.
        exclusive: ByteCount,
    } "quota group {group} says referenced {stored_referenced}, exclusive {stored_exclusive}; they are {referenced}, {exclusive}"

    /// A subvolume without a quota group.
    QgroupMissing = "qgroup-missing", Inconsistent, Quotas {
        /// The group: level and number.
        group: String,
    } "there is no quota group {group}"

    /// A relation of quota groups that is recorded from one side only.
    QgroupRelation = "qgroup-relation", Inconsistent, Quotas {
        /// The group that it is recorded under.
        group: String,
        /// The other group.
        other: String,
    } "quota group {group} is related to {other}, but not the other way round"
}

impl Finding {
    /// What it is about.
    #[must_use]
    pub const fn subject(&self) -> Subject {
        match self {
            Self::TreeBlockDamaged { logical, .. }
            | Self::CopyDamaged { logical, .. }
            | Self::ExtentsOverlap { logical, .. }
            | Self::ExtentOutsideBlockGroup { logical, .. }
            | Self::ExtentKind { logical, .. }
            | Self::ReferenceTotal { logical, .. }
            | Self::ReferenceSurplus { logical, .. }
            | Self::ExtentLength { logical, .. }
            | Self::BlockDiffers { logical, .. }
            | Self::OwnerWithoutBlock { logical, .. }
            | Self::DataDamaged { logical, .. }
            | Self::DataCopyDamaged { logical, .. } => Subject::Address(*logical),
            Self::ExtentMissing { user, logical, .. } | Self::ReferenceMissing { user, logical, .. } => {
                match user {
                    Reference::Data { tree, inode, .. } => match tree.as_subvolume() {
                        Some(subvolume) => Subject::Inode(subvolume, *inode),
                        None => Subject::Tree(*tree),
                    },
                    Reference::TreeBlock { tree } => Subject::Tree(*tree),
                    Reference::SharedBlock { .. } | Reference::SharedData { .. } => {
                        Subject::Address(*logical)
                    }
                }
            }
            Self::InodeMissing { subvolume, inode }
            | Self::LinkCount { subvolume, inode, .. }
            | Self::DirectorySize { subvolume, inode, .. }
            | Self::FileBytes { subvolume, inode, .. }
            | Self::EntryMissing { subvolume, inode, .. }
            | Self::LinkMissing { subvolume, inode, .. }
            | Self::NotADirectory { subvolume, inode }
            | Self::OrphanItemMissing { subvolume, inode }
            | Self::FileExtentsOverlap { subvolume, inode, .. }
            | Self::HoleItemMissing { subvolume, inode, .. }
            | Self::ContentUnexpected { subvolume, inode }
            | Self::ChecksumMissing { subvolume, inode, .. } => Subject::Inode(*subvolume, *inode),
            Self::EntryWithoutInode {
                subvolume, directory, ..
            }
            | Self::EntryKind {
                subvolume, directory, ..
            }
            | Self::EntriesDiffer {
                subvolume, directory, ..
            } => Subject::Inode(*subvolume, *directory),
            Self::RootDirectory { subvolume, .. }
            | Self::RootDirectoryMissing { subvolume }
            | Self::FilesUnexplained { subvolume } => Subject::Tree(subvolume.tree()),
            Self::TreeMissing { tree } => Subject::Tree(*tree),
            Self::RootReference { child, .. }
            | Self::SubvolumeEntryMissing { child, .. }
            | Self::SubvolumeMissing { child, .. } => Subject::Tree(*child),
            Self::SubvolumeUnreachable { subvolume }
            | Self::UuidMissing { subvolume, .. }
            | Self::UuidWrong { subvolume, .. } => Subject::Tree(*subvolume),
            _ => Subject::Volume,
        }
    }
}
