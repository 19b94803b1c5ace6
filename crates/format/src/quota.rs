//! Quotas: the state of quotas, and the counters, limits and relations of quota groups.
//!
//! A quota group's id holds its level in the upper 16 bits and a number below. Level 0 holds the
//! groups of subvolumes.
//!
//! | key | item |
//! |---|---|
//! | `(0 QGROUP_STATUS 0)` | [`QgroupStatus`] |
//! | `(0 QGROUP_INFO id)` | [`QgroupInfo`] |
//! | `(0 QGROUP_LIMIT id)` | [`QgroupLimit`] |
//! | `(id QGROUP_RELATION id)` | no data; stored both ways round |
//!
//! Source: on-disk format documentation, section "Qgroup items"; btrfs-quota(8).

use crate::item_error::{ItemError, ItemProblem};
use crate::key::{ItemType, Key};
use crate::raw;
use crate::units::{ByteCount, Generation, ObjectId};
use core::fmt;
use zerocopy::little_endian::U64;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// The id of a quota group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct QgroupId(u64);

impl QgroupId {
    const LEVEL_SHIFT: u32 = 48;

    /// The highest id of level 0.
    pub const LAST_OF_SUBVOLUMES: Self = Self((1 << Self::LEVEL_SHIFT) - 1);

    /// Makes a group id of its number on disk.
    #[must_use]
    pub const fn new(raw: u64) -> Self {
        Self(raw)
    }

    /// Returns the id as a number, in its form on disk.
    #[must_use]
    pub const fn get(self) -> u64 {
        self.0
    }

    /// Returns the level of the qgroup. Level 0 holds each subvolume's own group.
    #[must_use]
    pub const fn level(self) -> u64 {
        self.0 >> Self::LEVEL_SHIFT
    }

    /// Returns the number of the group in its level. At level 0, the number is the subvolume's id.
    #[must_use]
    pub const fn number(self) -> u64 {
        self.0 & ((1 << Self::LEVEL_SHIFT) - 1)
    }
}

/// Prints `level/number`, as btrfs-progs does.
impl fmt::Display for QgroupId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.level(), self.number())
    }
}

bitflags::bitflags! {
    /// Flags of the state of quotas. Bits without a name are kept.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub struct QgroupStatusFlags: u64 {
        /// Quotas are on.
        const ON = 1 << 0;
        /// A rescan runs.
        const RESCAN = 1 << 1;
        /// The counters are wrong until a rescan ends.
        const INCONSISTENT = 1 << 2;
        /// The volume has simple quotas.
        const SIMPLE_MODE = 1 << 3;
        const _ = !0;
    }
}

bitflags::bitflags! {
    /// The limits that are set. Bits without a name are kept.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub struct QgroupLimitFlags: u64 {
        /// A limit on referenced bytes.
        const MAX_RFER = 1 << 0;
        /// A limit on exclusive bytes, which no other group references.
        const MAX_EXCL = 1 << 1;
        /// A reservation of referenced bytes, which has no effect.
        const RSV_RFER = 1 << 2;
        /// A reservation of exclusive bytes, which has no effect.
        const RSV_EXCL = 1 << 3;
        /// Referenced bytes count after compression.
        const RFER_CMPR = 1 << 4;
        /// Exclusive bytes count after compression.
        const EXCL_CMPR = 1 << 5;
        const _ = !0;
    }
}

/// The on-disk layout of the status item, without the field of simple quotas.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RawQgroupStatus {
    version: U64,
    generation: U64,
    flags: U64,
    rescan: U64,
}

const _: () = assert!(size_of::<RawQgroupStatus>() == 32);

/// The state of quotas.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QgroupStatus {
    /// The format version of the quota items, which is 1.
    pub version: u64,
    /// The last transaction that the counters include.
    pub generation: Generation,
    /// Flags of the state of quotas.
    pub flags: QgroupStatusFlags,
    /// The logical address up to which a rescan has counted.
    pub rescan: u64,
    /// The generation from which simple quotas count extents; older extents do not count.
    pub enable_generation: Option<Generation>,
}

impl QgroupStatus {
    /// Parses a `QGROUP_STATUS` of 32 bytes, or 40 with simple quotas.
    ///
    /// # Errors
    /// Fails if the item has another size.
    pub fn parse(key: &Key, data: &[u8]) -> Result<Self, ItemError> {
        let (raw, rest) = raw::prefix::<RawQgroupStatus>(key, data)?;
        let enable_generation = if rest.is_empty() {
            None
        } else {
            let full_bytes = size_of::<RawQgroupStatus>().saturating_add(size_of::<U64>());
            let problem = ItemProblem::SizeWrong {
                size_bytes: data.len(),
                expected_bytes: full_bytes,
            };
            let number = U64::ref_from_bytes(rest).map_err(|_| ItemError::new(key, problem))?;
            Some(Generation::new(number.get()))
        };
        Ok(Self {
            version: raw.version.get(),
            generation: Generation::new(raw.generation.get()),
            flags: QgroupStatusFlags::from_bits_retain(raw.flags.get()),
            rescan: raw.rescan.get(),
            enable_generation,
        })
    }
}

/// The on-disk layout of counters and limits: five numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RawFive([U64; 5]);

const _: () = assert!(size_of::<RawFive>() == 40);

/// The counters of a quota group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QgroupInfo {
    /// The group, from the key.
    pub group: QgroupId,
    /// The transaction of the last change.
    pub generation: Generation,
    /// The bytes that the group references.
    pub referenced: ByteCount,
    /// The referenced bytes after compression, which the kernel does not maintain.
    pub referenced_compressed: ByteCount,
    /// The exclusive bytes, which only this group references.
    pub exclusive: ByteCount,
    /// The exclusive bytes after compression, which the kernel does not maintain.
    pub exclusive_compressed: ByteCount,
}

impl QgroupInfo {
    /// Parses a `QGROUP_INFO`.
    ///
    /// # Errors
    /// Fails if the size is wrong.
    pub fn parse(key: &Key, data: &[u8]) -> Result<Self, ItemError> {
        let [
            generation,
            referenced,
            referenced_compressed,
            exclusive,
            exclusive_compressed,
        ] = raw::exactly::<RawFive>(key, data)?.0.map(U64::get);
        Ok(Self {
            group: QgroupId::new(key.offset),
            generation: Generation::new(generation),
            referenced: ByteCount::new(referenced),
            referenced_compressed: ByteCount::new(referenced_compressed),
            exclusive: ByteCount::new(exclusive),
            exclusive_compressed: ByteCount::new(exclusive_compressed),
        })
    }
}

/// The limits of a quota group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QgroupLimit {
    /// The qgroup's id, from the item's key.
    pub group: QgroupId,
    /// The limits that are set.
    pub flags: QgroupLimitFlags,
    /// The limit on referenced bytes.
    pub max_referenced: ByteCount,
    /// The limit on exclusive bytes.
    pub max_exclusive: ByteCount,
    /// The reservation of referenced bytes.
    pub reserved_referenced: ByteCount,
    /// The reservation of exclusive bytes.
    pub reserved_exclusive: ByteCount,
}

impl QgroupLimit {
    /// Returns the item of a group without limits.
    #[must_use]
    pub const fn none(group: QgroupId) -> Self {
        Self {
            group,
            flags: QgroupLimitFlags::empty(),
            max_referenced: ByteCount::ZERO,
            max_exclusive: ByteCount::ZERO,
            reserved_referenced: ByteCount::ZERO,
            reserved_exclusive: ByteCount::ZERO,
        }
    }

    /// Parses a `QGROUP_LIMIT`.
    ///
    /// # Errors
    /// Fails if the size is wrong.
    pub fn parse(key: &Key, data: &[u8]) -> Result<Self, ItemError> {
        let [
            flags,
            max_referenced,
            max_exclusive,
            reserved_referenced,
            reserved_exclusive,
        ] = raw::exactly::<RawFive>(key, data)?.0.map(U64::get);
        Ok(Self {
            group: QgroupId::new(key.offset),
            flags: QgroupLimitFlags::from_bits_retain(flags),
            max_referenced: ByteCount::new(max_referenced),
            max_exclusive: ByteCount::new(max_exclusive),
            reserved_referenced: ByteCount::new(reserved_referenced),
            reserved_exclusive: ByteCount::new(reserved_exclusive),
        })
    }
}

impl QgroupStatus {
    /// `(0 QGROUP_STATUS 0)`.
    pub const KEY: Key = Key::new(ObjectId::MIN, ItemType::QGROUP_STATUS, 0);

    /// Returns the item's bytes in their on-disk layout: 32 bytes, or 40 with simple quotas.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let raw = RawQgroupStatus {
            version: U64::new(self.version),
            generation: U64::new(self.generation.get()),
            flags: U64::new(self.flags.bits()),
            rescan: U64::new(self.rescan),
        };
        let mut item = raw.as_bytes().to_vec();
        if let Some(generation) = self.enable_generation {
            item.extend_from_slice(&generation.get().to_le_bytes());
        }
        item
    }
}

impl QgroupInfo {
    /// Returns the key `(0 QGROUP_INFO group)`.
    #[must_use]
    pub const fn key(group: QgroupId) -> Key {
        Key::new(ObjectId::MIN, ItemType::QGROUP_INFO, group.get())
    }

    /// Returns the item's bytes in their on-disk layout.
    #[must_use]
    pub fn to_bytes(self) -> [u8; size_of::<RawFive>()] {
        five([
            self.generation.get(),
            self.referenced.get(),
            self.referenced_compressed.get(),
            self.exclusive.get(),
            self.exclusive_compressed.get(),
        ])
    }
}

impl QgroupLimit {
    /// Returns the key `(0 QGROUP_LIMIT group)`.
    #[must_use]
    pub const fn key(group: QgroupId) -> Key {
        Key::new(ObjectId::MIN, ItemType::QGROUP_LIMIT, group.get())
    }

    /// Returns the item's bytes in their on-disk layout.
    #[must_use]
    pub fn to_bytes(self) -> [u8; size_of::<RawFive>()] {
        five([
            self.flags.bits(),
            self.max_referenced.get(),
            self.max_exclusive.get(),
            self.reserved_referenced.get(),
            self.reserved_exclusive.get(),
        ])
    }
}

fn five(numbers: [u64; 5]) -> [u8; size_of::<RawFive>()] {
    zerocopy::transmute!(numbers.map(U64::new))
}

/// The membership of one quota group in another. The volume stores the membership under two keys,
/// one for each direction. The parent qgroup has the higher level.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QgroupRelation {
    /// The group in the key's object id.
    pub group: QgroupId,
    /// The group in the key's offset.
    pub other: QgroupId,
}

impl QgroupRelation {
    /// Parses a `QGROUP_RELATION`.
    ///
    /// # Errors
    /// Fails if the item has data.
    pub fn parse(key: &Key, data: &[u8]) -> Result<Self, ItemError> {
        raw::require_empty(key, data)?;
        Ok(Self {
            group: QgroupId::new(key.objectid.get()),
            other: QgroupId::new(key.offset),
        })
    }
}

impl QgroupRelation {
    /// Returns the two keys under which the volume stores the relation of two qgroups. The items of
    /// both keys are empty.
    #[must_use]
    pub const fn keys(&self) -> [Key; 2] {
        let (group, other) = (self.group.get(), self.other.get());
        [
            Key::new(ObjectId::new(group), ItemType::QGROUP_RELATION, other),
            Key::new(ObjectId::new(other), ItemType::QGROUP_RELATION, group),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn numbers(count: u64) -> Vec<u8> {
        (1..=count).flat_map(u64::to_le_bytes).collect()
    }

    #[test]
    fn ids_have_a_level_and_a_number() {
        let group = QgroupId::new((1 << 48) | 100);
        assert_eq!(
            (group.level(), group.number(), group.to_string()),
            (1, 100, "1/100".to_owned())
        );
    }

    #[test]
    fn items_have_their_sizes_and_fields() {
        let key = Key::new(ObjectId::MIN, ItemType::QGROUP_INFO, 257);
        let status = QgroupStatus::parse(&key, &numbers(4)).unwrap();
        assert_eq!(
            (status.version, status.rescan, status.enable_generation),
            (1, 4, None)
        );
        assert_eq!(status.flags, QgroupStatusFlags::ON | QgroupStatusFlags::RESCAN);
        let simple = QgroupStatus::parse(&key, &numbers(5)).unwrap();
        assert_eq!(simple.enable_generation, Some(Generation::new(5)));
        let info = QgroupInfo::parse(&key, &numbers(5)).unwrap();
        assert_eq!(
            (info.group.number(), info.referenced.get(), info.exclusive.get()),
            (257, 2, 4)
        );
        let limit = QgroupLimit::parse(&key, &numbers(5)).unwrap();
        assert_eq!(
            (limit.flags, limit.max_exclusive.get()),
            (QgroupLimitFlags::MAX_RFER, 3)
        );
        assert_eq!(
            QgroupRelation::parse(&key, &[]).unwrap().other,
            QgroupId::new(257)
        );

        let problem = |result: Result<(), ItemError>| result.unwrap_err().problem;
        assert_eq!(
            problem(QgroupStatus::parse(&key, &numbers(5)[..39]).map(|_| ())),
            ItemProblem::SizeWrong {
                size_bytes: 39,
                expected_bytes: 40
            }
        );
        assert_eq!(
            problem(QgroupStatus::parse(&key, &numbers(3)).map(|_| ())),
            ItemProblem::SizeTooSmall {
                size_bytes: 24,
                needed_bytes: 32
            }
        );
        for short in [
            QgroupInfo::parse(&key, &numbers(4)).map(|_| ()),
            QgroupLimit::parse(&key, &numbers(4)).map(|_| ()),
        ] {
            assert_eq!(
                problem(short),
                ItemProblem::SizeWrong {
                    size_bytes: 32,
                    expected_bytes: 40
                }
            );
        }
        assert_eq!(
            problem(QgroupRelation::parse(&key, &[1]).map(|_| ())),
            ItemProblem::SizeWrong {
                size_bytes: 1,
                expected_bytes: 0
            }
        );
    }
}
