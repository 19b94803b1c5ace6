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
            } "free space information at {logical} ({length} bytes) belongs to no block group"

            /// A block group whose recorded number of free ranges is wrong.
            FreeSpaceCount = "free-space-count", Inconsistent, FreeSpace {
                /// The logical address of the block group.
                logical: Logical,
                /// The recorded number of free ranges.
                stored: u64,
                /// The number of free ranges that the check counted.
                counted: u64,
            } "block group {logical}: wrong number of free ranges (found {stored}, expected {counted})"

            /// Space of an extent that the free-space tree records as free.
            FreeSpaceUsed = "free-space-used", Unsafe, FreeSpace {
                /// The first logical address of the affected range.
                logical: Logical,
                /// The length of the affected range, in bytes.
                length: ByteCount,
            } "free space at {logical}: {length} bytes are recorded as free, but belong to an extent"

            /// Free space that the free-space tree does not record.
            FreeSpaceLost = "free-space-lost", Inconsistent, FreeSpace {
                /// The first logical address of the affected range.
                logical: Logical,
                /// The length of the affected range, in bytes.
                length: ByteCount,
            } "free space at {logical}: {length} free bytes are not recorded"
        }
    };
}

pub(super) use free_space;
