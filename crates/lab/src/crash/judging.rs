//! A judge over the states after a crash: every cut of a history, and the problems that the caller
//! finds there.
//!
//! A judge opens the devices as a program would after a reboot, and returns the problem, if any. A
//! panic of the judge becomes a complaint with the panic's message, so `assert!` also works.

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

/// The states of a history that a judge inspects.
///
/// By default there are four states for each cut: all writes in doubt present, no write in doubt
/// present, and two drawn states. A cut without writes in doubt has one state.
#[derive(Clone, Debug)]
pub struct Cuts {
    step: usize,
    /// The chosen outcomes of the writes in doubt at each cut.
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
    /// Chooses every cut: before the first event, and after each.
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

    /// Judges a single crash state, to reproduce a complaint.
    #[must_use]
    pub fn only(cut: usize, outcome: Outcome) -> Self {
        Self {
            outcomes: vec![outcome],
            only: Some(cut),
            ..Self::every()
        }
    }

    /// Chooses only every `step`th cut, starting with the first. A step of 0 counts as 1.
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

    /// Sets the number of judging threads. 0 counts as 1.
    #[must_use]
    pub fn threads(mut self, threads: usize) -> Self {
        self.threads = threads.max(1);
        self
    }

    /// Sets the number of complaints that ends the judging. 0 counts as 1.
    #[must_use]
    pub fn complaints(mut self, complaints: usize) -> Self {
        self.complaints = complaints.max(1);
        self
    }
}

/// The devices after a crash, and the program's promises before it.
#[derive(Debug)]
pub struct CutState<'a> {
    history: &'a History,
    cut: usize,
    outcome: Outcome,
    images: Vec<Arc<dyn Backend>>,
}

impl CutState<'_> {
    /// Returns the cut: the number of events before the power failure.
    #[must_use]
    pub const fn cut(&self) -> usize {
        self.cut
    }

    /// Returns the outcome of the writes in doubt.
    #[must_use]
    pub const fn outcome(&self) -> Outcome {
        self.outcome
    }

    /// Returns the devices in the order of the run, as [`Engine::Inline`] serves them. The judge
    /// may write to the devices: such writes reach neither the history nor another state.
    #[must_use]
    pub fn devices(&self) -> Vec<Device> {
        let images = self.images.iter();
        images
            .map(|image| Device::with_backend(Arc::clone(image), Engine::Inline))
            .collect()
    }

    /// Returns the same devices without a queue, so that a test can put others over them, or record
    /// a recovery.
    #[must_use]
    pub fn backends(&self) -> Vec<Arc<dyn Backend>> {
        self.images.clone()
    }

    /// Returns the label that the program set last before the cut.
    #[must_use]
    pub fn last_mark(&self) -> Option<u64> {
        self.history.last_mark(self.cut)
    }

    /// Returns the labels of all marks before the cut, in order. A program with several threads
    /// needs all marks, because each thread marks its own promises.
    pub fn marks(&self) -> impl DoubleEndedIterator<Item = u64> {
        self.history.marks(self.cut)
    }

    /// Returns the history that contains the cut.
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
    /// The text of the judge's complaint.
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
    /// The complaints, in the order of cuts. At the limit of [`Cuts::complaints`] the judging ended
    /// early.
    pub complaints: Vec<Complaint>,
}

impl Verdict {
    /// Returns the number of judged states.
    ///
    /// # Errors
    /// The judge complained.
    pub fn accepted(self) -> Result<usize, Rejected> {
        match self.complaints.is_empty() {
            true => Ok(self.states),
            false => Err(Rejected(self)),
        }
    }
}

/// A verdict with complaints, as an error that lists them.
///
/// A program that ends with this error prints the list, because [`Debug`](fmt::Debug) prints as
/// [`Display`](fmt::Display).
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

/// The cuts to judge, in ascending order.
struct Queue {
    next: Option<usize>,
}

impl History {
    /// Calls `judge` for the devices at cuts of this history. The judge returns the problem of a
    /// crash state, if any.
    ///
    /// The verdict does not depend on the number of threads, except after the number of complaints
    /// that ends the judging.
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

    /// Takes the next cut out of the queue. Threads take turns, because each state continues the
    /// previous state.
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
