//! Quotas: the state of counting, and counters, limits and relations of quota groups.
//!
//! A quota group's id holds its level in the upper 16 bits and a number below; level 0 is the subvolumes'.
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

    /// The id as it lies on disk.
    #[must_use]
    pub const fn new(raw: u64) -> Self {
        Self(raw)
    }

    /// The id as it lies on disk.
    #[must_use]
    pub const fn get(self) -> u64 {
        self.0
    }

    /// The level: 0 for a subvolume's own group.
    #[must_use]
    pub const fn level(self) -> u64 {
        self.0 >> Self::LEVEL_SHIFT
    }

    /// The number in its level: the subvolume, at level 0.
    #[must_use]
    pub const fn number(self) -> u64 {
        self.0 & ((1 << Self::LEVEL_SHIFT) - 1)
    }
}

/// `level/number`, as btrfs-progs prints it.
impl fmt::Display for QgroupId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.level(), self.number())
    }
}

bitflags::bitflags! {
    /// State of quotas. Bits without a name are kept.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub struct QgroupStatusFlags: u64 {
        /// Quotas are on.
        const ON = 1 << 0;
        /// A rescan runs.
        const RESCAN = 1 << 1;
        /// The counters are wrong until a rescan ends.
        const INCONSISTENT = 1 << 2;
        /// Quotas count by owner: simple quotas.
        const SIMPLE_MODE = 1 << 3;
        const _ = !0;
    }
}

bitflags::bitflags! {
    /// Which limits are set. Bits without a name are kept.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub struct QgroupLimitFlags: u64 {
        /// Of bytes referred to.
        const MAX_RFER = 1 << 0;
        /// Of bytes that nothing else refers to.
        const MAX_EXCL = 1 << 1;
        /// Reservation of bytes referred to; without effect.
        const RSV_RFER = 1 << 2;
        /// Reservation of exclusive bytes; without effect.
        const RSV_EXCL = 1 << 3;
        /// Bytes referred to count compressed.
        const RFER_CMPR = 1 << 4;
        /// Exclusive bytes count compressed.
        const EXCL_CMPR = 1 << 5;
        const _ = !0;
    }
}

/// The status item as it lies on disk, without the field of simple quotas.
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
    /// The format of the quota items; 1.
    pub version: u64,
    /// The last transaction that the counters know of.
    pub generation: Generation,
    /// State.
    pub flags: QgroupStatusFlags,
    /// How far a rescan has come: a logical address.
    pub rescan: u64,
    /// With simple quotas: extents of older transactions do not count.
    pub enable_generation: Option<Generation>,
}

impl QgroupStatus {
    /// The item of a `QGROUP_STATUS`: 32 bytes, or 40 with simple quotas.
    ///
    /// # Errors
    /// Another size.
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

/// Five numbers, as counters and limits lie on disk.
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
    /// Bytes that the group refers to.
    pub referenced: ByteCount,
    /// The same, compressed; not kept up by the kernel.
    pub referenced_compressed: ByteCount,
    /// Bytes that only the group refers to.
    pub exclusive: ByteCount,
    /// The same, compressed; not kept up by the kernel.
    pub exclusive_compressed: ByteCount,
}

impl QgroupInfo {
    /// The item of a `QGROUP_INFO`.
    ///
    /// # Errors
    /// A wrong size.
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
    /// The group, from the key.
    pub group: QgroupId,
    /// Which limits are set.
    pub flags: QgroupLimitFlags,
    /// Limit of bytes referred to.
    pub max_referenced: ByteCount,
    /// Limit of exclusive bytes.
    pub max_exclusive: ByteCount,
    /// Reservation of bytes referred to.
    pub reserved_referenced: ByteCount,
    /// Reservation of exclusive bytes.
    pub reserved_exclusive: ByteCount,
}

impl QgroupLimit {
    /// The item of a `QGROUP_LIMIT`.
    ///
    /// # Errors
    /// A wrong size.
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

    /// The item as it lies on disk: 32 bytes, or 40 with simple quotas.
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
    /// `(0 QGROUP_INFO group)`.
    #[must_use]
    pub const fn key(group: QgroupId) -> Key {
        Key::new(ObjectId::MIN, ItemType::QGROUP_INFO, group.get())
    }

    /// The item as it lies on disk.
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
    /// `(0 QGROUP_LIMIT group)`.
    #[must_use]
    pub const fn key(group: QgroupId) -> Key {
        Key::new(ObjectId::MIN, ItemType::QGROUP_LIMIT, group.get())
    }

    /// The item as it lies on disk.
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

/// That one quota group is part of another. Stored both ways round: the parent has the higher level.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QgroupRelation {
    /// The key's object id.
    pub group: QgroupId,
    /// The key's offset.
    pub other: QgroupId,
}

impl QgroupRelation {
    /// The relation of a `QGROUP_RELATION`.
    ///
    /// # Errors
    /// Data that should not be there.
    pub fn parse(key: &Key, data: &[u8]) -> Result<Self, ItemError> {
        raw::require_empty(key, data)?;
        Ok(Self {
            group: QgroupId::new(key.objectid.get()),
            other: QgroupId::new(key.offset),
        })
    }
}

impl QgroupRelation {
    /// The two keys under which the relation is stored; the items hold nothing else.
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
