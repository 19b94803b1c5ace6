//! Units: one type for each kind of number with which btrfs names a place.
//!
//! A btrfs volume has several address spaces, whose addresses are all 64-bit numbers on disk. In C,
//! code that confuses two address spaces compiles and loses data. In this crate, each address space
//! has its own type:
//!
//! - [`Logical`]: a byte in the volume's logical address space (what tree pointers and extents
//!   hold);
//! - [`Physical`]: a byte on one device;
//! - [`FileOffset`]: a byte in a file;
//! - [`ByteCount`]: a length in bytes, of anything;
//! - [`Generation`]: a transaction number;
//! - [`ObjectId`]: the first field of a key, whose meaning depends on the tree;
//! - [`InodeNumber`], [`TreeId`], [`SubvolumeId`], [`DeviceId`]: object ids whose meaning is known.
//!
//! All ranges are half-open: `[start, end)`. Arithmetic is checked, because an address from disk
//! can be any 64-bit number. All units print as decimal numbers.
//!
//! Source: on-disk format documentation, sections "Overview" and "Reserved objectids".

use buttress_exact::Exact as _;
use core::fmt;

macro_rules! coordinate {
    ($(#[$meta:meta])* $name:ident) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[repr(transparent)]
        pub struct $name(u64);

        impl $name {
            /// The smallest value.
            pub const MIN: Self = Self(0);
            /// The largest value that the on-disk field can hold.
            pub const MAX: Self = Self(u64::MAX);

            /// Wraps a raw number.
            #[must_use]
            pub const fn new(value: u64) -> Self {
                Self(value)
            }

            /// Returns the raw number.
            #[must_use]
            pub const fn get(self) -> u64 {
                self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(&self.0, f)
            }
        }

        impl From<$name> for u64 {
            fn from(value: $name) -> u64 {
                value.0
            }
        }
    };
}

macro_rules! address {
    ($name:ident) => {
        impl $name {
            /// Returns this address plus `length`, or `None` beyond the end of the address space.
            #[must_use]
            pub const fn checked_add(self, length: ByteCount) -> Option<Self> {
                match self.0.checked_add(length.0) {
                    Some(value) => Some(Self(value)),
                    None => None,
                }
            }

            /// Returns this address plus `length`, limited to the end of the address space.
            #[must_use]
            pub const fn saturating_add(self, length: ByteCount) -> Self {
                Self(self.0.saturating_add(length.0))
            }

            /// Returns this address plus `length`, for a `length` that a check has bounded. Debug
            /// builds assert that the sum does not overflow. Lengths from disk need
            /// [`checked_add`](Self::checked_add).
            #[must_use]
            #[track_caller]
            pub fn exact_add(self, length: ByteCount) -> Self {
                Self(self.0.exact_add(length.0))
            }

            /// Returns the distance from `start` up to this address. Debug builds assert that
            /// `start` is not above this address.
            #[must_use]
            #[track_caller]
            pub fn distance_from(self, start: Self) -> ByteCount {
                ByteCount(self.0.exact_sub(start.0))
            }

            /// Returns the distance from `start` up to this address, or `None` if `start` is above
            /// it.
            #[must_use]
            pub const fn checked_distance_from(self, start: Self) -> Option<ByteCount> {
                match self.0.checked_sub(start.0) {
                    Some(value) => Some(ByteCount(value)),
                    None => None,
                }
            }

            /// Returns this address rounded down to a multiple of `unit_bytes`, or unchanged if
            /// `unit_bytes` is zero.
            #[must_use]
            pub const fn align_down(self, unit_bytes: u64) -> Self {
                match self.0.checked_rem(unit_bytes) {
                    Some(rest) => Self(self.0.saturating_sub(rest)),
                    None => self,
                }
            }

            /// Returns true if this address is a multiple of `unit_bytes`. Returns false if
            /// `unit_bytes` is zero.
            #[must_use]
            pub const fn is_aligned(self, unit_bytes: u64) -> bool {
                matches!(self.0.checked_rem(unit_bytes), Some(0))
            }
        }
    };
}

coordinate! {
    /// A byte address in the volume's logical address space. Chunks map it to devices.
    Logical
}
coordinate! {
    /// A byte address on one device.
    Physical
}
coordinate! {
    /// A byte offset in a file.
    FileOffset
}
coordinate! {
    /// A length in bytes.
    ByteCount
}
coordinate! {
    /// A transaction number. Each commit raises it by one. Each tree block carries the number of
    /// its transaction.
    Generation
}
coordinate! {
    /// The first field of a key. The tree and the item type determine the meaning of an object id.
    ObjectId
}
coordinate! {
    /// An inode number, unique in one subvolume.
    InodeNumber
}
coordinate! {
    /// The id of a tree: the object id of its root item, and the owner in its blocks.
    TreeId
}
coordinate! {
    /// The id of a subvolume or snapshot: a [`TreeId`] that holds files.
    SubvolumeId
}
coordinate! {
    /// The id of one device of a volume.
    DeviceId
}

address!(Logical);
address!(Physical);
address!(FileOffset);
address!(ByteCount);

impl ByteCount {
    /// A length of zero bytes.
    pub const ZERO: Self = Self(0);

    /// Returns the length of an object in memory.
    #[must_use]
    pub const fn of(length: usize) -> Self {
        Self(length as u64)
    }

    /// Returns this length as an in-memory size, or `None` if the machine cannot address it.
    #[must_use]
    pub fn to_usize(self) -> Option<usize> {
        usize::try_from(self.0).ok()
    }

    /// Returns this length rounded up to a multiple of `unit_bytes`, or `None` on overflow or if
    /// `unit_bytes` is zero.
    #[must_use]
    pub const fn checked_align_up(self, unit_bytes: u64) -> Option<Self> {
        match self.0.checked_next_multiple_of(unit_bytes) {
            Some(value) => Some(Self(value)),
            None => None,
        }
    }

    /// Subtracts a length that is not larger. Debug builds assert that the difference is not
    /// negative.
    #[must_use]
    #[track_caller]
    pub fn exact_sub(self, other: Self) -> Self {
        Self(self.0.exact_sub(other.0))
    }

    /// Returns this length as a size in memory, after a check has bounded it. Debug builds assert
    /// that it fits.
    #[must_use]
    #[track_caller]
    pub fn exact_usize(self) -> usize {
        self.0.narrow()
    }

    /// Returns the smaller of this length and a size in memory.
    #[must_use]
    pub fn at_most(self, limit: usize) -> usize {
        buttress_exact::at_most(self.0, limit)
    }

    /// Subtracts a smaller length, or returns `None` if it is larger.
    #[must_use]
    pub const fn checked_sub(self, other: Self) -> Option<Self> {
        match self.0.checked_sub(other.0) {
            Some(value) => Some(Self(value)),
            None => None,
        }
    }
}

impl TreeId {
    /// The tree that holds the root items of all other trees.
    pub const ROOT: Self = Self(1);
    /// The tree that holds extent and metadata items and, without block-group-tree, block group
    /// items.
    pub const EXTENT: Self = Self(2);
    /// The tree that holds chunk and device items.
    pub const CHUNK: Self = Self(3);
    /// The tree that holds device extents and device statistics.
    pub const DEVICE: Self = Self(4);
    /// The top-level subvolume.
    pub const FS: Self = Self(5);
    /// The object id of the root tree's directory. This id names no tree.
    pub const ROOT_DIRECTORY: Self = Self(6);
    /// The tree that holds data checksums.
    pub const CHECKSUM: Self = Self(7);
    /// The tree that holds quota items.
    pub const QUOTA: Self = Self(8);
    /// The tree that maps uuids to subvolumes.
    pub const UUID: Self = Self(9);
    /// The tree that holds free-space items.
    pub const FREE_SPACE: Self = Self(10);
    /// The tree that holds block group items, with the block-group-tree feature.
    pub const BLOCK_GROUP: Self = Self(11);
    /// The tree that maps logical to physical addresses, with the raid-stripe-tree feature.
    pub const RAID_STRIPE: Self = Self(12);
    /// The tree that maps relocated logical addresses, with the remap-tree feature.
    pub const REMAP: Self = Self(13);
    /// Log trees (-6).
    pub const TREE_LOG: Self = Self(u64::MAX - 5);
    /// The relocation counterpart of log trees (-7).
    pub const TREE_LOG_FIXUP: Self = Self(u64::MAX - 6);
    /// Relocation trees (-8).
    pub const TREE_RELOCATION: Self = Self(u64::MAX - 7);
    /// The data relocation tree (-9), a subvolume that balance uses.
    pub const DATA_RELOCATION: Self = Self(u64::MAX - 8);

    /// Returns this tree as a subvolume id if it is the top level (5) or in `[256, -256]`.
    #[must_use]
    pub const fn as_subvolume(self) -> Option<SubvolumeId> {
        if self.0 == Self::FS.0 || (self.0 >= ObjectId::FIRST_FREE.0 && self.0 <= ObjectId::LAST_FREE.0) {
            Some(SubvolumeId(self.0))
        } else {
            None
        }
    }

    /// Returns true if this tree holds items of files: a subvolume, or the data relocation tree.
    #[must_use]
    pub const fn holds_files(self) -> bool {
        self.as_subvolume().is_some() || self.0 == Self::DATA_RELOCATION.0
    }
}

impl SubvolumeId {
    /// The top-level subvolume.
    pub const TOP_LEVEL: Self = Self(5);

    /// Returns the subvolume's tree.
    #[must_use]
    pub const fn tree(self) -> TreeId {
        TreeId(self.0)
    }
}

impl InodeNumber {
    /// The root directory of every subvolume.
    pub const ROOT_DIRECTORY: Self = Self(256);

    /// Returns the inode as the object id of a key.
    #[must_use]
    pub const fn object_id(self) -> ObjectId {
        ObjectId(self.0)
    }
}

impl TreeId {
    /// Returns the tree as the object id of a key in the root tree.
    #[must_use]
    pub const fn object_id(self) -> ObjectId {
        ObjectId(self.0)
    }
}

impl DeviceId {
    /// Returns the device as the object id of a key in the device tree.
    #[must_use]
    pub const fn object_id(self) -> ObjectId {
        ObjectId(self.0)
    }
}

impl ObjectId {
    /// The object id of device items in the chunk tree.
    pub const DEVICE_ITEMS: Self = Self(1);
    /// The object id of chunk items in the chunk tree.
    pub const FIRST_CHUNK_TREE: Self = Self(256);
    /// The first object id that files and subvolumes may use.
    pub const FIRST_FREE: Self = Self(256);
    /// The last object id that files and subvolumes may use (-256).
    pub const LAST_FREE: Self = Self(u64::MAX - 255);
    /// The object id of device statistics in the device tree.
    pub const DEVICE_STATISTICS: Self = Self(0);
    /// The object id of a running or paused balance (-4).
    pub const BALANCE: Self = Self(u64::MAX - 3);
    /// The object id of orphan items (-5).
    pub const ORPHAN: Self = Self(u64::MAX - 4);
    /// The object id of checksum items (-10).
    pub const EXTENT_CHECKSUM: Self = Self(u64::MAX - 9);
    /// The object id of inodes of the v1 free space cache (-11).
    pub const FREE_SPACE: Self = Self(u64::MAX - 10);
    /// The object id of inodes of the removed inode cache (-12).
    pub const FREE_INODE: Self = Self(u64::MAX - 11);
    /// The new checksums of data and the item that names their type, while a change of the checksums
    /// is unfinished.
    pub const CHECKSUM_CHANGE: Self = Self(u64::MAX - 12);
    /// The object id that stands for several owners if a field has space for one id (-255).
    pub const MULTIPLE: Self = Self(u64::MAX - 254);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn subvolumes_are_the_top_level_and_the_free_range() {
        assert_eq!(TreeId::FS.as_subvolume(), Some(SubvolumeId::TOP_LEVEL));
        assert_eq!(TreeId::new(255).as_subvolume(), None);
        assert_eq!(TreeId::new(256).as_subvolume(), Some(SubvolumeId::new(256)));
        assert_eq!(
            TreeId::new(0u64.wrapping_sub(256))
                .as_subvolume()
                .map(|s| s.get()),
            Some(u64::MAX - 255)
        );
        assert_eq!(TreeId::DATA_RELOCATION.as_subvolume(), None);
        assert!(TreeId::DATA_RELOCATION.holds_files());
        assert_eq!(TreeId::TREE_LOG.get(), 0u64.wrapping_sub(6));
    }

    #[test]
    fn alignment_and_distance() {
        assert_eq!(Logical::new(70_000).align_down(65_536), Logical::new(65_536));
        assert!(Logical::new(4096).is_aligned(4096));
        assert!(!Logical::new(4096).is_aligned(0));
        assert_eq!(Logical::new(10).checked_distance_from(Logical::new(11)), None);
        assert_eq!(ByteCount::new(u64::MAX).checked_align_up(4096), None);
        assert_eq!(
            ByteCount::new(1).checked_align_up(4096),
            Some(ByteCount::new(4096))
        );
    }
}
