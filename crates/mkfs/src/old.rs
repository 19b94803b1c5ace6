//! Volumes as old versions of mkfs.btrfs left them, for tests. Feature `testing`.
//!
//! They differ from new ones in where chunks lie, which the caller says chunk by chunk, and in what they lack
//! ([`Missing`]). The first chunk was one for system, 4 MiB at address 0 that began where the device begins; it and the
//! first chunks for metadata and data, single and of 8 MiB, stayed as they were when chunks of the wanted profile had taken
//! over.

use super::chunks::PlannedChunk;
use super::options::{Missing, Settings};
use super::trees::Plan;
use super::{Error, Identity, Made, Options, usable_sizes, write};
use buttress_device::Device;
use buttress_format::{BlockGroupFlags, ByteCount, Logical, Physical, Profile, STRIPE_BYTES};
use buttress_volume::layout::Layout;

/// A chunk of an old volume.
#[derive(Clone, Debug)]
pub struct OldChunk {
    /// What it holds, and its profile.
    pub flags: BlockGroupFlags,
    /// Its address.
    pub logical: Logical,
    /// Its length.
    pub length: ByteCount,
    /// Its stripes: the index of the device, and where on it.
    pub stripes: Vec<(usize, Physical)>,
}

impl OldChunk {
    fn planned(&self) -> Result<PlannedChunk, Error> {
        let profile = self.flags.profile().unwrap_or(Profile::Single);
        let sub_stripes = if profile == Profile::Raid10 { 2 } else { 1 };
        let stripes = self.stripes.len();
        let layout = Layout::new(profile, self.length, stripes, sub_stripes, STRIPE_BYTES);
        let layout = layout.map_err(|_| Error::NoRoom { what: "stripes" })?;
        Ok(PlannedChunk {
            logical: self.logical,
            flags: self.flags,
            length: self.length,
            device_extent: layout.device_extent_bytes(),
            stripes: self.stripes.clone(),
            first_system: false,
        })
    }
}

/// Makes a volume with these chunks. Tree blocks go to the first one for system and the first one for metadata.
///
/// # Errors
/// As [`super::make`]; chunks whose numbers do not fit their profile, or that have no space for the trees.
pub fn make(
    devices: &[Device],
    options: &Options,
    identity: &Identity,
    chunks: &[OldChunk],
    missing: Missing,
) -> Result<Made, Error> {
    let settings = Settings {
        missing,
        ..Settings::new(options, devices.len())?
    };
    let sizes = usable_sizes(devices, &settings)?;
    let chunks = chunks.iter().map(OldChunk::planned).collect::<Result<_, _>>()?;
    write(
        devices,
        &settings,
        Plan::new(&settings, identity, &sizes, chunks)?,
    )
}
