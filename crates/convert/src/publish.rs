//! The moment of change: superblocks of the new volume in place of old content, safe from power
//! cuts.
//!
//! 1. A record of the copies of old content, then a flush.
//! 2. The primary superblock, a flush, the superblock copies, a flush. The primary is the moment of
//!    change: a device with a valid primary of the new fsid is the new volume.
//! 3. Zeros in place of the old superblock, a flush, and zeros in place of the record.
//!
//! [`resume`] ends a publication that a power cut stopped. If the primary is valid, `resume` does the
//! remaining steps. Otherwise it puts the old content back, and the device holds the old file system
//! with all of its bytes.

use crate::error::Result;
use crate::layout::{Layout, Moved, UNIT_BYTES};
use crate::record::{self, Purpose, Record};
use buttress_device::Device;
use buttress_exact::{Exact as _, u64_of};
use buttress_extfs::{SUPERBLOCK_BYTES as OLD_SUPERBLOCK_BYTES, SUPERBLOCK_OFFSET as OLD_SUPERBLOCK};
use buttress_format::{DeviceItem, SUPERBLOCK_BYTES, SUPERBLOCK_OFFSETS, Superblock, Uuid};
use buttress_volume::Volume;

/// The result of [`resume`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Resumed {
    /// The device has no unfinished conversion.
    Nothing,
    /// The device holds the new volume.
    Finished,
    /// The device holds the old file system.
    PutBack,
}

/// Makes the trees of a new volume the content of the device.
pub(crate) fn publish(
    device: &Device,
    volume: &Volume,
    layout: &Layout,
    superblock: &Superblock,
    devices: &[DeviceItem],
) -> Result<()> {
    let record = Record {
        purpose: Purpose::Publication,
        fsid: superblock.fsid,
        copies: layout.moved.clone(),
    };
    record.write(device)?;
    volume.write_superblocks(superblock, devices)?;
    forget_old(device)
}

/// Ends a conversion that was interrupted during its publication, on a device that is open for
/// writing. A device without an unfinished conversion stays unchanged. A second call after an
/// interruption continues.
///
/// # Errors
/// Fails if the device fails.
pub fn resume(device: &Device) -> Result<Resumed> {
    let Some(record) = Record::read(device)? else {
        return Ok(Resumed::Nothing);
    };
    let superblock = match record.purpose {
        Purpose::Publication => primary(device, record.fsid)?,
        Purpose::RollBack => None,
    };
    let Some(superblock) = superblock else {
        put_back(device, &record)?;
        return Ok(Resumed::PutBack);
    };
    let [_, copies @ ..] = SUPERBLOCK_OFFSETS;
    for at in copies {
        if at.get().exact_add(u64_of(SUPERBLOCK_BYTES)) <= superblock.device_item.total_bytes.get() {
            device.write(at.get(), &superblock.encode_for(&superblock.device_item, at)?)?;
        }
    }
    device.flush()?;
    forget_old(device)?;
    Ok(Resumed::Finished)
}

/// Returns the primary superblock, if it is valid and has this fsid.
fn primary(device: &Device, fsid: Uuid) -> Result<Option<Superblock>> {
    let [at, ..] = SUPERBLOCK_OFFSETS;
    let bytes = device.read(at.get(), SUPERBLOCK_BYTES)?;
    let superblock = Superblock::check(&bytes, at).ok();
    Ok(superblock.filter(|superblock| superblock.fsid == fsid))
}

/// Erases the old superblock, and then the record.
fn forget_old(device: &Device) -> Result<()> {
    device.write(OLD_SUPERBLOCK, &[0; OLD_SUPERBLOCK_BYTES])?;
    device.flush()?;
    device.write(record::OFFSET, &[0; record::BYTES])?;
    Ok(device.flush()?)
}

/// Puts the old content of reserved ranges back. The old superblock comes after all other bytes, and
/// the bytes in place of the record come last. Superblocks of the new volume in units that the old
/// file system does not use become zeros.
pub(crate) fn put_back(device: &Device, record: &Record) -> Result<()> {
    let mut boot_area = vec![0; UNIT_BYTES.narrow()];
    for copy in &record.copies {
        let bytes = content(device, copy)?;
        if copy.from.get() == 0 {
            boot_area = bytes;
        } else {
            device.write(copy.from.get(), &bytes)?;
        }
    }
    for at in SUPERBLOCK_OFFSETS.map(|at| at.get()) {
        let is_used = record.copies.iter().any(|copy| copy.from.get() == at);
        if !is_used && at.exact_add(u64_of(SUPERBLOCK_BYTES)) <= device.size_bytes() {
            device.write(at, &[0; SUPERBLOCK_BYTES])?;
        }
    }
    let old_end = OLD_SUPERBLOCK.exact_add(u64_of(OLD_SUPERBLOCK_BYTES));
    let (before_record, rest) = boot_area.split_at(record::OFFSET.narrow());
    let (in_record, rest) = rest.split_at(record::BYTES);
    let (superblock, rest) = rest.split_at(OLD_SUPERBLOCK_BYTES);
    device.write(0, before_record)?;
    device.write(old_end, rest)?;
    device.flush()?;
    device.write(OLD_SUPERBLOCK, superblock)?;
    device.flush()?;
    device.write(record::OFFSET, in_record)?;
    Ok(device.flush()?)
}

const _: () = assert!(record::OFFSET + record::BYTES as u64 == OLD_SUPERBLOCK);

/// Returns the old content of a unit.
fn content(device: &Device, copy: &Moved) -> Result<Vec<u8>> {
    let unit_end = copy.from.get().exact_add(UNIT_BYTES).min(device.size_bytes());
    let length = unit_end.exact_sub(copy.from.get());
    Ok(device.read(copy.to.get(), length.narrow())?.to_vec())
}
