//! The rounds of a repair: check, plan, edit, commit, check.
//!
//! 1. The volume is opened for writing once. A view of its first state is held to the end, so no
//!    commit reuses a block of this state, and the guard can compare with it.
//! 2. Each round edits what the plan says and commits. A check through fresh caches then reads the
//!    devices. A round that does not lower the count of findings is the last one, unless it led to a
//!    step that did not run before.
//! 3. The guard compares the last state with the first.
//!
//! A rebuild of the trees that account for space comes before the first round, if a finding needs it
//! (`space`). The rounds then begin with its result. They allocate no block that a rebuild replaced,
//! so the overlay of a repair never changes a block of the volume's first state.
//!
//! A superblock of another state needs consent before any write, because each commit overwrites it.
//!
//! A repair writes to the devices that it gets. It cannot undo a commit: callers give overlays, and
//! discard an overlay whose outcome is not [`Kept::Better`].
//!
//! Opening for a repair neither replays a log nor removes inodes without links, as ordinary opening
//! for writing does: both trust the items that a repair is about to correct.

mod space;

pub(crate) use space::reason;

use crate::edits::{self, Indexes};
use crate::guard::{self, Lost};
use crate::items::{FileId, Items, Named};
use crate::outcome::{Done, Kept, Options, Outcome, severity};
use crate::plan::plan;
use crate::steps::{Edit, Left, Loss, Plan, Step};
use buttress_check::Report;
use buttress_device::Device;
use buttress_engine::areas::ItemEdits;
use buttress_engine::engine::CommitStages;
use buttress_engine::{Engine, WriteOptions};
use buttress_fs::error::WritingRefusal;
use buttress_fs::{OpenOptions, Progress, Result};
use buttress_volume::Volume;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Commit stages of a volume without dirty data.
#[derive(Debug)]
pub(crate) struct NoData;

/// The name of the state in which no repair runs.
pub(crate) const PENDING_LOG: &str = "a pending log";

/// The remedy for a pending log.
pub(crate) const LOG_REMEDY: &str =
    "replay it with `buttress filesystem sync`, or delete it with `buttress rescue zero-log`";

impl CommitStages for NoData {
    fn write_back(self: Arc<Self>, _: &Engine) -> Result<()> {
        Ok(())
    }

    fn write_back_in_background(self: Arc<Self>, _: &Engine) -> Result<()> {
        Ok(())
    }
}

/// The volume and the limits of a repair.
struct Job<'a> {
    devices: &'a [Device],
    options: &'a Options,
    progress: &'a Progress,
    /// The addresses of blocks that a rebuild replaced.
    held: &'a [u64],
}

/// A repair in progress.
struct Rounds<'a> {
    devices: &'a [Device],
    options: &'a Options,
    progress: &'a Progress,
    engine: Engine,
    /// The owner's answers, by edit.
    answers: BTreeMap<Edit, bool>,
    announced: BTreeSet<FileId>,
    /// The inode numbers that the findings of the last check name.
    named: Named,
    done: Vec<Done>,
}

/// Repairs the volume on `devices`, whose check reported `before`. Calls `ask` once for each step
/// that may lose something and that [`Options::yes_to`] does not allow.
///
/// # Errors
/// Fails if the volume refuses writing, or with an error of a device or a tree. The volume then has
/// the state of the last commit. Damage that the plan leaves is no error, but part of the outcome.
pub fn run(
    devices: &[Device],
    before: &Report,
    options: &Options,
    ask: &mut dyn FnMut(&Step) -> bool,
    progress: &Progress,
) -> Result<Outcome> {
    let mut plan = plan(before);
    if plan.steps.is_empty() {
        return Ok(unchanged(before, plan));
    }
    let mut outcome = Outcome {
        after: before.clone(),
        done: Vec::new(),
        refused: Vec::new(),
        left: Vec::new(),
        lost: Vec::new(),
        kept: Kept::Unchanged,
    };
    let mut answers = BTreeMap::new();
    let refuses = |step: &mut Step| {
        let is_of_superblocks = step.edit == Edit::Superblocks && !options.allows(step);
        is_of_superblocks && !*answers.entry(step.edit.clone()).or_insert_with(|| ask(step))
    };
    outcome.refused.extend(plan.steps.extract_if(.., refuses));
    if !outcome.refused.is_empty() {
        // Each commit would write these superblocks.
        outcome.left = plan.left;
        let rest = plan.steps.into_iter();
        outcome
            .left
            .extend(rest.flat_map(|step| left(step, SUPERBLOCKS_FIRST)));
        return Ok(outcome);
    }
    let mut held = Vec::new();
    loop {
        let rebuilds = plan.steps.extract_if(.., |step| step.edit.is_rebuild());
        let rebuilds: Vec<Step> = rebuilds.collect();
        if rebuilds.is_empty() {
            break;
        }
        plan = space::rebuild(devices, rebuilds, options, progress, &mut held, &mut outcome)?;
    }
    if !plan.steps.is_empty() {
        let job = Job {
            devices,
            options,
            progress,
            held: &held,
        };
        plan = edit_in_rounds(&job, plan, answers, ask, &mut outcome)?;
    }
    outcome.left = plan.left;
    let rest = plan.steps.into_iter();
    outcome.left.extend(rest.flat_map(|step| left(step, UNFINISHED)));
    outcome.kept = verdict(before, &outcome);
    Ok(outcome)
}

/// Edits the volume in rounds. Returns the plan for the findings that are left.
fn edit_in_rounds(
    job: &Job<'_>,
    mut plan: Plan,
    answers: BTreeMap<Edit, bool>,
    ask: &mut dyn FnMut(&Step) -> bool,
    outcome: &mut Outcome,
) -> Result<Plan> {
    let Job {
        devices,
        options,
        progress,
        held,
    } = *job;
    let filesystem = OpenOptions::new(devices.to_vec()).cache(options.cache).open()?;
    let opening = Engine::open(filesystem, WriteOptions::default(), Arc::new(NoData))?;
    if opening.log.is_some() {
        return Err(WritingRefusal::State {
            name: PENDING_LOG,
            remedy: LOG_REMEDY,
        }
        .into());
    }
    ItemEdits::of(&opening.engine).keep_blocks(held)?;
    let mut rounds = Rounds {
        devices,
        options,
        progress,
        engine: opening.end(),
        answers,
        announced: BTreeSet::new(),
        named: crate::plan::named(&outcome.after),
        done: core::mem::take(&mut outcome.done),
    };
    let first_state = rounds.engine.committed_view();
    for round in 1..=options.rounds_max {
        let (steps, without_consent) = rounds.with_consent(core::mem::take(&mut plan.steps), ask);
        outcome.refused = without_consent;
        if steps.is_empty() {
            break;
        }
        rounds.apply(round, steps)?;
        let report = rounds.check()?;
        let is_better = severity(&report) < severity(&outcome.after);
        outcome.after = report;
        plan = crate::plan::plan_after_rebuild(&outcome.after, space::ONCE);
        rounds.named = crate::plan::named(&outcome.after);
        if !is_better && !rounds.is_new(&plan) {
            break;
        }
    }
    outcome.lost.extend(rounds.lost(&first_state)?);
    drop(first_state);
    outcome.done = core::mem::take(&mut rounds.done);
    rounds.engine.close()?;
    Ok(plan)
}

/// Returns the outcome of a plan without steps.
fn unchanged(before: &Report, plan: Plan) -> Outcome {
    Outcome {
        after: before.clone(),
        done: Vec::new(),
        refused: Vec::new(),
        left: plan.left,
        lost: Vec::new(),
        kept: Kept::Unchanged,
    }
}

/// The reason of findings whose step did not run, or did not help.
const UNFINISHED: &str = "the repair ended before this step, or the step did not help";

/// The reason of findings beside a superblock that no commit may overwrite.
const SUPERBLOCKS_FIRST: &str = "a commit would overwrite the other state that a superblock names: `--yes-to superblock-differs` allows it";

/// Returns the findings of a step that did not run, for a reason.
fn left(step: Step, reason: &str) -> Vec<Left> {
    let code = step.codes.first().copied();
    let findings = step.findings.into_iter();
    let left = findings.filter_map(|finding| {
        Some(Left {
            code: code?,
            finding,
            reason: reason.to_owned(),
        })
    });
    left.collect()
}

fn verdict(before: &Report, outcome: &Outcome) -> Kept {
    if outcome.done.is_empty() {
        return Kept::Unchanged;
    }
    if !outcome.lost.is_empty() {
        return Kept::LostFiles;
    }
    if severity(&outcome.after) < severity(before) || buttress_faults::on("repair-keeps-worse") {
        Kept::Better
    } else {
        Kept::NotBetter
    }
}

impl Rounds<'_> {
    /// Returns whether a plan has a step that did not run yet. A quota group that a round made, for
    /// instance, needs its counts.
    fn is_new(&self, plan: &Plan) -> bool {
        let ran: BTreeSet<&Edit> = self.done.iter().map(|done| &done.step.edit).collect();
        plan.steps.iter().any(|step| !ran.contains(&step.edit))
    }

    /// Parts steps into those that may run, and those without consent.
    fn with_consent(
        &mut self,
        steps: Vec<Step>,
        ask: &mut dyn FnMut(&Step) -> bool,
    ) -> (Vec<Step>, Vec<Step>) {
        steps.into_iter().partition(|step| {
            if self.options.allows(step) {
                return true;
            }
            *self.answers.entry(step.edit.clone()).or_insert_with(|| ask(step))
        })
    }

    /// Applies the steps of a round, and commits.
    fn apply(&mut self, round: u32, steps: Vec<Step>) -> Result<()> {
        let mut indexes = Indexes::default();
        for step in &steps {
            if let Edit::Name(tree, directory, name) = &step.edit {
                indexes.want(*tree, *directory, name);
            }
        }
        let mut touched = BTreeSet::new();
        for step in steps {
            self.progress.check()?;
            self.announce(&step);
            let applied = self.edit(&mut touched, |items| edits::apply(items, &step, &mut indexes))?;
            self.done.push(Done { round, step, applied });
        }
        for (tree, inode) in core::mem::take(&mut touched) {
            self.progress.check()?;
            self.edit(&mut touched, |items| edits::recount(items, tree, inode))?;
        }
        self.engine.commit().map(drop)
    }

    fn edit<T>(
        &self,
        touched: &mut BTreeSet<FileId>,
        edit: impl FnOnce(&mut Items<'_>) -> Result<T>,
    ) -> Result<T> {
        let now = self.engine.now();
        let view = self.engine.committed_view();
        let volume: &Volume = view.volume();
        let accepts = |code: &str| self.options.yes_to.contains(code);
        let accepts_data = accepts("checksum-missing") || accepts("all");
        ItemEdits::of(&self.engine).edit(edits::PLACES, |running| {
            edit(&mut Items {
                running,
                now,
                touched,
                named: &self.named,
                volume,
                accepts_data,
                undo: Vec::new(),
            })
        })
    }

    /// Notes the inodes whose loss a step names.
    fn announce(&mut self, step: &Step) {
        if step.loss == Loss::Nothing {
            return;
        }
        let (tree, inode) = match &step.edit {
            Edit::MakeInode(tree, inode) | Edit::Directory(tree, inode) => (*tree, Some(*inode)),
            Edit::Name(tree, ..) => (*tree, None),
            _ => return,
        };
        let inodes = inode.into_iter().chain(step.hints.inodes.iter().copied());
        self.announced.extend(inodes.map(|inode| (tree, inode)));
    }

    /// Checks the committed state.
    fn check(&self) -> Result<Report> {
        space::check(self.devices, self.options, self.progress)
    }

    fn lost(&self, first_state: &buttress_fs::Filesystem) -> Result<Vec<Lost>> {
        let last_state = self.engine.committed_view();
        guard::lost(first_state, &last_state, &self.announced, self.progress)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::steps::Applied;
    use buttress_format::{InodeNumber, SubvolumeId, TreeId};

    fn report(counts: &[(&'static str, u64)]) -> Report {
        Report {
            counts: counts.iter().copied().collect(),
            ..Report::default()
        }
    }

    fn done() -> Done {
        Done {
            round: 1,
            step: Step {
                codes: BTreeSet::from(["link-count"]),
                findings: Vec::new(),
                what: String::new(),
                evidence: "",
                loss: Loss::Nothing,
                affected: BTreeSet::new(),
                edit: Edit::Recount(TreeId::FS, InodeNumber::new(257)),
                hints: crate::steps::Hints::default(),
            },
            applied: Applied::Changed,
        }
    }

    #[test]
    fn verdict_keeps_only_a_better_volume() {
        let before = report(&[("entry-missing", 1), ("link-count", 1)]);
        let less_severe = report(&[("link-count", 9)]);
        let more_severe = report(&[("entry-missing", 2)]);
        let lost = Lost {
            subvolume: SubvolumeId::TOP_LEVEL,
            inode: InodeNumber::new(257),
            paths: Vec::new(),
            what: "the inode is gone",
        };
        let outcome = |after: &Report, lost: &[Lost], done: Vec<Done>| Outcome {
            after: after.clone(),
            done,
            refused: Vec::new(),
            left: Vec::new(),
            lost: lost.to_vec(),
            kept: Kept::Unchanged,
        };
        let judge = |after: &Report, lost: &[Lost]| verdict(&before, &outcome(after, lost, vec![done()]));
        assert_eq!(judge(&less_severe, &[]), Kept::Better);
        assert_eq!(judge(&more_severe, &[]), Kept::NotBetter);
        assert_eq!(judge(&before, &[]), Kept::NotBetter);
        assert_eq!(judge(&less_severe, &[lost]), Kept::LostFiles);
        assert_eq!(
            verdict(&before, &outcome(&before, &[], Vec::new())),
            Kept::Unchanged
        );
    }
}
