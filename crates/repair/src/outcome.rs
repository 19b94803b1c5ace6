//! The options of a repair and its outcome.

use crate::guard::Lost;
use crate::steps::{Applied, Left, Step};
use buttress_check::{Finding, Grade, Report};
use buttress_exact::Exact as _;
use buttress_format::ByteCount;
use std::collections::BTreeSet;
use std::path::PathBuf;

/// Options of a repair.
#[derive(Clone, Debug)]
pub struct Options {
    /// Codes of findings whose repair may lose what its step names. `all` stands for every code.
    pub yes_to: BTreeSet<String>,
    /// The most rounds.
    pub rounds_max: u32,
    /// The budget of the node cache.
    pub cache: ByteCount,
    /// The folder of records that exceed the budget; `None` for the system's temporary folder.
    pub spool: Option<PathBuf>,
    /// Options of the checks after each round.
    pub check: buttress_check::Options,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            yes_to: BTreeSet::new(),
            rounds_max: 8,
            cache: ByteCount::new(64 << 20),
            spool: None,
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
