//! The largest free runs of a device, and chunks that are cut out of them.

use super::units::{UNIT_BYTES, Units};
use buttress_exact::Exact as _;
use buttress_format::{ByteCount, Physical};
use core::cmp::Reverse;
use core::ops::Range;
use std::collections::BinaryHeap;

/// The largest number of runs that are kept. Chunks in many small runs would make a slow volume.
const RUNS_MAX: usize = 256;

/// The shortest metadata chunk, unless less is needed: 1 MiB.
const CHUNK_UNITS_MIN: u64 = 16;

/// The longest metadata chunk: 1 GiB.
const CHUNK_UNITS_MAX: u64 = 16_384;

/// A chunk of the system or of metadata. Its logical address is the place of its first copy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Placed {
    /// The places of the copies, one or two.
    pub copies: Vec<Physical>,
    /// The length of one copy.
    pub length: ByteCount,
}

impl Placed {
    /// Returns the units of each copy.
    pub(super) fn units(&self) -> impl Iterator<Item = Range<u64>> + '_ {
        self.copies.iter().map(|copy| {
            let start = copy.get().quotient(UNIT_BYTES);
            start..start.exact_add(self.length.get().quotient(UNIT_BYTES))
        })
    }
}

/// Free runs of units, the longest last.
pub(super) struct FreeRuns {
    runs: Vec<Range<u64>>,
}

impl FreeRuns {
    /// Returns the longest free runs of complete units.
    pub(super) fn new(taken: &Units) -> Self {
        let mut longest = BinaryHeap::new();
        for run in taken.runs(0..taken.complete(), false) {
            longest.push(Reverse((length(&run), run.start)));
            if longest.len() > RUNS_MAX {
                longest.pop();
            }
        }
        let runs = longest.into_sorted_vec().into_iter().rev();
        Self {
            runs: runs
                .map(|Reverse((length, start))| start..start.exact_add(length))
                .collect(),
        }
    }

    /// Returns the number of free units.
    pub(super) fn total(&self) -> u64 {
        self.runs
            .iter()
            .fold(0, |total, run| total.exact_add(length(run)))
    }

    /// Returns chunks of `units` in all, with the given number of copies, or `None` if the runs are
    /// too short.
    pub(super) fn chunks(&mut self, units: u64, copies: usize) -> Option<Vec<Placed>> {
        let mut left = units;
        let mut chunks = Vec::new();
        while left > 0 {
            let units = left.min(CHUNK_UNITS_MAX).min(self.longest(copies));
            if units < left.min(CHUNK_UNITS_MIN) {
                return None;
            }
            chunks.push(self.chunk(units, copies)?);
            left = left.exact_sub(units);
        }
        Some(chunks)
    }

    /// Returns a chunk of `units`, or `None` if the runs are too short.
    pub(super) fn chunk(&mut self, units: u64, copies: usize) -> Option<Placed> {
        let starts = (0..copies).map(|_| {
            self.cut(units)
                .map(|start| Physical::new(start.exact_mul(UNIT_BYTES)))
        });
        Some(Placed {
            copies: starts.collect::<Option<_>>()?,
            length: ByteCount::new(units.exact_mul(UNIT_BYTES)),
        })
    }

    /// Returns the length of the longest chunk that is possible with this number of copies, one or
    /// two.
    fn longest(&self, copies: usize) -> u64 {
        let mut lengths = self.runs.iter().rev().map(length);
        match (lengths.next(), lengths.next()) {
            (None, _) => 0,
            (Some(first), _) if copies == 1 => first,
            (Some(first), second) => (first / 2).max(second.map_or(0, |second| second)),
        }
    }

    /// Cuts units off the start of the longest run.
    fn cut(&mut self, units: u64) -> Option<u64> {
        let run = self.runs.pop_if(|run| length(run) >= units)?;
        let rest = run.start.exact_add(units)..run.end;
        if !rest.is_empty() {
            let key = (length(&rest), Reverse(rest.start));
            let place = self
                .runs
                .partition_point(|run| (length(run), Reverse(run.start)) < key);
            self.runs.insert(place, rest);
        }
        Some(run.start)
    }
}

fn length(run: &Range<u64>) -> u64 {
    run.end.exact_sub(run.start)
}
