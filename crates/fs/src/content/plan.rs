//! Planning: splitting ranges of files into pieces to read.

use super::{Chunk, Content, PIECE_BYTES, Piece, Planned, Slice};
use crate::extents::{DiskExtent, FileRange, InlineContent, RangeKind};
use crate::location::Location;
use buttress_exact::Exact as _;
use buttress_format::{ByteCount, Compression, FileOffset};
use buttress_volume::ExtentRead;
use smallvec::smallvec;
use std::ops::Range;

/// The maximum number of ranges that share one read of a compressed extent. More ranges are read in
/// several pieces, so that a file of only such ranges is planned in bounded memory.
const SLICES_MAX: usize = 64;

/// Plans the part of `range` that lies in `wanted`, and appends to `planned`. Adjacent ranges of
/// the same compressed extent share one piece.
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
            // A check ensured that the range lies inside its extent, and that addresses do not
            // overflow.
            let skipped = from.distance_from(range.offset);
            let inside = extent.offset.exact_add(skipped).get();
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
    // The inline item can hold fewer bytes than the range. The rest reads as zeros.
    let stored = inline.stored.len();
    let start = from.distance_from(range.offset).at_most(stored);
    let end = start.exact_add(length.at_most(stored.exact_sub(start)));
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

/// Plans reads of uncompressed data: pieces of whole sectors that end at multiples of
/// [`PIECE_BYTES`] in the extent.
fn plan_plain(
    location: Location,
    sector_bytes: u32,
    extent: &DiskExtent,
    inside: u64,
    file: Range<FileOffset>,
    planned: &mut Vec<Planned>,
) {
    let sector_bytes = u64::from(sector_bytes);
    let total = file.end.distance_from(file.start).get();
    let end = inside.exact_add(total);
    let mut position = inside;
    while position < end {
        let start = ByteCount::new(position).align_down(sector_bytes).get();
        let limit = start.exact_add(PIECE_BYTES).min(end);
        let stop = ByteCount::new(limit)
            .checked_align_up(sector_bytes)
            .map_or(limit, ByteCount::get);
        let slice = Slice {
            offset: file.start.exact_add(ByteCount::new(position.exact_sub(inside))),
            inside: position.exact_sub(start).narrow()..limit.exact_sub(start).narrow(),
        };
        planned.push(Planned::Read(Piece {
            location,
            read: ExtentRead {
                logical: extent.logical.exact_add(ByteCount::new(start)),
                length: stop.exact_sub(start).narrow(),
            },
            compression: Compression::None,
            ram_bytes: 0,
            slices: smallvec![slice],
            expected: None,
        }));
        position = limit;
    }
}

/// Plans compressed data: the whole extent, whichever part of it is needed.
fn plan_compressed(
    location: Location,
    extent: &DiskExtent,
    inside: u64,
    offset: FileOffset,
    length: ByteCount,
    planned: &mut Vec<Planned>,
) {
    // The sizes of compressed extents were checked against their limit of 128 KiB.
    let start: usize = inside.narrow();
    let slice = Slice {
        offset,
        inside: start..start.exact_add(length.exact_usize()),
    };
    let read = ExtentRead {
        logical: extent.logical,
        length: extent.disk_bytes.exact_usize(),
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
        ram_bytes: extent.ram_bytes.exact_usize(),
        slices: smallvec![slice],
        expected: None,
    }));
}
