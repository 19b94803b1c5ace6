//! Inodes: type, owner, times, flags, and the bytes that lead to content and attributes.
//!
//! Fields beyond the first 128 bytes exist only as far as the inode's own `i_extra_isize` reaches.
//!
//! Source: ext4 documentation, sections "Index Nodes", "Inode Timestamps" and "Inode Size".

mod raw;

use crate::checksum::{crc32c, low_16};
use crate::error::{ExtError, Place, Problem};
use crate::superblock::{RoCompat, Superblock};
use crate::units::{BlockNumber, ExtTime, InodeNumber};
use crate::volume::require_checksum;
use buttress_exact::Exact as _;
use raw::RawInode;

pub(crate) use raw::MAP_BYTES;

const KIND_MASK: u16 = 0o170_000;

bitflags::bitflags! {
    /// The flags of an inode. Bits without a name are kept.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct InodeFlags: u32 {
        /// Writes are synchronous.
        const SYNC = 0x8;
        /// The inode cannot be changed.
        const IMMUTABLE = 0x10;
        /// Writes can only append.
        const APPEND = 0x20;
        /// Backups by dump(8) leave the inode out.
        const NODUMP = 0x40;
        /// Reads do not change the access time.
        const NOATIME = 0x80;
        /// The content is encrypted.
        const ENCRYPT = 0x800;
        /// The directory has a hash tree.
        const INDEX = 0x1000;
        /// Data goes through the journal.
        const JOURNAL_DATA = 0x4000;
        /// Changes of the directory are synchronous.
        const DIRSYNC = 0x1_0000;
        /// The directory is the top of unrelated trees.
        const TOPDIR = 0x2_0000;
        /// The count of blocks is in blocks of the volume, not in units of 512 bytes.
        const HUGE_FILE = 0x4_0000;
        /// The content is in an extent tree.
        const EXTENTS = 0x8_0000;
        /// The content is protected by fs-verity.
        const VERITY = 0x10_0000;
        /// The inode holds the value of an attribute.
        const EA_INODE = 0x20_0000;
        /// The content is in the inode.
        const INLINE_DATA = 0x1000_0000;
        /// New inodes of the directory get its project id.
        const PROJINHERIT = 0x2000_0000;
        /// Names of the directory are compared without case.
        const CASEFOLD = 0x4000_0000;
        const _ = !0;
    }
}

/// The type of an inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FileKind {
    /// A regular file.
    Regular,
    /// A directory.
    Directory,
    /// A symbolic link.
    Symlink,
    /// A character device.
    CharacterDevice,
    /// A block device.
    BlockDevice,
    /// A FIFO.
    Fifo,
    /// A socket.
    Socket,
}

impl FileKind {
    /// Returns the type in the bits of a mode, or `None` if no type has these bits.
    #[must_use]
    pub const fn of_mode(mode: u16) -> Option<Self> {
        match mode & KIND_MASK {
            0o010_000 => Some(Self::Fifo),
            0o020_000 => Some(Self::CharacterDevice),
            0o040_000 => Some(Self::Directory),
            0o060_000 => Some(Self::BlockDevice),
            0o100_000 => Some(Self::Regular),
            0o120_000 => Some(Self::Symlink),
            0o140_000 => Some(Self::Socket),
            _ => None,
        }
    }
}

/// An inode in use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExtInode {
    /// The number.
    pub number: InodeNumber,
    /// The type.
    pub kind: FileKind,
    /// Type and permissions, as in `st_mode`.
    pub mode: u16,
    /// The user id of the owner.
    pub uid: u32,
    /// The group id.
    pub gid: u32,
    /// The project id, if the volume has them.
    pub project: Option<u32>,
    /// The size in bytes.
    pub size_bytes: u64,
    /// The number of links. A directory with too many subdirectories to count has 1.
    pub links: u16,
    /// The flags.
    pub flags: InodeFlags,
    /// The number that distinguishes the users of one inode number.
    pub generation: u32,
    /// The time of the last read.
    pub accessed: ExtTime,
    /// The time of the last change of content.
    pub modified: ExtTime,
    /// The time of the last change of the inode.
    pub changed: ExtTime,
    /// The time of creation, if the inode has it.
    pub created: Option<ExtTime>,
    /// The major and minor number of a device, and zeros for other inodes.
    pub device: (u32, u32),
    /// The number of blocks of the volume that the inode counts: content, maps and attributes.
    pub blocks: u64,
    /// The block of attributes.
    pub attribute_block: Option<BlockNumber>,
    /// The access time's seconds as they are stored. The inode of an attribute's value keeps its
    /// checksum here.
    pub(crate) raw_accessed: u32,
    /// The modification time's seconds as they are stored. The inode of an attribute's value can
    /// keep the owner here.
    pub(crate) raw_modified: u32,
    /// Extents, a block map, or content.
    pub(crate) map: [u8; MAP_BYTES],
    /// The bytes after the fields, which can hold attributes.
    pub(crate) attributes: Vec<u8>,
    /// The start of checksums of this inode's blocks, if the volume has checksums.
    pub(crate) seed: Option<u32>,
}

impl ExtInode {
    /// Returns true if the inode holds the value of an attribute. No directory names such an inode.
    #[must_use]
    pub const fn is_attribute_value(&self) -> bool {
        self.flags.contains(InodeFlags::EA_INODE)
    }

    /// Returns true if the content is in the inode.
    #[must_use]
    pub const fn is_inline(&self) -> bool {
        self.flags.contains(InodeFlags::INLINE_DATA)
    }

    /// Parses the bytes of an inode. Returns `None` for an inode without a mode, which is not in
    /// use.
    pub(crate) fn parse(
        superblock: &Superblock,
        number: InodeNumber,
        bytes: &[u8],
    ) -> Result<Option<Self>, ExtError> {
        // Programs leave reserved inodes without content at zeros, also in volumes with checksums.
        if bytes.iter().all(|byte| *byte == 0) {
            return Ok(None);
        }
        let place = Place::Inode(number);
        let corrupt = |problem| ExtError::corrupt(place, problem);
        let whole = RawInode::read(bytes).map_err(corrupt)?;
        let seed = superblock.inode_seed(number, whole.base.generation.get());
        if let Some(seed) = seed {
            check_checksum(place, bytes, &whole, seed)?;
        }
        if whole.base.mode.get() == 0 {
            return Ok(None);
        }
        let inode = Self::join(superblock, number, &whole, seed).map_err(corrupt)?;
        Ok(Some(inode))
    }

    fn join(
        superblock: &Superblock,
        number: InodeNumber,
        whole: &RawInode<'_>,
        seed: Option<u32>,
    ) -> Result<Self, Problem> {
        let (base, extra) = (whole.base, &whole.extra);
        let mode = base.mode.get();
        let kind = FileKind::of_mode(mode).ok_or(Problem::Kind {
            mode,
            expected: "a known type",
        })?;
        let flags = InodeFlags::from_bits_retain(base.flags.get());
        let has_high_size = kind == FileKind::Regular || kind == FileKind::Directory;
        let high_size = if has_high_size { base.size_high.get() } else { 0 };
        let size_bytes = size(base.size_low.get(), high_size, superblock.block_bytes)?;
        let attribute_block =
            u64::from(base.attribute_block_low.get()) | (u64::from(base.attribute_block_high.get()) << 32);
        let has_projects = superblock.ro_compat.contains(RoCompat::PROJECT);
        Ok(Self {
            number,
            kind,
            mode,
            uid: u32::from(base.uid_low.get()) | (u32::from(base.uid_high.get()) << 16),
            gid: u32::from(base.gid_low.get()) | (u32::from(base.gid_high.get()) << 16),
            project: if has_projects { extra.project() } else { None },
            size_bytes,
            links: base.links.get(),
            flags,
            generation: base.generation.get(),
            accessed: time(base.accessed.get(), extra.accessed()),
            modified: time(base.modified.get(), extra.modified()),
            changed: time(base.changed.get(), extra.changed()),
            created: extra
                .created()
                .map(|created| time(created, extra.created_extra())),
            device: device_numbers(kind, &base.map),
            blocks: blocks(superblock, whole, flags)?,
            attribute_block: (attribute_block != 0).then(|| BlockNumber::new(attribute_block)),
            raw_accessed: base.accessed.get(),
            raw_modified: base.modified.get(),
            map: base.map,
            attributes: whole.after_fields.to_vec(),
            seed,
        })
    }
}

/// Returns the number of blocks of the volume that the inode counts.
fn blocks(superblock: &Superblock, whole: &RawInode<'_>, flags: InodeFlags) -> Result<u64, Problem> {
    let base = whole.base;
    let is_wide = superblock.ro_compat.contains(RoCompat::HUGE_FILE);
    let high = if is_wide {
        u64::from(base.blocks_high.get()) << 32
    } else {
        0
    };
    let counted = u64::from(base.blocks_low.get()) | high;
    let blocks = if is_wide && flags.contains(InodeFlags::HUGE_FILE) {
        counted
    } else {
        counted.quotient(u64::from(superblock.block_bytes / 512))
    };
    if blocks <= superblock.blocks {
        return Ok(blocks);
    }
    Err(Problem::Field {
        field: "the count of blocks",
        found: blocks,
        least: 0,
        most: superblock.blocks,
    })
}

/// Returns the size in bytes. A file has at most 2^32 - 1 blocks.
fn size(low: u32, high: u32, block_bytes: u32) -> Result<u64, Problem> {
    let found = u64::from(low) | (u64::from(high) << 32);
    let most = u64::from(u32::MAX).exact_mul(u64::from(block_bytes));
    if found <= most {
        return Ok(found);
    }
    Err(Problem::Field {
        field: "the size in bytes",
        found,
        least: 0,
        most,
    })
}

/// Returns the time of the stored seconds and of the field for nanoseconds and high bits.
fn time(seconds: u32, extra: Option<u32>) -> ExtTime {
    let seconds = i64::from(seconds.cast_signed());
    let Some(extra) = extra else {
        return ExtTime {
            seconds,
            nanoseconds: 0,
        };
    };
    ExtTime {
        seconds: seconds.exact_add(i64::from(extra & 3) << 32),
        // The field has 30 bits, which can hold more than a second has. No tool repairs that.
        nanoseconds: (extra >> 2) % 1_000_000_000,
    }
}

/// Returns the numbers of a device: the old form in the first word of the map, the new one in the
/// second.
///
/// Source: ext4 documentation, section "The Contents of inode.i_block".
fn device_numbers(kind: FileKind, map: &[u8; MAP_BYTES]) -> (u32, u32) {
    if !matches!(kind, FileKind::CharacterDevice | FileKind::BlockDevice) {
        return (0, 0);
    }
    let [a, b, c, d, e, f, g, h, ..] = *map;
    let old = u32::from_le_bytes([a, b, c, d]);
    if old != 0 {
        return (old >> 8 & 0xff, old & 0xff);
    }
    let new = u32::from_le_bytes([e, f, g, h]);
    (new >> 8 & 0xfff, (new & 0xff) | (new >> 12 & 0xf_ff00))
}

fn check_checksum(place: Place, bytes: &[u8], whole: &RawInode<'_>, seed: u32) -> Result<(), ExtError> {
    let low = RawInode::CHECKSUM_LOW;
    let high = RawInode::CHECKSUM_HIGH;
    let (before, rest) = bytes.split_at(low);
    let (_, after_low) = rest.split_at(2);
    let state = crc32c(crc32c(seed, before), &[0; 2]);
    let found_low = u32::from(whole.base.checksum_low.get());
    let Some(found_high) = whole.extra.checksum_high() else {
        return require_checksum(place, found_low, u32::from(low_16(crc32c(state, after_low))));
    };
    let (between, rest) = after_low.split_at(high.exact_sub(low).exact_sub(2));
    let (_, after) = rest.split_at(2);
    let state = crc32c(crc32c(crc32c(state, between), &[0; 2]), after);
    require_checksum(place, found_low | (u32::from(found_high) << 16), state)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_follow_the_table_of_the_documentation() {
        // Section "Inode Timestamps": the extra bits count by 2^32 seconds above the signed field.
        let cases = [
            (0x8000_0000, 0, -0x8000_0000_i64),
            (0, 0, 0),
            (0x7fff_ffff, 0, 0x7fff_ffff),
            (0x8000_0000, 1, 0x8000_0000),
            (0x7fff_ffff, 1, 0x1_7fff_ffff),
            (0x8000_0000, 2, 0x1_8000_0000),
            (0x7fff_ffff, 3, 0x3_7fff_ffff),
        ];
        for (stored, high, seconds) in cases {
            let expected = ExtTime {
                seconds,
                nanoseconds: 5,
            };
            assert_eq!(time(stored, Some(5 << 2 | high)), expected, "{stored:#x} {high}");
        }
        assert_eq!(time(u32::MAX, None).seconds, -1);
    }

    #[test]
    fn sizes_beyond_all_blocks_are_refused() {
        assert_eq!(size(5, 1, 4096).unwrap(), (1 << 32) + 5);
        let most = u64::from(u32::MAX) * 1024;
        let halves = |size: u64| {
            (
                u32::try_from(size & 0xffff_ffff).unwrap(),
                u32::try_from(size >> 32).unwrap(),
            )
        };
        let (low, high) = halves(most);
        assert_eq!(size(low, high, 1024).unwrap(), most);
        for wrong in [most + 1, 1 << 63, u64::MAX] {
            let (low, high) = halves(wrong);
            assert!(size(low, high, 1024).is_err(), "{wrong}");
        }
    }

    #[test]
    fn device_numbers_have_two_forms() {
        let mut map = [0; MAP_BYTES];
        map[..2].copy_from_slice(&[5, 8]);
        assert_eq!(device_numbers(FileKind::BlockDevice, &map), (8, 5));
        map = [0; MAP_BYTES];
        map[4..8].copy_from_slice(&0x1234_5067_u32.to_le_bytes());
        assert_eq!(device_numbers(FileKind::CharacterDevice, &map), (0x450, 0x12367));
        assert_eq!(device_numbers(FileKind::Fifo, &map), (0, 0));
    }
}
