//! Cutting ranges of files into pieces to read.

use super::{Chunk, Content, PIECE_BYTES, Piece, Planned, Slice};
use crate::extents::{DiskExtent, FileRange, InlineContent, RangeKind};
use crate::location::Location;
use buttress_format::{ByteCount, Compression, FileOffset};
use buttress_volume::ExtentRead;
use smallvec::smallvec;
use std::ops::Range;

/// How many ranges share the reading of one compressed extent. More of them are read in several pieces, so that
/// a file of nothing but such ranges is planned in bounded memory.
const SLICES_MAX: usize = 64;

/// Plans the part of `range` that lies in `wanted`, appending to `planned`. Neighbouring ranges of the same
/// compressed extent share one piece.
pub fn plan(
    location: Location,
    sector_bytes: u32,
    range: &FileRange,
    wanted: &Range<FileOffset>,
    planned: &mut Vec<Planned>,
) {
    let from = range.offset.max(wanted.start);
    let to = range.end().min(wanted.end);
    let Some(length) = to
        .checked_distance_from(from)
        .filter(|length| *length != ByteCount::ZERO)
    else {
        return;
    };
    match &range.kind {
        RangeKind::Hole | RangeKind::Preallocated(_) => {
            planned.push(Planned::Ready(Chunk {
                offset: from,
                length,
                content: Content::Hole,
            }));
        }
        RangeKind::Inline(inline) => plan_inline(location, range, from, length, inline, planned),
        RangeKind::Data(extent) => {
            // The range was checked to lie inside its extent, and addresses not to overflow.
            let skipped = from.get().saturating_sub(range.offset.get());
            let inside = extent.offset.get().saturating_add(skipped);
            if extent.compression == Compression::None {
                plan_plain(location, sector_bytes, extent, inside, from..to, planned);
            } else {
                plan_compressed(location, extent, inside, from, length, planned);
            }
        }
    }
}

fn plan_inline(
    location: Location,
    range: &FileRange,
    from: FileOffset,
    length: ByteCount,
    inline: &InlineContent,
    planned: &mut Vec<Planned>,
) {
    if inline.compression != Compression::None {
        planned.push(Planned::Inline(location, from, inline.clone(), length));
        return;
    }
    let start = from
        .checked_distance_from(range.offset)
        .and_then(ByteCount::to_usize)
        .unwrap_or(usize::MAX);
    let end = start
        .saturating_add(length.to_usize().unwrap_or(usize::MAX))
        .min(inline.stored.len());
    if start < end {
        let bytes = inline.stored.slice(start..end);
        let length = ByteCount::of(bytes.len());
        planned.push(Planned::Ready(Chunk {
            offset: from,
            length,
            content: Content::Data(bytes),
        }));
    }
}

/// Plain data: pieces of whole sectors that end at multiples of [`PIECE_BYTES`] of the extent.
fn plan_plain(
    location: Location,
    sector_bytes: u32,
    extent: &DiskExtent,
    inside: u64,
    file: Range<FileOffset>,
    planned: &mut Vec<Planned>,
) {
    let sector_bytes = u64::from(sector_bytes);
    let total = file.end.get().saturating_sub(file.start.get());
    let end = inside.saturating_add(total);
    let mut position = inside;
    while position < end {
        let start = ByteCount::new(position).align_down(sector_bytes).get();
        let limit = start.saturating_add(PIECE_BYTES).min(end);
        let stop = ByteCount::new(limit)
            .checked_align_up(sector_bytes)
            .map_or(limit, ByteCount::get);
        let to_usize = |bytes: u64| usize::try_from(bytes).unwrap_or(usize::MAX);
        let slice = Slice {
            offset: FileOffset::new(file.start.get().saturating_add(position.saturating_sub(inside))),
            inside: to_usize(position.saturating_sub(start))..to_usize(limit.saturating_sub(start)),
        };
        planned.push(Planned::Read(Piece {
            location,
            read: ExtentRead {
                logical: extent.logical.saturating_add(ByteCount::new(start)),
                length: to_usize(stop.saturating_sub(start)),
            },
            compression: Compression::None,
            ram_bytes: 0,
            slices: smallvec![slice],
            expected: None,
        }));
        position = limit;
    }
}

/// Compressed data: the whole extent, whatever part of it is wanted.
fn plan_compressed(
    location: Location,
    extent: &DiskExtent,
    inside: u64,
    offset: FileOffset,
    length: ByteCount,
    planned: &mut Vec<Planned>,
) {
    // Sizes of compressed extents were checked against their limit, 128 KiB.
    let to_usize = |bytes: u64| usize::try_from(bytes).unwrap_or(usize::MAX);
    let start = to_usize(inside);
    let slice = Slice {
        offset,
        inside: start..start.saturating_add(to_usize(length.get())),
    };
    let read = ExtentRead {
        logical: extent.logical,
        length: to_usize(extent.disk_bytes.get()),
    };
    if let Some(Planned::Read(last)) = planned.last_mut()
        && last.compression == extent.compression
        && last.read == read
        && last.location == location
        && last.slices.len() < SLICES_MAX
    {
        last.slices.push(slice);
        return;
    }
    planned.push(Planned::Read(Piece {
        location,
        read,
        compression: extent.compression,
        ram_bytes: to_usize(extent.ram_bytes.get()),
        slices: smallvec![slice],
        expected: None,
    }));
}
