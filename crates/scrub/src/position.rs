//! The position of a scrub: the completed parts, so that another run can continue.
//!
//! Logical addresses are never reused for another chunk. A finished chunk therefore stays finished,
//! whatever other threads wrote during the scrub. In a chunk that was begun, all groups before a
//! group number are done.

use buttress_exact::Exact as _;
use buttress_format::Logical;
use std::collections::{BTreeMap, BTreeSet};

/// A chunk that was begun.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChunkPosition {
    /// The logical address of the chunk.
    pub chunk: Logical,
    /// The first group that is not done.
    pub group: u64,
}

/// The completed parts of a scrub.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Position {
    /// Whether the superblocks are already scrubbed.
    pub superblocks: bool,
    /// Finished chunks, by their logical addresses.
    pub finished: BTreeSet<Logical>,
    /// Chunks that the scrub began and has not finished.
    pub begun: Vec<ChunkPosition>,
}

impl Position {
    /// Returns the first group of a chunk that is not done; `None` if all are done.
    pub(crate) fn first_group(&self, chunk: Logical) -> Option<u64> {
        if self.finished.contains(&chunk) {
            return None;
        }
        let begun = self.begun.iter().find(|begun| begun.chunk == chunk);
        Some(begun.map_or(0, |begun| begun.group))
    }
}

/// The changing state of a scrub's position: groups end in any order.
#[derive(Debug, Default)]
pub(crate) struct Running {
    done: Position,
    /// The groups in flight and the number of the next group, for each chunk that was begun.
    chunks: BTreeMap<Logical, Chunk>,
}

#[derive(Debug, Default)]
struct Chunk {
    under_way: BTreeSet<u64>,
    next: u64,
    submitted: bool,
}

impl Running {
    pub(crate) fn new(resumed: Position) -> Self {
        Self {
            done: resumed,
            chunks: BTreeMap::new(),
        }
    }

    pub(crate) const fn superblocks_done(&mut self) {
        self.done.superblocks = true;
    }

    pub(crate) const fn done(&self) -> &Position {
        &self.done
    }

    pub(crate) fn begin(&mut self, chunk: Logical, group: u64) {
        let begun = Chunk {
            next: group,
            ..Chunk::default()
        };
        self.chunks.insert(chunk, begun);
    }

    pub(crate) fn submitted(&mut self, chunk: Logical, group: u64) {
        if let Some(chunk) = self.chunks.get_mut(&chunk) {
            chunk.under_way.insert(group);
            chunk.next = chunk.next.max(group.exact_add(1));
        }
    }

    pub(crate) fn ended(&mut self, start: Logical, group: u64) {
        if let Some(chunk) = self.chunks.get_mut(&start) {
            chunk.under_way.remove(&group);
        }
        self.finish_if_done(start);
    }

    /// Records that all groups of the chunk were submitted.
    pub(crate) fn all_submitted(&mut self, start: Logical) {
        if let Some(chunk) = self.chunks.get_mut(&start) {
            chunk.submitted = true;
        }
        self.finish_if_done(start);
    }

    fn finish_if_done(&mut self, start: Logical) {
        let is_done = |chunk: &Chunk| chunk.submitted && chunk.under_way.is_empty();
        if self.chunks.get(&start).is_some_and(is_done) {
            self.chunks.remove(&start);
            self.done.begun.retain(|begun| begun.chunk != start);
            self.done.finished.insert(start);
        }
    }

    /// Returns the position up to which the scrub is certainly complete.
    pub(crate) fn position(&self) -> Position {
        let mut position = self.done.clone();
        for (start, chunk) in &self.chunks {
            position.begun.retain(|begun| begun.chunk != *start);
            position.begun.push(ChunkPosition {
                chunk: *start,
                // Clamp: without groups in flight, the next group is the first incomplete group.
                group: chunk.under_way.first().copied().unwrap_or(chunk.next),
            });
        }
        position
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_position_says_no_more_than_is_done() {
        let start = Logical::new(1 << 20);
        let mut running = Running::new(Position::default());
        running.begin(start, 3);
        for group in [3, 4, 7] {
            running.submitted(start, group);
        }
        running.ended(start, 4);
        assert_eq!(running.position().first_group(start), Some(3));
        running.ended(start, 3);
        assert_eq!(running.position().first_group(start), Some(7));
        running.all_submitted(start);
        assert_eq!(running.position().first_group(start), Some(7));
        running.ended(start, 7);
        assert_eq!(running.position().first_group(start), None);
        assert_eq!(running.position().first_group(Logical::new(0)), Some(0));
    }
}
