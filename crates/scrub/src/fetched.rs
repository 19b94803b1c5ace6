//! The bytes that the reads of one stripe of a group returned.
//!
//! If a read of several sectors failed, the sectors are read one by one, so that one bad sector
//! does not make its neighbours bad.

use crate::damage::Cause;
use crate::group::{Reads, StripeReads};
use crate::reading::requests;
use buttress_device::{Buffer, Device, IoError, PendingRead, ReadRequest};
use buttress_exact::Exact as _;
use buttress_format::{ByteCount, Physical};
use core::ops::Range;
use std::sync::Arc;

/// A sector that the device did not return.
#[derive(Debug)]
struct BadSector {
    /// The range in the run.
    range: Range<usize>,
    reason: Arc<str>,
}

/// A run of a stripe.
#[derive(Debug)]
struct Run {
    /// The offset of the fetched run in its stripe.
    start: u64,
    bytes: Buffer,
    bad: Vec<BadSector>,
}

/// The runs of the group in a stripe, in ascending order.
#[derive(Debug)]
pub(crate) struct Fetched {
    runs: Vec<Run>,
    missing: bool,
}

/// A part of a stripe: its bytes, and the sectors that the device did not return.
#[derive(Clone, Copy, Debug)]
pub(crate) struct View<'a> {
    pub(crate) bytes: &'a [u8],
    bad: &'a [BadSector],
    /// The offset of the part in its run.
    offset: usize,
}

#[cfg(test)]
impl<'a> View<'a> {
    /// Returns a view of bytes that the device returned.
    pub(crate) const fn of(bytes: &'a [u8]) -> Self {
        Self {
            bytes,
            bad: &[],
            offset: 0,
        }
    }
}

impl View<'_> {
    /// Returns the reason why bytes of `range` are missing; `None` if all bytes are present.
    pub(crate) fn unreadable(&self, range: &Range<usize>) -> Option<Cause> {
        let start = self.offset.exact_add(range.start);
        let end = self.offset.exact_add(range.end);
        let overlaps = |bad: &&BadSector| bad.range.start < end && bad.range.end > start;
        let bad = self.bad.iter().find(overlaps)?;
        Some(Cause::Unreadable(Arc::clone(&bad.reason)))
    }

    pub(crate) const fn is_whole(&self) -> bool {
        self.bad.is_empty()
    }
}

impl Fetched {
    /// Waits for the reads of a stripe that begins at `physical` on its device.
    pub(crate) fn wait(
        reads: StripeReads,
        device: Option<&Device>,
        physical: Physical,
        sector_bytes: usize,
    ) -> Self {
        let missing = Self {
            runs: Vec::new(),
            missing: true,
        };
        let Some(device) = device else { return missing };
        let arrived = match reads.reads {
            Reads::None => return missing,
            Reads::UnderWay(pending) => pending.into_iter().map(PendingRead::wait).collect(),
            Reads::InMemory => read_from_memory(device, &requests(&reads.runs, physical).collect::<Vec<_>>()),
        };
        let arrived: Vec<Result<Buffer, IoError>> = arrived;
        let runs = reads.runs.into_iter().zip(arrived).map(|(range, read)| {
            let length = range.end.exact_sub(range.start).narrow();
            match read {
                Ok(bytes) => Run {
                    start: range.start,
                    bytes,
                    bad: Vec::new(),
                },
                Err(error) => {
                    // Clamp: a chunk item can point anywhere; the device refuses the last address.
                    let at = physical.saturating_add(ByteCount::new(range.start));
                    salvage(device, at, range.start, length, sector_bytes, &error)
                }
            }
        });
        Self {
            runs: runs.collect(),
            missing: false,
        }
    }

    /// Returns whether the device is missing.
    pub(crate) const fn is_missing(&self) -> bool {
        self.missing
    }

    /// Returns a part of the stripe; `None` if it was not read.
    pub(crate) fn view(&self, range: &Range<u64>) -> Option<View<'_>> {
        let after = self.runs.partition_point(|run| run.start <= range.start);
        let run = self.runs.get(after.checked_sub(1)?)?;
        let offset = usize::try_from(range.start.checked_sub(run.start)?).ok()?;
        let length = usize::try_from(range.end.checked_sub(range.start)?).ok()?;
        Some(View {
            bytes: run.bytes.get(offset..offset.checked_add(length)?)?,
            bad: &run.bad,
            offset,
        })
    }
}

/// Copies bytes out of the page cache, as long as it has them. From the first request that is
/// absent from the page cache, ordinary reads in one plug follow.
fn read_from_memory(device: &Device, requests: &[ReadRequest]) -> Vec<Result<Buffer, IoError>> {
    let mut arrived = Vec::with_capacity(requests.len());
    for request in requests {
        match device.read_cached(request.offset_bytes, request.length) {
            Some(bytes) => arrived.push(Ok(bytes)),
            None => break,
        }
    }
    // Clamp: no more requests arrived than were made.
    let rest = device.start_reads(requests.get(arrived.len()..).unwrap_or_default());
    arrived.extend(rest.into_iter().map(PendingRead::wait));
    arrived
}

/// Reads sectors one by one. Unreadable sectors are zeros in the buffer, and recorded.
fn salvage(
    device: &Device,
    at: Physical,
    start: u64,
    length: usize,
    sector_bytes: usize,
    whole: &IoError,
) -> Run {
    let mut bytes = Buffer::zeroed(length);
    let mut bad = Vec::new();
    let mut offset = 0;
    for sector in bytes.chunks_mut(sector_bytes.max(1)) {
        // Clamp: as in `wait`, a chunk item can point anywhere.
        let physical = at.saturating_add(ByteCount::of(offset));
        let end = offset.exact_add(sector.len());
        let read = match length > sector_bytes {
            true => device.read(physical.get(), sector.len()),
            false => Err(whole.clone()),
        };
        match read {
            Ok(read) => sector.copy_from_slice(&read),
            Err(error) => bad.push(BadSector {
                range: offset..end,
                reason: error.message,
            }),
        }
        offset = end;
    }
    Run { start, bytes, bad }
}
