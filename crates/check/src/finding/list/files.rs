//! Inodes, names, file extents.

macro_rules! files {
    ([$next:ident $($more:ident)*] $($before:tt)*) => {
        $next! { [$($more)*] $($before)*
            /// Items of an inode without the inode.
            InodeMissing = "inode-missing", Loss, Files {
                /// The subvolume.
                subvolume: SubvolumeId,
                /// The inode.
                inode: InodeNumber,
            } "subvolume {subvolume}, inode {inode}: the inode item is missing"

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
            } "subvolume {subvolume}, inode {inode}: wrong link count (found {stored}, expected {counted})"

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
            } "subvolume {subvolume}, directory {inode}: wrong size (found {stored}, expected {counted})"

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
            } "subvolume {subvolume}, inode {inode}: wrong byte count (found {stored}, expected {counted})"

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
            } "subvolume {subvolume}, inode {inode}: its name {name} has no {missing} in directory {directory}"

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
            } "subvolume {subvolume}, directory {directory}: the entry {name} points to inode {inode}, which does not record this name"

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
            } "subvolume {subvolume}, directory {directory}: the entry {name} points to inode {inode}, which does not exist"

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
            } "subvolume {subvolume}, directory {directory}: wrong file type of the entry {name} (found {entry}, expected {inode})"

            /// The two forms of an entry do not say the same.
            EntriesDiffer = "entries-differ", Inconsistent, Files {
                /// The subvolume.
                subvolume: SubvolumeId,
                /// The directory.
                directory: InodeNumber,
                /// The name.
                name: Name,
            } "subvolume {subvolume}, directory {directory}: the two forms of the entry {name} differ, or one is missing"

            /// Entries in what is no directory.
            NotADirectory = "not-a-directory", Inconsistent, Files {
                /// The subvolume.
                subvolume: SubvolumeId,
                /// The inode.
                inode: InodeNumber,
            } "subvolume {subvolume}, inode {inode}: not a directory, but it has entries"

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
            } "subvolume {subvolume}, inode {inode}: no links and no orphan item"

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
            } "subvolume {subvolume}, inode {inode}: the extent at {offset} overlaps the extent before it, which ends at {previous_end}"

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
            } "subvolume {subvolume}, inode {inode}: no extent item from {offset} to {end}, although the volume lacks the NO_HOLES feature"

            /// File extents in an inode that has no content.
            ContentUnexpected = "content-unexpected", Inconsistent, Files {
                /// The subvolume.
                subvolume: SubvolumeId,
                /// The inode.
                inode: InodeNumber,
            } "subvolume {subvolume}, inode {inode}: it has extents, but is neither a file nor a symlink"

            /// The sums of a subvolume's items differ, and looking at each of them did not tell why.
            FilesUnexplained = "files-unexplained", Inconsistent, Files {
                /// The subvolume.
                subvolume: SubvolumeId,
            } "subvolume {subvolume}: the sums over inodes, names and extents differ"

            /// A symlink with flags that only files and directories can have.
            InodeFlags = "inode-flags", Inconsistent, Files {
                /// The subvolume.
                subvolume: SubvolumeId,
                /// The inode.
                inode: InodeNumber,
                /// All its flags.
                flags: u64,
            } "subvolume {subvolume}, inode {inode}: a symlink has the flags {flags:#x}, but cannot be immutable or append-only"

            /// A symlink whose target does not lie in its item.
            SymlinkContent = "symlink-content", Loss, Files {
                /// The subvolume.
                subvolume: SubvolumeId,
                /// The inode.
                inode: InodeNumber,
            } "subvolume {subvolume}, inode {inode}: the target of the symlink is not inline"

            /// A name that a directory holds twice.
            NameTwice = "name-twice", Inconsistent, Files {
                /// The subvolume.
                subvolume: SubvolumeId,
                /// The directory.
                directory: InodeNumber,
                /// The name.
                name: Name,
                /// The item that holds it twice.
                key: Key,
            } "subvolume {subvolume}, directory {directory}: the name {name} occurs twice, in {key}"

            /// A root directory that does not name itself `..`.
            RootDirectoryName = "root-directory-name", Inconsistent, Files {
                /// The subvolume.
                subvolume: SubvolumeId,
                /// The name that it has.
                name: Name,
                /// The index of the name.
                index: u64,
            } "subvolume {subvolume}: wrong name of the root directory in itself (found {name} with index {index}, expected .. with index 0)"

            /// A tree of a relocation without its root directory.
            RootInodeMissing = "root-inode-missing", Inconsistent, Files {
                /// The tree.
                tree: TreeId,
                /// The tree that it mirrors, or zero.
                mirrored: TreeId,
            } "relocation tree {tree} (of {mirrored}) has no root directory"

            /// A file extent of a transaction that has not been.
            FileExtentGeneration = "file-extent-generation", Inconsistent, Files {
                /// The subvolume.
                subvolume: SubvolumeId,
                /// The inode.
                inode: InodeNumber,
                /// Where in the file.
                offset: FileOffset,
                /// The extent's generation.
                generation: Generation,
                /// The greatest that there can be.
                limit: Generation,
            } "subvolume {subvolume}, inode {inode}, offset {offset}: the extent has a future generation (found {generation}, expected at most {limit})"

            /// A file extent whose lengths do not fit one another, or its compression.
            FileExtentLengths = "file-extent-lengths", Loss, Files {
                /// The subvolume.
                subvolume: SubvolumeId,
                /// The inode.
                inode: InodeNumber,
                /// The offset in the file.
                offset: FileOffset,
                /// How the extent is compressed.
                compression: &'static str,
                /// Its length on disk, or that of inline content.
                disk_num_bytes: ByteCount,
                /// Its length after decompression.
                ram_bytes: ByteCount,
                /// In which way.
                problem: &'static str,
            } "subvolume {subvolume}, inode {inode}, offset {offset}: {problem} (compression {compression}, disk_num_bytes {disk_num_bytes}, ram_bytes {ram_bytes})"
        }
    };
}

pub(super) use files;
