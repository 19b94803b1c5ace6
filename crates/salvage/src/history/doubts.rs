//! States that may not have been committed.

use crate::index::BlockIndex;
use crate::states::{Origin, State};
use buttress_exact::Exact as _;
use buttress_format::Generation;
use std::collections::HashMap;

/// The facts that make a state doubtful.
#[derive(Debug)]
pub(super) struct Doubts {
    /// The number of states of each generation.
    counts: HashMap<Generation, u32>,
    /// The newest generation that superblocks named now, and that superblocks named when the index was made.
    committed: [Option<Generation>; 2],
}

impl Doubts {
    /// Returns the doubts about states. `last` is the newest state that a superblock names.
    pub(super) fn new(states: &[State], last: Option<&State>, index: Option<&BlockIndex>) -> Self {
        let mut counts = HashMap::new();
        for state in states {
            let count: &mut u32 = counts.entry(state.generation()).or_default();
            *count = count.exact_add(1);
        }
        let scanned = index.and_then(|index| index.identity().generation());
        Self {
            counts,
            committed: [last.map(State::generation), scanned],
        }
    }

    /// Returns whether a state may not have been committed: the scan found its root, and it has a rival, or
    /// no superblock of that time was as new.
    pub(super) fn concern(&self, state: &State) -> bool {
        let generation = state.generation();
        let has_rival = self.counts.get(&generation).is_some_and(|count| *count > 1);
        let is_newer = |committed: &Option<Generation>| committed.is_some_and(|last| last < generation);
        state.origin == Origin::Scan && (has_rival || self.committed.iter().any(is_newer))
    }
}
