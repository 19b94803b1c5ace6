//! Reads of file data: each sector comes from any good copy.

use super::{PendingExtent, PendingSegment, VerifySectors};
use crate::Volume;
use crate::error::{Attempt, Error};
use crate::faults::FaultReason;
use crate::fetch::fetch;
use crate::mirror::Segment;
use buttress_device::Buffer;
use buttress_exact::{Defect, Exact as _, copy_into, u64_of, usize_of};
use std::ops::Range;

/// Bytes of an extent that no copy provides.
#[derive(Clone, Debug)]
pub struct LostRange {
    /// The half-open range of the extent. The bytes in the range are those of the last copy, or
    /// zeros if no copy could be read.
    pub range: Range<usize>,
    /// Every attempt to read the bytes.
    pub error: Error,
}

/// The state of one segment while its data is assembled.
struct Work {
    segment: Segment,
    /// The index of the way that provided the bytes; `None` if no way read the whole segment.
    used: Option<usize>,
    attempts: Vec<Attempt>,
    /// Ranges of the extent that could not be read at all.
    unread: Vec<Range<usize>>,
}

impl PendingExtent {
    /// Waits for file data. `verify` appends the ranges of the extent that do not match their
    /// checksums, in order. Ranges that fail are read from other copies, and returned as lost if no
    /// copy is good. A caller without checksums appends nothing: then only read failures cause
    /// reads of other copies.
    ///
    /// # Errors
    /// The error of planning the extent, or a [`Defect`] if bytes do not fit their place. Lost
    /// ranges of an extent are not an error of the call. Ranges that the RAID stripe tree does not
    /// map are also lost ranges.
    pub fn wait_data(
        self,
        volume: &Volume,
        verify: &VerifySectors<'_>,
    ) -> Result<(Buffer, Vec<LostRange>), Error> {
        let plan = self.plan?;
        let mut joined = (plan.len() > 1).then(|| Buffer::zeroed(self.read.length));
        let mut works = Vec::with_capacity(plan.len());
        for pending in plan {
            let (work, buffer) = first_read(volume, pending)?;
            match &mut joined {
                Some(joined) => patch(joined, work.segment.range.clone(), &buffer)?,
                None => joined = Some(buffer),
            }
            works.push(work);
        }
        let mut data = whole(joined, self.read.length)?;
        let mut bad = Vec::new();
        verify(&data, &mut bad);
        if bad.is_empty() && works.iter().all(|work| work.unread.is_empty()) {
            return Ok((data, Vec::new()));
        }
        let bad = refetch(volume, &mut works, &mut data, bad, verify)?;
        let lost = works.iter().flat_map(|work| lost_ranges(work, &bad)).collect();
        Ok((data, lost))
    }
}

/// Copies the bytes read for `range` to their place. Fails if `bytes` and `range` differ in length,
/// because a gap would keep zeros.
fn patch(data: &mut [u8], range: Range<usize>, bytes: &[u8]) -> Result<(), Error> {
    let copied = copy_into(data, range, bytes, "a part of an extent does not fit its place");
    match buttress_faults::on("volume-misfit-part-dropped") {
        true => Ok(()),
        false => Ok(copied?),
    }
}

/// Returns the bytes of an extent. Fails if the length of the read bytes differs from the extent's.
fn whole(read: Option<Buffer>, length: usize) -> Result<Buffer, Error> {
    let found_bytes = read.as_ref().map_or(0, |read| read.len());
    match read {
        Some(read) if found_bytes == length => Ok(read),
        _ => Err(Defect::new("an extent was read that has another length")
            .with("expected_bytes", u64_of(length))
            .with("found_bytes", u64_of(found_bytes))
            .into()),
    }
}

/// Returns the segment as read by the first way that reads it completely, or else combined from
/// several ways.
fn first_read(volume: &Volume, mut pending: PendingSegment) -> Result<(Work, Buffer), Error> {
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
                let work = Work {
                    segment,
                    used: Some(index),
                    attempts,
                    unread: Vec::new(),
                };
                return Ok((work, buffer));
            }
            Err(attempt) => {
                volume.record_fault(&segment, &attempt, whole.clone());
                attempts.push(attempt);
            }
        }
    }
    let (buffer, unread) = read_by_sectors(volume, &segment)?;
    let work = Work {
        segment,
        used: None,
        attempts,
        unread,
    };
    Ok((work, buffer))
}

/// Reads a segment that no single way reads completely: each sector by the first way that provides
/// it.
fn read_by_sectors(volume: &Volume, segment: &Segment) -> Result<(Buffer, Vec<Range<usize>>), Error> {
    let length = segment.length();
    let step = usize_of(volume.superblock().sector_bytes);
    let mut buffer = Buffer::zeroed(length);
    let mut unread: Vec<Range<usize>> = Vec::new();
    for start in (0..length).step_by(step) {
        let part = start..start.exact_add(step.min(length.exact_sub(start)));
        match segment
            .ways
            .iter()
            .find_map(|way| fetch(volume.row_locks(), segment, *way, part.clone()).ok())
        {
            Some(bytes) => patch(&mut buffer, part, &bytes)?,
            None => {
                let shift = |offset: usize| offset.exact_add(segment.range.start);
                push_merged(&mut unread, shift(part.start)..shift(part.end));
            }
        }
    }
    Ok((buffer, unread))
}

fn push_merged(ranges: &mut Vec<Range<usize>>, range: Range<usize>) {
    match ranges.last_mut() {
        Some(last) if last.end >= range.start => last.end = last.end.max(range.end),
        _ => ranges.push(range),
    }
}

/// Returns the intersection of two ranges, unless it is empty.
fn common(a: &Range<usize>, b: &Range<usize>) -> Option<Range<usize>> {
    let both = a.start.max(b.start)..a.end.min(b.end);
    (!both.is_empty()).then_some(both)
}

/// Reads bad ranges by the other ways, one way in each round, until all are good or no way is left.
/// Returns the ranges that are still bad.
fn refetch(
    volume: &Volume,
    works: &mut [Work],
    data: &mut Buffer,
    mut bad: Vec<Range<usize>>,
    verify: &VerifySectors<'_>,
) -> Result<Vec<Range<usize>>, Error> {
    for work in &mut *works {
        blame(volume, work, &bad);
    }
    // Clamp: an extent without segments needs no reads.
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
            changed |= fetch_round(volume, work, data, &bad, round)?;
        }
        if changed {
            bad.clear();
            verify(data, &mut bad);
        }
    }
    Ok(bad)
}

/// Logs the bad sectors of the way by which a segment was first read.
fn blame(volume: &Volume, work: &mut Work, bad: &[Range<usize>]) {
    let segment = &work.segment;
    let Some(way) = work.used.and_then(|index| segment.ways.get(index)) else {
        return;
    };
    let mut bytes = 0u64;
    for part in bad.iter().filter_map(|range| common(range, &segment.range)) {
        let length = part.len() as u64;
        bytes = bytes.exact_add(length);
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

/// Converts a range of the extent to one of the segment.
fn within(segment: &Segment, range: &Range<usize>) -> Range<usize> {
    range.start.exact_sub(segment.range.start)..range.end.exact_sub(segment.range.start)
}

/// Replaces the bad parts of one segment by those of another way. Returns true if any part was
/// replaced.
fn fetch_round(
    volume: &Volume,
    work: &mut Work,
    data: &mut Buffer,
    bad: &[Range<usize>],
    round: usize,
) -> Result<bool, Error> {
    let Work {
        segment,
        used,
        attempts,
        ..
    } = work;
    let ways = segment.ways.len();
    let index = match *used {
        Some(used) if round < ways => used.exact_add(round).checked_rem(ways),
        Some(_) => None,
        // The segment was read sector by sector. No way was used for all of it, so each way gets a
        // round.
        None => round.checked_sub(1),
    };
    let Some(way) = index.and_then(|index| segment.ways.get(index)).copied() else {
        return Ok(false);
    };
    let mut changed = false;
    let mut bytes = 0u64;
    for part in bad.iter().filter_map(|range| common(range, &segment.range)) {
        match fetch(volume.row_locks(), segment, way, within(segment, &part)) {
            Ok(fetched) => {
                patch(data, part.clone(), &fetched)?;
                bytes = bytes.exact_add(u64_of(part.len()));
                changed = true;
            }
            Err(attempt) => {
                volume.record_fault(segment, &attempt, within(segment, &part));
                attempts.push(attempt);
            }
        }
    }
    if changed {
        // The next verification shows whether these copied bytes are good. If so, the attempts are
        // never reported.
        let reason = FaultReason::BadSectors { bytes };
        attempts.push(segment.attempt(way, segment.stripe_of(way), reason));
    }
    Ok(changed)
}

/// Returns the lost parts of a segment: parts that stayed bad, and parts that were never read.
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

#[cfg(test)]
mod tests {
    use super::*;

    fn expect_defect(range: Range<usize>, bytes: &[u8]) {
        let mut data = [7; 8];
        let error = patch(&mut data, range, bytes).unwrap_err();
        assert!(error.is_defect(), "{error}");
        assert_eq!(data, [7; 8]);
    }

    #[test]
    fn a_part_of_another_length_is_a_defect() {
        let mut data = [7; 8];
        assert!(patch(&mut data, 2..4, b"ab").is_ok());
        assert_eq!(data, *b"\x07\x07ab\x07\x07\x07\x07");
        expect_defect(4..8, b"abc");
        expect_defect(4..5, b"");
    }

    #[test]
    fn a_part_past_the_end_of_its_extent_is_a_defect() {
        expect_defect(6..10, b"abcd");
        expect_defect(8..9, b"a");
    }

    #[test]
    fn an_extent_of_another_length_is_a_defect() {
        assert!(whole(Some(Buffer::zeroed(8)), 8).is_ok());
        for read in [None, Some(Buffer::zeroed(7)), Some(Buffer::zeroed(9))] {
            assert!(whole(read, 8).unwrap_err().is_defect());
        }
    }
}
