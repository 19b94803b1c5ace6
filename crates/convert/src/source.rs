//! The facts about an old file system that a user sees before its conversion.

use crate::error::{Error, Result};
use crate::superblocks::Found;
use buttress_device::Device;
use buttress_exact::Exact as _;
use buttress_extfs::{Compat, Ext, ExtError, Incompat, Superblock};
use buttress_format::{ByteCount, SUPERBLOCK_OFFSETS, Uuid};

/// An ext2, ext3 or ext4 file system on a device.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Source {
    /// The type: `ext2`, `ext3` or `ext4`.
    pub kind: &'static str,
    /// The label, without NUL bytes at its end.
    pub label: Vec<u8>,
    /// The uuid.
    pub uuid: Uuid,
    /// The size of a block in bytes.
    pub block_bytes: u32,
    /// The number of blocks.
    pub blocks: u64,
    /// The number of free blocks.
    pub free_blocks: u64,
    /// The number of inodes.
    pub inodes: u32,
    /// The number of free inodes.
    pub free_inodes: u32,
}

impl Source {
    /// Reads the facts about the file system on `device`.
    ///
    /// # Errors
    /// Fails as [`prepare`](crate::prepare) does for a file system that it does not support.
    pub fn read(device: &Device) -> Result<Self> {
        let old = open(device)?;
        let superblock = old.superblock();
        Ok(Self {
            kind: kind(superblock),
            label: superblock.label.clone(),
            uuid: Uuid::from_bytes(superblock.uuid),
            block_bytes: superblock.block_bytes,
            blocks: superblock.blocks,
            free_blocks: superblock.free_blocks,
            inodes: superblock.inodes,
            free_inodes: superblock.free_inodes,
        })
    }

    /// Returns the size of the file system.
    #[must_use]
    pub fn bytes(&self) -> ByteCount {
        ByteCount::new(self.blocks.exact_mul(u64::from(self.block_bytes)))
    }

    /// Returns the size of all free blocks.
    #[must_use]
    pub fn free_bytes(&self) -> ByteCount {
        ByteCount::new(self.free_blocks.exact_mul(u64::from(self.block_bytes)))
    }
}

/// Opens the old file system.
pub(crate) fn open(device: &Device) -> Result<Ext> {
    let [primary, ..] = SUPERBLOCK_OFFSETS;
    match Ext::open(device) {
        Err(ExtError::NotExt { .. }) if Found::read(device, primary)?.is_some() => Err(Error::IsBtrfs),
        old => Ok(old?),
    }
}

/// Returns the type by the features that its successor brought.
fn kind(superblock: &Superblock) -> &'static str {
    if superblock.incompat.contains(Incompat::EXTENTS) || superblock.has_checksums() {
        "ext4"
    } else if superblock.compat.contains(Compat::HAS_JOURNAL) {
        "ext3"
    } else {
        "ext2"
    }
}
