//! The saved image of a converted volume: the old file system, as the file `image`.
//!
//! Invariants of a [`SavedImage`]:
//!
//! - Its file is unchanged since the conversion.
//! - Its bytes outside of reserved ranges are at their old places. Each used unit of a reserved range
//!   has a copy that a record can express.
//! - The old file system opens from it, and the image has all of the blocks in use.
//!
//! Left out: checksums of the content. [`SavedImage::file`] is for a caller that verifies them.

mod view;

use crate::error::{Error, Result};
use crate::extents::IMAGE;
use crate::layout::{Moved, RESERVED, UNIT_BYTES};
use crate::survey::require_groups;
use crate::zeros::{self, ZEROS};
use crate::{GENERATION, SAVED_TREE};
use buttress_device::Device;
use buttress_exact::{Defect, Exact as _, at_most};
use buttress_extfs::Ext;
use buttress_format::{Compression, FileOffset, Logical, Physical, RootFlags};
use buttress_fs::{File, Filesystem, Location, RangeKind};
use core::ops::Range;
use view::{ImageView, Mapped};

/// The mode of the image's file.
pub(crate) const IMAGE_MODE: u32 = 0o100_400;

/// The largest list of zeros that is read, in bytes.
const LIST_BYTES_MAX: usize = 4096;

/// The saved image of a converted volume.
pub(crate) struct SavedImage {
    /// The copies of units in reserved ranges, in order. The first is that of byte 0.
    pub(crate) copies: Vec<Moved>,
    /// The size of the old file system.
    pub(crate) old_bytes: u64,
    /// The file with the image.
    pub(crate) file: File,
    /// The free ranges of the old file system that a roll back makes zero.
    pub(crate) zeros: Vec<Range<u64>>,
    view: Device,
}

impl SavedImage {
    /// Finds the saved image of the volume on `device`.
    pub(crate) fn find(filesystem: &Filesystem, device: &Device) -> Result<Self> {
        let file = file(filesystem)?;
        let old_bytes = file.size().get();
        if old_bytes > device.size_bytes() {
            return Err(no_image("the image is larger than the device"));
        }
        let mapped = mapped(filesystem, &file)?;
        let copies = copies(&mapped, device.size_bytes())?;
        // The first unit has the old superblock. A file without it is no saved image.
        if copies.first().is_none_or(|copy| copy.from != Physical::MIN) {
            return Err(Error::ImageMoved { offset: 0 });
        }
        let view = ImageView::device(device, mapped.clone(), old_bytes);
        let used = require_used(&Ext::open(&view)?, &mapped, old_bytes)?;
        let list = list_of_zeros(filesystem)?;
        Ok(Self {
            copies,
            old_bytes,
            file,
            zeros: zeros::decode(&list, &used, old_bytes),
            view,
        })
    }

    /// Reads bytes of the image from their places on the device. Holes are zeros.
    pub(crate) fn read(&self, offset: u64, bytes: &mut [u8]) -> Result<()> {
        let read = self.view.read(offset, bytes.len())?;
        Ok(buttress_exact::copy_into(
            bytes,
            0..read.len(),
            &read,
            "bytes of the saved image",
        )?)
    }
}

fn no_image(problem: &'static str) -> Error {
    Error::NoSavedImage { problem }
}

/// Returns the file of the image, if it is as the conversion left it.
fn file(filesystem: &Filesystem) -> Result<File> {
    let root = match filesystem.root_item(SAVED_TREE) {
        Err(buttress_fs::Error::TreeNotFound { .. }) => {
            return Err(no_image("subvolume 256 does not exist"));
        }
        root => root?,
    };
    if !root.flags.contains(RootFlags::RDONLY) {
        return Err(no_image("subvolume 256 is not read-only"));
    }
    let subvolume = SAVED_TREE.as_subvolume();
    let subvolume = subvolume.ok_or_else(|| Defect::new("the saved image's tree is no subvolume"))?;
    let file = match filesystem.open_file(Location::new(subvolume, IMAGE)) {
        Err(buttress_fs::Error::InodeNotFound { .. }) => {
            return Err(no_image("subvolume 256 has no inode 257"));
        }
        file => file?,
    };
    let metadata = file.metadata();
    if metadata.mode != IMAGE_MODE || metadata.generation != GENERATION {
        return Err(no_image("inode 257 of subvolume 256 is another file"));
    }
    if metadata.transid != GENERATION {
        return Err(no_image("the image was changed after the conversion"));
    }
    Ok(file)
}

/// Returns the ranges of the image that are no holes, with their places.
fn mapped(filesystem: &Filesystem, image: &File) -> Result<Vec<Mapped>> {
    let mut mapped: Vec<Mapped> = Vec::new();
    for range in image.extents()? {
        let range = range?;
        let (offset, length) = (range.offset.get(), range.length.get());
        let extent = match range.kind {
            RangeKind::Hole => continue,
            RangeKind::Data(extent) if extent.compression == Compression::None && length > 0 => extent,
            _ => return Err(Error::ImageMoved { offset }),
        };
        let logical = extent.logical.get().exact_add(extent.offset.get());
        let physical = place(filesystem, logical)?;
        let last = place(filesystem, logical.exact_add(length).exact_sub(1))?;
        if last.checked_sub(physical) != Some(length.exact_sub(1)) {
            return Err(Error::ImageMoved { offset });
        }
        let follows = |before: &Mapped| {
            before.offset.checked_add(before.length) == Some(offset)
                && before.physical.checked_add(before.length) == Some(physical)
        };
        match mapped.last_mut() {
            Some(before) if follows(before) => before.length = before.length.exact_add(length),
            _ => mapped.push(Mapped {
                offset,
                length,
                physical,
            }),
        }
    }
    Ok(mapped)
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

/// Returns the copies of reserved units. All other ranges must be at their old places.
fn copies(mapped: &[Mapped], device_bytes: u64) -> Result<Vec<Moved>> {
    let mut copies: Vec<Moved> = Vec::new();
    for range in mapped {
        let mut at = range.offset;
        let end = at.exact_add(range.length);
        // The format of a record has no negative distance, so the difference wraps.
        let shift = range.physical.wrapping_sub(at);
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

/// Returns the list of bytes that were zero. A user can have deleted it.
fn list_of_zeros(filesystem: &Filesystem) -> Result<Vec<u8>> {
    let Some(subvolume) = SAVED_TREE.as_subvolume() else {
        return Ok(Vec::new());
    };
    let file = match filesystem.open_file(Location::new(subvolume, ZEROS)) {
        Err(buttress_fs::Error::InodeNotFound { .. }) => return Ok(Vec::new()),
        file => file?,
    };
    let mut bytes = vec![0; at_most(file.size().get(), LIST_BYTES_MAX)];
    let read = file.read_at(FileOffset::MIN, &mut bytes)?;
    bytes.truncate(read);
    Ok(bytes)
}

/// Requires that the image has all used blocks of the old file system, and returns their ranges.
fn require_used(old: &Ext, mapped: &[Mapped], old_bytes: u64) -> Result<Vec<Range<u64>>> {
    let block_bytes = u64::from(old.superblock().block_bytes);
    if old.superblock().blocks.checked_mul(block_bytes) != Some(old_bytes) {
        return Err(no_image("the image has another size than its file system"));
    }
    let mut ranges = mapped.iter().peekable();
    let mut all = Vec::new();
    for used in old.used_blocks() {
        let used = used?;
        let mut at = used.start.get().exact_mul(block_bytes);
        let end = used.end.get().exact_mul(block_bytes);
        all.push(at..end);
        while at < end {
            let Some(range) = ranges.peek() else {
                return Err(Error::ImageHole { offset: at });
            };
            let range_end = range.offset.exact_add(range.length);
            if range_end <= at {
                ranges.next();
            } else if range.offset > at {
                return Err(Error::ImageHole { offset: at });
            } else {
                at = range_end;
            }
        }
    }
    require_groups(old, &all)?;
    Ok(all)
}
