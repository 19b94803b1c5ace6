//! Volumes of older states: a superblock that no device holds, over the given devices.
//!
//! A view is for reading. The caller names each device, and passes the chunks of the state to
//! [`Volume::add_chunk`]. Copies that a later commit overwrote fail the checks of their blocks.
//!
//! Invariants: opening a view reads nothing. A notice forbids writing to a view, and its devices
//! refuse every change.

use crate::devices::DeviceSlot;
use crate::error::{DevicesError, Error};
use crate::notice::Notice;
use crate::open::{OpenOptions, Rescue, WholeChange};
use crate::volume::{Start, Volume};
use buttress_device::Device;
use buttress_format::superblock::Superblock;
use buttress_format::{DeviceId, Generation};
use std::collections::HashSet;
use uuid::Uuid;

/// A device of a view.
#[derive(Clone, Debug)]
pub struct ViewDevice {
    /// The device.
    pub device: Device,
    /// The device's id.
    pub id: DeviceId,
    /// The device's uuid.
    pub uuid: Uuid,
    /// The file system that the device belongs to; for a seed device, the seed's.
    pub fsid: Uuid,
}

/// Makes a volume for reading a state that `superblock` leads to. Devices may be missing. `newest`
/// is the newest generation of the devices, which no tree block exceeds.
///
/// # Errors
/// Fails without a device, with two devices of one uuid, or with unknown incompat features.
pub fn view(
    devices: Vec<ViewDevice>,
    superblock: Superblock,
    newest: Generation,
    rescue: Rescue,
) -> Result<Volume, Error> {
    superblock.incompat.require_readable()?;
    let lead = devices.first().ok_or(DevicesError::None)?.device.clone();
    let mut known = HashSet::new();
    for given in &devices {
        if !known.insert(given.uuid) {
            return Err(Error::from(DevicesError::Duplicate {
                first: lead.name().to_owned(),
                second: given.device.name().to_owned(),
                device: given.id,
                uuid: given.uuid,
            }));
        }
    }
    let fsid = superblock.fsid;
    let seeds = devices
        .iter()
        .map(|given| given.fsid)
        .filter(|other| *other != fsid);
    let format = superblock.block_format().with_seeds(seeds);
    format.generation.raise(newest);
    let shown = superblock.generation;
    let slots = devices.into_iter().map(|given| {
        let device = given.device.for_reading();
        DeviceSlot::given(given.id, given.uuid, given.fsid, device, None)
    });
    Ok(Start {
        format,
        options: OpenOptions {
            degraded: true,
            rescue,
            change: WholeChange::default(),
        },
        slots: slots.collect(),
        notices: vec![Notice::OlderState { shown, newest }],
        target: None,
        tolerates_failures: false,
        clocked: lead,
        superblock,
    }
    .into_volume())
}
