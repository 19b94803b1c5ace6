//! Findings about the free-space tree.

macro_rules! free_space {
    ([$next:ident $($more:ident)*] $($before:tt)*) => {
        $next! { [$($more)*] $($before)*
            /// A block group without free space information.
            FreeSpaceInfoMissing = "free-space-info-missing", Inconsistent, FreeSpace {
                /// The logical address of the block group.
                logical: Logical,
            } "block group {logical} has no free space information"

            /// Free space information that belongs to no block group.
            FreeSpaceWithoutBlockGroup = "free-space-without-block-group", Unsafe, FreeSpace {
                /// The first logical address of the affected range.
                logical: Logical,
                /// The length of the affected range, in bytes.
                length: ByteCount,
            } "free space information at {logical} of {length} bytes belongs to no block group"

            /// A block group whose recorded number of free ranges is wrong.
            FreeSpaceCount = "free-space-count", Inconsistent, FreeSpace {
                /// The logical address of the block group.
                logical: Logical,
                /// The recorded number of free ranges.
                stored: u64,
                /// The counted number of free ranges.
                counted: u64,
            } "block group {logical} says that it has {stored} free ranges, there are {counted}"

            /// Space of an extent that the free-space tree records as free.
            FreeSpaceUsed = "free-space-used", Unsafe, FreeSpace {
                /// The first logical address of the affected range.
                logical: Logical,
                /// The length of the affected range, in bytes.
                length: ByteCount,
            } "{length} bytes at {logical} are recorded as free, but an extent lies there"

            /// Free space that the free-space tree does not record.
            FreeSpaceLost = "free-space-lost", Inconsistent, FreeSpace {
                /// The first logical address of the affected range.
                logical: Logical,
                /// The length of the affected range, in bytes.
                length: ByteCount,
            } "{length} bytes at {logical} are free, but not recorded"
        }
    };
}

pub(super) use free_space;
