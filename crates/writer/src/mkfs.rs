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

mod blocks;
mod chunks;
mod error;
#[cfg(any(test, feature = "testing"))]
pub mod old;
pub mod options;
pub mod signatures;
mod trees;

/// What those use, too, who make volumes that are not empty.
pub mod parts {
    pub use super::options::Settings;
    pub use super::trees::{device_items, empty_superblock};
    pub use super::{device_id, usable_sizes, wipe};
}

pub use chunks::PlannedChunk;
pub use error::Error;
pub use options::{Feature, Options};

use buttress_device::Device;
use buttress_format::{
    ByteCount, DeviceId, DeviceItem, Generation, Physical, SUPERBLOCK_OFFSETS, Superblock, Timestamp, Uuid,
};
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
}

/// How much is zeroed at both ends of a device, so that nothing finds what was there before.
const WIPED_BYTES: u64 = 2 << 20;

/// The generation of a new volume.
const GENERATION: Generation = Generation::new(8);

/// Makes a volume on devices that are open for writing. Whatever they hold is lost.
///
/// # Errors
/// Options that do not fit together, devices that are too few or too small ([`Error::TooSmall`] says how large they must
/// be), and what a device fails with.
pub fn make(devices: &[Device], options: &Options, identity: &Identity) -> Result<Made, Error> {
    let settings = Settings::new(options, devices.len())?;
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
    volume.write_superblocks(&plan.superblock, &plan.devices)?;
    Ok(Made {
        superblock: plan.superblock.clone(),
        devices: plan.devices.clone(),
        chunks: plan.chunks,
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
        least: chunks::least_bytes(devices.len(), settings),
    }
}

/// Makes a device forget what it held: first that it held a volume, so that nothing half-discarded is ever taken for one;
/// then its contents, as far as it can discard; then both ends and the places of superblocks once more, since discarded
/// bytes may come back.
///
/// # Errors
/// What the device fails with.
pub fn wipe(device: &Device, settings: &Settings) -> Result<(), Error> {
    zero_ends(device)?;
    device.flush()?;
    if settings.discard {
        // A device that cannot is wiped where it matters.
        let _cannot = device.discard(0, device.size_bytes());
        zero_ends(device)?;
        device.flush()?;
    }
    Ok(())
}

/// Zeroes both ends of a device, and the places of superblocks.
fn zero_ends(device: &Device) -> Result<(), Error> {
    let size = device.size_bytes();
    let ends = [
        (0, WIPED_BYTES.min(size)),
        (size.saturating_sub(WIPED_BYTES), WIPED_BYTES.min(size)),
    ];
    let copies = SUPERBLOCK_OFFSETS
        .iter()
        .map(|at: &Physical| (at.get(), buttress_format::SUPERBLOCK_BYTES as u64));
    for (start, length) in ends.into_iter().chain(copies) {
        if start.saturating_add(length) <= size {
            device.zero(start, length)?;
        }
    }
    Ok(())
}

/// The id of the device with this index.
#[must_use]
pub fn device_id(index: usize) -> DeviceId {
    DeviceId::new(ByteCount::of(index).get().saturating_add(1))
}
