//! A judge over what a crash leaves: every cut of a history, and what the caller finds wrong with it.
//!
//! A judge opens the devices as a program would after a reboot, and returns what is wrong. A judge that panics complains with
//! the message of its panic, so `assert!` serves as well.

use std::any::Any;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use buttress_device::{Backend, Device, Engine};
use buttress_locks::unscheduled::Mutex;
use buttress_locks::{Rank, lock_class};

use super::history::{History, Outcome, State};

lock_class!(QueueLock, "queue", Rank::new(82).over_device());
lock_class!(VerdictLock, "verdict", Rank::LEAF);

/// The number of complaints that ends the judging by default ([`Cuts::complaints`]).
const COMPLAINTS: usize = 8;

/// Which states of a history a judge sees.
///
/// Without further calls: at every cut, the state with everything in doubt, the state with nothing
/// of it, and two that are drawn. A cut at which no write is in doubt has only one possible state.
#[derive(Clone, Debug)]
pub struct Cuts {
    step: usize,
    /// The outcomes of the writes in doubt.
    outcomes: Vec<Outcome>,
    only: Option<usize>,
    threads: usize,
    complaints: usize,
}

impl Default for Cuts {
    fn default() -> Self {
        Self::every()
    }
}

impl Cuts {
    /// Every possible cut of the history: before the first event, and after each event.
    #[must_use]
    pub fn every() -> Self {
        let cuts = Self {
            step: 1,
            outcomes: Vec::new(),
            only: None,
            threads: 1,
            complaints: COMPLAINTS,
        };
        cuts.draws(2)
    }

    /// Judges a single state, to repeat a complaint.
    #[must_use]
    pub fn only(cut: usize, outcome: Outcome) -> Self {
        Self {
            outcomes: vec![outcome],
            only: Some(cut),
            ..Self::every()
        }
    }

    /// Judges only every `step`th cut, beginning with the first cut. 0 is taken as 1.
    #[must_use]
    pub fn step(mut self, step: usize) -> Self {
        self.step = step.max(1);
        self
    }

    /// Sets the number of random states of each cut, besides the two extremes.
    #[must_use]
    pub fn draws(mut self, draws: u64) -> Self {
        self.outcomes = vec![Outcome::AllKept, Outcome::NoneKept];
        self.outcomes
            .extend((0..draws).map(|seed| Outcome::Drawn { seed }));
        self
    }

    /// Judges on so many threads. 0 is taken as 1.
    #[must_use]
    pub fn threads(mut self, threads: usize) -> Self {
        self.threads = threads.max(1);
        self
    }

    /// Ends the judging after so many complaints. 0 is taken as 1.
    #[must_use]
    pub fn complaints(mut self, complaints: usize) -> Self {
        self.complaints = complaints.max(1);
        self
    }
}

/// The devices after a crash, and what the program had promised by then.
#[derive(Debug)]
pub struct CutState<'a> {
    history: &'a History,
    cut: usize,
    outcome: Outcome,
    images: Vec<Arc<dyn Backend>>,
}

impl CutState<'_> {
    /// Returns the cut: the number of recorded events before the simulated power loss.
    #[must_use]
    pub const fn cut(&self) -> usize {
        self.cut
    }

    /// Returns the outcome that was chosen for the writes that no flush covered.
    #[must_use]
    pub const fn outcome(&self) -> Outcome {
        self.outcome
    }

    /// Returns the devices in the order in which the program used them, as [`Engine::Inline`]
    /// serves them. They can be written to; nothing of this reaches the history or another state.
    #[must_use]
    pub fn devices(&self) -> Vec<Device> {
        let images = self.images.iter();
        images
            .map(|image| Device::with_backend(Arc::clone(image), Engine::Inline))
            .collect()
    }

    /// Returns the same devices without a queue: to put others over them, or to record what a recovery does.
    #[must_use]
    pub fn backends(&self) -> Vec<Arc<dyn Backend>> {
        self.images.clone()
    }

    /// Returns the label that the program set last before the cut.
    #[must_use]
    pub fn last_mark(&self) -> Option<u64> {
        self.history.last_mark(self.cut)
    }

    /// Returns the labels of all marks before the cut, in order: for programs with several threads, each of which marks
    /// what it was promised itself.
    pub fn marks(&self) -> impl DoubleEndedIterator<Item = u64> {
        self.history.marks(self.cut)
    }

    /// Returns the history that the state is cut from.
    #[must_use]
    pub const fn history(&self) -> &History {
        self.history
    }
}

/// The complaint of a judge about one state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Complaint {
    /// The number of events before the power cut.
    pub cut: usize,
    /// The outcome of the writes in doubt.
    pub outcome: Outcome,
    /// The last mark before the cut.
    pub last_mark: Option<u64>,
    /// The words of the judge.
    pub problem: String,
}

impl fmt::Display for Complaint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            cut,
            outcome,
            last_mark,
            problem,
        } = self;
        write!(f, "cut {cut}, {outcome:?}")?;
        if let Some(mark) = last_mark {
            write!(f, ", after mark {mark}")?;
        }
        write!(f, ": {problem}")
    }
}

/// The findings of a judge.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Verdict {
    /// The number of judged states.
    pub states: usize,
    /// The judge's complaints, in the order of cuts. Judging ended early if there are as many as
    /// were asked for.
    pub complaints: Vec<Complaint>,
}

impl Verdict {
    /// Returns the number of judged states.
    ///
    /// # Errors
    /// If the judge complained.
    pub fn accepted(self) -> Result<usize, Rejected> {
        match self.complaints.is_empty() {
            true => Ok(self.states),
            false => Err(Rejected(self)),
        }
    }
}

/// A verdict with complaints, as an error that lists them.
///
/// A program that ends with this error prints the list, since [`Debug`](fmt::Debug) is as [`Display`](fmt::Display).
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[error("{} of {} states after a power cut are wrong; `Cuts::only(CUT, OUTCOME)` repeats one{}", .0.complaints.len(), .0.states, listed(&.0.complaints))]
pub struct Rejected(pub Verdict);

impl fmt::Debug for Rejected {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

fn listed(complaints: &[Complaint]) -> String {
    let lines = complaints.iter().map(|complaint| format!("\n  {complaint}"));
    lines.collect()
}

/// The cuts that are to be judged, in ascending order.
struct Queue {
    next: Option<usize>,
}

impl History {
    /// Has `judge` inspect the devices at cuts of this history. The judge returns what is wrong with a state.
    ///
    /// Whatever the number of threads, the verdict is the same, except after the number of complaints that ends it.
    pub fn judge<E: fmt::Display>(
        &self,
        cuts: &Cuts,
        judge: impl Fn(&CutState<'_>) -> Result<(), E> + Sync,
    ) -> Verdict {
        let first = cuts.only.unwrap_or(0);
        let queue = Mutex::<Queue, QueueLock>::new(Queue {
            next: (first <= self.len()).then_some(first),
        });
        let verdict = Mutex::<Verdict, VerdictLock>::new(Verdict::default());
        let enough = AtomicBool::new(false);
        let work = || {
            while !enough.load(Ordering::Acquire) {
                let Some(state) = self.next_cut(cuts, &queue) else {
                    return;
                };
                let (states, complaints) = self.judge_cut(cuts, &state, &judge);
                let mut verdict = verdict.lock();
                verdict.states = verdict.states.saturating_add(states);
                verdict.complaints.extend(complaints);
                if verdict.complaints.len() >= cuts.complaints {
                    enough.store(true, Ordering::Release);
                }
            }
        };
        thread::scope(|scope| {
            for _ in 1..cuts.threads {
                scope.spawn(work);
            }
            work();
        });
        let mut verdict = std::mem::take(&mut *verdict.lock());
        verdict.complaints.sort_by_key(|complaint| complaint.cut);
        verdict
    }

    /// Takes the next cut out of the queue. Threads take turns, since one state comes from the one before.
    fn next_cut(&self, cuts: &Cuts, queue: &Mutex<Queue, QueueLock>) -> Option<State> {
        let mut queue = queue.lock();
        let cut = queue.next?;
        queue.next = match cuts.only {
            Some(_) => None,
            None => cut.checked_add(cuts.step).filter(|next| *next <= self.len()),
        };
        Some(self.state_at(cut))
    }

    fn judge_cut<E: fmt::Display>(
        &self,
        cuts: &Cuts,
        state: &State,
        judge: &impl Fn(&CutState<'_>) -> Result<(), E>,
    ) -> (usize, Vec<Complaint>) {
        let outcomes = match state.is_certain() {
            true => cuts.outcomes.get(..1).unwrap_or_default(),
            false => &cuts.outcomes,
        };
        let mut complaints = Vec::new();
        for outcome in outcomes {
            let found = CutState {
                history: self,
                cut: state.cut(),
                outcome: *outcome,
                images: self.images_of(state.clone(), *outcome),
            };
            let problem = match catch_unwind(AssertUnwindSafe(|| judge(&found))) {
                Ok(Ok(())) => continue,
                Ok(Err(problem)) => problem.to_string(),
                Err(panic) => format!("the judge panicked: {}", message_of(panic.as_ref())),
            };
            complaints.push(Complaint {
                cut: found.cut,
                outcome: *outcome,
                last_mark: found.last_mark(),
                problem,
            });
        }
        (outcomes.len(), complaints)
    }
}

/// Returns the message of a panic.
fn message_of(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("without a message")
}
