//! The superblocks on a device: the one of the old file system, and those of the new volume.
//!
//! Invariants:
//!
//! - The first sector of the old superblock has its magic number. A power cut leaves a sector whole,
//!   so a device has the old superblock or does not have it.
//! - A torn superblock of the new volume fails its checksum. A superblock with unknown features is
//!   still a superblock: a newer program can have written it.

use crate::error::Result;
use buttress_device::Device;
use buttress_exact::{Exact as _, u64_of};
use buttress_extfs::SUPERBLOCK_OFFSET as OLD_SUPERBLOCK;
use buttress_format::{Physical, SUPERBLOCK_BYTES, SUPERBLOCK_OFFSETS, Superblock, SuperblockError, Uuid};

/// The smallest unit that a power cut leaves whole, in bytes.
pub(crate) const SECTOR_BYTES: usize = 512;

/// The size of the checksum field of a superblock.
pub(crate) const CHECKSUM_BYTES: usize = 32;

/// The first byte of the old superblock's magic number.
const OLD_MAGIC_AT: u64 = OLD_SUPERBLOCK + 56;
const OLD_MAGIC: [u8; 2] = [0x53, 0xef];

/// A superblock of a btrfs volume.
#[derive(Clone, Debug)]
pub(crate) struct Found {
    /// The fsid.
    pub(crate) fsid: Uuid,
    /// The field of the checksum.
    pub(crate) checksum: [u8; CHECKSUM_BYTES],
    /// The superblock, unless it has features that this program does not know.
    pub(crate) superblock: Option<Superblock>,
}

impl Found {
    /// Returns the superblock in `bytes`, which come from the address `at`. Returns `None` for other
    /// bytes and for a torn superblock.
    pub(crate) fn in_bytes(bytes: &[u8], at: Physical) -> Option<Self> {
        let superblock = match Superblock::check(bytes, at) {
            Ok(superblock) => Some(superblock),
            Err(
                SuperblockError::Size { .. }
                | SuperblockError::Magic { .. }
                | SuperblockError::Checksum { .. }
                | SuperblockError::Address { .. },
            ) => return None,
            Err(_) => None,
        };
        let raw = Superblock::raw(bytes).ok()?;
        Some(Self {
            fsid: Uuid::from_bytes(raw.fsid),
            checksum: raw.csum,
            superblock,
        })
    }

    /// Returns the superblock at the address `at` of a device.
    pub(crate) fn read(device: &Device, at: Physical) -> Result<Option<Self>> {
        if at.get().exact_add(u64_of(SUPERBLOCK_BYTES)) > device.size_bytes() {
            return Ok(None);
        }
        Ok(Self::in_bytes(&device.read(at.get(), SUPERBLOCK_BYTES)?, at))
    }
}

/// Returns true if the bytes of an old superblock have its magic number.
pub(crate) fn is_old(superblock: &[u8]) -> bool {
    let magic = OLD_MAGIC_AT.exact_sub(OLD_SUPERBLOCK).narrow();
    superblock
        .get(magic..)
        .is_some_and(|bytes| bytes.starts_with(&OLD_MAGIC))
}

/// Returns true if the device has the superblock of an old file system.
pub(crate) fn has_old(device: &Device) -> Result<bool> {
    Ok(is_old(&device.read(OLD_SUPERBLOCK, SECTOR_BYTES)?))
}

/// Erases the first sector of the old superblock, durably. The device then has no old file system.
pub(crate) fn erase_old(device: &Device) -> Result<()> {
    device.write(OLD_SUPERBLOCK, &[0; SECTOR_BYTES])?;
    Ok(device.flush()?)
}

/// Erases all superblocks of the volume `fsid`, durably.
pub(crate) fn erase_new(device: &Device, fsid: Uuid) -> Result<()> {
    for at in SUPERBLOCK_OFFSETS {
        let found = Found::read(device, at)?;
        if found.is_some_and(|found| found.fsid == fsid) {
            device.write(at.get(), &[0; SUPERBLOCK_BYTES])?;
        }
    }
    Ok(device.flush()?)
}
