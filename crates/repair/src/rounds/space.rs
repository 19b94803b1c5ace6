//! The rebuild before the first round of edits.

use crate::guard;
use crate::outcome::{Done, Options, Outcome};
use crate::plan::{plan, plan_after_rebuild};
use crate::rebuild::{self, Resources, Scope};
use crate::steps::{Applied, Edit, Plan, Step};
use buttress_check::Report;
use buttress_device::Device;
use buttress_format::ByteCount;
use buttress_fs::{Error, OpenOptions, Progress, Result};
use buttress_packing::SpoolFolder;
use std::collections::BTreeSet;

/// The reason why the rounds of edits do not rebuild again.
pub(super) const ONCE: &str = "the rebuild of the trees that account for space did not repair this";

/// Rebuilds the trees that account for space, and checks the result. Returns the plan for the
/// findings that are left. The plan rebuilds again only if the check found damage in another tree.
///
/// # Errors
/// Fails with an error of a device, or if the volume refuses writing. A volume whose other trees do
/// not suffice is no error: the step then changes nothing.
pub(super) fn rebuild(
    devices: &[Device],
    steps: Vec<Step>,
    options: &Options,
    progress: &Progress,
    outcome: &mut Outcome,
) -> Result<Plan> {
    let first_state = OpenOptions::new(devices.to_vec()).cache(options.cache).open()?;
    let resources = Resources {
        // The other half is for tree blocks.
        memory: ByteCount::new(options.cache.get() >> 1),
        folder: SpoolFolder::new(options.spool.as_deref()),
    };
    let scope = Scope {
        devices: steps.iter().any(|step| step.edit == Edit::RebuildDevices),
        checksums: steps.iter().any(|step| step.edit == Edit::RebuildChecksums),
    };
    let reason = match rebuild::run(&first_state, scope, &resources, progress) {
        Ok(()) => None,
        Err(Error::Invalid { what }) => Some(what),
        Err(error) => return Err(error),
    };
    let applied = reason.map_or(Applied::Changed, Applied::Nothing);
    outcome.done.extend(steps.into_iter().map(|step| Done {
        round: 0,
        step,
        applied,
    }));
    if let Some(reason) = reason {
        return Ok(plan_after_rebuild(&outcome.after, reason));
    }
    outcome.after = check(devices, options, progress)?;
    let last_state = OpenOptions::new(devices.to_vec()).cache(options.cache).open()?;
    outcome.lost.extend(guard::lost(
        &first_state,
        &last_state,
        &BTreeSet::new(),
        progress,
    )?);
    // Without an extent tree, the first check could not compare the checksums.
    let next = plan(&outcome.after);
    let is_done = |step: &Step| outcome.done.iter().any(|done| done.step.edit == step.edit);
    let mut rebuilds = next.steps.iter().filter(|step| step.edit.is_rebuild());
    match rebuilds.all(is_done) {
        true => Ok(plan_after_rebuild(&outcome.after, ONCE)),
        false => Ok(next),
    }
}

/// Checks the state on the devices, through caches that no commit has filled.
pub(super) fn check(devices: &[Device], options: &Options, progress: &Progress) -> Result<Report> {
    let filesystem = OpenOptions::new(devices.to_vec())
        .cache(options.cache)
        .for_inspection(true)
        .open()?;
    buttress_check::check(&filesystem, &options.check, progress)
}
