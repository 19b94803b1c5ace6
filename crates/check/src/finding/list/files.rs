//! Findings about inodes, names and file extents.

macro_rules! files {
    ([$next:ident $($more:ident)*] $($before:tt)*) => {
        $next! { [$($more)*] $($before)*
            /// Items of an inode without an inode item.
            InodeMissing = "inode-missing", Loss, Files {
                /// The id of the subvolume.
                subvolume: SubvolumeId,
                /// The number of the inode.
                inode: InodeNumber,
            } "subvolume {subvolume}, inode {inode}: the inode item is missing"

            /// An inode whose link count differs from the number of its names.
            LinkCount = "link-count", Inconsistent, Files {
                /// The id of the subvolume.
                subvolume: SubvolumeId,
                /// The number of the inode.
                inode: InodeNumber,
                /// The number of links that the inode records.
                stored: u32,
                /// The counted number of names.
                counted: u64,
            } "subvolume {subvolume}, inode {inode}: wrong link count (found {stored}, expected {counted})"

            /// A directory whose size differs from the sum of its names.
            DirectorySize = "directory-size", Inconsistent, Files {
                /// The id of the subvolume.
                subvolume: SubvolumeId,
                /// The inode number of the directory.
                inode: InodeNumber,
                /// The recorded value.
                stored: ByteCount,
                /// The sum that the check counted.
                counted: ByteCount,
            } "subvolume {subvolume}, directory {inode}: wrong size (found {stored}, expected {counted})"

            /// A file whose `nbytes` differs from the sum of its extents.
            FileBytes = "file-bytes", Inconsistent, Files {
                /// The id of the subvolume.
                subvolume: SubvolumeId,
                /// The number of the inode.
                inode: InodeNumber,
                /// The recorded value.
                stored: ByteCount,
                /// The counted sum.
                counted: ByteCount,
            } "subvolume {subvolume}, inode {inode}: wrong byte count (found {stored}, expected {counted})"

            /// A name of an inode without one or both of its directory items.
            EntryMissing = "entry-missing", Loss, Files {
                /// The id of the subvolume.
                subvolume: SubvolumeId,
                /// The number of the inode.
                inode: InodeNumber,
                /// The inode number of the directory.
                directory: InodeNumber,
                /// The name of the directory entry.
                name: Name,
                /// The missing items: `DIR_ITEM`, `DIR_INDEX`, or both.
                missing: &'static str,
            } "subvolume {subvolume}, inode {inode}: its name {name} has no {missing} in directory {directory}"

            /// A directory entry without a reference from its inode.
            LinkMissing = "link-missing", Inconsistent, Files {
                /// The id of the subvolume.
                subvolume: SubvolumeId,
                /// The number of the inode.
                inode: InodeNumber,
                /// The inode number of the directory.
                directory: InodeNumber,
                /// The name of the directory entry.
                name: Name,
            } "subvolume {subvolume}, directory {directory}: the entry {name} points to inode {inode}, which does not record this name"

            /// A directory entry whose inode does not exist.
            EntryWithoutInode = "entry-without-inode", Loss, Files {
                /// The id of the subvolume.
                subvolume: SubvolumeId,
                /// The inode number of the directory.
                directory: InodeNumber,
                /// The name of the directory entry.
                name: Name,
                /// The number of the missing inode.
                inode: InodeNumber,
            } "subvolume {subvolume}, directory {directory}: the entry {name} points to inode {inode}, which does not exist"

            /// A directory entry whose file type differs from its inode.
            EntryKind = "entry-kind", Inconsistent, Files {
                /// The id of the subvolume.
                subvolume: SubvolumeId,
                /// The inode number of the directory.
                directory: InodeNumber,
                /// The name of the directory entry.
                name: Name,
                /// The file type in the entry.
                entry: u8,
                /// The file type that the inode's mode states.
                inode: u8,
            } "subvolume {subvolume}, directory {directory}: wrong file type of the entry {name} (found {entry}, expected {inode})"

            /// The two items of a directory entry contradict each other.
            EntriesDiffer = "entries-differ", Inconsistent, Files {
                /// The id of the subvolume.
                subvolume: SubvolumeId,
                /// The inode number of the directory.
                directory: InodeNumber,
                /// The name of the directory entry.
                name: Name,
            } "subvolume {subvolume}, directory {directory}: the two forms of the entry {name} differ, or one is missing"

            /// Directory entries in an inode that is no directory.
            NotADirectory = "not-a-directory", Inconsistent, Files {
                /// The id of the subvolume.
                subvolume: SubvolumeId,
                /// The number of the inode.
                inode: InodeNumber,
            } "subvolume {subvolume}, inode {inode}: not a directory, but it has entries"

            /// A subvolume without its root directory.
            RootDirectoryMissing = "root-directory-missing", Loss, Files {
                /// The id of the subvolume.
                subvolume: SubvolumeId,
            } "subvolume {subvolume} has no root directory"

            /// An inode without links and without an orphan item.
            OrphanItemMissing = "orphan-item-missing", Inconsistent, Files {
                /// The id of the subvolume.
                subvolume: SubvolumeId,
                /// The number of the inode.
                inode: InodeNumber,
            } "subvolume {subvolume}, inode {inode}: no links and no orphan item"

            /// Two file extent items overlap.
            FileExtentsOverlap = "file-extents-overlap", Loss, Files {
                /// The id of the subvolume.
                subvolume: SubvolumeId,
                /// The number of the inode.
                inode: InodeNumber,
                /// The file offset at which the second extent begins.
                offset: FileOffset,
                /// The file offset at which the first of the two extents ends.
                previous_end: FileOffset,
            } "subvolume {subvolume}, inode {inode}: the extent at {offset} overlaps the extent before it, which ends at {previous_end}"

            /// A hole without an item, although the volume's features require one.
            HoleItemMissing = "hole-item-missing", Inconsistent, Files {
                /// The id of the subvolume.
                subvolume: SubvolumeId,
                /// The number of the inode.
                inode: InodeNumber,
                /// The file offset at which the hole begins.
                offset: FileOffset,
                /// The file offset at which the hole ends.
                end: FileOffset,
            } "subvolume {subvolume}, inode {inode}: no extent item from {offset} to {end}, although the volume lacks the NO_HOLES feature"

            /// File extent items of an inode whose file type has no content.
            ContentUnexpected = "content-unexpected", Inconsistent, Files {
                /// The id of the subvolume.
                subvolume: SubvolumeId,
                /// The number of the inode.
                inode: InodeNumber,
            } "subvolume {subvolume}, inode {inode}: it has extents, but is neither a file nor a symlink"

            /// The sums of a subvolume's items differ, and the check of each item found no cause.
            FilesUnexplained = "files-unexplained", Inconsistent, Files {
                /// The id of the subvolume.
                subvolume: SubvolumeId,
            } "subvolume {subvolume}: the sums over inodes, names and extents differ"

            /// A symlink with flags that only files and directories can have.
            InodeFlags = "inode-flags", Inconsistent, Files {
                /// The id of the subvolume.
                subvolume: SubvolumeId,
                /// The number of the inode.
                inode: InodeNumber,
                /// All flags of the symlink's inode.
                flags: u64,
            } "subvolume {subvolume}, inode {inode}: a symlink has the flags {flags:#x}, but cannot be immutable or append-only"

            /// A symlink whose target is not inline.
            SymlinkContent = "symlink-content", Loss, Files {
                /// The id of the subvolume.
                subvolume: SubvolumeId,
                /// The number of the inode.
                inode: InodeNumber,
            } "subvolume {subvolume}, inode {inode}: the target of the symlink is not inline"

            /// A name that a directory has twice.
            NameTwice = "name-twice", Inconsistent, Files {
                /// The id of the subvolume.
                subvolume: SubvolumeId,
                /// The inode number of the directory.
                directory: InodeNumber,
                /// The name of the directory entry.
                name: Name,
                /// The key of the item that has the name twice.
                key: Key,
            } "subvolume {subvolume}, directory {directory}: the name {name} occurs twice, in {key}"

            /// A root directory without the name `..` that refers to itself.
            RootDirectoryName = "root-directory-name", Inconsistent, Files {
                /// The id of the subvolume.
                subvolume: SubvolumeId,
                /// The name that the root directory has.
                name: Name,
                /// The index of the name.
                index: u64,
            } "subvolume {subvolume}: wrong name of the root directory in itself (found {name} with index {index}, expected .. with index 0)"

            /// A relocation tree without its root directory.
            RootInodeMissing = "root-inode-missing", Inconsistent, Files {
                /// The id of the tree.
                tree: TreeId,
                /// The tree that the relocation tree mirrors, or zero.
                mirrored: TreeId,
            } "relocation tree {tree} (of {mirrored}) has no root directory"

            /// A file extent item of a generation that does not exist yet.
            FileExtentGeneration = "file-extent-generation", Inconsistent, Files {
                /// The id of the subvolume.
                subvolume: SubvolumeId,
                /// The number of the inode.
                inode: InodeNumber,
                /// The offset in the file.
                offset: FileOffset,
                /// The generation in the file extent item.
                generation: Generation,
                /// The greatest possible generation.
                limit: Generation,
            } "subvolume {subvolume}, inode {inode}, offset {offset}: the extent has a future generation (found {generation}, expected at most {limit})"

            /// A file extent item whose lengths contradict each other or its compression.
            FileExtentLengths = "file-extent-lengths", Loss, Files {
                /// The id of the subvolume.
                subvolume: SubvolumeId,
                /// The number of the inode.
                inode: InodeNumber,
                /// The offset in the file.
                offset: FileOffset,
                /// The compression of the extent.
                compression: &'static str,
                /// The length of the extent on disk, or of inline content, in bytes.
                disk_num_bytes: ByteCount,
                /// The length of the content after decompression, in bytes.
                ram_bytes: ByteCount,
                /// A description of the problem.
                problem: &'static str,
            } "subvolume {subvolume}, inode {inode}, offset {offset}: {problem} (compression {compression}, disk_num_bytes {disk_num_bytes}, ram_bytes {ram_bytes})"
        }
    };
}

pub(super) use files;
