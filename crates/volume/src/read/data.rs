//! Reads of file data: each sector is taken from wherever it is good.

use super::{PendingExtent, PendingSegment, VerifySectors};
use crate::Volume;
use crate::error::{Attempt, Error};
use crate::faults::FaultReason;
use crate::fetch::fetch;
use crate::mirror::Segment;
use buttress_device::Buffer;
use std::ops::Range;

/// Bytes of an extent that no copy gives.
#[derive(Clone, Debug)]
pub struct LostRange {
    /// Which bytes of the extent, half-open. They hold what the last copy had, or zeros where nothing could be
    /// read.
    pub range: Range<usize>,
    /// Every attempt to get them.
    pub error: Error,
}

/// One segment while its data is put together.
struct Work {
    segment: Segment,
    /// The way that the bytes came from, as an index; `None` when none could be read whole.
    used: Option<usize>,
    attempts: Vec<Attempt>,
    /// Ranges of the extent that could not be read at all.
    unread: Vec<Range<usize>>,
}

impl PendingExtent {
    /// Waits for file data. `verify` pushes the ranges of the extent that do not match their checksums, in
    /// order; those are fetched from the other copies, and what nothing gives is listed as lost. A caller
    /// without checksums pushes nothing: then only read failures make another copy be used.
    ///
    /// # Errors
    /// What planning the extent failed with. Lost ranges are not an error of the call, nor are ranges that the
    /// RAID stripe tree does not map: those are lost.
    pub fn wait_data(
        self,
        volume: &Volume,
        verify: &VerifySectors<'_>,
    ) -> Result<(Buffer, Vec<LostRange>), Error> {
        let plan = self.plan?;
        let mut joined = (plan.len() > 1).then(|| Buffer::zeroed(self.read.length));
        let mut works = Vec::with_capacity(plan.len());
        for pending in plan {
            let (work, buffer) = first_read(volume, pending);
            match &mut joined {
                Some(joined) => patch(joined, work.segment.range.clone(), &buffer),
                None => joined = Some(buffer),
            }
            works.push(work);
        }
        let mut data = joined.unwrap_or_else(|| Buffer::zeroed(self.read.length));
        let mut bad = Vec::new();
        verify(&data, &mut bad);
        if bad.is_empty() && works.iter().all(|work| work.unread.is_empty()) {
            return Ok((data, Vec::new()));
        }
        let bad = refetch(volume, &mut works, &mut data, bad, verify);
        let lost = works.iter().flat_map(|work| lost_ranges(work, &bad)).collect();
        Ok((data, lost))
    }
}

fn patch(data: &mut [u8], range: Range<usize>, bytes: &[u8]) {
    if let Some(place) = data.get_mut(range)
        && place.len() == bytes.len()
    {
        place.copy_from_slice(bytes);
    }
}

/// The segment by the first way that reads it whole, or else piece by piece.
fn first_read(volume: &Volume, mut pending: PendingSegment) -> (Work, Buffer) {
    let locks = volume.row_locks();
    let first = pending.first(locks);
    let segment = pending.segment;
    let whole = 0..segment.length();
    let mut attempts = Vec::new();
    let rest = segment
        .ways
        .iter()
        .skip(1)
        .map(|way| (*way, fetch(locks, &segment, *way, whole.clone())));
    for (index, (_, result)) in first.into_iter().chain(rest).enumerate() {
        match result {
            Ok(buffer) => {
                return (
                    Work {
                        segment,
                        used: Some(index),
                        attempts,
                        unread: Vec::new(),
                    },
                    buffer,
                );
            }
            Err(attempt) => {
                volume.record_fault(&segment, &attempt, whole.clone());
                attempts.push(attempt);
            }
        }
    }
    let (buffer, unread) = read_by_sectors(volume, &segment);
    (
        Work {
            segment,
            used: None,
            attempts,
            unread,
        },
        buffer,
    )
}

/// Reads what can be read of a segment that no way reads whole: each sector by the first way that gives it.
fn read_by_sectors(volume: &Volume, segment: &Segment) -> (Buffer, Vec<Range<usize>>) {
    let length = segment.length();
    let step = usize::try_from(volume.superblock().sector_bytes)
        .unwrap_or(4096)
        .max(512);
    let mut buffer = Buffer::zeroed(length);
    let mut unread: Vec<Range<usize>> = Vec::new();
    for start in (0..length).step_by(step) {
        let part = start..start.saturating_add(step).min(length);
        match segment
            .ways
            .iter()
            .find_map(|way| fetch(volume.row_locks(), segment, *way, part.clone()).ok())
        {
            Some(bytes) => patch(&mut buffer, part, &bytes),
            None => {
                let shift = |offset: usize| offset.saturating_add(segment.range.start);
                push_merged(&mut unread, shift(part.start)..shift(part.end));
            }
        }
    }
    (buffer, unread)
}

fn push_merged(ranges: &mut Vec<Range<usize>>, range: Range<usize>) {
    match ranges.last_mut() {
        Some(last) if last.end >= range.start => last.end = last.end.max(range.end),
        _ => ranges.push(range),
    }
}

/// What two ranges have in common, unless that is nothing.
fn common(a: &Range<usize>, b: &Range<usize>) -> Option<Range<usize>> {
    let both = a.start.max(b.start)..a.end.min(b.end);
    (!both.is_empty()).then_some(both)
}

/// Fetches bad ranges from the other ways, one way a round, until all is good or no way is left. Returns what
/// is still bad.
fn refetch(
    volume: &Volume,
    works: &mut [Work],
    data: &mut Buffer,
    mut bad: Vec<Range<usize>>,
    verify: &VerifySectors<'_>,
) -> Vec<Range<usize>> {
    for work in &mut *works {
        blame(volume, work, &bad);
    }
    let rounds = works
        .iter()
        .map(|work| work.segment.ways.len())
        .max()
        .unwrap_or(0);
    for round in 1..=rounds {
        if bad.is_empty() {
            break;
        }
        let mut changed = false;
        for work in &mut *works {
            changed |= fetch_round(volume, work, data, &bad, round);
        }
        if changed {
            bad.clear();
            verify(data, &mut bad);
        }
    }
    bad
}

/// Logs the bad sectors of the way that a segment was first read by.
fn blame(volume: &Volume, work: &mut Work, bad: &[Range<usize>]) {
    let segment = &work.segment;
    let Some(way) = work.used.and_then(|index| segment.ways.get(index)) else {
        return;
    };
    let mut bytes = 0u64;
    for part in bad.iter().filter_map(|range| common(range, &segment.range)) {
        let length = part.len() as u64;
        bytes = bytes.saturating_add(length);
        let attempt = segment.attempt(
            *way,
            segment.stripe_of(*way),
            FaultReason::BadSectors { bytes: length },
        );
        volume.record_fault(segment, &attempt, within(segment, &part));
    }
    if bytes > 0 {
        let reason = FaultReason::BadSectors { bytes };
        work.attempts
            .push(segment.attempt(*way, segment.stripe_of(*way), reason));
    }
}

/// A range of the extent as one of the segment.
fn within(segment: &Segment, range: &Range<usize>) -> Range<usize> {
    range.start.saturating_sub(segment.range.start)..range.end.saturating_sub(segment.range.start)
}

/// Replaces the bad parts of one segment by those of another way. Returns whether anything was replaced.
fn fetch_round(
    volume: &Volume,
    work: &mut Work,
    data: &mut Buffer,
    bad: &[Range<usize>],
    round: usize,
) -> bool {
    let Work {
        segment,
        used,
        attempts,
        ..
    } = work;
    let ways = segment.ways.len();
    let index = match *used {
        Some(used) if round < ways => used.saturating_add(round).checked_rem(ways),
        Some(_) => None,
        // Read sector by sector: no way was used for all of it, so each has its turn.
        None => round.checked_sub(1),
    };
    let Some(way) = index.and_then(|index| segment.ways.get(index)).copied() else {
        return false;
    };
    let mut changed = false;
    let mut bytes = 0u64;
    for part in bad.iter().filter_map(|range| common(range, &segment.range)) {
        match fetch(volume.row_locks(), segment, way, within(segment, &part)) {
            Ok(fetched) => {
                patch(data, part.clone(), &fetched);
                bytes = bytes.saturating_add(part.len() as u64);
                changed = true;
            }
            Err(attempt) => {
                volume.record_fault(segment, &attempt, within(segment, &part));
                attempts.push(attempt);
            }
        }
    }
    if changed {
        // Whether they were good shows when they are verified; if so, nobody looks at the attempts.
        let reason = FaultReason::BadSectors { bytes };
        attempts.push(segment.attempt(way, segment.stripe_of(way), reason));
    }
    changed
}

/// What of a segment is lost: bad to the end, or never read.
fn lost_ranges(work: &Work, bad: &[Range<usize>]) -> Vec<LostRange> {
    let mut ranges: Vec<Range<usize>> = bad
        .iter()
        .filter_map(|range| common(range, &work.segment.range))
        .collect();
    ranges.extend(work.unread.iter().cloned());
    ranges.sort_by_key(|range| range.start);
    let mut merged = Vec::new();
    for range in ranges {
        push_merged(&mut merged, range);
    }
    let error = || work.segment.unreadable(work.attempts.clone());
    merged
        .into_iter()
        .map(|range| LostRange {
            range,
            error: error(),
        })
        .collect()
}
