//! Pieces of used ranges, each of which can be one extent.

use super::chunks::{Layout, Moved};
use super::reserved::RESERVED;
use super::units::UNIT_BYTES;
use buttress_exact::Exact as _;
use core::ops::Range;

/// The longest extent: 128 MiB.
pub const EXTENT_BYTES_MAX: u64 = 128 << 20;

/// Bytes of the old file system that stay together in the new one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// The first byte on the device before the conversion. It is also the offset in the saved image.
    pub offset: u64,
    /// The logical address after the conversion.
    pub logical: u64,
    /// The number of bytes.
    pub length: u64,
}

impl Layout {
    /// Returns the pieces of the used bytes `range`, in order. Pieces end where a chunk ends, where a
    /// reserved range begins or ends, and after [`EXTENT_BYTES_MAX`]. Bytes in no chunk, which used
    /// bytes never are, give no piece.
    pub fn pieces(&self, range: Range<u64>) -> impl Iterator<Item = Piece> + '_ {
        let mut at = range.start;
        core::iter::from_fn(move || {
            if at >= range.end {
                return None;
            }
            let piece = self.piece(at, range.end)?;
            at = at.exact_add(piece.length);
            Some(piece)
        })
    }

    /// Returns the piece that begins at `offset`, of bytes before `end`.
    fn piece(&self, offset: u64, end: u64) -> Option<Piece> {
        if RESERVED.iter().any(|range| range.contains(&offset)) {
            return self.moved_piece(offset, end);
        }
        let index = self.data.partition_point(|chunk| chunk.end <= offset);
        let chunk = self.data.get(index).filter(|chunk| chunk.start <= offset)?;
        let end = end.min(chunk.end).min(offset.exact_add(EXTENT_BYTES_MAX));
        Some(Piece {
            offset,
            logical: offset,
            length: end.exact_sub(offset),
        })
    }

    /// Returns the piece of a reserved range: copies that follow each other, in one chunk.
    fn moved_piece(&self, offset: u64, end: u64) -> Option<Piece> {
        let unit_end = |moved: &Moved| moved.from.get().exact_add(UNIT_BYTES);
        let index = self.moved.partition_point(|moved| unit_end(moved) <= offset);
        let mut units = self.moved.get(index..)?.iter();
        let mut last = units.next().filter(|moved| moved.from.get() <= offset)?;
        let logical = last.to.get().exact_add(offset.exact_sub(last.from.get()));
        let chunk = self.data.iter().find(|chunk| chunk.contains(&logical))?;
        for next in units {
            let follows = next.from.get() == unit_end(last)
                && next.to.get() == last.to.get().exact_add(UNIT_BYTES)
                && next.to.get() < chunk.end;
            if !follows {
                break;
            }
            last = next;
        }
        let end = end.min(unit_end(last));
        Some(Piece {
            offset,
            logical,
            length: end.exact_sub(offset),
        })
    }
}
