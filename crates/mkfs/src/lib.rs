//! Making volumes: an empty volume of any profile, on one device or several.
//!
//! An empty volume has few trees, and these are small. The items of a new volume's trees are
//! therefore listed, packed into blocks and written at once, without single edits.
//!
//! 1. The caller's [`Options`] are checked and completed ([`options`]);
//! 2. `chunks` places the first chunks, as mkfs.btrfs does;
//! 3. The module `trees` lists the items of every tree. The extent and free-space trees describe
//!    the blocks that hold them, so the listing is repeated until it is consistent;
//! 4. The module `blocks` packs items into leaves and nodes;
//! 5. old contents are wiped, all blocks are written through the volume's write path and flushed,
//!    then the superblocks.
//!
//! Deterministic: the uuids and the time come from the caller ([`Identity`]). A crash before `mkfs`
//! writes the superblocks leaves devices without a file system.
//!
//! Left out: filling the volume with files, which ordinary writes do afterwards, and zoned devices.
//!
//! Sources: mkfs.btrfs(8) for options, defaults and profiles; on-disk format documentation for the
//! items. Places and sizes of the first chunks follow the observed behaviour of mkfs.btrfs 6.14.
#![forbid(unsafe_code)]
#![cfg_attr(
    test,
    allow(
        clippy::arithmetic_side_effects,
        clippy::cast_possible_truncation,
        reason = "tests compute with known numbers"
    )
)]

mod blocks;
mod chunks;
mod error;
mod items;
#[cfg(any(test, feature = "testing"))]
pub mod old;
pub mod options;
mod trees;

/// The parts for callers that make volumes with content.
pub mod parts {
    pub use super::items::{
        BlockPlace, Item, TreeRoot, block_group_item, block_items, chunk_tree, complete_superblock,
        data_items, device_tree, directory, directory_inode, free_space, in_order, root_directory, root_item,
    };
    pub use super::options::Settings;
    pub use super::trees::{device_items, empty_superblock};
    pub use super::{device_id, usable_sizes, wipe};
    pub use buttress_volume::wiping::forget_superblocks;
}

pub use chunks::PlannedChunk;
pub use error::Error;
pub use options::{Feature, Options, Quotas};

use buttress_device::Device;
use buttress_format::{ByteCount, DeviceId, DeviceItem, Generation, Superblock, Timestamp, Uuid};
use buttress_volume::wiping::{forget, forget_superblocks, zero_ends};
use options::Settings;
use trees::Plan;

/// The external inputs of a new volume. Equal inputs yield volumes of equal bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// The volume's uuid.
    pub fsid: Uuid,
    /// The uuid of the chunk tree.
    pub chunk_tree: Uuid,
    /// The top-level subvolume's uuid.
    pub top_level: Uuid,
    /// The device uuids, in the order of the devices.
    pub devices: Vec<Uuid>,
    /// The time at which the volume is made.
    pub time: Timestamp,
}

/// The result of making a new volume.
#[derive(Clone, Debug)]
pub struct Made {
    /// The superblock of the first device.
    pub superblock: Superblock,
    /// The device items, in the order of the devices.
    pub devices: Vec<DeviceItem>,
    /// The chunks in address order.
    pub chunks: Vec<PlannedChunk>,
    /// The enabled quotas.
    pub quotas: Option<Quotas>,
}

/// The generation of a new volume.
const GENERATION: Generation = Generation::new(8);

/// Makes a volume on devices that are open for writing. The content of the devices is lost.
///
/// # Errors
/// Fails if options contradict each other, if devices are too few or too small ([`Error::TooSmall`]
/// holds the minimum size), or if a device fails.
pub fn make(devices: &[Device], options: &Options, identity: &Identity) -> Result<Made, Error> {
    let settings = Settings::new(options, devices.len())?;
    if settings.quotas.is_some() {
        return Err(Error::QuotasOfEmpty);
    }
    if identity.devices.len() != devices.len() {
        return Err(Error::Uuids {
            uuids: identity.devices.len(),
            devices: devices.len(),
        });
    }
    let sizes = usable_sizes(devices, &settings)?;
    let chunks =
        chunks::plan(&sizes, &settings).map_err(|place| too_small(devices, &sizes, &settings, place))?;
    write(
        devices,
        &settings,
        Plan::new(&settings, identity, &sizes, chunks)?,
    )
}

/// Wipes the devices and writes a planned volume.
fn write(devices: &[Device], settings: &Settings, plan: Plan) -> Result<Made, Error> {
    for device in devices {
        wipe(device, settings)?;
    }
    let volume = plan.volume(devices)?;
    volume.write(&plan.blocks()?)?;
    volume.flush()?;
    if let Err(error) = volume.write_superblocks(&plan.superblock, &plan.devices) {
        devices.iter().for_each(forget_superblocks);
        return Err(error.into());
    }
    Ok(Made {
        superblock: plan.superblock.clone(),
        devices: plan.devices.clone(),
        chunks: plan.chunks,
        quotas: None,
    })
}

/// Returns the minimum size in bytes with which a volume can be made on `devices` devices of equal
/// size.
///
/// # Errors
/// Fails if options contradict each other, or need more devices.
pub fn least_device_bytes(options: &Options, devices: usize) -> Result<ByteCount, Error> {
    let settings = Settings::new(options, devices)?;
    Ok(chunks::least_bytes(devices, &settings))
}

/// Returns the minimum size in bytes with which a volume on `devices` devices of equal size holds a
/// file.
///
/// # Errors
/// Fails as [`least_device_bytes`] does.
pub fn least_device_bytes_for_a_file(options: &Options, devices: usize) -> Result<ByteCount, Error> {
    let settings = Settings::new(options, devices)?;
    Ok(chunks::least_bytes_for_a_file(devices, &settings))
}

/// Returns the bytes that the volume uses of each device: whole sectors of the device, or of the
/// size in the options.
///
/// # Errors
/// Fails if a device is smaller than the options require.
pub fn usable_sizes(devices: &[Device], settings: &Settings) -> Result<Vec<u64>, Error> {
    let sector_bytes = u64::from(settings.sector_bytes);
    let size = |device: &Device| {
        let has = device.size_bytes();
        let wanted = settings.device_bytes.map_or(has, ByteCount::get);
        if wanted > has {
            return Err(Error::DeviceTooShort {
                device: device.name().to_owned(),
                size: ByteCount::new(has),
                wanted: ByteCount::new(wanted),
            });
        }
        Ok(wanted.saturating_sub(wanted.checked_rem(sector_bytes).unwrap_or(0)))
    };
    devices.iter().map(size).collect()
}

fn too_small(devices: &[Device], sizes: &[u64], settings: &Settings, device: usize) -> Error {
    Error::TooSmall {
        device: devices
            .get(device)
            .map_or_else(String::new, |device| device.name().to_owned()),
        size: ByteCount::new(sizes.get(device).copied().unwrap_or(0)),
        least: chunks::least_bytes_for_a_file(devices.len(), settings),
    }
}

/// Wipes a device's former content. The function first erases the superblock copies, then the
/// primary. At each moment of the erasure, a volume is complete or absent, and no half-discarded
/// volume is ever recognised. After erasing the superblocks, the function discards the content, if
/// the device can. At the end, the function zeroes both ends and the addresses of superblocks
/// again, because discarded bytes may return.
///
/// # Errors
/// Fails if the device fails.
pub fn wipe(device: &Device, settings: &Settings) -> Result<(), Error> {
    forget(device)?;
    if settings.discard {
        // A device without discard is wiped at its ends and superblocks.
        let _cannot = device.discard(0, device.size_bytes());
        zero_ends(device)?;
    }
    device.flush()?;
    Ok(())
}

/// Returns the id of the device with this index.
#[must_use]
pub fn device_id(index: usize) -> DeviceId {
    DeviceId::new(ByteCount::of(index).get().saturating_add(1))
}
