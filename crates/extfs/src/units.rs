//! Numbers of the file system, each kind with a type of its own.

use core::fmt;

macro_rules! number {
    ($(#[$doc:meta])* $name:ident, $int:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name($int);

        impl $name {
            /// Makes the number of its value.
            #[must_use]
            pub const fn new(value: $int) -> Self {
                Self(value)
            }

            /// Returns the value.
            #[must_use]
            pub const fn get(self) -> $int {
                self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }
    };
}

number!(
    /// The number of a block, counted from the start of the device.
    BlockNumber, u64
);
number!(
    /// The number of a block in a file, counted from the start of the file.
    FileBlock, u32
);
number!(
    /// The number of a block group.
    GroupNumber, u32
);
number!(
    /// The number of an inode. The first inode has number 1.
    InodeNumber, u32
);

impl InodeNumber {
    /// The root directory.
    pub const ROOT: Self = Self(2);
    /// The inode that holds the blocks reserved for the growth of the descriptor table.
    pub const RESIZE: Self = Self(7);
    /// The usual inode of the journal.
    pub const JOURNAL: Self = Self(8);
}

/// The half-open range of blocks `[start, end)`. It is never empty.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockRange {
    /// The first block.
    pub start: BlockNumber,
    /// The block after the last.
    pub end: BlockNumber,
}

/// A point in time: whole seconds since the epoch, then nanoseconds, less than 1,000,000,000.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct ExtTime {
    /// Seconds since 1970-01-01 00:00:00 UTC.
    pub seconds: i64,
    /// Nanoseconds of the second.
    pub nanoseconds: u32,
}
