//! All superblocks of all devices: the primary and the copies.
//!
//! Each superblock is checked, and must match the volume, the device, and the device's newest
//! generation. The scrub rewrites a bad superblock from a good copy on the same device. Without a
//! good copy it uses the volume's superblock and the device's item.

use crate::damage::{Cause, Outcome, Part};
use crate::job::Job;
use crate::mending::Site;
use buttress_device::Device;
use buttress_format::superblock::{SUPERBLOCK_BYTES, SUPERBLOCK_OFFSETS, Superblock};
use buttress_format::{ByteCount, Logical, Physical};
use buttress_volume::DeviceSlot;
use std::sync::Arc;

/// Checks and repairs the superblocks of all devices.
pub(crate) fn check(job: &Job<'_>) {
    for slot in job.volume.devices() {
        if let Some(device) = slot.in_use() {
            check_device(job, &slot, device);
        }
    }
}

/// Returns the offsets of a device's superblocks.
fn places(slot: &DeviceSlot, device: &Device) -> impl Iterator<Item = Physical> {
    let size = ByteCount::new(device.size_bytes());
    let end = slot.expected_bytes().map_or(size, |expected| expected.min(size));
    let fits = move |at: &Physical| at.exact_add(ByteCount::of(SUPERBLOCK_BYTES)).get() <= end.get();
    SUPERBLOCK_OFFSETS.into_iter().filter(fits)
}

fn read(device: &Device, at: Physical) -> Result<Superblock, Cause> {
    let bytes = device
        .read(at.get(), SUPERBLOCK_BYTES)
        .map_err(|error| Cause::Unreadable(error.message))?;
    Superblock::check(&bytes, at).map_err(|error| Cause::Superblock(error.to_string().into()))
}

fn check_device(job: &Job<'_>, slot: &Arc<DeviceSlot>, device: &Device) {
    let found: Vec<(Physical, Result<Superblock, Cause>)> =
        places(slot, device).map(|at| (at, read(device, at))).collect();
    let is_own = |superblock: &&Superblock| {
        superblock.fsid == slot.fsid() && superblock.device_item.uuid == slot.uuid()
    };
    let newest = found
        .iter()
        .filter_map(|(_, read)| read.as_ref().ok())
        .filter(is_own)
        .max_by_key(|superblock| superblock.generation)
        .cloned();
    let good = newest.or_else(|| {
        let item = slot.item()?;
        let superblock = Superblock::clone(&job.volume.superblock());
        Some(Superblock {
            device_item: item,
            ..superblock
        })
    });
    for (at, read) in &found {
        let cause = match (read, &good) {
            (Err(cause), _) => cause.clone(),
            (Ok(superblock), Some(good)) => match difference(superblock, good) {
                Some(reason) => Cause::Superblock(reason.into()),
                None => continue,
            },
            (Ok(_), None) => continue,
        };
        let site = Site {
            slot: Arc::clone(slot),
            physical: *at,
            logical: Logical::MIN,
            length: SUPERBLOCK_BYTES,
            part: Part::Superblock,
            errors: 1,
        };
        let bytes = good.as_ref().map(|good| good.encode_for(&good.device_item, *at));
        let outcome = match bytes {
            Some(Ok(bytes)) => job.mend(&site, &bytes),
            Some(Err(error)) => Outcome::Uncorrectable {
                tried: vec![error.to_string()],
            },
            None => Outcome::Uncorrectable {
                tried: vec![
                    "every superblock of this device is damaged, and no device item names it".to_owned(),
                ],
            },
        };
        job.note(&site, cause, outcome);
    }
}

/// Returns the difference between a valid superblock and the expected one, if there is one.
fn difference(found: &Superblock, good: &Superblock) -> Option<String> {
    if found.fsid != good.fsid {
        return Some(format!("fsid is {}, expected {}", found.fsid, good.fsid));
    }
    if found.device_item.uuid != good.device_item.uuid {
        let (found, good) = (found.device_item.uuid, good.device_item.uuid);
        return Some(format!("of device {found}, expected {good}"));
    }
    let (stored, expected) = (found.generation, good.generation);
    (stored != expected && !buttress_faults::on("scrub-old-superblock-accepted"))
        .then(|| format!("generation is {stored}, expected {expected}"))
}
