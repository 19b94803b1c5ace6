//! Making a volume: an empty one, of any profile, on one device or several.
//!
//! Nothing is edited step by step: the trees of an empty volume are few and small, so their items are listed, packed into
//! blocks and written at once.
//!
//! 1. [`Options`] are checked and completed ([`options`]);
//! 2. `chunks` says where the first chunks lie, as mkfs.btrfs places them;
//! 3. `trees` lists the items of every tree; since the extent and free-space trees describe the very blocks that hold
//!    them, the listing is repeated until it agrees with itself;
//! 4. `blocks` packs items into leaves and nodes;
//! 5. old contents are wiped, all blocks are written through the volume's own write path and flushed, then the superblocks.
//!
//! Deterministic: the uuids and the time come from the caller ([`Identity`]). A crash before the last step leaves devices
//! without a file system.
//!
//! What it leaves out: filling the volume (that is done through ordinary writes afterwards), zoned devices.
//!
//! Sources: mkfs.btrfs(8) for options, defaults and profiles; on-disk format documentation for the items. Places and
//! sizes of the first chunks follow what mkfs.btrfs 6.14 is seen to do.
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

/// What those use, too, who make volumes that are not empty.
pub mod parts {
    pub use super::items::{
        BlockPlace, Item, TreeRoot, block_group_item, block_items, chunk_tree, complete_superblock,
        device_tree, directory, directory_inode, free_space, in_order, root_directory, root_item,
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

/// What a new volume gets from outside, so that the same input gives the same bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// The volume's uuid.
    pub fsid: Uuid,
    /// The uuid of the chunk tree.
    pub chunk_tree: Uuid,
    /// The top-level subvolume's uuid.
    pub top_level: Uuid,
    /// One uuid for each device, in their order.
    pub devices: Vec<Uuid>,
    /// When the volume is made.
    pub time: Timestamp,
}

/// A volume that was made.
#[derive(Clone, Debug)]
pub struct Made {
    /// Its superblock, as on the first device.
    pub superblock: Superblock,
    /// The items of its devices, in their order.
    pub devices: Vec<DeviceItem>,
    /// Its chunks, in order of their addresses.
    pub chunks: Vec<PlannedChunk>,
    /// The quotas that are on.
    pub quotas: Option<Quotas>,
}

/// The generation of a new volume.
const GENERATION: Generation = Generation::new(8);

/// Makes a volume on devices that are open for writing. Whatever they hold is lost.
///
/// # Errors
/// Options that do not fit together, devices that are too few or too small ([`Error::TooSmall`] says how large they must
/// be), and what a device fails with.
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

/// Wipes the devices and writes a volume that is planned.
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

/// The least size of each device, in bytes, with which a volume can be made on `devices` devices of one size.
///
/// # Errors
/// Options that do not fit together, or need more devices.
pub fn least_device_bytes(options: &Options, devices: usize) -> Result<ByteCount, Error> {
    let settings = Settings::new(options, devices)?;
    Ok(chunks::least_bytes(devices, &settings))
}

/// The least size of each of `devices` devices of one size, in bytes, with which a volume holds a file.
///
/// # Errors
/// As [`least_device_bytes`].
pub fn least_device_bytes_for_a_file(options: &Options, devices: usize) -> Result<ByteCount, Error> {
    let settings = Settings::new(options, devices)?;
    Ok(chunks::least_bytes_for_a_file(devices, &settings))
}

/// What the volume uses of each device, in bytes: whole sectors of it, or of what the options give.
///
/// # Errors
/// A device that is smaller than the options want.
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

/// Makes a device forget what it held: first copies of superblocks, then the primary, and only then anything else, so that
/// a volume is there whole or not at all at any moment, and nothing half-discarded is ever taken for one; then its contents, as
/// far as it can discard; then both ends and the places of superblocks once more, since discarded bytes may come back.
///
/// # Errors
/// What the device fails with.
pub fn wipe(device: &Device, settings: &Settings) -> Result<(), Error> {
    forget(device)?;
    if settings.discard {
        // A device that cannot is wiped where it matters.
        let _cannot = device.discard(0, device.size_bytes());
        zero_ends(device)?;
    }
    device.flush()?;
    Ok(())
}

/// The id of the device with this index.
#[must_use]
pub fn device_id(index: usize) -> DeviceId {
    DeviceId::new(ByteCount::of(index).get().saturating_add(1))
}
