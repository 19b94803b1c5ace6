//! The plan of a repair: for each finding a step, or the reason why there is none.
//!
//! A plan is data. It names for each step the finding, the change, the evidence for it, what may be
//! lost, and the affected files. [`crate::rounds`] applies a plan.
//!
//! Invariants:
//! - Each finding of the report is in exactly one step or in [`Plan::left`], except that findings of
//!   quota groups wait for the round after all other steps.
//! - No edit runs while the allocator could overwrite blocks in use. A rebuild comes first, or
//!   [`Plan::blocked`] has the reason.
//! - A step that may lose something has a [`Loss`] that needs consent.

mod edits;

use crate::items::Named;
use crate::kinds::{self, Part, RepairKind};
use crate::steps::{Edit, Hints, Left, Loss, Plan, Step};
use buttress_check::{Finding, Grade, Note, Report, Reported};
use std::collections::{BTreeMap, BTreeSet};

/// Plans the repair of the findings of a report.
#[must_use]
pub fn plan(report: &Report) -> Plan {
    plan_unless(report, None)
}

/// Plans the repair of findings after a rebuild. The findings that the rebuild left have no further
/// repair, for this reason.
pub(crate) fn plan_after_rebuild(report: &Report, reason: &'static str) -> Plan {
    plan_unless(report, Some(reason))
}

/// Plans a repair; without a rebuild if a reason against it is given.
fn plan_unless(report: &Report, no_rebuild: Option<&'static str>) -> Plan {
    let blocked = blocked(report, no_rebuild.is_none());
    let mut steps: BTreeMap<Edit, Step> = BTreeMap::new();
    let mut left = Vec::new();
    for reported in &report.findings {
        let finding = &reported.finding;
        let kind = match (kinds::of(finding), no_rebuild) {
            (kind, Some(reason)) if kind.is_rebuild() => RepairKind::NotYet(reason),
            (kind, _) => kind,
        };
        let reason = match (&blocked, kind) {
            (_, RepairKind::NotYet(reason) | RepairKind::Never(reason)) => reason.to_owned(),
            (Some(blocked), _) => blocked.clone(),
            (None, _) => {
                add(&mut steps, reported);
                continue;
            }
        };
        left.push(Left {
            code: finding.code(),
            finding: finding.to_string(),
            reason,
        });
    }
    edits::settle_losses(&mut steps, report);
    let mut steps: Vec<Step> = steps.into_values().collect();
    if steps.iter().any(|step| !step.edit.is_of_quotas()) {
        // The next round repairs quota groups, after the engine has counted these edits.
        steps.retain(|step| !step.edit.is_of_quotas());
    }
    Plan { steps, left, blocked }
}

/// Returns the inode numbers to which names of the volume lead, by the findings of a report.
pub(crate) fn named(report: &Report) -> Named {
    let inodes = report
        .findings
        .iter()
        .filter_map(|reported| match &reported.finding {
            Finding::EntryWithoutInode { subvolume, inode, .. }
            | Finding::EntryMissing { subvolume, inode, .. }
            | Finding::LinkMissing { subvolume, inode, .. }
            | Finding::InodeMissing { subvolume, inode } => Some((subvolume.tree(), *inode)),
            _ => None,
        });
    Named {
        inodes: inodes.collect(),
        is_cut: !edits::is_whole(report, "entry-without-inode"),
    }
}

fn add(steps: &mut BTreeMap<Edit, Step>, reported: &Reported) {
    let finding = &reported.finding;
    let planned = edits::of(finding);
    let step = steps.entry(planned.edit.clone()).or_insert_with(|| Step {
        codes: BTreeSet::new(),
        findings: Vec::new(),
        what: planned.what,
        evidence: planned.evidence,
        loss: Loss::Nothing,
        affected: BTreeSet::new(),
        edit: planned.edit,
        hints: Hints::default(),
    });
    step.codes.insert(finding.code());
    step.findings.push(finding.to_string());
    step.loss = step.loss.clone().max(planned.loss);
    step.affected.extend(reported.affected.iter().cloned());
    step.hints.inodes.extend(planned.hints.inodes);
    step.hints.subvolumes.extend(planned.hints.subvolumes);
}

/// Returns whether the rebuild repairs all findings of a code.
fn is_rebuilt(report: &Report, code: &str) -> bool {
    let is_of_code = |reported: &&Reported| reported.finding.code() == code;
    let mut findings = report.findings.iter().filter(is_of_code);
    edits::is_whole(report, code) && findings.all(|reported| kinds::of(&reported.finding).is_rebuild())
}

/// Returns the reason why no edit may run. An edit allocates tree blocks, so the records of used
/// space must not name blocks in use as free. A rebuild replaces these records first.
fn blocked(report: &Report, may_rebuild: bool) -> Option<String> {
    if report
        .notes
        .iter()
        .any(|note| matches!(note, Note::PendingLog { .. }))
    {
        let reason =
            "a log is pending: `buttress filesystem sync` replays it, `buttress rescue zero-log` deletes it";
        return Some(reason.to_owned());
    }
    let is_first = |(code, grade, _): &&(&'static str, Grade, _)| {
        report.counts.contains_key(code)
            && kinds::row(code).is_some_and(|row| {
                let is_below = matches!(row.part, Part::Geometry | Part::Blocks | Part::Space);
                let is_of_devices = matches!(*code, "device-missing" | "device-behind");
                let is_rebuilt = may_rebuild && is_rebuilt(report, code);
                is_below && !is_rebuilt && (*grade >= Grade::Unsafe || is_of_devices)
            })
    };
    let (code, ..) = Finding::CODES.iter().find(is_first)?;
    Some(format!(
        "`{code}` comes first: until it is repaired, an edit could overwrite blocks in use"
    ))
}
