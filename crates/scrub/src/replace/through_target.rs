//! The volume with the target in the source's place, opened for reading beside the volume in use,
//! before and after the exchange.

use crate::error::Error;
use buttress_device::Device;
use buttress_exact::Exact as _;
use buttress_format::device_item::DeviceItem;
use buttress_format::superblock::{SUPERBLOCK_BYTES, SUPERBLOCK_OFFSETS};
use buttress_format::{ByteCount, Logical, Superblock};
use buttress_fs::{Filesystem, OpenOptions};
use buttress_volume::{Replacement, Volume};
use buttress_writer::WritableFilesystem;
use std::sync::Arc;
use uuid::Uuid;

/// The cache of the volume that is opened beside the one in use.
const CACHE: ByteCount = ByteCount::new(16 << 20);

/// The most attempts to open the volume while commits of writers free the blocks that opening
/// reads.
const TRIES: usize = 100;

/// Returns the last committed state and its superblock. The state does not change while the view is
/// held.
pub(super) fn committed(writable: &WritableFilesystem) -> (Filesystem, Superblock) {
    loop {
        let view = writable.committed_view();
        let superblock = view.volume().superblock();
        let root = view.root_tree().root();
        // A commit may have ended between the moments at which the view and its superblock were
        // taken.
        if root.logical == superblock.root && root.generation == superblock.generation {
            return (view, Superblock::clone(&superblock));
        }
    }
}

/// Opens a committed state with the target in the source's place. The call writes nothing to
/// devices: the superblocks of the coming exchange are in memory.
pub(super) fn open_before(
    volume: &Volume,
    replacement: &Replacement,
    superblock: &Superblock,
) -> Result<Filesystem, Error> {
    let mut devices = Vec::new();
    for slot in volume.devices() {
        let is_source = Arc::ptr_eq(&slot, replacement.source());
        let from = match is_source {
            true => replacement.target(),
            false => &slot,
        };
        let (Some(device), item) = (from.device(), slot.item()) else {
            continue;
        };
        let is_written = slot.fsid() == superblock.fsid && slot.is_written();
        match item.filter(|_| is_source || is_written) {
            Some(item) => devices.push(with_superblocks(device, superblock, &item)?),
            // The device is a seed or missed commits, so the view opens it unchanged.
            None => devices.push(device.clone()),
        }
    }
    open(devices)
}

/// Returns a device with the superblocks of a commit in memory.
fn with_superblocks(device: &Device, superblock: &Superblock, item: &DeviceItem) -> Result<Device, Error> {
    // A log is not copied, since only the next mount needs it.
    let superblock = Superblock {
        log_root: Logical::MIN,
        log_root_level: 0,
        ..superblock.clone()
    };
    let changed = device.with_changes_in_memory();
    let end = ByteCount::new(device.size_bytes()).min(item.total_bytes);
    for at in SUPERBLOCK_OFFSETS {
        if at.exact_add(ByteCount::of(SUPERBLOCK_BYTES)).get() > end.get() {
            continue;
        }
        let bytes = superblock
            .encode_for(item, at)
            .map_err(|error| Error::NotOpened(error.to_string()))?;
        let written = changed.write(at.get(), &bytes);
        written.map_err(|error| Error::NotOpened(error.to_string()))?;
    }
    Ok(changed)
}

/// Opens the volume by the superblocks that the exchange wrote. The target must have the replaced
/// device's `uuid`.
pub(super) fn open_after(volume: &Volume, uuid: Uuid) -> Result<(), Error> {
    let mut tries = 0_usize;
    loop {
        let generation = volume.superblock().generation;
        let slots = volume.devices();
        let devices = slots.iter().filter_map(|slot| slot.device().cloned());
        let opened = open(devices.collect()).and_then(|filesystem| {
            let slots = filesystem.volume().devices();
            let is_whole = slots.iter().any(|slot| slot.uuid() == uuid && slot.is_written());
            let left_out = || Error::NotOpened("the target is not one of its devices".to_owned());
            is_whole.then_some(()).ok_or_else(left_out)
        });
        tries = tries.exact_add(1);
        match opened {
            Err(_) if volume.superblock().generation != generation && tries < TRIES => {}
            opened => return opened,
        }
    }
}

fn open(devices: Vec<Device>) -> Result<Filesystem, Error> {
    let options = OpenOptions::new(devices).cache(CACHE).degraded(true);
    options
        .open()
        .map_err(|error| Error::NotOpened(error.to_string()))
}
