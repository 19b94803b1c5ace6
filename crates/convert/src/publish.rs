//! The moment of change: superblocks of the new volume in place of old content, safe from power
//! cuts.
//!
//! 1. The new volume is opened from its superblock, with this superblock in memory only. Its saved
//!    image must be one that [`roll_back`](crate::roll_back) accepts.
//! 2. A record of the copies of old content, then a flush.
//! 3. Zeros in place of the old superblock, then a flush.
//! 4. The primary superblock, a flush, the superblock copies, a flush.
//! 5. Zeros in place of the record.
//!
//! A roll back replaces steps 3 and 4: it erases the new superblocks, flushes, and puts the old
//! content back, the old superblock last.
//!
//! Invariant: while a record is on the device, the file system with a superblock can have been used
//! since the record was written.  [`resume`] therefore writes old content only if the device has
//! neither superblock. No file system was then in use, and the copies are whole. Otherwise `resume`
//! erases the record. Power cuts at every write, and changes after them,
//! are the test.

use crate::error::Result;
use crate::layout::{Layout, Moved, UNIT_BYTES};
use crate::record::{self, Purpose, Record};
use crate::saved::SavedImage;
use crate::superblocks::{CHECKSUM_BYTES, Found, SECTOR_BYTES, erase_old, has_old, is_old};
use crate::zeros;
use buttress_device::Device;
use buttress_exact::{Defect, Exact as _, copy_into, u64_of, usize_of};
use buttress_extfs::{SUPERBLOCK_BYTES as OLD_SUPERBLOCK_BYTES, SUPERBLOCK_OFFSET as OLD_SUPERBLOCK};
use buttress_format::{DeviceItem, Physical, SUPERBLOCK_BYTES, SUPERBLOCK_OFFSETS, Superblock};
use buttress_fs::OpenOptions;
use buttress_volume::Volume;
use core::ops::Range;

/// The bytes of the old superblock that hold its uuid.
const OLD_UUID: Range<usize> = 104..120;

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
    old_bytes: u64,
) -> Result<()> {
    let [primary, ..] = SUPERBLOCK_OFFSETS;
    let record = Record {
        purpose: Purpose::Publication,
        fsid: superblock.fsid,
        old_bytes,
        old_primary: Found::read(device, primary)?.map_or([0; CHECKSUM_BYTES], |found| found.checksum),
        copies: layout.moved.clone(),
    };
    verify(device, &record, superblock, devices)?;
    reserve(device, &record)?;
    record.write(device)?;
    erase_old(device)?;
    volume.write_superblocks(superblock, devices)?;
    finish(device)
}

/// Reserves the space of all writes until the end of a publication or roll back. An image file with
/// holes on a full file system then fails before the first of them.
pub(crate) fn reserve(device: &Device, record: &Record) -> Result<()> {
    let units = record.copies.iter().map(|copy| (copy.from.get(), UNIT_BYTES));
    let superblocks = SUPERBLOCK_OFFSETS.map(|at| (at.get(), u64_of(SUPERBLOCK_BYTES)));
    for (at, length) in units.chain(superblocks) {
        let end = at.exact_add(length).min(record.old_bytes);
        if at < end {
            device.reserve(at, end.exact_sub(at))?;
        }
    }
    Ok(())
}

/// Opens the new volume from its superblock, and requires that it leads back to the old file system.
fn verify(device: &Device, record: &Record, superblock: &Superblock, devices: &[DeviceItem]) -> Result<()> {
    let defect = |problem| Defect::new(problem).with("copies", u64_of(record.copies.len()));
    let [primary, ..] = SUPERBLOCK_OFFSETS;
    let item = devices
        .first()
        .ok_or_else(|| defect("the new volume has no device"))?;
    let view = device.with_changes_in_memory();
    view.write(primary.get(), &superblock.encode_for(item, primary)?)?;
    let filesystem = OpenOptions::new(vec![view]).open()?;
    let saved = SavedImage::find(&filesystem, device)?;
    if saved.copies != record.copies || saved.old_bytes != record.old_bytes {
        return Err(defect("the saved image differs from the old file system").into());
    }
    let mut start = vec![0; UNIT_BYTES.narrow()];
    saved.read(0, &mut start)?;
    let old = device.read(OLD_SUPERBLOCK, OLD_SUPERBLOCK_BYTES)?;
    if start
        .get(usize_of(OLD_SUPERBLOCK.narrow())..)
        .is_some_and(|bytes| bytes.starts_with(&old))
    {
        return Ok(());
    }
    Err(defect("the saved image has no copy of the old superblock").into())
}

/// Ends a conversion or a roll back that was interrupted, on a device that is open for writing. A
/// device without an unfinished conversion stays unchanged. A second call after an interruption
/// continues.
///
/// # Errors
/// Fails if the device fails.
pub fn resume(device: &Device) -> Result<Resumed> {
    let Some(record) = Record::read(device)? else {
        return Ok(Resumed::Nothing);
    };
    let [primary, ..] = SUPERBLOCK_OFFSETS;
    let found = Found::read(device, primary)?.filter(|found| found.checksum != record.old_primary);
    let found = match (found, record.purpose) {
        (None, Purpose::Publication) => primary_from_copy(device, &record)?,
        (found, _) => found,
    };
    if let Some(found) = found {
        end_new(device, &record, &found)?;
        return Ok(Resumed::Finished);
    }
    if has_old(device)? {
        end_old(device, &record)?;
    } else {
        put_back(device, &record, &[])?;
    }
    Ok(Resumed::PutBack)
}

/// Writes the primary superblock again from a copy. The primary comes before its copies in a
/// publication, so a copy without a primary means damage after the publication.
fn primary_from_copy(device: &Device, record: &Record) -> Result<Option<Found>> {
    let [primary, copies @ ..] = SUPERBLOCK_OFFSETS;
    for at in copies {
        let found = Found::read(device, at)?.filter(|found| found.fsid == record.fsid);
        if let Some(superblock) = found.and_then(|found| found.superblock) {
            let bytes = superblock.encode_for(&superblock.device_item, primary)?;
            device.write(primary.get(), &bytes)?;
            device.flush()?;
            return Ok(Found::in_bytes(&bytes, primary));
        }
    }
    Ok(None)
}

/// Ends a conversion of a device with the new volume, which can have been used since.
fn end_new(device: &Device, record: &Record, found: &Found) -> Result<()> {
    let superblock = found.superblock.as_ref().filter(|_| found.fsid == record.fsid);
    if let Some(superblock) = superblock {
        let [_, copies @ ..] = SUPERBLOCK_OFFSETS;
        for at in copies {
            if at.get().exact_add(u64_of(SUPERBLOCK_BYTES)) <= superblock.device_item.total_bytes.get() {
                device.write(at.get(), &superblock.encode_for(&superblock.device_item, at)?)?;
            }
        }
        if record.purpose == Purpose::Publication {
            return finish(device);
        }
        device.flush()?;
    }
    erase_record(device, &[0; record::BYTES])
}

/// Erases the rest of the old superblock, and then the record.
fn finish(device: &Device) -> Result<()> {
    device.write(OLD_SUPERBLOCK, &[0; OLD_SUPERBLOCK_BYTES])?;
    device.flush()?;
    erase_record(device, &[0; record::BYTES])
}

/// Erases the record of a device with the old file system, which can have been used since.
fn end_old(device: &Device, record: &Record) -> Result<()> {
    let mut place = vec![0; record::BYTES];
    if let Some(copy) = record.copies.first() {
        let copied = content(device, copy, record.old_bytes)?;
        let live = device.read(OLD_SUPERBLOCK, OLD_SUPERBLOCK_BYTES)?;
        let start: usize = OLD_SUPERBLOCK.narrow();
        let superblock = copied.get(start..).filter(|bytes| is_old(bytes));
        // The old file system can have used the unit of the copy again.
        if superblock.and_then(|bytes| bytes.get(OLD_UUID)) == live.get(OLD_UUID)
            && let Some(old) = copied.get(record::OFFSET.narrow()..start)
        {
            copy_into(&mut place, 0..record::BYTES, old, "the place of the record")?;
        }
    }
    erase_record(device, &place)
}

/// Writes `bytes` in place of the record, durably.
fn erase_record(device: &Device, bytes: &[u8]) -> Result<()> {
    device.write(record::OFFSET, bytes)?;
    Ok(device.flush()?)
}

/// Puts the old content of reserved ranges back, on a device without superblocks. The first sector of
/// the old superblock comes after all other bytes, and the bytes in place of the record come last.
/// Superblocks of the new volume in units that the old file system does not use become zeros, and so do
/// the free ranges `zeros`.
pub(crate) fn put_back(device: &Device, record: &Record, zeros: &[Range<u64>]) -> Result<()> {
    let mut boot_area = Vec::new();
    for copy in &record.copies {
        let bytes = content(device, copy, record.old_bytes)?;
        if copy.from == Physical::MIN {
            boot_area = bytes;
        } else {
            device.write(copy.from.get(), &bytes)?;
        }
    }
    for at in SUPERBLOCK_OFFSETS.map(|at| at.get()) {
        let is_used = record.copies.iter().any(|copy| copy.from.get() == at);
        if !is_used && at.exact_add(u64_of(SUPERBLOCK_BYTES)) <= record.old_bytes {
            device.write(at, &[0; SUPERBLOCK_BYTES])?;
        }
    }
    let (before_record, rest) = boot_area
        .split_at_checked(record::OFFSET.narrow())
        .ok_or_else(|| Defect::new("a record has no copy of the old superblock"))?;
    let (in_record, rest) = rest.split_at(record::BYTES);
    let (superblock, rest) = rest.split_at(SECTOR_BYTES);
    device.write(0, before_record)?;
    device.write(OLD_SUPERBLOCK.exact_add(u64_of(SECTOR_BYTES)), rest)?;
    device.flush()?;
    device.write(OLD_SUPERBLOCK, superblock)?;
    device.flush()?;
    // A call after an interruption needs the first copy for the place of the record.
    let copy = record.copies.first().map_or(Physical::MIN, |copy| copy.to);
    let copy = copy.get()..copy.get().exact_add(UNIT_BYTES);
    zeros::restore(device, zeros, &copy)?;
    device.flush()?;
    erase_record(device, in_record)?;
    zeros::restore(device, zeros, &(0..0))?;
    Ok(device.flush()?)
}

const _: () = assert!(record::OFFSET + record::BYTES as u64 == OLD_SUPERBLOCK);

/// Returns the old content of a unit, as far as the old file system reaches.
fn content(device: &Device, copy: &Moved, old_bytes: u64) -> Result<Vec<u8>> {
    let unit_end = copy.from.get().exact_add(UNIT_BYTES).min(old_bytes);
    let length = unit_end.exact_sub(copy.from.get());
    Ok(device.read(copy.to.get(), length.narrow())?.to_vec())
}
