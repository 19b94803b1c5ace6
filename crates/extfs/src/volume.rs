//! An opened volume, and reads of its blocks.
//!
//! Invariants:
//!
//! - A read of blocks never leaves the volume: [`Ext::require_inside`] comes before every read.
//! - The volume holds no state that changes, so threads share it without a lock.
//! - Memory does not grow with the volume: iterators hold one group or one path of blocks.
//!
//! Left out: the journal. A volume whose journal has pending transactions is refused.

use crate::bytes::u32_at;
use crate::checksum::crc32c;
use crate::error::{ExtError, Place, Problem};
use crate::refusal::Refusal;
use crate::superblock::Superblock;
use crate::units::BlockNumber;
use buttress_device::{Buffer, Device, ReadRequest};
use buttress_exact::{Exact as _, usize_of};

/// The number of multiple-mount protection when no host uses the volume.
const MMP_CLEAN: u32 = 0xff4d_4d50;
const MMP_MAGIC: u32 = 0x004d_4d50;
const MMP_CHECKSUM_OFFSET: usize = 0x3fc;

/// An ext2, ext3 or ext4 volume, open for reading.
#[derive(Clone)]
pub struct Ext {
    pub(crate) device: Device,
    pub(crate) superblock: Superblock,
}

impl Ext {
    /// Opens the volume on `device`, and checks its superblock and all of its group descriptors.
    ///
    /// # Errors
    /// Fails if the device has no ext superblock, if a check fails, or if the volume has a feature
    /// or a state that this crate refuses.
    pub fn open(device: &Device) -> Result<Self, ExtError> {
        let volume = Self {
            device: device.clone(),
            superblock: Superblock::read(device)?,
        };
        volume.check_mount_protection()?;
        for group in volume.groups() {
            group?;
        }
        Ok(volume)
    }

    /// Returns the superblock.
    #[must_use]
    pub const fn superblock(&self) -> &Superblock {
        &self.superblock
    }

    /// Returns the size of a block in memory.
    pub(crate) const fn block_bytes(&self) -> usize {
        usize_of(self.superblock.block_bytes)
    }

    /// Refuses `count` blocks from `first` on that are not all in the volume. The result is the
    /// block after the last. Block 0 holds the superblock, so nothing else can be there.
    pub(crate) fn require_inside(
        &self,
        place: Place,
        what: &'static str,
        first: BlockNumber,
        count: u64,
    ) -> Result<BlockNumber, ExtError> {
        let end = self.superblock.blocks;
        match first.get().checked_add(count) {
            Some(after) if first.get() > 0 && after <= end => Ok(BlockNumber::new(after)),
            _ => Err(ExtError::corrupt(
                place,
                Problem::Outside {
                    what,
                    first: first.get(),
                    count,
                    end,
                },
            )),
        }
    }

    /// Returns the read of `count` blocks from `first` on, which must be in the volume.
    pub(crate) fn request(&self, first: BlockNumber, count: u32) -> ReadRequest {
        let bytes = u64::from(self.superblock.block_bytes);
        ReadRequest {
            offset_bytes: first.get().exact_mul(bytes),
            length: usize_of(count).exact_mul(self.block_bytes()),
        }
    }

    /// Reads one block, which `place` names `what`.
    pub(crate) fn read_block(
        &self,
        place: Place,
        what: &'static str,
        block: BlockNumber,
    ) -> Result<Buffer, ExtError> {
        self.require_inside(place, what, block, 1)?;
        let request = self.request(block, 1);
        Ok(self.device.read(request.offset_bytes, request.length)?)
    }

    fn check_mount_protection(&self) -> Result<(), ExtError> {
        let Some(block) = self.superblock.mount_protection.filter(|block| block.get() != 0) else {
            return Ok(());
        };
        let place = Place::MountProtection(block);
        let bytes = self.read_block(place, "protection", block)?;
        let number = |what, at| u32_at(&bytes, what, at).map_err(|problem| ExtError::corrupt(place, problem));
        let magic = number("magic number", 0)?;
        if magic != MMP_MAGIC {
            return Err(ExtError::corrupt(
                place,
                Problem::Differs {
                    field: "magic number",
                    found: u64::from(magic),
                    expected: u64::from(MMP_MAGIC),
                },
            ));
        }
        if let Some(seed) = self.superblock.protection.seed() {
            let (covered, _) = bytes.split_at(MMP_CHECKSUM_OFFSET);
            require_checksum(
                place,
                number("checksum", MMP_CHECKSUM_OFFSET)?,
                crc32c(seed, covered),
            )?;
        }
        match number("sequence", 4)? {
            MMP_CLEAN => Ok(()),
            sequence => Err(Refusal::InUse { block, sequence }.into()),
        }
    }
}

/// Refuses a stored checksum that is not the expected one.
pub(crate) fn require_checksum(place: Place, found: u32, expected: u32) -> Result<(), ExtError> {
    if found == expected {
        return Ok(());
    }
    Err(ExtError::corrupt(place, Problem::Checksum { found, expected }))
}
