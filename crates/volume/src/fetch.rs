//! Fetching the bytes of one segment by one way: a read of one stripe, or a rebuild from the rest
//! of the row.
//!
//! Every read is compared with the device's size before it allocates memory, because chunk items
//! from disk can name any address.

use crate::chunk_map::MappedChunk;
use crate::error::Attempt;
use crate::faults::FaultReason;
use crate::mirror::{Segment, Source, Way};
use crate::parity::{Recovery, Row};
use crate::write::RowLocks;
use buttress_device::{Buffer, Device, PendingRead, ReadRequest};
use buttress_format::{ByteCount, Physical};
use std::ops::Range;

/// Returns the device of a stripe after checking that the device holds `length` bytes at
/// `physical`.
pub(crate) fn reachable(
    chunk: &MappedChunk,
    stripe_index: usize,
    physical: Physical,
    length: usize,
) -> Result<&Device, FaultReason> {
    let slot = chunk.devices().get(stripe_index).ok_or(FaultReason::Missing)?;
    let device = slot.in_use().ok_or_else(|| FaultReason::of_absence(slot))?;
    // Clamp: a chunk item can name any address. The read refuses a range that ends at the last
    // address.
    let end = physical.saturating_add(ByteCount::of(length));
    let size_bytes = device.size_bytes();
    if end.get() > size_bytes || end == Physical::MAX {
        return Err(FaultReason::BeyondEnd { end, size_bytes });
    }
    Ok(device)
}

/// Reads `part` of a segment by `way`, and waits for it. `part` counts from the segment's start. A
/// rebuild reads all columns in one state of the row.
pub(crate) fn fetch(
    locks: &RowLocks,
    segment: &Segment,
    way: Way,
    part: Range<usize>,
) -> Result<Buffer, Attempt> {
    match way.source {
        Source::Direct {
            stripe_index,
            physical,
        } => {
            // Clamp: `reachable` refuses the last address.
            let at = physical.saturating_add(ByteCount::of(part.start));
            reachable(&segment.chunk, stripe_index, at, part.len())
                .and_then(|device| device.read(at.get(), part.len()).map_err(FaultReason::Io))
                .map_err(|reason| segment.attempt(way, stripe_index, reason))
        }
        Source::Rebuild(recovery) => {
            let row = segment.place.parity.map_or(0, |place| place.row);
            locks.read_steadily(segment.chunk.start(), row, || {
                rebuild(segment, way, recovery, part.clone())
            })
        }
    }
}

fn rebuild(segment: &Segment, way: Way, recovery: Recovery, part: Range<usize>) -> Result<Buffer, Attempt> {
    // All columns lie on different devices. The reads of all columns start together, and the
    // rebuild then waits for each in turn.
    let mut pending = Vec::new();
    for (column, stripe_index) in segment.needed_columns(recovery) {
        // Clamp: `reachable` refuses a range at the last address.
        let physical = segment
            .chunk
            .physical(stripe_index, segment.place.stripe_offset)
            .unwrap_or(Physical::MAX)
            .saturating_add(ByteCount::of(part.start));
        let device = reachable(&segment.chunk, stripe_index, physical, part.len())
            .map_err(|reason| segment.attempt(way, stripe_index, reason))?;
        let request = ReadRequest {
            offset_bytes: physical.get(),
            length: part.len(),
        };
        pending.push((column, stripe_index, start_one(device, request)));
    }
    let mut blocks = Vec::with_capacity(pending.len());
    for (column, stripe_index, read) in pending {
        let failed = |reason| segment.attempt(way, stripe_index, reason);
        let block = read
            .ok_or(FaultReason::Missing)
            .and_then(|read| read.wait().map_err(FaultReason::Io));
        blocks.push((column, block.map_err(failed)?));
    }
    let columns = segment.chunk.layout().data_columns();
    let mut row = Row {
        data: vec![None; columns],
        p: None,
        q: None,
    };
    for (column, block) in &blocks {
        match row.data.get_mut(*column) {
            Some(slot) => *slot = Some(block),
            None if *column == columns => row.p = Some(block),
            None => row.q = Some(block),
        }
    }
    let target = segment.place.parity.map_or(usize::MAX, |place| place.column);
    let mut out = Buffer::zeroed(part.len());
    match row.rebuild(target, recovery, &mut out) {
        Some(()) => Ok(out),
        None => Err(segment.attempt(way, segment.place.stripe_index, FaultReason::Missing)),
    }
}

fn start_one(device: &Device, request: ReadRequest) -> Option<PendingRead> {
    device.start_reads(vec![request]).pop()
}
