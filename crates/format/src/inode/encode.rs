//! Inode items as bytes.

use super::{InodeItem, RawInodeItem};
use crate::key::{ItemType, Key};
use crate::units::InodeNumber;
use zerocopy::little_endian::{U32, U64};

impl InodeItem {
    /// Returns the key `(inode INODE_ITEM 0)`.
    #[must_use]
    pub const fn key(inode: InodeNumber) -> Key {
        Key::new(inode.object_id(), ItemType::INODE_ITEM, 0)
    }

    /// Returns the item's fields in their on-disk layout, with zero in the reserved fields. A root
    /// item contains such an inode item too.
    #[must_use]
    pub fn to_raw(self) -> RawInodeItem {
        RawInodeItem {
            generation: U64::new(self.generation.get()),
            transid: U64::new(self.transid.get()),
            size: U64::new(self.size.get()),
            nbytes: U64::new(self.nbytes.get()),
            block_group: U64::new(self.block_group),
            nlink: U32::new(self.nlink),
            uid: U32::new(self.uid),
            gid: U32::new(self.gid),
            mode: U32::new(self.mode),
            rdev: U64::new(self.rdev),
            flags: U64::new(self.flags.bits()),
            sequence: U64::new(self.sequence),
            reserved: [U64::ZERO; 4],
            atime: self.atime.into(),
            ctime: self.ctime.into(),
            mtime: self.mtime.into(),
            otime: self.otime.into(),
        }
    }

    /// Returns the item's bytes in their on-disk layout.
    #[must_use]
    pub fn to_bytes(self) -> [u8; size_of::<RawInodeItem>()] {
        zerocopy::transmute!(self.to_raw())
    }
}
