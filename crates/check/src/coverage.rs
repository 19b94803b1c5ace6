//! Checksum items against data extents: which checksums are of no data, and which data has none.
//!
//! Data may rightly have none (files with NODATASUM, preallocated space), so the second is only marked here; where
//! files refer to it, they are asked.

use crate::context::Check;
use crate::finding::Finding;
use crate::log::Log;
use crate::runs::{self, Run};
use crate::sectors::Neighbourhoods;
use buttress_format::{ByteCount, ItemType, Key, Logical, ObjectId};
use buttress_fs::Result;
use buttress_tree::{ReadAhead, Tree};

/// The key of checksums from `start` on.
pub(crate) const fn key_at(start: u64) -> Key {
    Key::new(ObjectId::EXTENT_CHECKSUM, ItemType::EXTENT_CSUM, start)
}

/// How many bytes of data the checksums of one item cover at most.
pub(crate) fn item_reach(check: &Check<'_>) -> u64 {
    let size = ByteCount::of(check.filesystem.checksum_type().size_bytes()).get();
    let sectors = u64::from(check.node_bytes).checked_div(size).unwrap_or(0);
    sectors.saturating_mul(u64::from(check.sector_bytes))
}

/// Where data in `[start, end)` has checksums; `None` when that cannot be read. Adds up the bytes of checksums.
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
            // Within a leaf the check of the block sees to that.
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

/// Compares checksums with data, both of the same stretch of addresses, and marks where there are checksums, and where data
/// without. Data that only the pending log has may have got its checksums already.
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
