//! Erasing what a device holds, so that no program recognises it as part of a volume.
//!
//! Copies of superblocks go first, then the primary, then both ends of the device. A crash on the way leaves a
//! device that opens as before, or one that does not open.

use buttress_device::{Device, IoError};
use buttress_exact::Exact as _;
use buttress_format::{Physical, SUPERBLOCK_OFFSETS};

/// The bytes zeroed at each end of a device, so that no program finds the former content.
const WIPED_BYTES: u64 = 2 << 20;

/// Erases a device's former content in an order that leaves a whole volume or none at each moment, without a discard. Programs that recognise a file system
/// by its signature then find none.
///
/// # Errors
/// The failure of the device.
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

/// Makes a device forget the superblocks on it, as far as it can: what could not be finished is not to open.
pub fn forget_superblocks(device: &Device) {
    for place in SUPERBLOCK_OFFSETS {
        // The caller reports the failure that came before.
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

/// Zeroes both ends of a device, and the places of superblocks.
///
/// # Errors
/// The failure of the device.
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
