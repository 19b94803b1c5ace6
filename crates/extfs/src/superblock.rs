//! The superblock: sizes, features and state of a volume.
//!
//! A checked [`Superblock`] has:
//!
//! - a correct checksum, if the volume has checksums;
//! - sizes in range, and a volume that ends on its device;
//! - supported features, and the state of a cleanly unmounted volume.
//!
//! Volumes of revision 0 have no features, and inodes of 128 bytes.
//!
//! Source: ext4 documentation, sections "Super Block" and "Layout".

mod check;
mod features;
mod fields;
mod raw;

pub use features::{Compat, Incompat, RoCompat};
pub use fields::Superblock;
pub use raw::{MAX_BLOCK_BYTES, MIN_BLOCK_BYTES, SUPERBLOCK_BYTES};

use crate::error::{ExtError, Place, Problem};
use buttress_device::Device;
use buttress_exact::u64_of;
use raw::RawSuperblock;
use zerocopy::FromBytes as _;

/// The first byte of the superblock.
pub const SUPERBLOCK_OFFSET: u64 = 1024;

impl Superblock {
    /// Reads and checks the superblock of `device`.
    ///
    /// # Errors
    /// Fails if the device has no superblock, if a field is not valid, or if a feature or the state
    /// is refused.
    pub fn read(device: &Device) -> Result<Self, ExtError> {
        let bytes = device.read(SUPERBLOCK_OFFSET, SUPERBLOCK_BYTES)?;
        Self::parse(&bytes, device.size_bytes())
    }

    /// Checks the bytes of a superblock, of a device of `device_bytes`.
    ///
    /// # Errors
    /// Fails as [`Self::read`] does.
    pub fn parse(bytes: &[u8], device_bytes: u64) -> Result<Self, ExtError> {
        let Ok((raw, _)) = RawSuperblock::ref_from_prefix(bytes) else {
            return Err(ExtError::corrupt(
                Place::Superblock,
                Problem::Bounds {
                    what: "superblock",
                    offset: SUPERBLOCK_OFFSET,
                    length: u64_of(SUPERBLOCK_BYTES),
                    end: device_bytes,
                },
            ));
        };
        check::check(raw, device_bytes)
    }
}
