//! A group: what is read of the stripes of one chunk at the same place, and what it must be.
//!
//! A group takes [`Shape::stripes`](crate::Shape) stripes of 64 KiB of each of the chunk's devices. Since units go round the
//! devices row by row, that is one contiguous range of addresses, and rows of RAID5 and RAID6 are whole in it. What is in
//! use of it are *pieces*: a tree block, or a run of data in one stripe of 64 KiB, with checksums or without.
//!
//! Invariant: a piece lies in one unit of one column; of a chunk without striping a tree block may cross a unit's end.

use crate::fetched::Fetched;
use crate::filling::Trees;
use buttress_device::PendingRead;
use buttress_exact::Exact as _;
use buttress_format::{ByteCount, Generation, Logical, STRIPE_BYTES};
use buttress_volume::MappedChunk;
use buttress_volume::layout::{ChunkOffset, Place};
use core::ops::Range;
use std::collections::BTreeSet;
use std::sync::{Arc, OnceLock};

/// What a piece must be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Expected {
    /// A tree block.
    Tree {
        generation: Generation,
        level: Option<u8>,
    },
    /// Data with checksums: which bytes of the group's packed checksums.
    Sums(Range<usize>),
    /// Data without.
    Bare,
}

/// A part of a group that is in use.
#[derive(Clone, Debug)]
pub(crate) struct Piece {
    pub(crate) logical: Logical,
    pub(crate) length: usize,
    pub(crate) expected: Expected,
    pub(crate) place: Place,
    /// How many extents begin in it.
    pub(crate) extents: u64,
    /// No later transaction wrote it. Preallocated data is written long after its extent was allocated: its checksums come
    /// with it, so the leaf of the checksum tree is as new.
    pub(crate) generation: Generation,
}

impl Piece {
    pub(crate) const fn is_data(&self) -> bool {
        !matches!(self.expected, Expected::Tree { .. })
    }

    /// The offset in its stripe, and behind it the end.
    pub(crate) fn on_stripe(&self) -> Range<u64> {
        let start = self.place.stripe_offset.get();
        start..start.exact_add(ByteCount::of(self.length).get())
    }

    /// The stripes that hold it.
    pub(crate) fn stripes(&self) -> Range<usize> {
        let first = self.place.stripe_index;
        first..first.exact_add(self.place.copies)
    }
}

/// A group, filled.
#[derive(Debug)]
pub(crate) struct Group {
    pub(crate) chunk: Arc<MappedChunk>,
    pub(crate) number: u64,
    pub(crate) pieces: Vec<Piece>,
    /// The checksums of all pieces.
    pub(crate) packed: Vec<u8>,
    /// Whether parts of the group beside its pieces may be in use. A part of the extent tree beside it cannot be read.
    pub(crate) is_partial: bool,
    /// What was ever written of its data without checksums, once that was asked.
    pub(crate) written: OnceLock<Vec<Range<Logical>>>,
}

impl Group {
    pub(crate) const fn new(chunk: Arc<MappedChunk>, number: u64) -> Self {
        Self {
            chunk,
            number,
            pieces: Vec::new(),
            packed: Vec::new(),
            is_partial: false,
            written: OnceLock::new(),
        }
    }

    /// What is to be read of each stripe: runs of at most 64 KiB, in rising order.
    pub(crate) fn requests(&self) -> Vec<Vec<Range<u64>>> {
        let stripes = self.chunk.layout().stripe_count();
        let mut requests: Vec<Vec<Range<u64>>> = vec![Vec::new(); stripes];
        if self.chunk.layout().has_parity() {
            let runs = self.runs_of_rows();
            requests.iter_mut().for_each(|stripe| stripe.clone_from(&runs));
            return requests;
        }
        for piece in &self.pieces {
            let range = piece.on_stripe();
            for stripe in piece.stripes() {
                if let Some(stripe) = requests.get_mut(stripe) {
                    add_run(stripe, &range);
                }
            }
        }
        requests
    }

    /// The numbers of its rows.
    pub(crate) fn rows(&self) -> Range<u64> {
        let ranges = || self.pieces.iter().map(Piece::on_stripe);
        // Clamp: a group without pieces has no rows.
        let first = ranges().map(|range| unit(range.start)).min().unwrap_or(0);
        let end = ranges()
            .map(|range| unit(range.end.exact_sub(1)).exact_add(1))
            .max();
        // Clamp: see above.
        first..end.unwrap_or(first)
    }

    /// The numbers of the rows with data that has no checksums.
    pub(crate) fn rows_with_bare_data(&self) -> BTreeSet<u64> {
        let bare = self
            .pieces
            .iter()
            .filter(|piece| piece.expected == Expected::Bare);
        bare.map(|piece| unit(piece.on_stripe().start)).collect()
    }

    /// Of rows all columns are needed wherever one is in use.
    pub(crate) fn runs_of_rows(&self) -> Vec<Range<u64>> {
        let mut ranges: Vec<Range<u64>> = self.pieces.iter().map(Piece::on_stripe).collect();
        ranges.sort_unstable_by_key(|range| (range.start, range.end));
        let mut runs: Vec<Range<u64>> = Vec::new();
        for range in ranges {
            match runs.last_mut() {
                Some(last) if range.start <= last.end && unit(last.start) == unit(range.start) => {
                    last.end = last.end.max(range.end);
                }
                _ => runs.push(range),
            }
        }
        runs
    }
}

/// The number of the unit that holds an offset in a stripe.
pub(crate) fn unit(offset: u64) -> u64 {
    offset.quotient(STRIPE_BYTES)
}

/// Adds a piece's range behind what is there, to the last run if that stays within a stripe of 64 KiB.
fn add_run(runs: &mut Vec<Range<u64>>, range: &Range<u64>) {
    match runs.last_mut() {
        Some(last) if range.start == last.end && range.end.exact_sub(last.start) <= STRIPE_BYTES => {
            last.end = range.end;
        }
        _ => runs.push(range.clone()),
    }
}

/// What is read of one stripe.
#[derive(Debug)]
pub(crate) struct StripeReads {
    /// Where each run begins on the stripe, and where it ends.
    pub(crate) runs: Vec<Range<u64>>,
    pub(crate) reads: Reads,
}

/// How the runs of a stripe come.
#[derive(Debug)]
pub(crate) enum Reads {
    /// The device is missing, or nothing of it is wanted.
    None,
    /// They are in the queue.
    UnderWay(Vec<PendingRead>),
    /// The page cache has them, as it seems: whoever checks them copies them out then, and has them in the processor's cache.
    InMemory,
}

/// A group that was submitted.
#[derive(Debug)]
pub(crate) struct Submitted {
    pub(crate) group: Group,
    pub(crate) stripes: Vec<StripeReads>,
    /// How often its rows had been written before; `None` while one is.
    pub(crate) writes: Option<u64>,
    /// What the group was made of: while it is held, the space is not used again.
    pub(crate) trees: Trees,
}

/// A group whose bytes are here.
#[derive(Debug)]
pub(crate) struct Arrived {
    pub(crate) group: Group,
    pub(crate) stripes: Vec<Fetched>,
}

/// Where an address of a chunk lies.
pub(crate) fn place(chunk: &MappedChunk, logical: Logical) -> Option<(ChunkOffset, Place)> {
    let offset = chunk.offset_of(logical)?;
    Some((offset, chunk.layout().place(offset)?))
}

/// The number of the group that holds an address.
pub(crate) fn group_number(chunk: &MappedChunk, logical: Logical, stripes: u64) -> u64 {
    let columns = ByteCount::of(chunk.layout().data_columns()).get();
    let group_bytes = stripes.exact_mul(STRIPE_BYTES).exact_mul(columns);
    let offset = chunk.offset_of(logical).map_or(0, |offset| offset.get());
    offset.quotient(group_bytes.max(1))
}
