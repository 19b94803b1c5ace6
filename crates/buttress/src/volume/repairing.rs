//! Repairs of what a check finds.

use crate::error::Result;
use buttress_check::Report;
use buttress_device::Device;
use buttress_fs::Progress;
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
