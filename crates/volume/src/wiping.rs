//! Wiping: erasing a device's content, so that no program recognises it as part of a volume.
//!
//! Superblock copies are erased first, then the primary, then both ends of the device. A crash
//! during the erasure leaves a device that opens as before, or one that does not open.

use buttress_device::{Device, IoError};
use buttress_exact::Exact as _;
use buttress_format::{Physical, SUPERBLOCK_OFFSETS};

/// The number of bytes to zero at each end of a device, so that no program finds the former
/// content.
const WIPED_BYTES: u64 = 2 << 20;

/// Erases a device's former content without a discard. At each moment of the erasure, the device
/// holds a complete volume or none. Programs that recognise a file system by its signature then
/// find no signature.
///
/// # Errors
/// Fails if the device fails.
pub fn forget(device: &Device) -> Result<(), IoError> {
    let [primary, copies @ ..] = SUPERBLOCK_OFFSETS;
    for place in copies {
        zero_superblock(device, place)?;
    }
    device.flush()?;
    zero_superblock(device, primary)?;
    device.flush()?;
    zero_ends(device)?;
    device.flush()
}

/// Erases the superblocks on a device, as far as the device allows. A volume whose creation was not
/// finished must not open.
pub fn forget_superblocks(device: &Device) {
    for place in SUPERBLOCK_OFFSETS {
        // The caller reports the earlier failure, not this one.
        let _cannot = zero_superblock(device, place);
    }
    let _cannot = device.flush();
}

fn zero_superblock(device: &Device, place: Physical) -> Result<(), IoError> {
    let bytes = buttress_format::SUPERBLOCK_BYTES as u64;
    if place.get().exact_add(bytes) <= device.size_bytes() {
        device.zero(place.get(), bytes)?;
    }
    Ok(())
}

/// Zeroes both ends of a device, and the addresses of superblocks.
///
/// # Errors
/// Fails if the device fails.
pub fn zero_ends(device: &Device) -> Result<(), IoError> {
    let size = device.size_bytes();
    // Clamp: both ends of a small device overlap.
    for start in [0, size.saturating_sub(WIPED_BYTES)] {
        device.zero(start, WIPED_BYTES.min(size))?;
    }
    for place in SUPERBLOCK_OFFSETS {
        zero_superblock(device, place)?;
    }
    Ok(())
}
