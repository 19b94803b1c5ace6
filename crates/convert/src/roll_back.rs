//! The way back: the old file system from the saved image.
//!
//! The old bytes are still at their places, because the saved image refers to them. Only the reserved
//! ranges need a copy back. The roll back is refused if the saved image is gone, or has a moved extent
//! or a byte that its checksum does not confirm. A balance moves extents, for example.
//!
//! All changes since the conversion are lost. Free blocks of the old file system can have other bytes
//! than before the conversion.

use crate::SAVED_TREE;
use crate::error::{Error, Result};
use crate::extents::IMAGE;
use crate::layout::{Moved, RESERVED, UNIT_BYTES};
use crate::publish::put_back;
use crate::record::{Purpose, Record};
use buttress_device::Device;
use buttress_exact::{Defect, Exact as _};
use buttress_format::{Compression, Logical, Physical};
use buttress_fs::{Content, File, Filesystem, Location, OpenOptions, RangeKind};

/// Puts the old file system back on `device`, which is open for writing and holds a converted
/// volume. After an interruption, [`resume`](crate::resume) ends the roll back.
///
/// # Errors
/// Fails if the device holds no volume, or if its saved image is gone, moved or damaged. The volume
/// is unchanged then. Also fails if the device fails.
pub fn roll_back(device: &Device) -> Result<()> {
    if Record::read(device)?.is_some() {
        return Err(Error::Unfinished);
    }
    let filesystem = OpenOptions::new(vec![device.clone()]).open()?;
    let subvolume = SAVED_TREE.as_subvolume();
    let subvolume = subvolume.ok_or_else(|| Defect::new("the saved image's tree is no subvolume"))?;
    let image = filesystem.open_file(Location::new(subvolume, IMAGE))?;
    let copies = copies(&filesystem, &image, device.size_bytes())?;
    // The first unit has the old superblock. A file without it is no saved image.
    if copies.first().is_none_or(|copy| copy.from.get() != 0) {
        return Err(Error::ImageMoved { offset: 0 });
    }
    verify(&image)?;
    let fsid = filesystem.superblock().fsid;
    drop((image, filesystem));
    let record = Record {
        purpose: Purpose::RollBack,
        fsid,
        copies,
    };
    record.write(device)?;
    put_back(device, &record)
}

/// Returns the copies of reserved units. All other extents of the image must be at their old places.
fn copies(filesystem: &Filesystem, image: &File, device_bytes: u64) -> Result<Vec<Moved>> {
    let mut copies: Vec<Moved> = Vec::new();
    for range in image.extents()? {
        let range = range?;
        let extent = match range.kind {
            RangeKind::Hole => continue,
            RangeKind::Data(extent) if extent.compression == Compression::None => extent,
            _ => {
                return Err(Error::ImageMoved {
                    offset: range.offset.get(),
                });
            }
        };
        let mut at = range.offset.get();
        let end = at.exact_add(range.length.get());
        let logical = extent.logical.get().exact_add(extent.offset.get());
        let shift = place(filesystem, logical)?.wrapping_sub(at);
        let last = place(filesystem, logical.exact_add(range.length.get()).exact_sub(1))?;
        if last.wrapping_sub(shift) != end.exact_sub(1) {
            return Err(Error::ImageMoved { offset: at });
        }
        while at < end {
            let unit = at.exact_sub(at.remainder(UNIT_BYTES));
            let next = unit.exact_add(UNIT_BYTES).min(end);
            let copy = Moved {
                from: Physical::new(unit),
                to: Physical::new(unit.wrapping_add(shift)),
            };
            let is_reserved = RESERVED.iter().any(|range| range.contains(&at));
            // A record cannot express other copies, so `resume` could not end the roll back.
            let copy_end = copy.to.get().checked_add(UNIT_BYTES);
            let is_on_device = copy_end.is_some_and(|end| end <= device_bytes);
            if is_reserved && !(shift.is_multiple_of(UNIT_BYTES) && is_on_device) {
                return Err(Error::ImageMoved { offset: at });
            }
            let is_known = copies.last() == Some(&copy);
            let is_new = copies.last().is_none_or(|last| last.from < copy.from);
            match is_reserved {
                true if is_known => {}
                true if is_new => copies.push(copy),
                false if shift == 0 => {}
                _ => return Err(Error::ImageMoved { offset: at }),
            }
            at = next;
        }
    }
    Ok(copies)
}

/// Returns the only place of an address on the device.
fn place(filesystem: &Filesystem, logical: u64) -> Result<u64> {
    let moved = || Error::ImageMoved { offset: logical };
    let map = filesystem.volume().chunk_map();
    let chunk = map.find(Logical::new(logical)).ok_or_else(moved)?;
    match chunk.chunk().stripes.as_slice() {
        [stripe] => Ok(stripe
            .physical
            .get()
            .exact_add(logical.exact_sub(chunk.start().get()))),
        _ => Err(moved()),
    }
}

/// Reads all bytes of the image, each of which has a checksum.
fn verify(image: &File) -> Result<()> {
    let mut reader = image.reader();
    while let Some(chunk) = reader.next_chunk()? {
        if let Content::Damaged(error) = chunk.content {
            return Err(error.into());
        }
    }
    Ok(())
}
