//! The search for an order of calls that explains all answers.
//!
//! The search is depth-first over orders in which every call precedes those that began after its
//! end (Wing and Gong). The search remembers pairs of a call set and its resulting state without an
//! order, and skips them (Lowe). If a call agrees with a state without changing it, the search can
//! always put the call next. The search for an order therefore branches only at changes.
//!
//! If no order exists, the search looks for the shortest part of the record without an order: the
//! calls that ended by some moment, and calls then in progress. From this shortest part the search
//! removes every call that changed nothing and without which there is still no order.

use super::agreement::{Agreement, State, expected};
use super::call::{Answer, Call};
use super::observation::Observation;
use super::record::Record;
use crate::writing::model::Model;
use crate::writing::operation::Operation;
use std::collections::HashSet;
use std::fmt::Write as _;

/// Set of events in an order, one bit for each event.
type Set = u128;

/// Largest number of states that the search tries.
const STATES_MAX: usize = 400_000;

/// A moment at which a record takes effect.
#[derive(Clone, Copy, Debug)]
struct Event {
    /// Index of the record in the history.
    record: usize,
    /// True if the event freezes the source of a snapshot; false if the call takes effect.
    freezes: bool,
    /// Event of the same record that must come earlier.
    after: Option<usize>,
    begin: u64,
    /// End of the call; `None` for a call in progress, which an order may omit.
    end: Option<u64>,
}

/// No order explains the record.
#[derive(Debug)]
pub struct NoOrder(pub String);

struct Search<'a> {
    records: &'a [Record],
    events: Vec<Event>,
    last: Option<&'a Observation>,
    /// Observed contents of this round's snapshots.
    snapshots: Option<&'a Observation>,
    tried: HashSet<(Set, u64)>,
    states: usize,
    path: Vec<usize>,
    /// Longest order so far: its length, the state after it, its events, and the reason why it
    /// ends.
    deepest: (u32, Option<Model>, Set, String),
}

/// Finds an order of the records that begins with this state and ends in the observed one. Returns
/// the model after the found order.
///
/// # Errors
/// [`NoOrder`], with the smallest part of the record that has none.
pub fn explain(model: &Model, records: &[Record], last: &Observation) -> Result<Model, NoOrder> {
    let all: Vec<(Record, bool)> = records.iter().cloned().map(|record| (record, true)).collect();
    match search(model, &all, Some(last), last) {
        Ok(model) => Ok(model),
        Err(Failure {
            is_too_large: true,
            told,
        }) => Err(NoOrder(told)),
        Err(whole) => Err(NoOrder(smallest(model, records, last).unwrap_or(whole.told))),
    }
}

struct Failure {
    is_too_large: bool,
    told: String,
}

fn search(
    model: &Model,
    records: &[(Record, bool)],
    last: Option<&Observation>,
    snapshots: &Observation,
) -> Result<Model, Failure> {
    let mut events: Vec<Event> = Vec::new();
    for (number, (record, must)) in records.iter().enumerate() {
        let end = must.then_some(record.end);
        let event = |freezes, after| Event {
            record: number,
            freezes,
            after,
            begin: record.begin,
            end,
        };
        let is_snapshot = is_snapshot(record);
        let freeze = is_snapshot.then_some(events.len());
        if is_snapshot {
            events.push(event(true, None));
        }
        events.push(event(false, freeze));
    }
    let has_snapshots = events.iter().any(|event| event.freezes);
    let plain: Vec<Record> = records.iter().map(|(record, _)| record.clone()).collect();
    let mut search = Search {
        records: &plain,
        events,
        last,
        snapshots: Some(snapshots),
        tried: HashSet::new(),
        states: 0,
        path: Vec::new(),
        deepest: (0, None, 0, String::new()),
    };
    let found = search.go_on(State::new(model.clone(), has_snapshots), 0);
    match found {
        Some(model) => Ok(model),
        None => Err(Failure {
            is_too_large: search.states > STATES_MAX,
            told: search.tell(),
        }),
    }
}

fn is_snapshot(record: &Record) -> bool {
    matches!(
        (&record.call, &record.answer),
        (Call::Change(Operation::Snapshot(..)), Answer::Subvolume(_))
    )
}

impl Search<'_> {
    fn is_in(set: Set, event: usize) -> bool {
        set >> event & 1 == 1
    }

    /// Returns the events that can come next; calls with the earliest end come first.
    fn next(&self, done: Set) -> Vec<usize> {
        let left = || (0..self.events.len()).filter(|event| !Self::is_in(done, *event));
        let first_end = left()
            .filter_map(|event| self.events[event].end)
            .min()
            .unwrap_or(u64::MAX);
        let mut next: Vec<usize> = left()
            .filter(|event| {
                let event = &self.events[*event];
                event.begin < first_end && event.after.is_none_or(|before| Self::is_in(done, before))
            })
            .collect();
        next.sort_by_key(|event| self.events[*event].end.unwrap_or(u64::MAX));
        next
    }

    fn try_event(&self, state: &State, event: usize) -> Agreement {
        let Event { record, freezes, .. } = self.events[event];
        if freezes {
            return match state.freeze(record, &self.records[record], self.snapshots) {
                Some(next) => Agreement::Next(Box::new(next)),
                None => Agreement::No,
            };
        }
        state.agree(record, &self.records[record])
    }

    /// Continues the search from a state with an order of the earlier calls. Returns the model
    /// after the whole order.
    fn go_on(&mut self, state: State, done: Set) -> Option<Model> {
        self.states += 1;
        if self.states > STATES_MAX {
            return None;
        }
        let length = self.path.len();
        let mut done = done;
        while let Some(event) = self
            .next(done)
            .into_iter()
            .find(|event| matches!(self.try_event(&state, *event), Agreement::Same))
        {
            done |= 1 << event;
            self.path.push(event);
        }
        if let Some(model) = self.end(&state, done) {
            return Some(model);
        }
        let key = (done, state.fingerprint());
        if self.tried.insert(key) {
            for event in self.next(done) {
                if let Agreement::Next(next) = self.try_event(&state, event) {
                    self.path.push(event);
                    let found = self.go_on(*next, done | 1 << event);
                    if found.is_some() {
                        return found;
                    }
                    self.path.pop();
                }
            }
        }
        self.path.truncate(length);
        None
    }

    /// Returns the model if the order may end here; records its length otherwise.
    fn end(&mut self, state: &State, done: Set) -> Option<Model> {
        let is_all =
            (0..self.events.len()).all(|event| Self::is_in(done, event) || self.events[event].end.is_none());
        let difference = self
            .last
            .filter(|_| is_all)
            .and_then(|last| last.difference(&state.model));
        if is_all && difference.is_none() {
            return Some(state.model.clone());
        }
        if done.count_ones() >= self.deepest.0 {
            let why = difference.map_or_else(String::new, |difference| format!("at the end {difference}\n"));
            self.deepest = (done.count_ones(), Some(state.model.clone()), done, why);
        }
        None
    }

    /// Describes the longest order, and the events that could not follow it.
    fn tell(&self) -> String {
        let (_, model, done, why) = &self.deepest;
        let mut told = String::new();
        if self.states > STATES_MAX {
            let _ = writeln!(told, "no order within {STATES_MAX} states");
        }
        for record in self.records {
            let _ = writeln!(told, "    {record}");
        }
        let _ = writeln!(told, "the longest order that explains answers leaves out:");
        for event in (0..self.events.len()).filter(|event| !Self::is_in(*done, *event)) {
            let record = &self.records[self.events[event].record];
            let _ = write!(told, "    {record}");
            if let Some(model) = model {
                let _ = write!(
                    told,
                    "\n        the model then: {}",
                    expected(model, &record.call)
                );
            }
            let _ = writeln!(told);
        }
        told += why;
        told
    }
}

/// Describes the smallest part of a record without an order. Returns `None` if an order exists and
/// only the final observation has no explanation.
fn smallest(model: &Model, records: &[Record], snapshots: &Observation) -> Option<String> {
    let mut ends: Vec<u64> = records.iter().map(|record| record.end).collect();
    ends.sort_unstable();
    let until = |end: u64| -> Vec<(Record, bool)> {
        let begun = records.iter().filter(|record| record.begin < end);
        begun.map(|record| (record.clone(), record.end <= end)).collect()
    };
    let fails = |part: &[(Record, bool)]| search(model, part, None, snapshots).err();
    let mut part = ends.into_iter().map(until).find(|part| fails(part).is_some())?;
    // Such a call only restricts the orders, as does a call in progress that took no effect.
    let mut number = part.len();
    while number > 0 {
        number -= 1;
        let (record, must) = &part[number];
        let changes = matches!(record.call, Call::Change(_)) && !matches!(record.answer, Answer::Refused(..));
        if changes && *must {
            continue;
        }
        let mut without = part.clone();
        without.remove(number);
        if !changes && fails(&without).is_some() {
            part = without;
        }
    }
    fails(&part).map(|failure| failure.told)
}
