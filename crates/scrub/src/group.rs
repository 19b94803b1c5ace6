//! A group: the reads of all stripes of one chunk at the same offset, and the expected content.
//!
//! A group has [`Shape::stripes`](crate::Shape) stripes of 64 KiB of each of the chunk's devices.
//! Units alternate between devices row by row, so a group is one contiguous range of addresses, and
//! contains whole rows of RAID5 and RAID6. The parts of a group in use are *pieces*: a tree block,
//! or a run of data in one stripe of 64 KiB, with or without checksums.
//!
//! Invariant: a piece is always in one stripe unit of one column. Only a tree block of a chunk
//! without striping may cross the end of a unit.

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

/// The expected content of a piece.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Expected {
    /// A tree block in the group.
    Tree {
        generation: Generation,
        level: Option<u8>,
    },
    /// Data with checksums; the range is in the group's packed checksums.
    Sums(Range<usize>),
    /// Data without checksums in the group.
    Bare,
}

/// A part of a group in use.
#[derive(Clone, Debug)]
pub(crate) struct Piece {
    pub(crate) logical: Logical,
    pub(crate) length: usize,
    pub(crate) expected: Expected,
    pub(crate) place: Place,
    /// The number of extents that begin in the piece.
    pub(crate) extents: u64,
    /// A generation at or after that of the piece's last write. Preallocated data is written long
    /// after its extent was allocated. The data's checksums come with the write, so the leaf of the
    /// checksum tree is as new.
    pub(crate) generation: Generation,
}

impl Piece {
    pub(crate) const fn is_data(&self) -> bool {
        !matches!(self.expected, Expected::Tree { .. })
    }

    /// Returns the range of the piece in its stripe.
    pub(crate) fn on_stripe(&self) -> Range<u64> {
        let start = self.place.stripe_offset.get();
        start..start.exact_add(ByteCount::of(self.length).get())
    }

    /// Returns the stripes that hold the piece.
    pub(crate) fn stripes(&self) -> Range<usize> {
        let first = self.place.stripe_index;
        first..first.exact_add(self.place.copies)
    }
}

/// A group with its pieces.
#[derive(Debug)]
pub(crate) struct Group {
    pub(crate) chunk: Arc<MappedChunk>,
    pub(crate) number: u64,
    pub(crate) pieces: Vec<Piece>,
    /// The checksums of all pieces.
    pub(crate) packed: Vec<u8>,
    /// True if other parts of the group's range may be in use, because a part of the extent tree
    /// beside the group is unreadable.
    pub(crate) is_partial: bool,
    /// The ranges of its data without checksums that were ever written, once a query has found
    /// them.
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

    /// Returns the reads of each stripe: runs of at most 64 KiB, in ascending order.
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

    /// Returns the numbers of the group's rows.
    pub(crate) fn rows(&self) -> Range<u64> {
        let ranges = || self.pieces.iter().map(Piece::on_stripe);
        // Clamp: a group without pieces has no rows.
        let first = ranges().map(|range| unit(range.start)).min().unwrap_or(0);
        let end = ranges()
            .map(|range| unit(range.end.exact_sub(1)).exact_add(1))
            .max();
        // Clamp: as above, a group without pieces has no rows.
        first..end.unwrap_or(first)
    }

    /// Returns the numbers of the rows with data without checksums.
    pub(crate) fn rows_with_bare_data(&self) -> BTreeSet<u64> {
        let bare = self
            .pieces
            .iter()
            .filter(|piece| piece.expected == Expected::Bare);
        bare.map(|piece| unit(piece.on_stripe().start)).collect()
    }

    /// Rows of RAID5 and RAID6 need all columns wherever one column is in use.
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

/// Returns the number of the unit at an offset in a stripe.
pub(crate) fn unit(offset: u64) -> u64 {
    offset.quotient(STRIPE_BYTES)
}

/// Appends the range of a piece to the group: to the last run if that run stays within a stripe of
/// 64 KiB.
fn add_run(runs: &mut Vec<Range<u64>>, range: &Range<u64>) {
    match runs.last_mut() {
        Some(last) if range.start == last.end && range.end.exact_sub(last.start) <= STRIPE_BYTES => {
            last.end = range.end;
        }
        _ => runs.push(range.clone()),
    }
}

/// The reads of one stripe.
#[derive(Debug)]
pub(crate) struct StripeReads {
    /// The range of each run of the group in its stripe.
    pub(crate) runs: Vec<Range<u64>>,
    pub(crate) reads: Reads,
}

/// How the runs of a stripe are read.
#[derive(Debug)]
pub(crate) enum Reads {
    /// No read of the stripe: the device is missing, or nothing of the stripe is wanted.
    None,
    /// The reads of the stripe are in the queue.
    UnderWay(Vec<PendingRead>),
    /// The page cache probably has the runs of the stripe. The checking thread copies them, so that
    /// its processor has them in its cache.
    InMemory,
}

/// A group whose reads were submitted.
#[derive(Debug)]
pub(crate) struct Submitted {
    pub(crate) group: Group,
    pub(crate) stripes: Vec<StripeReads>,
    /// The number of writes to the group's rows before it was read; `None` during a write.
    pub(crate) writes: Option<u64>,
    /// The trees of the group. While the trees are held, the group's space is not reused.
    pub(crate) trees: Trees,
}

/// A group whose bytes have arrived.
#[derive(Debug)]
pub(crate) struct Arrived {
    pub(crate) group: Group,
    pub(crate) stripes: Vec<Fetched>,
}

/// Returns the place of an address of a chunk.
pub(crate) fn place(chunk: &MappedChunk, logical: Logical) -> Option<(ChunkOffset, Place)> {
    let offset = chunk.offset_of(logical)?;
    Some((offset, chunk.layout().place(offset)?))
}

/// Returns the number of the group that contains an address.
pub(crate) fn group_number(chunk: &MappedChunk, logical: Logical, stripes: u64) -> u64 {
    let columns = ByteCount::of(chunk.layout().data_columns()).get();
    let group_bytes = stripes.exact_mul(STRIPE_BYTES).exact_mul(columns);
    let offset = chunk.offset_of(logical).map_or(0, |offset| offset.get());
    offset.quotient(group_bytes.max(1))
}
