//! The rounds of a repair: check, plan, edit, commit, check.
//!
//! 1. The volume is opened for writing once. A view of its first state is held to the end, so no
//!    commit reuses a block of this state, and the guard can compare with it.
//! 2. Each round edits what the plan says and commits. A check through fresh caches then reads the
//!    devices. A round that does not lower the count of findings is the last one, unless it led to a
//!    step that did not run before.
//! 3. The guard compares the last state with the first.
//!
//! A repair writes to the devices that it gets. It cannot undo a commit: callers give overlays, and
//! discard an overlay whose outcome is not [`Kept::Better`].
//!
//! Opening for a repair neither replays a log nor removes inodes without links, as ordinary opening
//! for writing does: both trust the items that a repair is about to correct.

use crate::edits::{self, Indexes};
use crate::guard::{self, Lost};
use crate::items::{FileId, Items, Named};
use crate::plan::plan;
use crate::steps::{Applied, Edit, Left, Loss, Plan, Step};
use buttress_check::{Finding, Grade, Report};
use buttress_device::Device;
use buttress_engine::areas::ItemEdits;
use buttress_engine::engine::CommitStages;
use buttress_engine::{Engine, WriteOptions};
use buttress_exact::Exact as _;
use buttress_format::ByteCount;
use buttress_fs::error::WritingRefusal;
use buttress_fs::{OpenOptions, Progress, Result};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Options of a repair.
#[derive(Clone, Debug)]
pub struct Options {
    /// Codes of findings whose repair may lose what its step names. `all` stands for every code.
    pub yes_to: BTreeSet<String>,
    /// The most rounds.
    pub rounds_max: u32,
    /// The budget of the node cache.
    pub cache: ByteCount,
    /// Options of the checks after each round.
    pub check: buttress_check::Options,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            yes_to: BTreeSet::new(),
            rounds_max: 8,
            cache: ByteCount::new(64 << 20),
            check: buttress_check::Options::default(),
        }
    }
}

impl Options {
    /// Returns whether a step may run without a question.
    #[must_use]
    pub fn allows(&self, step: &Step) -> bool {
        let is_named = |code: &&str| self.yes_to.contains(*code);
        !step.loss.needs_consent() || self.yes_to.contains("all") || step.codes.iter().any(is_named)
    }
}

/// The verdict on a repair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kept {
    /// The volume has fewer findings, or less severe ones, and no file was lost.
    Better,
    /// The volume is not better than before.
    NotBetter,
    /// A file that was whole is not whole any more.
    LostFiles,
    /// No step ran.
    Unchanged,
}

impl Kept {
    /// Returns the verdict as a word of JSON output.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Better => "better",
            Self::NotBetter => "not-better",
            Self::LostFiles => "lost-files",
            Self::Unchanged => "unchanged",
        }
    }
}

/// A step that ran, and its result.
#[derive(Clone, Debug)]
pub struct Done {
    /// The round, from 1.
    pub round: u32,
    /// The step.
    pub step: Step,
    /// The result of the edit.
    pub applied: Applied,
}

/// The result of a repair.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// The report of the last check.
    pub after: Report,
    /// The steps that ran, in order.
    pub done: Vec<Done>,
    /// The steps without consent.
    pub refused: Vec<Step>,
    /// The findings of the last check without a step.
    pub left: Vec<Left>,
    /// Files that were whole before, and are not whole after.
    pub lost: Vec<Lost>,
    /// The verdict.
    pub kept: Kept,
}

/// Counts findings by grade, most severe first. A smaller vector is a better volume.
#[must_use]
pub fn severity(report: &Report) -> [u64; 4] {
    let mut counts = [0_u64; 4];
    for (code, grade, _) in Finding::CODES {
        // Clamp: a code without findings counts nothing.
        let count = report.counts.get(code).copied().unwrap_or(0);
        let place = match grade {
            Grade::Loss => &mut counts[0],
            Grade::Unsafe => &mut counts[1],
            Grade::Inconsistent => &mut counts[2],
            Grade::Redundancy => &mut counts[3],
        };
        *place = place.exact_add(count);
    }
    counts
}

/// Commit stages of a volume without dirty data.
#[derive(Debug)]
struct NoData;

impl CommitStages for NoData {
    fn write_back(self: Arc<Self>, _: &Engine) -> Result<()> {
        Ok(())
    }

    fn write_back_in_background(self: Arc<Self>, _: &Engine) -> Result<()> {
        Ok(())
    }
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
    let filesystem = OpenOptions::new(devices.to_vec()).cache(options.cache).open()?;
    let opening = Engine::open(filesystem, WriteOptions::default(), Arc::new(NoData))?;
    if opening.log.is_some() {
        return Err(WritingRefusal::State {
            name: "a pending log",
            remedy: "replay it with `buttress filesystem sync`, or delete it with `buttress rescue zero-log`",
        }
        .into());
    }
    let mut rounds = Rounds {
        devices,
        options,
        progress,
        engine: opening.end(),
        answers: BTreeMap::new(),
        announced: BTreeSet::new(),
        named: crate::plan::named(before),
        done: Vec::new(),
    };
    let first_state = rounds.engine.committed_view();
    let mut after = before.clone();
    let mut refused = Vec::new();
    for round in 1..=options.rounds_max {
        let (steps, without_consent) = rounds.with_consent(core::mem::take(&mut plan.steps), ask);
        refused = without_consent;
        if steps.is_empty() {
            break;
        }
        rounds.apply(round, steps)?;
        let report = rounds.check()?;
        let is_better = severity(&report) < severity(&after);
        after = report;
        plan = crate::plan::plan(&after);
        rounds.named = crate::plan::named(&after);
        if !is_better && !rounds.is_new(&plan) {
            break;
        }
    }
    let lost = rounds.lost(&first_state)?;
    drop(first_state);
    let done = core::mem::take(&mut rounds.done);
    rounds.engine.close()?;
    let mut left = plan.left;
    left.extend(plan.steps.into_iter().flat_map(unfinished));
    let kept = verdict(before, &after, &lost, &done);
    Ok(Outcome {
        after,
        done,
        refused,
        left,
        lost,
        kept,
    })
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

/// Returns the findings of a step that a last round left.
fn unfinished(step: Step) -> Vec<Left> {
    let code = step.codes.first().copied();
    let findings = step.findings.into_iter();
    let left = findings.filter_map(|finding| {
        Some(Left {
            code: code?,
            finding,
            reason: "the repair ended before this step, or the step did not help".to_owned(),
        })
    });
    left.collect()
}

fn verdict(before: &Report, after: &Report, lost: &[Lost], done: &[Done]) -> Kept {
    if done.is_empty() {
        return Kept::Unchanged;
    }
    if !lost.is_empty() {
        return Kept::LostFiles;
    }
    if severity(after) < severity(before) || buttress_faults::on("repair-keeps-worse") {
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
        ItemEdits::of(&self.engine).edit(edits::PLACES, |running| {
            edit(&mut Items {
                running,
                now,
                touched,
                named: &self.named,
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

    /// Checks the committed state, through caches that no commit has filled.
    fn check(&self) -> Result<Report> {
        let filesystem = OpenOptions::new(self.devices.to_vec())
            .cache(self.options.cache)
            .for_inspection(true)
            .open()?;
        buttress_check::check(&filesystem, &self.options.check, self.progress)
    }

    fn lost(&self, first_state: &buttress_fs::Filesystem) -> Result<Vec<Lost>> {
        let last_state = self.engine.committed_view();
        guard::lost(first_state, &last_state, &self.announced, self.progress)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
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
        let judge = |after: &Report, lost: &[Lost]| verdict(&before, after, lost, &[done()]);
        assert_eq!(judge(&less_severe, &[]), Kept::Better);
        assert_eq!(judge(&more_severe, &[]), Kept::NotBetter);
        assert_eq!(judge(&before, &[]), Kept::NotBetter);
        assert_eq!(judge(&less_severe, &[lost]), Kept::LostFiles);
        assert_eq!(verdict(&before, &before, &[], &[]), Kept::Unchanged);
    }
}
