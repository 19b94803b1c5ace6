//! The free space tree.

macro_rules! free_space {
    ([$next:ident $($more:ident)*] $($before:tt)*) => {
        $next! { [$($more)*] $($before)*
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
            } "free space information at {logical} ({length} bytes) belongs to no block group"

            /// A block group whose number of free ranges is wrong.
            FreeSpaceCount = "free-space-count", Inconsistent, FreeSpace {
                /// The block group.
                logical: Logical,
                /// What its information says.
                stored: u64,
                /// How many there are.
                counted: u64,
            } "block group {logical}: wrong number of free ranges (found {stored}, expected {counted})"

            /// Space of an extent that is recorded as free.
            FreeSpaceUsed = "free-space-used", Unsafe, FreeSpace {
                /// Where it begins.
                logical: Logical,
                /// How long it is.
                length: ByteCount,
            } "free space at {logical}: {length} bytes are recorded as free, but belong to an extent"

            /// Free space that is not recorded.
            FreeSpaceLost = "free-space-lost", Inconsistent, FreeSpace {
                /// Where it begins.
                logical: Logical,
                /// How long it is.
                length: ByteCount,
            } "free space at {logical}: {length} free bytes are not recorded"
        }
    };
}

pub(super) use free_space;
