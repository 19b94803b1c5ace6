//! Block groups: the type of data in a range of logical addresses, its profile, and the number of
//! bytes in use.
//!
//! [`BlockGroupFlags`] serve both chunks and block groups. The flags hold one type bit, or data and
//! metadata together in mixed block groups, and at most one profile bit. [`Profile`] is the profile
//! as a value, with the numbers that follow from it.
//!
//! Source: on-disk format documentation, section "Block group item"; profiles in mkfs.btrfs(8),
//! section "Profiles".

use crate::item_error::ItemError;
use crate::key::{ItemType, Key};
use crate::raw;
use crate::units::{ByteCount, Logical, ObjectId};
use core::fmt;
use zerocopy::little_endian::U64;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

bitflags::bitflags! {
    /// Type and profile of a chunk or block group. Flag bits without a name are kept.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub struct BlockGroupFlags: u64 {
        /// Block groups of file content.
        const DATA = 1 << 0;
        /// Block groups of the chunk tree.
        const SYSTEM = 1 << 1;
        /// Block groups of all trees except the chunk tree.
        const METADATA = 1 << 2;
        /// Striped over devices without redundancy.
        const RAID0 = 1 << 3;
        /// Two copies, each on its own device.
        const RAID1 = 1 << 4;
        /// Two copies, which may lie on one device.
        const DUP = 1 << 5;
        /// Striped over pairs of devices; both devices of a pair hold the same bytes.
        const RAID10 = 1 << 6;
        /// Striped with one parity.
        const RAID5 = 1 << 7;
        /// Striped with two parities.
        const RAID6 = 1 << 8;
        /// Three copies, each on its own device.
        const RAID1C3 = 1 << 9;
        /// Four copies, each on its own device.
        const RAID1C4 = 1 << 10;
        /// The profile single in balance items. Chunks have no bit for single.
        const AVAIL_ALLOC_BIT_SINGLE = 1 << 48;
        const _ = !0;
    }
}

impl BlockGroupFlags {
    /// The type bits: data, system and metadata.
    pub const TYPES: Self = Self::DATA.union(Self::SYSTEM).union(Self::METADATA);
    /// The mask of all profile bits.
    pub const PROFILES: Self = Self::RAID0
        .union(Self::RAID1)
        .union(Self::DUP)
        .union(Self::RAID10)
        .union(Self::RAID5)
        .union(Self::RAID6)
        .union(Self::RAID1C3)
        .union(Self::RAID1C4);

    /// Returns the profile, or `None` if several profile bits are set.
    #[must_use]
    pub const fn profile(self) -> Option<Profile> {
        let bits = self.intersection(Self::PROFILES).bits();
        let mut rest: &[Profile] = &Profile::ALL;
        while let [profile, others @ ..] = rest {
            if profile.flag().bits() == bits {
                return Some(*profile);
            }
            rest = others;
        }
        None
    }

    /// Returns the profile as one bit in a set of profiles, as in balance items. Such sets of
    /// profiles have a bit for the profile single. The method keeps the bits of an invalid
    /// combination of profiles.
    #[must_use]
    pub const fn profile_in_set(self) -> Self {
        let profile = self.intersection(Self::PROFILES);
        if profile.is_empty() {
            return Self::AVAIL_ALLOC_BIT_SINGLE;
        }
        profile
    }

    /// Returns the profile of a set with exactly one profile, or `None` for other sets.
    #[must_use]
    pub fn only_profile_of_set(self) -> Option<Profile> {
        Profile::ALL
            .into_iter()
            .find(|profile| profile.flag().profile_in_set() == self)
    }

    /// Returns the type as btrfs-progs names it: `Data`, `Metadata`, `System` or `Data+Metadata`.
    /// Other combinations of bits return `unknown`.
    #[must_use]
    pub const fn type_name(self) -> &'static str {
        match self.intersection(Self::TYPES).bits() {
            1 => "Data",
            2 => "System",
            4 => "Metadata",
            5 => "Data+Metadata",
            _ => "unknown",
        }
    }
}

/// Prints the names of the set bits joined by `|`, as btrfs-progs prints them in trees:
/// `METADATA|DUP`. Flags without a profile bit read `single`.
impl fmt::Display for BlockGroupFlags {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut separator = "";
        for (name, flag) in Self::all().iter_names() {
            if self.contains(flag) {
                write!(f, "{separator}{name}")?;
                separator = "|";
            }
        }
        let known = Self::TYPES | Self::PROFILES | Self::AVAIL_ALLOC_BIT_SINGLE;
        let unknown = self.difference(known).bits();
        if unknown != 0 {
            write!(f, "{separator}UNKNOWN_0x{unknown:x}")?;
            separator = "|";
        }
        if !self.intersects(Self::PROFILES | Self::AVAIL_ALLOC_BIT_SINGLE) {
            write!(f, "{separator}single")?;
        }
        Ok(())
    }
}

/// The profile of a chunk: its layout over devices.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Profile {
    /// A single copy on one device.
    Single,
    /// Two copies of the data, which may lie on one device.
    Dup,
    /// Striped over devices without redundancy.
    Raid0,
    /// Two copies, each on its own device.
    Raid1,
    /// Three copies, each on its own device.
    Raid1C3,
    /// Four copies, each on its own device.
    Raid1C4,
    /// Striped over pairs of devices; both devices of a pair hold the same bytes.
    Raid10,
    /// Striped with one parity.
    Raid5,
    /// Striped with two parities.
    Raid6,
}

impl Profile {
    /// Every profile.
    pub const ALL: [Self; 9] = [
        Self::Single,
        Self::Dup,
        Self::Raid0,
        Self::Raid1,
        Self::Raid1C3,
        Self::Raid1C4,
        Self::Raid10,
        Self::Raid5,
        Self::Raid6,
    ];

    /// Returns the number of whole copies of each byte. Parity does not count as a copy.
    #[must_use]
    pub const fn copies(self) -> u16 {
        match self {
            Self::Single | Self::Raid0 | Self::Raid5 | Self::Raid6 => 1,
            Self::Dup | Self::Raid1 | Self::Raid10 => 2,
            Self::Raid1C3 => 3,
            Self::Raid1C4 => 4,
        }
    }

    /// Returns the number of parity stripes in each row.
    #[must_use]
    pub const fn parity_stripes(self) -> u16 {
        match self {
            Self::Raid5 => 1,
            Self::Raid6 => 2,
            _ => 0,
        }
    }

    /// Returns the minimum number of stripes of a chunk. The number equals the minimum number of
    /// devices of a volume, except for DUP, whose two stripes may share a device.
    #[must_use]
    pub const fn min_stripes(self) -> u16 {
        match self {
            Self::Single | Self::Raid0 => 1,
            Self::Dup | Self::Raid1 | Self::Raid10 | Self::Raid5 => 2,
            Self::Raid1C3 | Self::Raid6 => 3,
            Self::Raid1C4 => 4,
        }
    }

    /// Returns the maximum number of stripes of a chunk, or `None` if the profile does not limit
    /// it.
    #[must_use]
    pub const fn max_stripes(self) -> Option<u16> {
        match self {
            Self::Single => Some(1),
            Self::Dup | Self::Raid1 => Some(2),
            Self::Raid1C3 => Some(3),
            Self::Raid1C4 => Some(4),
            Self::Raid0 | Self::Raid10 | Self::Raid5 | Self::Raid6 => None,
        }
    }

    /// Returns the minimum number of devices that hold a chunk of this profile.
    #[must_use]
    pub const fn min_devices(self) -> u16 {
        match self {
            Self::Dup => 1,
            _ => self.min_stripes(),
        }
    }

    /// Returns the number of devices that may be missing while all content stays readable.
    #[must_use]
    pub const fn tolerated_failures(self) -> u16 {
        match self {
            Self::Single | Self::Dup | Self::Raid0 => 0,
            Self::Raid1 | Self::Raid10 | Self::Raid5 => 1,
            Self::Raid1C3 | Self::Raid6 => 2,
            Self::Raid1C4 => 3,
        }
    }

    /// Returns the profile's bit in chunks, or no bit for single.
    #[must_use]
    pub const fn flag(self) -> BlockGroupFlags {
        match self {
            Self::Single => BlockGroupFlags::empty(),
            Self::Dup => BlockGroupFlags::DUP,
            Self::Raid0 => BlockGroupFlags::RAID0,
            Self::Raid1 => BlockGroupFlags::RAID1,
            Self::Raid1C3 => BlockGroupFlags::RAID1C3,
            Self::Raid1C4 => BlockGroupFlags::RAID1C4,
            Self::Raid10 => BlockGroupFlags::RAID10,
            Self::Raid5 => BlockGroupFlags::RAID5,
            Self::Raid6 => BlockGroupFlags::RAID6,
        }
    }

    /// The name that btrfs-progs prints.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Single => "single",
            Self::Dup => "DUP",
            Self::Raid0 => "RAID0",
            Self::Raid1 => "RAID1",
            Self::Raid1C3 => "RAID1C3",
            Self::Raid1C4 => "RAID1C4",
            Self::Raid10 => "RAID10",
            Self::Raid5 => "RAID5",
            Self::Raid6 => "RAID6",
        }
    }
}

impl fmt::Display for Profile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// The on-disk layout of a block group item.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct RawBlockGroupItem {
    /// Bytes in use.
    pub used: U64,
    /// The object id in the chunk's key.
    pub chunk_objectid: U64,
    /// [`BlockGroupFlags`].
    pub flags: U64,
}

const _: () = assert!(size_of::<RawBlockGroupItem>() == 24);

/// A block group: the logical range `[start, start + length)`, which is also the range of its
/// chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockGroupItem {
    /// The first byte, from the key.
    pub start: Logical,
    /// The length in bytes, from the key.
    pub length: ByteCount,
    /// The number of bytes that extents cover.
    pub used: ByteCount,
    /// The object id in the chunk's key. With the feature extent-tree-v2, the number of the global
    /// root.
    pub chunk_objectid: ObjectId,
    /// Type and profile.
    pub flags: BlockGroupFlags,
}

impl BlockGroupItem {
    /// Parses a `BLOCK_GROUP_ITEM`.
    ///
    /// # Errors
    /// Fails if the size is wrong, or with the first [`BlockGroupProblem`] found.
    pub fn parse(key: &Key, data: &[u8]) -> Result<Self, ItemError> {
        let raw = raw::exactly::<RawBlockGroupItem>(key, data)?;
        let item = Self {
            start: Logical::new(key.objectid.get()),
            length: ByteCount::new(key.offset),
            used: ByteCount::new(raw.used.get()),
            chunk_objectid: ObjectId::new(raw.chunk_objectid.get()),
            flags: BlockGroupFlags::from_bits_retain(raw.flags.get()),
        };
        item.check(key)?;
        Ok(item)
    }

    fn check(&self, key: &Key) -> Result<(), ItemError> {
        let fail = |problem: BlockGroupProblem| Err(ItemError::new(key, problem));
        if self.length == ByteCount::ZERO {
            return fail(BlockGroupProblem::Empty);
        }
        raw::range_end(key, self.start.get(), self.length.get())?;
        if self.chunk_objectid != ObjectId::FIRST_CHUNK_TREE {
            return fail(BlockGroupProblem::ChunkObjectId {
                objectid: self.chunk_objectid.get(),
            });
        }
        if self.used > self.length {
            return fail(BlockGroupProblem::UsedExceedsLength {
                used_bytes: self.used.get(),
                length_bytes: self.length.get(),
            });
        }
        if self.flags.profile().is_none() {
            return fail(BlockGroupProblem::SeveralProfiles {
                flags: self.flags.bits(),
            });
        }
        let types = self.flags & BlockGroupFlags::TYPES;
        let mixed = BlockGroupFlags::DATA | BlockGroupFlags::METADATA;
        if types != mixed && types.bits().count_ones() != 1 {
            return fail(BlockGroupProblem::TypeInvalid {
                flags: self.flags.bits(),
            });
        }
        Ok(())
    }
}

/// The check that a block group item fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BlockGroupProblem {
    /// The key's offset, which is the block group's length, is zero.
    #[error("block group has no length")]
    Empty,
    /// The chunk's object id differs from the one that all chunks have.
    #[error(
        "block group chunk objectid is {objectid}, expected {}",
        ObjectId::FIRST_CHUNK_TREE
    )]
    ChunkObjectId {
        /// The object id in the item.
        objectid: u64,
    },
    /// The number of bytes in use exceeds the block group's length.
    #[error("block group has {used_bytes} used bytes, expected at most {length_bytes}")]
    UsedExceedsLength {
        /// Bytes in use.
        used_bytes: u64,
        /// The block group's length in bytes.
        length_bytes: u64,
    },
    /// More than one profile bit is set.
    #[error("block group flags 0x{flags:x} name more than one profile")]
    SeveralProfiles {
        /// The flags in the item.
        flags: u64,
    },
    /// The type bits form none of the four valid types: data, metadata, system, or data with
    /// metadata.
    #[error("block group flags 0x{flags:x} name no type, or types that cannot be mixed")]
    TypeInvalid {
        /// The flags in the item.
        flags: u64,
    },
}

impl BlockGroupItem {
    /// Returns the key `(start BLOCK_GROUP_ITEM length)`.
    #[must_use]
    pub const fn key(&self) -> Key {
        let start = ObjectId::new(self.start.get());
        Key::new(start, ItemType::BLOCK_GROUP_ITEM, self.length.get())
    }

    /// Returns the item's bytes in their on-disk layout.
    #[must_use]
    pub fn to_bytes(self) -> [u8; size_of::<RawBlockGroupItem>()] {
        zerocopy::transmute!(RawBlockGroupItem {
            used: U64::new(self.used.get()),
            chunk_objectid: U64::new(self.chunk_objectid.get()),
            flags: U64::new(self.flags.bits()),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::item_error::ItemProblem;

    fn parse(length: u64, used: u64, chunk_objectid: u64, flags: u64) -> Result<BlockGroupItem, ItemProblem> {
        let key = Key::new(ObjectId::new(1 << 20), ItemType::BLOCK_GROUP_ITEM, length);
        let raw = RawBlockGroupItem {
            used: U64::new(used),
            chunk_objectid: U64::new(chunk_objectid),
            flags: U64::new(flags),
        };
        BlockGroupItem::parse(&key, raw.as_bytes()).map_err(|error| error.problem)
    }

    #[test]
    fn each_profile_has_one_bit_in_a_set() {
        let mut all = BlockGroupFlags::empty();
        for profile in Profile::ALL {
            let bit = (BlockGroupFlags::DATA | profile.flag()).profile_in_set();
            assert_eq!(bit.bits().count_ones(), 1);
            assert!(!all.intersects(bit), "{profile}");
            assert_eq!(bit.only_profile_of_set(), Some(profile));
            all |= bit;
        }
        assert_eq!(all.only_profile_of_set(), None);
        assert_eq!(BlockGroupFlags::empty().only_profile_of_set(), None);
    }

    #[test]
    fn each_check_finds_its_fault() {
        let metadata_dup = 0x24;
        assert!(parse(8 << 20, 4096, 256, metadata_dup).is_ok());
        assert!(parse(8 << 20, 8 << 20, 256, 5).is_ok());
        let cases = [
            (parse(0, 0, 256, 1), BlockGroupProblem::Empty.into()),
            (
                parse(4096, 0, 255, 1),
                BlockGroupProblem::ChunkObjectId { objectid: 255 }.into(),
            ),
            (
                parse(4096, 4097, 256, 1),
                BlockGroupProblem::UsedExceedsLength {
                    used_bytes: 4097,
                    length_bytes: 4096,
                }
                .into(),
            ),
            (
                parse(4096, 0, 256, 0x19),
                BlockGroupProblem::SeveralProfiles { flags: 0x19 }.into(),
            ),
            (
                parse(4096, 0, 256, 0),
                BlockGroupProblem::TypeInvalid { flags: 0 }.into(),
            ),
            (
                parse(4096, 0, 256, 3),
                BlockGroupProblem::TypeInvalid { flags: 3 }.into(),
            ),
            (
                parse(u64::MAX, 0, 256, 1),
                ItemProblem::RangeOverflow {
                    start: 1 << 20,
                    length_bytes: u64::MAX,
                },
            ),
        ];
        for (found, expected) in cases {
            assert_eq!(found, Err(expected));
        }
        let key = Key::new(ObjectId::new(0), ItemType::BLOCK_GROUP_ITEM, 1);
        assert_eq!(
            BlockGroupItem::parse(&key, &[0; 23]).map_err(|error| error.problem),
            Err(ItemProblem::SizeWrong {
                size_bytes: 23,
                expected_bytes: 24
            })
        );
    }

    #[test]
    fn profiles_and_flags_agree() {
        for profile in Profile::ALL {
            assert_eq!((BlockGroupFlags::DATA | profile.flag()).profile(), Some(profile));
            assert!(profile.min_stripes() > profile.parity_stripes());
            assert!(
                profile
                    .max_stripes()
                    .is_none_or(|most| most >= profile.min_stripes())
            );
        }
        assert_eq!((BlockGroupFlags::RAID0 | BlockGroupFlags::RAID1).profile(), None);
        assert_eq!(
            (BlockGroupFlags::METADATA | BlockGroupFlags::DUP).to_string(),
            "METADATA|DUP"
        );
        assert_eq!(BlockGroupFlags::DATA.to_string(), "DATA|single");
    }
}
