//! Repairs of what a check finds.

use super::Volume;
use crate::error::Result;
use buttress_check::Report;
use buttress_device::Device;
use buttress_format::{ByteCount, Logical};
use buttress_fs::Progress;
use buttress_repair::data_checksums::{self, Mismatch};
use buttress_repair::{Options, Outcome, Step};

/// Repairs the volume on `devices`, whose check reported `before`. The devices must be open for
/// writing; give devices with overlays, because a repair cannot undo its commits. Calls `ask` once
/// for each step that may lose something and that [`Options::yes_to`] does not allow.
///
/// # Errors
/// Fails if the volume refuses writing, or with an error of a device or a tree. The volume then has
/// the state of the last commit. Damage that stays is no error, but part of the outcome.
pub fn run(
    devices: &[Device],
    before: &Report,
    options: &Options,
    ask: &mut dyn FnMut(&Step) -> bool,
    progress: &Progress,
) -> Result<Outcome> {
    Ok(buttress_repair::run(devices, before, options, ask, progress)?)
}

/// Reads every copy of all data with checksums. Calls `found` for each sector of which a copy does
/// not match, in order of address.
///
/// # Errors
/// Fails if the checksum tree cannot be read, or if `progress` was cancelled.
pub fn find_mismatches(volume: &Volume, progress: &Progress, found: &mut dyn FnMut(Mismatch)) -> Result<()> {
    Ok(data_checksums::find_mismatches(&volume.view(), progress, found)?)
}

/// Computes the checksums of sectors again, each from the copy that its owner accepts. The devices
/// must be open for writing. Returns the number of changed checksums.
///
/// The old checksum is lost, and with it the proof that the data was damaged.
///
/// # Errors
/// Fails if the volume refuses writing or has a pending log, if a copy cannot be read, or with an
/// error of a device.
pub fn accept_data(
    devices: &[Device],
    cache: ByteCount,
    accepted: &[(Logical, u32)],
    progress: &Progress,
) -> Result<u64> {
    Ok(data_checksums::accept_data(devices, cache, accepted, progress)?)
}
