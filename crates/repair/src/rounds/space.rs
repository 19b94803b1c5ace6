//! The rebuild before the first round of edits.
//!
//! Invariant: no rebuild overwrites a block of the volume's first state, because each rebuild keeps
//! away from the blocks that the earlier ones replaced.

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
/// `held` has the addresses of blocks that earlier rebuilds replaced, and gets those of this one.
///
/// # Errors
/// Fails with an error of a device, or if the volume refuses writing. An impossible rebuild is no
/// error: the step then changes nothing.
pub(super) fn rebuild(
    devices: &[Device],
    steps: Vec<Step>,
    options: &Options,
    progress: &Progress,
    held: &mut Vec<u64>,
    outcome: &mut Outcome,
) -> Result<Plan> {
    let first_state = OpenOptions::new(devices.to_vec()).cache(options.cache).open()?;
    let resources = Resources {
        // The other half is for tree blocks.
        memory: ByteCount::new(options.cache.get() >> 1),
        folder: SpoolFolder::new(options.spool.as_deref()),
    };
    let accepts = |code: &str| options.yes_to.contains(code) || options.yes_to.contains("all");
    let has = |edit| steps.iter().any(|step| step.edit == edit);
    let scope = Scope {
        devices: has(Edit::RebuildDevices),
        checksums: has(Edit::RebuildChecksums),
        gives_up_subvolumes: accepts("subvolume-missing"),
        gives_up_checksums: accepts("tree-block-damaged"),
    };
    let reason = reason(rebuild::run(&first_state, scope, held, &resources, progress))?;
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

/// Returns the reason why a rebuild was impossible; `None` if it ran.
///
/// # Errors
/// Fails with an error of a device, a defect, or a refusal to write, which concerns every edit.
pub(crate) fn reason(result: Result<()>) -> Result<Option<&'static str>> {
    match result {
        Ok(()) => Ok(None),
        Err(Error::Invalid { what }) => Ok(Some(what)),
        Err(Error::NoSpace { .. }) => Ok(Some("the metadata chunks lack free space for the rebuilt trees")),
        Err(Error::Corrupt(_) | Error::Tree(_)) => Ok(Some(
            "the root tree or the chunk tree is damaged, and the rebuild needs their items",
        )),
        Err(error) => Err(error),
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

#[cfg(test)]
mod tests {
    use super::*;
    use buttress_fs::error::WritingRefusal;

    #[test]
    fn impossible_rebuild_ends_no_repair() {
        let full = Error::NoSpace {
            what: "the blocks of the rebuilt trees",
            wanted: ByteCount::new(4096),
            pinned_by_readers: ByteCount::ZERO,
            reclaimable: None,
        };
        for error in [
            full,
            Error::Invalid {
                what: "two extents overlap",
            },
        ] {
            assert!(matches!(reason(Err(error)), Ok(Some(_))));
        }
        let refusal = WritingRefusal::State {
            name: "a pending log",
            remedy: "replay it",
        };
        assert!(reason(Err(refusal.into())).is_err());
        assert_eq!(reason(Ok(())).ok(), Some(None));
    }
}
