//! The inode item: the attributes that stat(2) shows of a file, and a few more.
//!
//! An inode item is 160 bytes of fixed layout. [`InodeItem::parse`] makes all checks that need only
//! the item and its key. [`InodeItem::check_generations`] adds the check that needs the volume's
//! generation. Root items also hold an inode item, but neither the kernel nor this crate maintains
//! its fields. [`InodeItem::from_raw`] converts the inode item of a root item without checks.
//!
//! Nanoseconds of an inode's times may exceed one second. The kernel shows the stored number, so
//! readers that compute with nanoseconds must accept any 32-bit number.
//!
//! Source: on-disk format documentation, section "INODE_ITEM"; mode bits: POSIX sys/stat.h as Linux
//! numbers them, inode(7).

mod encode;

use crate::directory::FileKind;
use crate::item_error::{ItemError, ItemProblem};
use crate::key::Key;
use crate::raw;
use crate::units::{ByteCount, Generation, ObjectId, TreeId};
use zerocopy::little_endian::{I64, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// The on-disk layout of a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct RawTimestamp {
    /// Seconds since 1970-01-01 00:00:00 UTC.
    pub seconds: I64,
    /// Nanoseconds added to the seconds.
    pub nanoseconds: U32,
}

const _: () = assert!(size_of::<RawTimestamp>() == 12);

/// A point in time: seconds since 1970-01-01 00:00:00 UTC, which may be negative, plus nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Timestamp {
    /// Seconds since the epoch.
    pub seconds: i64,
    /// Nanoseconds added to the seconds. Nanoseconds are below 1,000,000,000 on a valid volume, but
    /// this is not checked.
    pub nanoseconds: u32,
}

impl From<RawTimestamp> for Timestamp {
    fn from(raw: RawTimestamp) -> Self {
        Self {
            seconds: raw.seconds.get(),
            nanoseconds: raw.nanoseconds.get(),
        }
    }
}

impl From<Timestamp> for RawTimestamp {
    fn from(time: Timestamp) -> Self {
        Self {
            seconds: I64::new(time.seconds),
            nanoseconds: U32::new(time.nanoseconds),
        }
    }
}

/// The on-disk layout of an inode item.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
#[expect(
    missing_docs,
    reason = "the fields are those of InodeItem, which documents them"
)]
pub struct RawInodeItem {
    pub generation: U64,
    pub transid: U64,
    pub size: U64,
    pub nbytes: U64,
    pub block_group: U64,
    pub nlink: U32,
    pub uid: U32,
    pub gid: U32,
    pub mode: U32,
    pub rdev: U64,
    pub flags: U64,
    pub sequence: U64,
    pub reserved: [U64; 4],
    pub atime: RawTimestamp,
    pub ctime: RawTimestamp,
    pub mtime: RawTimestamp,
    pub otime: RawTimestamp,
}

const _: () = assert!(size_of::<RawInodeItem>() == 160);

bitflags::bitflags! {
    /// Flags of an inode that change how btrfs handles it. Unknown inode flags are kept, but fail
    /// the check.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct InodeFlags: u64 {
        /// The content has no checksums.
        const NODATASUM = 1 << 0;
        /// The content is overwritten in place.
        const NODATACOW = 1 << 1;
        /// The inode is read-only. Kept for history.
        const READONLY = 1 << 2;
        /// Never compress.
        const NOCOMPRESS = 1 << 3;
        /// The file has had preallocated extents.
        const PREALLOC = 1 << 4;
        /// Write synchronously (`chattr +S`).
        const SYNC = 1 << 5;
        /// Immutable (`chattr +i`).
        const IMMUTABLE = 1 << 6;
        /// Append only (`chattr +a`).
        const APPEND = 1 << 7;
        /// dump(8) skips the file (`chattr +d`).
        const NODUMP = 1 << 8;
        /// Do not update the access time (`chattr +A`).
        const NOATIME = 1 << 9;
        /// Directory changes are synchronous (`chattr +D`).
        const DIRSYNC = 1 << 10;
        /// Compress (`chattr +c`).
        const COMPRESS = 1 << 11;
        /// In root items only: flags and byte limit of the root item are initialised.
        const ROOT_ITEM_INIT = 1 << 31;
        /// fs-verity is enabled. A kernel without fs-verity must not write to the file.
        const VERITY = 1 << 32;
    }
}

impl InodeFlags {
    /// The flags that determine how content is written.
    pub const OF_CONTENT: Self = Self::NODATACOW.union(Self::NODATASUM);

    /// The remaining flags that `chattr` changes. Send streams also carry these flags.
    pub const OF_CHATTR: Self = Self::NOCOMPRESS
        .union(Self::SYNC)
        .union(Self::IMMUTABLE)
        .union(Self::APPEND)
        .union(Self::NODUMP)
        .union(Self::NOATIME)
        .union(Self::DIRSYNC)
        .union(Self::COMPRESS);
}

/// The type bits of a mode.
pub const MODE_TYPE_MASK: u32 = 0o170_000;
/// The permission bits of a mode, including set-user-id, set-group-id and sticky.
pub const MODE_PERMISSION_MASK: u32 = 0o7777;

/// A checked inode item.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InodeItem {
    /// The transaction that created the inode.
    pub generation: Generation,
    /// The last transaction that changed the inode.
    pub transid: Generation,
    /// The size of the content in bytes. For a directory: twice the sum of the lengths of its
    /// names.
    pub size: ByteCount,
    /// The bytes that the content allocates, before compression. Holes add nothing to the allocated
    /// bytes.
    pub nbytes: ByteCount,
    /// A block group hint for the allocator, unused today.
    pub block_group: u64,
    /// The number of the inode's names; 1 for a directory.
    pub nlink: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Type and permission bits, as stat(2) returns them.
    pub mode: u32,
    /// Device number of a device node: the minor number in bits 0-19, the major number above.
    pub rdev: u64,
    /// See [`InodeFlags`].
    pub flags: InodeFlags,
    /// A counter of changes, for NFS.
    pub sequence: u64,
    /// The time of the last access.
    pub atime: Timestamp,
    /// The time of the last change of the inode.
    pub ctime: Timestamp,
    /// The time of the last change of the content.
    pub mtime: Timestamp,
    /// The time of creation.
    pub otime: Timestamp,
}

impl InodeItem {
    /// Returns an inode without content, name and type, whose times are all `time`. Callers make
    /// other inodes from this empty inode.
    #[must_use]
    pub const fn empty(time: Timestamp) -> Self {
        Self {
            generation: Generation::MIN,
            transid: Generation::MIN,
            size: ByteCount::ZERO,
            nbytes: ByteCount::ZERO,
            block_group: 0,
            nlink: 0,
            uid: 0,
            gid: 0,
            mode: 0,
            rdev: 0,
            flags: InodeFlags::empty(),
            sequence: 0,
            atime: time,
            ctime: time,
            mtime: time,
            otime: time,
        }
    }

    /// Checks an `INODE_ITEM`: its key (object id of an inode, offset 0), size, mode type, links of
    /// directories and flags. The file size must fit a signed 64-bit number.
    ///
    /// # Errors
    /// Returns an [`ItemError`] with the first check that fails.
    pub fn parse(key: &Key, data: &[u8]) -> Result<Self, ItemError> {
        let fail = |problem: ItemProblem| ItemError::new(key, problem);
        if !is_inode_objectid(key.objectid) {
            return Err(fail(ItemProblem::ObjectIdInvalid {
                objectid: key.objectid.get(),
            }));
        }
        if key.offset != 0 {
            return Err(fail(ItemProblem::OffsetWrong {
                offset: key.offset,
                expected: 0,
            }));
        }
        let inode = Self::from_raw(raw::exactly(key, data)?);
        inode.check().map_err(|problem| ItemError::new(key, problem))?;
        Ok(inode)
    }

    fn check(&self) -> Result<(), InodeProblem> {
        let mode = self.mode;
        if mode & !(MODE_TYPE_MASK | MODE_PERMISSION_MASK) != 0 {
            return Err(InodeProblem::ModeBitsUnknown { mode });
        }
        let Some(kind) = FileKind::from_mode(mode) else {
            return Err(InodeProblem::ModeTypeInvalid { mode });
        };
        if kind == FileKind::Directory && self.nlink > 1 {
            return Err(InodeProblem::DirectoryLinks { nlink: self.nlink });
        }
        let unknown = self.flags.difference(InodeFlags::all());
        if !unknown.is_empty() {
            return Err(InodeProblem::FlagsUnknown {
                flags: self.flags.bits(),
                unknown: unknown.bits(),
            });
        }
        if i64::try_from(self.size.get()).is_err() {
            return Err(InodeProblem::SizeTooLarge {
                size_bytes: self.size.get(),
            });
        }
        Ok(())
    }

    /// Converts a raw item without checks. Root items hold an inode that no version maintains.
    #[must_use]
    pub fn from_raw(raw: &RawInodeItem) -> Self {
        Self {
            generation: Generation::new(raw.generation.get()),
            transid: Generation::new(raw.transid.get()),
            size: ByteCount::new(raw.size.get()),
            nbytes: ByteCount::new(raw.nbytes.get()),
            block_group: raw.block_group.get(),
            nlink: raw.nlink.get(),
            uid: raw.uid.get(),
            gid: raw.gid.get(),
            mode: raw.mode.get(),
            rdev: raw.rdev.get(),
            flags: InodeFlags::from_bits_retain(raw.flags.get()),
            sequence: raw.sequence.get(),
            atime: raw.atime.into(),
            ctime: raw.ctime.into(),
            mtime: raw.mtime.into(),
            otime: raw.otime.into(),
        }
    }

    /// Checks that no generation of the item exceeds `limit`: the superblock's generation plus one.
    ///
    /// # Errors
    /// Returns [`ItemProblem::GenerationInFuture`] with the field's name.
    pub fn check_generations(&self, key: &Key, limit: Generation) -> Result<(), ItemError> {
        for (field, generation) in [("generation", self.generation), ("transid", self.transid)] {
            if generation > limit {
                let problem = ItemProblem::GenerationInFuture {
                    field,
                    generation: generation.get(),
                    limit: limit.get(),
                };
                return Err(ItemError::new(key, problem));
            }
        }
        Ok(())
    }

    /// Returns the kind of file that the mode names. Only the inode inside a root item has
    /// [`FileKind::Unknown`].
    #[must_use]
    pub fn kind(&self) -> FileKind {
        FileKind::from_mode(self.mode).unwrap_or(FileKind::Unknown)
    }
}

/// Returns true if an inode can have this number: `[256, -256]`, the root tree's directory (6), or
/// the inode of the removed inode cache (-12).
pub(crate) fn is_inode_objectid(objectid: ObjectId) -> bool {
    (objectid >= ObjectId::FIRST_FREE && objectid <= ObjectId::LAST_FREE)
        || objectid == TreeId::ROOT_DIRECTORY.object_id()
        || objectid == ObjectId::FREE_INODE
}

/// The check that an inode item fails.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InodeProblem {
    /// The mode has bits beyond type and permissions.
    #[error("mode {mode:#o} has unknown bits")]
    ModeBitsUnknown {
        /// The mode.
        mode: u32,
    },
    /// The type bits of the mode name no kind of file.
    #[error("mode {mode:#o} has no valid file type")]
    ModeTypeInvalid {
        /// The mode.
        mode: u32,
    },
    /// A directory has more than one link.
    #[error("a directory has {nlink} links, expected at most 1")]
    DirectoryLinks {
        /// The number of links.
        nlink: u32,
    },
    /// The flags have bits that no version of the format defines.
    #[error("inode flags {flags:#x} have the unknown bits {unknown:#x}")]
    FlagsUnknown {
        /// All flags.
        flags: u64,
        /// The flag bits without a meaning.
        unknown: u64,
    },
    /// The size exceeds the largest file offset.
    #[error("file size is {size_bytes}, expected at most 2^63 - 1")]
    SizeTooLarge {
        /// The size.
        size_bytes: u64,
    },
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::key::ItemType;
    use zerocopy::FromZeros;

    fn key() -> Key {
        Key::new(ObjectId::new(257), ItemType::INODE_ITEM, 0)
    }

    fn regular() -> RawInodeItem {
        let mut raw = RawInodeItem::new_zeroed();
        raw.mode = U32::new(0o100_644);
        raw.nlink = U32::new(3);
        raw.generation = U64::new(7);
        raw.transid = U64::new(8);
        raw.mtime = Timestamp {
            seconds: -5,
            nanoseconds: 9,
        }
        .into();
        raw
    }

    fn problem_of(change: impl FnOnce(&mut RawInodeItem)) -> ItemProblem {
        let mut raw = regular();
        change(&mut raw);
        InodeItem::parse(&key(), raw.as_bytes()).unwrap_err().problem
    }

    #[test]
    fn a_sound_item_passes() {
        let inode = InodeItem::parse(&key(), regular().as_bytes()).unwrap();
        assert_eq!(inode.kind(), FileKind::Regular);
        assert_eq!(
            inode.mtime,
            Timestamp {
                seconds: -5,
                nanoseconds: 9
            }
        );
        assert_eq!(
            (inode.generation.get(), inode.transid.get(), inode.nlink),
            (7, 8, 3)
        );
    }

    #[test]
    fn each_check_has_its_error() {
        assert_eq!(
            problem_of(|raw| raw.mode = U32::new(0o200_644 | 0o100_000)),
            InodeProblem::ModeBitsUnknown { mode: 0o300_644 }.into()
        );
        assert_eq!(
            problem_of(|raw| raw.mode = U32::new(0o644)),
            InodeProblem::ModeTypeInvalid { mode: 0o644 }.into()
        );
        assert_eq!(
            problem_of(|raw| {
                raw.mode = U32::new(0o040_755);
                raw.nlink = U32::new(2);
            }),
            InodeProblem::DirectoryLinks { nlink: 2 }.into()
        );
        assert_eq!(
            problem_of(|raw| raw.flags = U64::new(1 << 12 | 1)),
            InodeProblem::FlagsUnknown {
                flags: 0x1001,
                unknown: 0x1000
            }
            .into()
        );
        assert_eq!(
            problem_of(|raw| raw.flags = U64::new(1 << 33)),
            InodeProblem::FlagsUnknown {
                flags: 1 << 33,
                unknown: 1 << 33
            }
            .into()
        );
        assert_eq!(
            problem_of(|raw| raw.size = U64::new(1 << 63)),
            InodeProblem::SizeTooLarge { size_bytes: 1 << 63 }.into()
        );
    }

    #[test]
    fn keys_and_sizes_are_checked() {
        let raw = regular();
        let parse = |objectid, offset, data: &[u8]| {
            InodeItem::parse(
                &Key::new(ObjectId::new(objectid), ItemType::INODE_ITEM, offset),
                data,
            )
            .map_err(|error| error.problem)
        };
        assert_eq!(
            parse(255, 0, raw.as_bytes()),
            Err(ItemProblem::ObjectIdInvalid { objectid: 255 })
        );
        assert_eq!(
            parse(257, 1, raw.as_bytes()),
            Err(ItemProblem::OffsetWrong {
                offset: 1,
                expected: 0
            })
        );
        assert_eq!(
            parse(257, 0, &raw.as_bytes()[..159]),
            Err(ItemProblem::SizeWrong {
                size_bytes: 159,
                expected_bytes: 160
            })
        );
        assert!(parse(6, 0, raw.as_bytes()).is_ok());
        assert!(parse(u64::MAX - 255, 0, raw.as_bytes()).is_ok());
        assert!(parse(u64::MAX - 254, 0, raw.as_bytes()).is_err());
    }

    #[test]
    fn generations_end_at_the_limit() {
        let inode = InodeItem::parse(&key(), regular().as_bytes()).unwrap();
        assert_eq!(inode.check_generations(&key(), Generation::new(8)), Ok(()));
        let error = inode.check_generations(&key(), Generation::new(7)).unwrap_err();
        assert_eq!(
            error.problem,
            ItemProblem::GenerationInFuture {
                field: "transid",
                generation: 8,
                limit: 7
            }
        );
    }
}
