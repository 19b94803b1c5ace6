//! Compares checksum items with data extents: finds checksums without data, and marks data without
//! checksums.
//!
//! Data may legitimately have no checksums (files with NODATASUM, preallocated space), so such data
//! is only marked here. The check of the files that refer to the data decides.

use crate::context::Check;
use crate::finding::Finding;
use crate::log::Log;
use crate::neighbourhoods::Neighbourhoods;
use crate::runs::{self, Run};
use buttress_format::{ByteCount, ItemType, Key, Logical, ObjectId};
use buttress_fs::Result;
use buttress_tree::{ReadAhead, Tree};

/// Returns the key of checksums from `start` on.
pub(crate) const fn key_at(start: u64) -> Key {
    Key::new(ObjectId::EXTENT_CHECKSUM, ItemType::EXTENT_CSUM, start)
}

/// Returns the most bytes of data that the checksums of one item cover.
pub(crate) fn item_reach(check: &Check<'_>) -> u64 {
    let size = ByteCount::of(check.filesystem.checksum_type().size_bytes()).get();
    let sectors = u64::from(check.node_bytes).checked_div(size).unwrap_or(0);
    sectors.saturating_mul(u64::from(check.sector_bytes))
}

/// Returns the ranges with checksums in `[start, end)`; `None` if they cannot be read. Adds the
/// size of the read checksums to `bytes`.
pub(crate) fn read(
    check: &Check<'_>,
    tree: &Tree,
    start: u64,
    end: u64,
    bytes: &mut u64,
) -> Result<Option<Vec<Run>>> {
    let size = ByteCount::of(check.filesystem.checksum_type().size_bytes()).get();
    let first = key_at(start.saturating_sub(item_reach(check)));
    let mut leaves = tree.leaves(first..key_at(end), ReadAhead::sweep());
    let mut covered = Vec::new();
    let mut complete = true;
    let mut previous_end = 0;
    loop {
        check.progress.check()?;
        let leaf = match leaves.next() {
            Ok(Some(leaf)) => leaf,
            Ok(None) => break,
            Err(_) => {
                complete = false;
                continue;
            }
        };
        for item in leaf.items() {
            let from = item.key.offset;
            let length = ByteCount::of(item.data.len()).get();
            let sectors = length.checked_div(size).unwrap_or(0);
            let to = from.saturating_add(sectors.saturating_mul(u64::from(check.sector_bytes)));
            // The check of the checksum leaf itself detects overlaps within the leaf.
            if from < previous_end && from >= start {
                check.find(Finding::ChecksumsOverlap {
                    logical: Logical::new(from),
                    previous_end: Logical::new(previous_end),
                });
            }
            previous_end = to;
            if from >= start {
                *bytes = bytes.saturating_add(length);
            }
            runs::push(&mut covered, from, to);
        }
    }
    runs::clip(&mut covered, start, end);
    Ok(complete.then_some(covered))
}

/// Compares checksums with data of the same range of addresses, and marks data with and without
/// checksums. Data that only the pending log refers to may already have its checksums.
pub(crate) fn compare(
    check: &Check<'_>,
    covered: &[Run],
    data: &[Run],
    log: Option<&Log>,
    part: Run,
    marks: (&Neighbourhoods, &Neighbourhoods),
) {
    let (with, bare) = marks;
    for (start, end) in covered {
        with.mark(*start, *end);
    }
    let mut known: Vec<Run> = Vec::new();
    if let Some(log) = log {
        let both = data.iter().copied().chain(log.data_runs());
        let mut both: Vec<Run> = both.collect();
        both.sort_unstable();
        for (start, end) in both {
            runs::push(&mut known, start, end);
        }
        runs::clip(&mut known, part.0, part.1);
    }
    let allowed = if log.is_some() { &known } else { data };
    runs::compare(
        covered,
        allowed,
        &mut |start, end| {
            check.find(Finding::ChecksumSurplus {
                logical: Logical::new(start),
                length: ByteCount::new(end.saturating_sub(start)),
            });
        },
        &mut |start, end| bare.mark(start, end),
    );
}
