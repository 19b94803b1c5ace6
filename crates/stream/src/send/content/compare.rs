//! The parts of a file's content that two snapshots do not share.
//!
//! Differing items select ranges of the file. For such a range, this module walks the maps of both
//! files in parallel, in pieces that are one range in each map. The send compares files piece by
//! piece. It sends a piece if the new file uses other bytes than the old one. The comparison joins
//! pieces that newly read as zeros to holes.
//!
//! Invariant: before this module inspects a piece, the receiver's file has everything before the
//! piece, except for the range in [`Pending`].

use crate::send::content::map::{Map, align_up, continues, part_of, same_bytes};
use crate::send::content::{Content, Stream};
use crate::send::error::Result;
use buttress_format::FileOffset;
use buttress_fs::{FileRange, Metadata, RangeKind};
use core::ops::Range;

/// A file range that is a single range in both maps.
struct Piece {
    /// The new file's range, cut to this piece.
    range: FileRange,
    /// End of the run of zeros that includes the piece, if it reads as zeros.
    zeros_end: FileOffset,
    /// True if the receiver has the same bytes.
    same: bool,
    /// True if both snapshots have equal bytes on disk, but the receiver has zeros there.
    spoilt: bool,
    /// True if the stream must zero this piece of the file on the receiver.
    erased: bool,
}

/// The newest range that is not sent yet; adjacent pieces extend it.
enum Pending {
    Nothing,
    Data(FileRange),
    Zeros(Range<FileOffset>),
}

/// Maps of the file in both snapshots.
struct Maps {
    old: Map,
    new: Map,
    /// End of the range to compare.
    end: FileOffset,
}

impl Content {
    /// Sends the unshared parts of the pending range.
    pub(super) fn compare_dirty(&mut self, stream: &mut Stream<'_, '_>) -> Result<()> {
        let (Some(dirty), Some(old)) = (self.dirty.take(), self.old.clone()) else {
            return Ok(());
        };
        let mut maps = self.maps(&dirty, old, stream)?;
        let mut pending = Pending::Nothing;
        let mut position = dirty.start;
        while position < maps.end {
            let Some(piece) = self.piece(&mut maps, position, stream)? else {
                break;
            };
            position = piece.range.end();
            pending = self.take_piece(piece, pending, stream)?;
        }
        self.send_pending(pending, stream)
    }

    fn maps(&mut self, dirty: &Range<FileOffset>, old: Metadata, stream: &Stream<'_, '_>) -> Result<Maps> {
        let end = dirty.end.min(self.size);
        if let Some((old, new)) = core::mem::take(&mut self.known).maps(dirty.start, end) {
            return Ok(Maps { old, new, end });
        }
        let new = stream.sources.new.filesystem();
        let of = stream.sources.old.unwrap_or(stream.sources.new).filesystem();
        let new = new.open_known(self.metadata.clone(), None)?;
        let old = of.open_known(old, None)?;
        Ok(Maps {
            old: Map::new(old.extents_from(dirty.start)?),
            new: Map::new(new.extents_from(dirty.start)?),
            end,
        })
    }

    /// Returns the piece of a file that begins at `position`.
    fn piece(&self, maps: &mut Maps, position: FileOffset, stream: &Stream<'_, '_>) -> Result<Option<Piece>> {
        let Some(is) = maps.new.at(position)? else {
            return Ok(None);
        };
        let was = maps.old.at(position)?;
        let sector_bytes = u64::from(stream.sources.new.filesystem().sector_bytes());
        // A hole up to the end of the file ends inside a sector, but items end at sector
        // boundaries.
        let was_end = was
            .as_ref()
            .map_or(FileOffset::MAX, |was| align_up(was.end(), sector_bytes));
        let mut stop = was_end.min(is.end()).min(maps.end);
        // Cut the piece of the file at both ends of the receiver's incomplete last sector.
        let spoilt = self.spoilt.clone().unwrap_or(FileOffset::MAX..FileOffset::MAX);
        for edge in [spoilt.start, self.old_end] {
            if position < edge && !spoilt.is_empty() {
                stop = stop.min(edge);
            }
        }
        let in_last_sector = spoilt.contains(&position);
        // Inline content is one piece.
        let stop = if matches!(is.kind, RangeKind::Inline(_)) {
            is.end()
        } else {
            stop
        };
        let range = part_of(&is, position, stop);
        let was_zero = position >= self.receiver_size || was.as_ref().is_none_or(FileRange::is_zero);
        let equal = stream.sources.one_volume
            && was.is_some_and(|was| same_bytes(&part_of(&was, position, stop), &range));
        let behind_the_end = in_last_sector && position >= self.old_end;
        let grows_here = in_last_sector && position < self.receiver_size;
        let erased = range.is_zero() && (!was_zero || grows_here);
        let zeros_end = if erased { maps.new.zeros_end()? } else { stop };
        Ok(Some(Piece {
            spoilt: behind_the_end && equal && matches!(range.kind, RangeKind::Data(_)),
            same: !behind_the_end && equal,
            range,
            zeros_end,
            erased,
        }))
    }

    /// Extends the pending range by a piece, or sends the pending range first.
    fn take_piece(&mut self, piece: Piece, pending: Pending, stream: &mut Stream<'_, '_>) -> Result<Pending> {
        let range = piece.range;
        if piece.spoilt {
            self.send_pending(pending, stream)?;
            self.behind_the_end(range, stream)?;
            return Ok(Pending::Nothing);
        }
        if !range.is_zero() && !piece.same {
            if let Pending::Data(mut before) = pending {
                if before.end() == range.offset && continues(&before, &range) {
                    before.length = before.length.saturating_add(range.length);
                    return Ok(Pending::Data(before));
                }
                self.range(before, stream)?;
            } else {
                self.send_pending(pending, stream)?;
            }
            return Ok(Pending::Data(range));
        }
        if !piece.erased {
            self.send_pending(pending, stream)?;
            stream.remember_preallocated(self.number, &range, self.metadata.size);
            return Ok(Pending::Nothing);
        }
        let start = match pending {
            Pending::Zeros(before) if before.end == range.offset => before.start,
            other => {
                self.send_pending(other, stream)?;
                range.offset
            }
        };
        if piece.zeros_end >= self.receiver_size {
            // The receiver's file has nothing after these zeros.
            self.zero(start..piece.zeros_end, stream)?;
            stream.remember_preallocated(self.number, &range, self.metadata.size);
            return Ok(Pending::Nothing);
        }
        if matches!(range.kind, RangeKind::Preallocated(_)) && stream.clones_holes() {
            self.zero(start..range.offset, stream)?;
            self.preallocated(&range, stream)?;
            return Ok(Pending::Nothing);
        }
        Ok(Pending::Zeros(start..range.end()))
    }

    fn send_pending(&mut self, pending: Pending, stream: &mut Stream<'_, '_>) -> Result<()> {
        match pending {
            Pending::Nothing => Ok(()),
            Pending::Data(range) => self.range(range, stream),
            Pending::Zeros(range) => self.zero(range, stream),
        }
    }
}
