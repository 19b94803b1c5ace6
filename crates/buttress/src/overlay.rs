//! Overlays of volumes: changes that [`DeviceOptions::overlay`] keeps beside an image.
//!
//! Committing an overlay writes superblocks last: all other blocks, the primary superblocks, the
//! copies of the superblocks, with a flush after each. A cut therefore leaves the old or the new
//! state, if the changes overwrite nothing that the old state needs. The changes of one commit never
//! do.
//!
//! If a primary names a pending log, the copies precede the primaries. Only primaries name a log, so
//! a torn primary would otherwise lead back to the state before the log. Commits of the engine
//! follow the same rule.

use std::ops::Range;
use std::path::{Path, PathBuf};

use buttress_device::overlay::Applied;
use buttress_device::{Device, IoError};
use buttress_format::superblock::{SUPERBLOCK_BYTES, SUPERBLOCK_OFFSETS, Superblock};
use buttress_format::{Logical, Physical};

use crate::{DeviceOffset, DeviceOptions};

/// Writes the changes of an overlay to its image or device, and deletes the overlay file.
///
/// If this call was interrupted, repeat it. Until it has finished, nothing else accepts the overlay.
/// `options` describe how to open the image; their fields `partition` and `overlay` have no effect.
///
/// # Errors
/// Fails if `overlay` is no overlay, if the image is in use, or if the overlay was made over another
/// image. Also fails if a read or write fails.
pub fn apply_overlay(
    overlay: impl AsRef<Path>,
    image: impl AsRef<Path>,
    options: &DeviceOptions,
) -> Result<Applied, IoError> {
    buttress_device::overlay::apply(overlay, image, options, &superblocks_last)
}

/// Writes the changes of the overlays of all devices of a volume, as [`apply_overlay`] does. No
/// superblock is written before the other blocks of all devices are durable.
///
/// # Errors
/// Fails as [`apply_overlay`] does. Nothing is written if an overlay does not fit its image.
pub fn apply_overlays(
    overlays_and_images: &[(PathBuf, PathBuf)],
    options: &DeviceOptions,
) -> Result<Applied, IoError> {
    let options = DeviceOptions {
        write: true,
        partition: DeviceOffset::Whole,
        overlay: None,
        ..options.clone()
    };
    let options = &options;
    let parts = overlays_and_images.iter().map(|(overlay, image)| {
        let open: Box<dyn FnOnce() -> Result<Device, IoError>> =
            Box::new(move || Device::open(image, options));
        (overlay.clone(), open)
    });
    buttress_device::overlay::apply_all(parts.collect(), &superblocks_last)
}

/// Deletes an overlay file, and thereby all of its changes.
///
/// # Errors
/// Fails if `overlay` is no overlay, if another process uses it, or if [`apply_overlay`] was
/// interrupted.
pub fn discard_overlay(overlay: impl AsRef<Path>) -> Result<(), IoError> {
    buttress_device::overlay::discard(overlay)
}

/// Returns the ranges of a base that are written last, in two stages: the superblocks of the volume
/// that begins at byte `start` of the base.
///
/// # Errors
/// Fails if the primary superblock of the base cannot be read.
pub fn superblocks_last(base: &Device, start: u64) -> Result<Vec<Vec<Range<u64>>>, IoError> {
    let bytes = SUPERBLOCK_BYTES as u64;
    let in_base = |at: Physical| {
        let first = start.checked_add(at.get())?;
        Some(first..first.checked_add(bytes)?).filter(|range| range.end <= base.size_bytes())
    };
    let [primary_at, copies_at @ ..] = SUPERBLOCK_OFFSETS;
    let primary = in_base(primary_at);
    let copies: Vec<Range<u64>> = copies_at.into_iter().filter_map(in_base).collect();
    let has_log = match &primary {
        Some(range) => {
            let bytes = base.read(range.start, SUPERBLOCK_BYTES)?;
            let superblock = Superblock::check(&bytes, primary_at);
            superblock.is_ok_and(|superblock| superblock.log_root != Logical::MIN)
        }
        None => false,
    };
    let primary = primary.into_iter().collect();
    Ok(match has_log {
        true => vec![copies, primary],
        false => vec![primary, copies],
    })
}
