//! Checksums of content on their way to the checksum tree: a batch is divided among the steps that
//! insert its extents.

use super::insertion::Insertion;
use buttress_exact::{Exact as _, u64_of};
use buttress_format::Logical;
use core::ops::Range;

/// Checksums of consecutive sectors.
#[derive(Debug)]
pub(super) struct Sums {
    pub(super) logical: Logical,
    /// The number of data bytes that the checksums cover.
    pub(super) bytes: u64,
    pub(super) sums: Vec<u8>,
}

/// Returns the addresses of insertions, with adjacent ranges joined.
fn addresses_of<'i>(insertions: impl IntoIterator<Item = &'i Insertion>) -> Vec<Range<u64>> {
    let mut joined: Vec<Range<u64>> = Vec::new();
    for insertion in insertions {
        let range = insertion.addresses();
        match joined.last_mut() {
            Some(last) if last.end == range.start => last.end = range.end,
            _ => joined.push(range),
        }
    }
    joined
}

/// Removes and returns the checksums of a step's extents. The last step gets all remaining
/// checksums.
pub(super) fn take_sums(sums: &mut Vec<Sums>, step: &[Insertion], is_last: bool) -> Vec<Sums> {
    if is_last {
        return core::mem::take(sums);
    }
    let mut own = Vec::new();
    for range in addresses_of(step) {
        cut_sums(sums, &range, &mut own);
    }
    own
}

/// Returns the checksums of some extents.
pub(super) fn sums_of<'i>(sums: &[Sums], insertions: impl IntoIterator<Item = &'i Insertion>) -> Vec<Sums> {
    let mut own = Vec::new();
    for range in addresses_of(insertions) {
        for part in sums {
            let (start, end) = (part.logical.get(), part.logical.get().saturating_add(part.bytes));
            let inside = start.max(range.start)..end.min(range.end);
            if inside.start < inside.end {
                own.push(part.part(start, &inside));
            }
        }
    }
    own
}

/// Moves the checksums of a range of addresses to `own`.
fn cut_sums(sums: &mut Vec<Sums>, range: &Range<u64>, own: &mut Vec<Sums>) {
    let mut rest = Vec::with_capacity(sums.len());
    for part in sums.drain(..) {
        let (start, end) = (part.logical.get(), part.logical.get().saturating_add(part.bytes));
        if end <= range.start || start >= range.end {
            rest.push(part);
            continue;
        }
        let (from, to) = (start.max(range.start), end.min(range.end));
        for piece in [start..from, to..end] {
            if piece.start < piece.end {
                rest.push(part.part(start, &piece));
            }
        }
        own.push(part.part(start, &(from..to)));
    }
    *sums = rest;
}

impl Sums {
    /// Returns the checksums of a part of the written range that begins at `start`.
    fn part(&self, start: u64, range: &Range<u64>) -> Self {
        let of_bytes = |bytes: u64| {
            let whole = u64_of(self.sums.len());
            let scaled = u128::from(bytes).saturating_mul(u128::from(whole));
            let at = scaled.checked_div(u128::from(self.bytes)).unwrap_or(0);
            at.narrow::<usize>()
        };
        let (from, to) = (
            of_bytes(range.start.saturating_sub(start)),
            of_bytes(range.end.saturating_sub(start)),
        );
        Self {
            logical: Logical::new(range.start),
            bytes: range.end.saturating_sub(range.start),
            sums: self.sums.get(from..to).unwrap_or_default().to_vec(),
        }
    }
}
