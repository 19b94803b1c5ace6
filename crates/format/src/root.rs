//! Root items and root references: the trees of a volume, and the places of subvolumes in their
//! parents.
//!
//! A `ROOT_ITEM` exists in two lengths. The old form (239 bytes) ends after the level. The current
//! form (439 bytes) adds uuids, transactions and times of subvolumes. A kernel that knows only the
//! old form updates the old fields of a long root item, and leaves others stale.
//! [`RootItem::generation_v2`] then differs from [`RootItem::generation`], and the added fields
//! count as zero, as in the short form.
//!
//! `ROOT_REF` (under the parent) and `ROOT_BACKREF` (under the child) hold directory and name of a
//! subvolume.
//!
//! Source: on-disk format documentation, sections "ROOT_ITEM" and "ROOT_REF/ROOT_BACKREF".

mod encode;
mod reference;

pub use encode::ROOT_ITEM_BYTES;
pub use reference::{RawRootRef, RootRef};

use crate::inode::{InodeItem, RawInodeItem, RawTimestamp, Timestamp};
use crate::item_error::{ItemError, ItemProblem};
use crate::key::{Key, RawKey};
use crate::raw;
use crate::units::{ByteCount, Generation, InodeNumber, Logical, ObjectId, TreeId};
use uuid::Uuid;
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// The number of levels that a tree can have: its root is at level 0 to 7.
pub const TREE_LEVELS_MAX: u8 = 8;

/// The fields that both forms of a root item have.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
#[expect(
    missing_docs,
    reason = "the fields are those of RootItem, which documents them"
)]
pub struct RawRootItem {
    pub inode: RawInodeItem,
    pub generation: U64,
    pub root_directory: U64,
    pub logical: U64,
    pub byte_limit: U64,
    pub bytes_used: U64,
    pub last_snapshot: U64,
    pub flags: U64,
    pub references: U32,
    pub drop_progress: RawKey,
    pub drop_level: u8,
    pub level: u8,
}

const _: () = assert!(size_of::<RawRootItem>() == 239);

/// The fields that only the current form has.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
#[expect(
    missing_docs,
    reason = "the fields are those of RootItem, which documents them"
)]
pub struct RawRootItemExtension {
    pub generation_v2: U64,
    pub uuid: [u8; 16],
    pub parent_uuid: [u8; 16],
    pub received_uuid: [u8; 16],
    pub ctransid: U64,
    pub otransid: U64,
    pub stransid: U64,
    pub rtransid: U64,
    pub ctime: RawTimestamp,
    pub otime: RawTimestamp,
    pub stime: RawTimestamp,
    pub rtime: RawTimestamp,
    pub reserved: [U64; 8],
}

const _: () = assert!(size_of::<RawRootItemExtension>() == 200);

bitflags::bitflags! {
    /// Flags of a tree.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct RootFlags: u64 {
        /// The subvolume is read-only.
        const RDONLY = 1 << 0;
        /// The subvolume is deleted, and the snapshot dropper frees its tree.
        const DEAD = 1 << 48;
    }
}

/// A checked root item.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RootItem {
    /// An inode item that no kernel version maintains. The fields of this inode item are not
    /// checked.
    pub inode: InodeItem,
    /// The transaction that last changed the tree.
    pub generation: Generation,
    /// The root directory of a subvolume: 256; 0 for other trees.
    pub root_directory: InodeNumber,
    /// Address of the root block.
    pub logical: Logical,
    /// An unused field.
    pub byte_limit: u64,
    /// The total size of the tree's blocks in bytes.
    pub bytes_used: ByteCount,
    /// The last transaction that made a snapshot of the subvolume. Snapshots may share blocks that
    /// are older than this transaction.
    pub last_snapshot: Generation,
    /// See [`RootFlags`].
    pub flags: RootFlags,
    /// 1 for a live tree, 0 for a tree that is being deleted.
    pub references: u32,
    /// The progress of the deletion: the items below this key have been dropped.
    pub drop_progress: Key,
    /// The level at which the deletion will resume.
    pub drop_level: u8,
    /// Level of the root block.
    pub level: u8,
    /// Equal to `generation` if the fields after this one are valid. If the generations differ, the
    /// fields after this one read as zero. Zero in the short form.
    pub generation_v2: Generation,
    /// The subvolume's own uuid; nil for subvolumes of old kernels and for other trees.
    pub uuid: Uuid,
    /// Uuid of the subvolume of which this one is a snapshot, or nil.
    pub parent_uuid: Uuid,
    /// Uuid of the sent subvolume from which this one was received, or nil.
    pub received_uuid: Uuid,
    /// The last transaction that changed the subvolume.
    pub ctransid: Generation,
    /// The transaction that created the subvolume.
    pub otransid: Generation,
    /// The transaction of the received subvolume at its sender.
    pub stransid: Generation,
    /// The transaction that received the subvolume.
    pub rtransid: Generation,
    /// Time of `ctransid`.
    pub ctime: Timestamp,
    /// Time of `otransid`.
    pub otime: Timestamp,
    /// The time of the change with the generation `stransid`.
    pub stime: Timestamp,
    /// Time of `rtransid`.
    pub rtime: Timestamp,
}

impl RootItem {
    /// Returns the root item of a tree without blocks and without references.
    #[must_use]
    pub fn empty(generation: Generation) -> Self {
        let none = Timestamp::default();
        Self {
            inode: InodeItem::empty(none),
            generation,
            root_directory: InodeNumber::MIN,
            logical: Logical::MIN,
            byte_limit: 0,
            bytes_used: ByteCount::ZERO,
            last_snapshot: Generation::MIN,
            flags: RootFlags::empty(),
            references: 0,
            drop_progress: Key::MIN,
            drop_level: 0,
            level: 0,
            generation_v2: generation,
            uuid: Uuid::nil(),
            parent_uuid: Uuid::nil(),
            received_uuid: Uuid::nil(),
            ctransid: Generation::MIN,
            otransid: Generation::MIN,
            stransid: Generation::MIN,
            rtransid: Generation::MIN,
            ctime: none,
            otime: none,
            stime: none,
            rtime: none,
        }
    }

    /// Checks a `ROOT_ITEM` of a volume with this sector size.
    ///
    /// # Errors
    /// Returns an [`ItemError`] with the first check that fails.
    pub fn parse(key: &Key, data: &[u8], sector_bytes: u32) -> Result<Self, ItemError> {
        if key.objectid == ObjectId::MIN {
            return Err(ItemError::new(key, ItemProblem::ObjectIdInvalid { objectid: 0 }));
        }
        // Relocation trees share one object id. The key's offset names the tree that a relocation
        // tree mirrors.
        if key.objectid == TreeId::TREE_RELOCATION.object_id() && key.offset == 0 {
            return Err(ItemError::new(key, RootProblem::RelocationOfNothing));
        }
        let wrong_size = || {
            let problem = RootProblem::SizeWrong {
                size_bytes: data.len(),
            };
            ItemError::new(key, problem)
        };
        let (raw, rest) = RawRootItem::ref_from_prefix(data).map_err(|_| wrong_size())?;
        let extension = match rest {
            [] => None,
            rest => Some(RawRootItemExtension::ref_from_bytes(rest).map_err(|_| wrong_size())?),
        };
        check(raw, sector_bytes).map_err(|problem| ItemError::new(key, problem))?;
        Ok(Self::from_raw(raw, extension))
    }

    fn from_raw(raw: &RawRootItem, extension: Option<&RawRootItemExtension>) -> Self {
        let generation_v2 = extension.map_or(0, |extension| extension.generation_v2.get());
        let valid = extension.filter(|_| generation_v2 == raw.generation.get());
        let uuid = |field: fn(&RawRootItemExtension) -> [u8; 16]| {
            valid.map_or(Uuid::nil(), |extension| Uuid::from_bytes(field(extension)))
        };
        let transaction = |field: fn(&RawRootItemExtension) -> U64| {
            Generation::new(valid.map_or(0, |extension| field(extension).get()))
        };
        let time = |field: fn(&RawRootItemExtension) -> RawTimestamp| {
            valid.map_or_else(Timestamp::default, |extension| field(extension).into())
        };
        Self {
            inode: InodeItem::from_raw(&raw.inode),
            generation: Generation::new(raw.generation.get()),
            root_directory: InodeNumber::new(raw.root_directory.get()),
            logical: Logical::new(raw.logical.get()),
            byte_limit: raw.byte_limit.get(),
            bytes_used: ByteCount::new(raw.bytes_used.get()),
            last_snapshot: Generation::new(raw.last_snapshot.get()),
            flags: RootFlags::from_bits_retain(raw.flags.get()),
            references: raw.references.get(),
            drop_progress: raw.drop_progress.into(),
            drop_level: raw.drop_level,
            level: raw.level,
            generation_v2: Generation::new(generation_v2),
            uuid: uuid(|extension| extension.uuid),
            parent_uuid: uuid(|extension| extension.parent_uuid),
            received_uuid: uuid(|extension| extension.received_uuid),
            ctransid: transaction(|extension| extension.ctransid),
            otransid: transaction(|extension| extension.otransid),
            stransid: transaction(|extension| extension.stransid),
            rtransid: transaction(|extension| extension.rtransid),
            ctime: time(|extension| extension.ctime),
            otime: time(|extension| extension.otime),
            stime: time(|extension| extension.stime),
            rtime: time(|extension| extension.rtime),
        }
    }

    /// Checks that no generation exceeds `limit`: the superblock's generation plus one.
    ///
    /// # Errors
    /// Returns [`ItemProblem::GenerationInFuture`] with the name of the wrong field.
    pub fn check_generations(&self, key: &Key, limit: Generation) -> Result<(), ItemError> {
        let fields = [
            ("generation", self.generation),
            ("generation_v2", self.generation_v2),
            ("last_snapshot", self.last_snapshot),
        ];
        for (field, generation) in fields {
            if generation > limit {
                let (generation, limit) = (generation.get(), limit.get());
                let problem = ItemProblem::GenerationInFuture {
                    field,
                    generation,
                    limit,
                };
                return Err(ItemError::new(key, problem));
            }
        }
        Ok(())
    }

    /// Returns true if the fields from `uuid` on are valid.
    #[must_use]
    pub fn has_extension(&self) -> bool {
        self.generation_v2 == self.generation
    }

    /// Returns true if the subvolume is read-only.
    #[must_use]
    pub const fn is_read_only(&self) -> bool {
        self.flags.contains(RootFlags::RDONLY)
    }

    /// Returns true if the tree is being deleted: flagged dead, or without references.
    #[must_use]
    pub const fn is_dead(&self) -> bool {
        self.flags.contains(RootFlags::DEAD) || self.references == 0
    }
}

fn check(stored: &RawRootItem, sector_bytes: u32) -> Result<(), RootProblem> {
    let logical = stored.logical.get();
    if !raw::is_aligned(logical, sector_bytes) {
        return Err(RootProblem::AddressUnaligned {
            logical,
            sector_bytes,
        });
    }
    for (field, level) in [("level", stored.level), ("drop_level", stored.drop_level)] {
        if level >= TREE_LEVELS_MAX {
            return Err(RootProblem::LevelTooHigh { field, level });
        }
    }
    let flags = RootFlags::from_bits_retain(stored.flags.get());
    let unknown = flags.difference(RootFlags::all());
    if !unknown.is_empty() {
        return Err(RootProblem::FlagsUnknown {
            flags: flags.bits(),
            unknown: unknown.bits(),
        });
    }
    // A deletion resumes below the root of a subtree, never inside a leaf.
    let drop_progress = Key::from(stored.drop_progress);
    if drop_progress.objectid != ObjectId::MIN && stored.drop_level == 0 {
        return Err(RootProblem::DropWithoutLevel { drop_progress });
    }
    Ok(())
}

/// The check that a root item or root reference fails.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RootProblem {
    /// The size matches neither the old nor the current form.
    #[error("size is {size_bytes} bytes, expected 239 or 439")]
    SizeWrong {
        /// The item's size.
        size_bytes: usize,
    },
    /// The key of a relocation tree does not name the tree that it mirrors.
    #[error("a relocation tree with key offset 0 mirrors no tree")]
    RelocationOfNothing,
    /// The address of the root block is not sector-aligned.
    #[error("root block at {logical}, not a multiple of the sector size {sector_bytes}")]
    AddressUnaligned {
        /// The address.
        logical: u64,
        /// The volume's sector size.
        sector_bytes: u32,
    },
    /// The level exceeds the highest level that a tree can have.
    #[error("{field} is {level}, expected at most 7")]
    LevelTooHigh {
        /// The name of the field.
        field: &'static str,
        /// The tree level that the field holds.
        level: u8,
    },
    /// The flags have bits that no version of the format defines.
    #[error("root flags {flags:#x} have the unknown bits {unknown:#x}")]
    FlagsUnknown {
        /// All flags.
        flags: u64,
        /// The flag bits without a meaning.
        unknown: u64,
    },
    /// A deletion has begun, but the item does not hold the level at which to resume.
    #[error("drop_progress is {drop_progress}, but drop_level is 0")]
    DropWithoutLevel {
        /// The progress of the deletion.
        drop_progress: Key,
    },
    /// A root reference names a tree that is not a subvolume.
    #[error("a reference between subvolumes names tree {id}, which is not a subvolume")]
    NotASubvolume {
        /// The id of the tree.
        id: u64,
    },
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::key::ItemType;
    use zerocopy::FromZeros;

    fn key() -> Key {
        Key::new(ObjectId::new(256), ItemType::ROOT_ITEM, 0)
    }

    fn raw() -> (RawRootItem, RawRootItemExtension) {
        let mut raw = RawRootItem::new_zeroed();
        raw.generation = U64::new(9);
        raw.logical = U64::new(1 << 20);
        raw.references = U32::new(1);
        raw.flags = U64::new(1);
        let mut extension = RawRootItemExtension::new_zeroed();
        extension.generation_v2 = U64::new(9);
        extension.uuid = [7; 16];
        extension.otransid = U64::new(8);
        (raw, extension)
    }

    fn problem_of(change: impl FnOnce(&mut RawRootItem)) -> ItemProblem {
        let (mut raw, extension) = raw();
        change(&mut raw);
        let data = [raw.as_bytes(), extension.as_bytes()].concat();
        RootItem::parse(&key(), &data, 4096).unwrap_err().problem
    }

    #[test]
    fn both_lengths_pass() {
        let (raw, extension) = raw();
        let long = [raw.as_bytes(), extension.as_bytes()].concat();
        let root = RootItem::parse(&key(), &long, 4096).unwrap();
        assert_eq!((root.uuid, root.otransid.get()), (Uuid::from_bytes([7; 16]), 8));
        assert!(root.has_extension() && root.is_read_only() && !root.is_dead());
        let root = RootItem::parse(&key(), &long[..239], 4096).unwrap();
        assert_eq!(
            (root.uuid, root.generation_v2.get(), root.generation.get()),
            (Uuid::nil(), 0, 9)
        );
        assert!(!root.has_extension());
        for length in [0, 238, 240, 438] {
            assert_eq!(
                RootItem::parse(&key(), &long[..length], 4096)
                    .unwrap_err()
                    .problem,
                RootProblem::SizeWrong { size_bytes: length }.into()
            );
        }
    }

    #[test]
    fn an_extension_of_another_generation_counts_as_zero() {
        let (raw, mut extension) = raw();
        extension.generation_v2 = U64::new(8);
        let data = [raw.as_bytes(), extension.as_bytes()].concat();
        let root = RootItem::parse(&key(), &data, 4096).unwrap();
        assert_eq!(
            (root.uuid, root.otransid.get(), root.generation_v2.get()),
            (Uuid::nil(), 0, 8)
        );
        let error = root.check_generations(&key(), Generation::new(8)).unwrap_err();
        assert_eq!(
            error.problem,
            ItemProblem::GenerationInFuture {
                field: "generation",
                generation: 9,
                limit: 8
            }
        );
        assert_eq!(root.check_generations(&key(), Generation::new(9)), Ok(()));
    }

    #[test]
    fn each_check_has_its_error() {
        assert_eq!(
            problem_of(|raw| raw.logical = U64::new(4097)),
            RootProblem::AddressUnaligned {
                logical: 4097,
                sector_bytes: 4096
            }
            .into()
        );
        assert_eq!(
            problem_of(|raw| raw.level = 8),
            RootProblem::LevelTooHigh {
                field: "level",
                level: 8
            }
            .into()
        );
        assert_eq!(
            problem_of(|raw| raw.drop_level = 9),
            RootProblem::LevelTooHigh {
                field: "drop_level",
                level: 9
            }
            .into()
        );
        assert_eq!(
            problem_of(|raw| raw.flags = U64::new(3)),
            RootProblem::FlagsUnknown { flags: 3, unknown: 2 }.into()
        );
        let drop_progress = Key::new(ObjectId::new(300), ItemType::INODE_ITEM, 0);
        assert_eq!(
            problem_of(|raw| raw.drop_progress = drop_progress.into()),
            RootProblem::DropWithoutLevel { drop_progress }.into()
        );
        let (raw, _) = raw();
        let parse = |objectid| {
            let key = Key::new(ObjectId::new(objectid), ItemType::ROOT_ITEM, 0);
            RootItem::parse(&key, raw.as_bytes(), 4096).map_err(|error| error.problem)
        };
        assert_eq!(parse(0), Err(ItemProblem::ObjectIdInvalid { objectid: 0 }));
        assert_eq!(
            parse(TreeId::TREE_RELOCATION.get()),
            Err(RootProblem::RelocationOfNothing.into())
        );
    }
}
