//! The bytes of a row for a replacement target: the source's column, as read or rebuilt.

use super::rebuild::Columns;
use super::{Span, spans};
use crate::copying::{Copied, Copying, Lost, filler};
use crate::damage::Cause;
use crate::group::{Arrived, Piece};
use crate::job::Job;
use crate::verify::{Bad, sector_of, sectors};
use buttress_exact::Exact as _;
use buttress_format::ByteCount;
use core::ops::Range;
use std::borrow::Cow;

/// A part of a piece in an unknown column.
struct Open<'a> {
    column: usize,
    piece: &'a Piece,
    bad: Bad,
}

/// Adds the source's column of each span for the target, as read or rebuilt.
pub(crate) fn copy<'a>(job: &'a Job<'a>, arrived: &'a Arrived, copying: &Copying, copied: &mut Copied<'a>) {
    let own = copying.stripes_on_source(&arrived.group.chunk);
    for span in spans(job, arrived) {
        for stripe in &own {
            span.copy_stripe(*stripe, copying, copied);
        }
    }
}

impl<'a> Span<'a> {
    /// Adds the source's part of the span: as read, or rebuilt from the other columns.
    fn copy_stripe(&self, stripe: usize, copying: &Copying, copied: &mut Copied<'a>) {
        let chunk = &self.arrived.group.chunk;
        let mut all = 0..chunk.layout().stripe_count();
        let column = all.find(|column| self.stripe(*column) == Some(stripe));
        let (Some(column), Some(at)) = (column, copying.place(chunk, stripe, self.range.start)) else {
            // Every stripe of the chunk has a column on its device, so this case is impossible.
            return self.lose_all(copied);
        };
        let bad = self.bad();
        // A data column is checked alone; parity is checked against the data.
        let is_right = match column < self.data_columns() {
            true => bad.iter().all(|(own, ..)| *own != column),
            false => self.is_clean(&bad),
        };
        if let Some(view) = self.view(column).filter(|view| is_right && view.is_whole()) {
            return copied.add(at, Cow::Borrowed(view.bytes));
        }
        let mut state = self.columns(&bad);
        self.distrust_unknown(&mut state);
        let bad = bad.into_iter().chain(self.unread_of(column));
        let open = bad.flat_map(|(column, piece, bad)| {
            let open = move |bad| Open { column, piece, bad };
            bad.into_iter().map(open)
        });
        let mut open: Vec<Open<'_>> = open.collect();
        loop {
            let before = open.len();
            open.retain(|open| !self.rebuild_open(&mut state, open));
            if open.is_empty() || open.len() == before {
                break;
            }
        }
        if !open.is_empty() {
            copied.lack();
        }
        if copied.is_last_try() {
            open.retain(|open| !self.take_as_it_is(&mut state, open));
        }
        for range in sectors(self.length(), sector_of(&self.job.format)) {
            let at = at.exact_add(ByteCount::of(range.start));
            let overlaps = |open: &&Open<'_>| self.overlap(open, &range).is_some();
            let is_open = open.iter().filter(overlaps).any(|open| open.column == column);
            // If the rebuilt bytes of a row failed their check, no rebuild without a check follows.
            let is_known = !open.iter().any(|open| overlaps(&open));
            if is_known && column >= self.data_columns() && !state.data_is_trusted(&range) {
                self.complete_data(&mut state, &range);
            }
            match self.source_bytes(&state, column, &range, is_open) {
                Some(bytes) => copied.add(at, Cow::Owned(bytes)),
                None => {
                    copied.lack();
                    if copied.is_last_try() {
                        let bytes = self.without(column, &range, &open, copied);
                        copied.add(at, bytes);
                    }
                }
            }
        }
    }

    /// Returns the unread parts of the source's column; the copy rebuilds and checks them as if
    /// they were bad.
    fn unread_of(&self, column: usize) -> impl Iterator<Item = super::BadPiece<'a>> {
        let is_unread = self.view(column).is_none();
        let own = self
            .pieces
            .iter()
            .filter(move |(own, _)| is_unread && *own == column);
        own.map(|(own, piece)| (*own, *piece, self.all_bad(piece)))
    }

    fn lose_all(&self, copied: &mut Copied<'a>) {
        copied.lack();
        if copied.is_last_try() {
            let all = self
                .pieces
                .iter()
                .map(|(_, piece)| Lost::of(piece, &(0..piece.length)));
            all.for_each(|lost| copied.lose(lost));
        }
    }

    /// Returns the overlap of an open part and a range of the span, as a range of the piece.
    fn overlap(&self, open: &Open<'_>, range: &Range<usize>) -> Option<Range<usize>> {
        let from = self.within(open.piece).start;
        let start = from.exact_add(open.bad.range.start).max(range.start);
        let end = from.exact_add(open.bad.range.end).min(range.end);
        (start < end).then(|| start.exact_sub(from)..end.exact_sub(from))
    }

    /// Trusts a tree block that cannot be rebuilt, if its only problem is a contradiction to the
    /// extent tree. A device that missed commits has older blocks there, which are not trusted.
    fn take_as_it_is(&self, state: &mut Columns, open: &Open<'_>) -> bool {
        let takes = open.bad.cause.may_be_right() && !self.is_behind(open.column);
        if takes {
            let start = self.within(open.piece).start.exact_add(open.bad.range.start);
            state.trust(open.column, start..start.exact_add(open.bad.range.len()));
        }
        takes
    }

    /// Returns the target's bytes for an unknown sector, and records the loss. In a data column the
    /// sector is lost. In a parity column the copy counts all unreadable parts of the row as lost.
    fn without(
        &self,
        column: usize,
        range: &Range<usize>,
        open: &[Open<'_>],
        copied: &mut Copied<'a>,
    ) -> Cow<'a, [u8]> {
        let is_data = column < self.data_columns();
        let mut filler_of_piece = None;
        for open in open.iter().filter(|open| !is_data || open.column == column) {
            let Some(within) = self.overlap(open, range) else {
                continue;
            };
            // A tree block is lost as a whole.
            let lost = match open.piece.is_data() {
                true => within.clone(),
                false => 0..open.piece.length,
            };
            copied.lose(Lost::of(open.piece, &lost));
            filler_of_piece = Some(filler(&self.arrived.group, open.piece, &within, &self.job.format));
        }
        let view = self.view(column);
        let given = view.filter(|view| view.unreadable(range).is_none());
        match given.and_then(|view| view.bytes.get(range.clone())) {
            Some(bytes) => Cow::Borrowed(bytes),
            // If no piece is lost, nothing uses the filler in this range.
            None => Cow::Owned(filler_of_piece.unwrap_or_else(|| vec![0; range.len()])),
        }
    }

    /// Returns the bytes of one sector of a RAID5 or RAID6 column, if they are known.
    fn source_bytes(
        &self,
        state: &Columns,
        column: usize,
        range: &Range<usize>,
        is_open: bool,
    ) -> Option<Vec<u8>> {
        let as_read = || state.get(column, range).map(<[u8]>::to_vec);
        let is_trusted = state.is_trusted(column, range);
        let parity = column.checked_sub(self.data_columns());
        // If parity does not fit the data and the data has no checksums, it is unknown whether
        // parity or data is wrong.
        let is_computed = state.data_is_trusted(range) && !(is_trusted && self.uses(range).bare);
        match parity {
            None if is_trusted => as_read(),
            // The copy has already tried to rebuild the used parts of this range.
            None if is_open => None,
            None => state.rebuild(column, range, |_| true),
            Some(0) if is_computed => Some(state.p(range)),
            Some(_) if is_computed => Some(state.q(range)),
            Some(_) => as_read().filter(|_| is_trusted),
        }
    }

    /// Returns the whole piece as parts to be rebuilt.
    fn all_bad(&self, piece: &Piece) -> Vec<Bad> {
        let unit = if piece.is_data() {
            sector_of(&self.job.format)
        } else {
            piece.length
        };
        let bad = |range| Bad {
            range,
            cause: Cause::Unreadable("it was not read".into()),
        };
        sectors(piece.length, unit).map(bad).collect()
    }

    /// Rebuilds an unread part of the source's column in memory, if the result passes its check.
    fn rebuild_open(&self, state: &mut Columns, open: &Open<'_>) -> bool {
        let Open { column, piece, bad } = open;
        let start = self.within(piece).start.exact_add(bad.range.start);
        let range = start..start.exact_add(bad.range.len());
        let Some(good) = state.rebuild(*column, &range, |bytes| self.passes(piece, bad, bytes)) else {
            return false;
        };
        state.replace(*column, range, &good);
        true
    }
}
