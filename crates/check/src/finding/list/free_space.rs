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
        }
    };
}

pub(super) use free_space;
