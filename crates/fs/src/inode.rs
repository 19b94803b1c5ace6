//! Inodes: their `stat(2)` attributes, and all their items in one pass.
//!
//! The items of an inode are adjacent in its tree: the inode item, its names, its extended
//! attributes and its extents. [`Metadata`] needs only the inode item. An [`InodeRecord`] reads all
//! of them in one pass, which suits jobs over many files.
//!
//! The kernel's results can differ from the stored fields:
//! - allocated bytes are `nbytes` of the inode item rounded up to a sector, also for inline
//!   content;
//! - device numbers hold the major number above bit 20 and the minor number below;
//! - a nested subvolume inside a snapshot is an empty directory that no item describes. The kernel
//!   gives the placeholder mode 0755, one link, and the owner and access time of its parent
//!   directory. Times of the placeholder other than the access time are those of the first lookup. In
//!   this crate, the other times are the change time of the parent directory, so that two runs agree.
//!
//! Source: on-disk format documentation, section "INODE_ITEM".

use crate::error::{Corruption, Error, Result};
use crate::filesystem::Filesystem;
use crate::location::{Location, PLACEHOLDER_INODE};
use buttress_format::{ByteCount, FileKind, Generation, InodeFlags, InodeItem, ItemType, Key, Timestamp};
use buttress_tree::{ReadAhead, Tree};

mod flags;
mod record;
mod salvage;

pub use flags::FileAttributes;
pub use record::{InodeLink, InodeRecord};

/// The number of a device node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct DeviceNumber {
    /// The number of the driver.
    pub major: u32,
    /// The number of the device within its driver.
    pub minor: u32,
}

impl DeviceNumber {
    /// Splits the field of an inode item: the major number lies above bit 20 of the low 32 bits.
    #[must_use]
    pub const fn from_raw(raw: u64) -> Self {
        let low = raw & 0xffff_ffff;
        Self {
            major: (low >> 20) as u32,
            minor: (low & 0x000f_ffff) as u32,
        }
    }
}

impl DeviceNumber {
    /// Returns the device field of an inode item; `None` for device numbers that the field cannot
    /// hold.
    #[must_use]
    pub const fn to_raw(self) -> Option<u64> {
        if self.major > 0xfff || self.minor > 0x000f_ffff {
            return None;
        }
        Some(((self.major as u64) << 20) | self.minor as u64)
    }
}

/// The kinds of inodes, besides regular files, that `mknod(2)` makes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NodeKind {
    /// A named pipe.
    Fifo,
    /// A socket.
    Socket,
    /// A character device.
    CharacterDevice(DeviceNumber),
    /// A block device.
    BlockDevice(DeviceNumber),
}

impl NodeKind {
    /// Returns the type bits of the mode.
    #[must_use]
    pub const fn type_bits(self) -> u32 {
        match self {
            Self::Fifo => 0o010_000,
            Self::Socket => 0o140_000,
            Self::CharacterDevice(_) => 0o020_000,
            Self::BlockDevice(_) => 0o060_000,
        }
    }
}

/// The attributes of an inode that `stat(2)` and `statx(2)` show.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Metadata {
    /// The inode.
    pub location: Location,
    /// The kind of file, from the mode.
    pub kind: FileKind,
    /// Type and permission bits (`st_mode`).
    pub mode: u32,
    /// The number of names (`st_nlink`); 1 for directories.
    pub nlink: u32,
    /// The owner.
    pub uid: u32,
    /// The group.
    pub gid: u32,
    /// The device number of a device node.
    pub device: Option<DeviceNumber>,
    /// `st_size`: length of a file's content or of a symlink's target; for directories twice the
    /// length of their names.
    pub size: ByteCount,
    /// `st_blocks` times 512: the bytes that the content allocates, before redundancy.
    pub allocated: ByteCount,
    /// `st_blksize`: the sector size of the volume.
    pub block_bytes: u32,
    /// The last access, as recorded.
    pub accessed: Timestamp,
    /// The last change of content.
    pub modified: Timestamp,
    /// The time of the last change of content or attributes.
    pub changed: Timestamp,
    /// The time of creation; `None` for a placeholder.
    pub created: Option<Timestamp>,
    /// The stored flags. [`Metadata::attributes`] returns them in the form of `lsattr`.
    pub flags: InodeFlags,
    /// The transaction that created the inode.
    pub generation: Generation,
    /// The transaction that last changed the inode.
    pub transid: Generation,
    /// A counter of changes (`STATX_CHANGE_COOKIE`, NFS).
    pub sequence: u64,
}

impl Metadata {
    /// Returns the metadata of an inode item. `sector_bytes` is the sector size of the volume.
    #[must_use]
    pub fn from_item(location: Location, item: &InodeItem, sector_bytes: u32) -> Self {
        let kind = kind_of_mode(item.mode);
        // Clamp: the number comes from disk, and is only displayed.
        let allocated = item
            .nbytes
            .checked_align_up(u64::from(sector_bytes))
            .unwrap_or(ByteCount::MAX);
        Self {
            location,
            kind,
            mode: item.mode,
            nlink: item.nlink,
            uid: item.uid,
            gid: item.gid,
            device: matches!(kind, FileKind::CharacterDevice | FileKind::BlockDevice)
                .then(|| DeviceNumber::from_raw(item.rdev)),
            size: item.size,
            allocated,
            block_bytes: sector_bytes,
            accessed: item.atime,
            modified: item.mtime,
            changed: item.ctime,
            created: Some(item.otime),
            flags: item.flags,
            generation: item.generation,
            transid: item.transid,
            sequence: item.sequence,
        }
    }

    /// Returns the empty directory that replaces an absent subvolume. `directory` holds the
    /// placeholder.
    #[must_use]
    pub fn placeholder(location: Location, directory: &Self) -> Self {
        Self {
            location,
            kind: FileKind::Directory,
            mode: 0o040_755,
            nlink: 1,
            uid: directory.uid,
            gid: directory.gid,
            device: None,
            size: ByteCount::ZERO,
            allocated: ByteCount::ZERO,
            block_bytes: directory.block_bytes,
            accessed: directory.accessed,
            modified: directory.changed,
            changed: directory.changed,
            created: None,
            flags: InodeFlags::empty(),
            generation: Generation::MIN,
            transid: Generation::MIN,
            sequence: 0,
        }
    }

    /// Returns `st_blocks`: the space of the content in units of 512 bytes.
    #[must_use]
    pub const fn blocks_512(&self) -> u64 {
        self.allocated.get() >> 9
    }

    /// Returns the permission bits with set-uid, set-gid and sticky.
    #[must_use]
    pub const fn permissions(&self) -> u32 {
        self.mode & 0o7777
    }

    /// Returns true if the inode is a directory.
    #[must_use]
    pub fn is_directory(&self) -> bool {
        self.kind == FileKind::Directory
    }

    /// Returns the flags as `lsattr` and the `FS_IOC_GETFLAGS` ioctl show them.
    #[must_use]
    pub fn attributes(&self) -> FileAttributes {
        FileAttributes::from_inode_flags(self.flags)
    }
}

/// Returns the kind of file that the type bits of a mode name, or [`FileKind::Unknown`] if they
/// name none.
#[must_use]
pub fn kind_of_mode(mode: u32) -> FileKind {
    // Clamp: the mode comes from disk.
    FileKind::from_mode(mode).unwrap_or(FileKind::Unknown)
}

/// Returns the kind of a file as text.
pub const fn kind_name(kind: FileKind) -> &'static str {
    match kind {
        FileKind::Unknown => "an unknown type",
        FileKind::Regular => "regular file",
        FileKind::Directory => "directory",
        FileKind::CharacterDevice => "character device",
        FileKind::BlockDevice => "block device",
        FileKind::Fifo => "fifo",
        FileKind::Socket => "socket",
        FileKind::Symlink => "symlink",
        FileKind::Xattr => "extended attribute",
    }
}

impl Filesystem {
    /// Returns the inode's attributes as `stat(2)` shows them.
    ///
    /// # Errors
    /// Returns [`Error::InodeNotFound`] or [`Error::SubvolumeNotFound`]. Also fails if the tree
    /// cannot be read.
    pub fn metadata(&self, location: Location) -> Result<Metadata> {
        if let Some(directory) = location.placeholder() {
            return Ok(Metadata::placeholder(location, &self.metadata(directory)?));
        }
        let tree = self.subvolume_tree(location.subvolume)?;
        self.metadata_in(&tree, location)
    }

    /// Returns the inode's attributes like [`Filesystem::metadata`], for a tree that the caller
    /// already has.
    pub fn metadata_in(&self, tree: &Tree, location: Location) -> Result<Metadata> {
        if location.inode == PLACEHOLDER_INODE {
            return Err(Error::InodeNotFound { location });
        }
        let key = Key::new(location.inode.object_id(), ItemType::INODE_ITEM, 0);
        let item = tree.get(&key)?.ok_or(Error::InodeNotFound { location })?;
        let inode = InodeItem::parse(&key, item.data()).map_err(|error| Corruption::Item {
            tree: location.subvolume.tree(),
            error,
        })?;
        Ok(Metadata::from_item(location, &inode, self.sector_bytes()))
    }

    /// Returns all items of the inode, read in one pass.
    ///
    /// # Errors
    /// Fails as [`Filesystem::metadata`] does. Returns [`Error::TooBig`] if the attributes exceed a
    /// generous limit.
    pub fn inode_record(&self, location: Location) -> Result<InodeRecord> {
        if location.placeholder().is_some() {
            return Ok(InodeRecord::of_placeholder(self.metadata(location)?));
        }
        let tree = self.subvolume_tree(location.subvolume)?;
        let mut cursor = tree.cursor(ReadAhead::None);
        InodeRecord::load(self, &mut cursor, location)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn device_numbers_split_as_in_the_kernel() {
        assert_eq!(
            DeviceNumber::from_raw(0x0010_0003),
            DeviceNumber { major: 1, minor: 3 }
        );
        let large = DeviceNumber::from_raw((259 << 20) | 0xabcde);
        assert_eq!(
            large,
            DeviceNumber {
                major: 259,
                minor: 0xabcde
            }
        );
        assert_eq!(
            DeviceNumber::from_raw(u64::MAX),
            DeviceNumber {
                major: 0xfff,
                minor: 0xf_ffff
            }
        );
    }

    #[test]
    fn every_mode_has_its_kind() {
        for (mode, kind) in [
            (0o100_644, FileKind::Regular),
            (0o040_755, FileKind::Directory),
            (0o120_777, FileKind::Symlink),
            (0o020_600, FileKind::CharacterDevice),
            (0o060_600, FileKind::BlockDevice),
            (0o010_600, FileKind::Fifo),
            (0o140_600, FileKind::Socket),
            (0o644, FileKind::Unknown),
            (0o170_000, FileKind::Unknown),
        ] {
            assert_eq!(kind_of_mode(mode), kind, "{mode:o}");
        }
    }
}
