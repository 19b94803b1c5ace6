//! Volumes as old versions of mkfs.btrfs left them, for tests. Feature `testing`.
//!
//! Old volumes differ from new ones in the places of chunks, which the caller gives for each chunk,
//! and in missing items ([`Missing`]). The first chunk held the system, 4 MiB at address 0 and at
//! the start of the device. This chunk and the first metadata and data chunks (single, 8 MiB)
//! remained after chunks of the requested profile replaced them.

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
    /// The chunk's type and profile.
    pub flags: BlockGroupFlags,
    /// The chunk's logical address.
    pub logical: Logical,
    /// The chunk's length.
    pub length: ByteCount,
    /// The chunk's stripes: the index of the device, and the address on it.
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

/// Makes a volume with these chunks. Tree blocks go to the first system chunk and the first
/// metadata chunk.
///
/// # Errors
/// Fails as [`super::make`] does. Also fails if the numbers of a chunk do not fit its profile, or
/// if the trees do not fit.
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
