//! RAID5 and RAID6: repairs data from parity, then parity from data.
//!
//! A *span* is a part of a row with something in use. All its columns, `P` and `Q` are read. Data
//! that fails its check is rebuilt, sector by sector, from the columns trusted there, in each way
//! of the profile, until the result passes the check. When all data of a span is trusted, the scrub
//! computes parity from it, and rewrites wrong parity.
//!
//! The scrub trusts columns unless a check fails: ranges that are not in use are part of the parity
//! too. If parity does not match and data without checksums is involved, it is unknown which is
//! wrong. The scrub reports such a mismatch, unless the other parity matches.
//!
//! With a device missing, parity of its rows is not checked, because only parity may have the
//! missing bytes. The scrub does not check parity either if a part of the extent tree is
//! unreadable. A column may then have unknown damaged data, which only the parity of the row can
//! rebuild.

mod copy;
mod rebuild;
mod unknown;

pub(crate) use copy::copy;

use crate::copying::stored_checksum;
use crate::damage::{Cause, Outcome, Part};
use crate::fetched::View;
use crate::group::{Arrived, Expected, Piece, unit};
use crate::job::Job;
use crate::mending::{Site, site_of};
use crate::mirrors::{count_piece, site};
use crate::report::Counters;
use crate::verify::{Bad, judge, sector_of, sectors};
use buttress_exact::Exact as _;
use buttress_format::{ByteCount, Profile};
use buttress_volume::layout::{ChunkOffset, Content, StripeOffset};
use buttress_volume::parity::{compute_p, compute_q};
use core::ops::Range;
use rebuild::Columns;

/// A part of a row, and its pieces in use.
struct Span<'a> {
    job: &'a Job<'a>,
    arrived: &'a Arrived,
    /// The byte range of the span in each stripe.
    range: Range<u64>,
    row: u64,
    /// The pieces in the range, each with its column number.
    pieces: Vec<(usize, &'a Piece)>,
}

/// A piece of a column, and its wrong parts.
type BadPiece<'a> = (usize, &'a Piece, Vec<Bad>);

/// The use of a part of a span; neither field is set if all used space of the part was preallocated
/// and never written.
#[derive(Clone, Copy, Debug, Default)]
struct Uses {
    /// True if data without checksums uses this part of the row.
    bare: bool,
    /// True if tree blocks or data with checksums use this part of the row.
    known: bool,
}

/// Checks and repairs a group of a chunk with parity.
pub(crate) fn check(job: &Job<'_>, arrived: &Arrived) {
    count(job, arrived);
    spans(job, arrived).for_each(|span| span.check());
}

/// Counts all pieces of a group as scrubbed.
pub(crate) fn count(job: &Job<'_>, arrived: &Arrived) {
    let stripes = arrived.group.chunk.layout().stripe_count();
    let mut counted = vec![Counters::default(); stripes];
    for piece in &arrived.group.pieces {
        let stripe = piece.place.stripe_index;
        let fetched = arrived.stripes.get(stripe);
        let is_there = fetched.is_some_and(|fetched| fetched.view(&piece.on_stripe()).is_some());
        if let Some(counted) = counted.get_mut(stripe).filter(|_| is_there) {
            count_piece(job, arrived, piece, stripe, counted);
        }
    }
    for (stripe, counted) in counted.iter().enumerate() {
        if let Some(slot) = arrived.group.chunk.devices().get(stripe) {
            job.count(slot, |counters| counters.add(counted));
        }
    }
}

/// Returns the spans of a group.
fn spans<'a>(job: &'a Job<'a>, arrived: &'a Arrived) -> impl Iterator<Item = Span<'a>> {
    arrived.group.runs_of_rows().into_iter().map(move |range| {
        let lies_in = |piece: &&Piece| {
            let own = piece.on_stripe();
            range.start <= own.start && own.end <= range.end
        };
        let in_span = arrived.group.pieces.iter().filter(lies_in);
        let pieces = in_span.filter_map(|piece| Some((piece.place.parity?.column, piece)));
        Span {
            job,
            arrived,
            row: unit(range.start),
            pieces: pieces.collect(),
            range: range.clone(),
        }
    })
}

/// Returns whether all read columns are right, and parity matches.
pub(crate) fn is_clean(job: &Job<'_>, arrived: &Arrived) -> bool {
    spans(job, arrived).all(|span| span.is_clean(&span.bad()))
}

impl<'a> Span<'a> {
    fn length(&self) -> usize {
        self.range.end.exact_sub(self.range.start).narrow()
    }

    /// Returns the column's part of the span as it was read. Columns after the data columns are
    /// `P`, then `Q`.
    fn view(&self, column: usize) -> Option<View<'a>> {
        let stripe = self.stripe(column)?;
        self.arrived.stripes.get(stripe)?.view(&self.range)
    }

    fn stripe(&self, column: usize) -> Option<usize> {
        self.arrived
            .group
            .chunk
            .layout()
            .stripe_of_column(self.row, column)
    }

    fn data_columns(&self) -> usize {
        self.arrived.group.chunk.layout().data_columns()
    }

    fn has_q(&self) -> bool {
        self.arrived.group.chunk.layout().profile() == Profile::Raid6
    }

    /// Returns the range of a piece in the span.
    fn within(&self, piece: &Piece) -> Range<usize> {
        let start: usize = piece.on_stripe().start.exact_sub(self.range.start).narrow();
        start..start.exact_add(piece.length)
    }

    /// Returns the parts of the read data that fail their checks.
    fn bad(&self) -> Vec<BadPiece<'a>> {
        let judged = self.pieces.iter().filter_map(|(column, piece)| {
            let stripe = self.stripe(*column)?;
            let view = self.arrived.stripes.get(stripe)?.view(&piece.on_stripe())?;
            let bad = judge(&self.arrived.group, piece, &view, &self.job.format);
            (!bad.is_empty()).then_some((*column, *piece, bad))
        });
        judged.collect()
    }

    /// Returns whether all columns were read, none is bad, and parity matches.
    fn is_clean(&self, bad: &[BadPiece<'_>]) -> bool {
        let columns = self.data_columns();
        let all = columns.exact_add(1).exact_add(usize::from(self.has_q()));
        let is_whole = |column| self.view(column).is_some_and(|view| view.is_whole());
        if !bad.is_empty() || !(0..all).all(is_whole) {
            return false;
        }
        let data: Option<Vec<&[u8]>> = (0..columns)
            .map(|column| Some(self.view(column)?.bytes))
            .collect();
        data.is_some_and(|data| self.parity_fits(&data))
    }

    fn check(&self) {
        let bad = self.bad();
        if self.is_clean(&bad) {
            return;
        }
        let mut state = self.columns(&bad);
        self.mend_data(&mut state, bad);
        self.distrust_unknown(&mut state);
        if !self.arrived.group.is_partial || buttress_faults::on("scrub-parity-over-unknown") {
            self.check_parity(&state);
        }
    }

    /// Returns whether both parities match the data: the ordinary case, computed on the slices as
    /// read.
    fn parity_fits(&self, data: &[&[u8]]) -> bool {
        let columns = self.data_columns();
        let mut computed = vec![0; self.length()];
        compute_p(data.iter().copied(), &mut computed);
        if self.view(columns).map(|view| view.bytes) != Some(&computed) {
            return false;
        }
        if !self.has_q() {
            return true;
        }
        compute_q(data.iter().map(|block| Some(*block)), &mut computed);
        self.view(columns.exact_add(1)).map(|view| view.bytes) == Some(&computed)
    }

    /// Returns the columns of the row as read, with marks on untrusted ranges.
    fn columns(&self, bad: &[BadPiece<'_>]) -> Columns {
        let sector = sector_of(&self.job.format);
        let length = self.length();
        let data = self.data_columns();
        let mut state = Columns::new(data, self.has_q(), length, sector);
        for column in 0..state.len() {
            match self.view(column) {
                None => state.distrust(column, 0..length),
                Some(view) => {
                    state.set(column, view.bytes);
                    for range in sectors(length, sector).filter(|range| view.unreadable(range).is_some()) {
                        state.distrust(column, range);
                    }
                }
            }
        }
        for (column, piece, bad) in bad {
            let start = self.within(piece).start;
            for bad in bad {
                let range = start.exact_add(bad.range.start)..start.exact_add(bad.range.end);
                state.distrust(*column, range);
            }
        }
        state
    }

    /// Rebuilds bad data of the row from the other columns. Repaired parts of a row may help to
    /// repair other parts.
    fn mend_data(&self, state: &mut Columns, bad: Vec<BadPiece<'_>>) {
        let mut open: Vec<(usize, &Piece, Bad)> = Vec::new();
        for (column, piece, bad) in bad {
            open.extend(bad.into_iter().map(|bad| (column, piece, bad)));
        }
        loop {
            let before = open.len();
            open.retain(|(column, piece, bad)| !self.mend_piece(state, *column, piece, bad));
            if open.is_empty() || open.len() == before {
                break;
            }
        }
        for (column, piece, bad) in open {
            let Some(site) = self
                .stripe(column)
                .and_then(|stripe| site(self.job, self.arrived, piece, stripe, &bad.range))
            else {
                continue;
            };
            let start = self.within(piece).start.exact_add(bad.range.start);
            let range = start..start.exact_add(bad.range.len());
            let mut tried = vec![format!(
                "device {} at physical {}: {}",
                site.slot.id(),
                site.physical,
                bad.cause
            )];
            tried.extend(state.why_not(column, &range, |column| self.name_of(column)));
            let outcome = match self.job.replaces.is_some() && bad.cause.may_be_right() {
                // The replacement target gets the block unchanged.
                true => Outcome::Unverified,
                false => Outcome::Uncorrectable { tried },
            };
            self.job.note(&site, bad.cause, outcome);
        }
    }

    /// Returns the name of a column for messages.
    fn name_of(&self, column: usize) -> String {
        let what = match column.checked_sub(self.data_columns()) {
            None => format!("column {column}"),
            Some(0) => "P".to_owned(),
            Some(_) => "Q".to_owned(),
        };
        let slot = self
            .stripe(column)
            .and_then(|stripe| site_of(&self.arrived.group.chunk, stripe, self.range.start));
        match slot {
            Some((slot, physical)) => format!("{what} on device {} at physical {physical}", slot.id()),
            None => what,
        }
    }

    /// Tries all ways to rebuild bad bytes of a piece. Returns whether rebuilt bytes passed the
    /// check, or have no checksum to check.
    fn mend_piece(&self, state: &mut Columns, column: usize, piece: &Piece, bad: &Bad) -> bool {
        let start = self.within(piece).start.exact_add(bad.range.start);
        let range = start..start.exact_add(bad.range.len());
        let has_old = || (0..state.len()).any(|column| self.is_behind(column));
        if piece.expected == Expected::Bare && has_old() {
            // Without a checksum, bytes rebuilt from an older column would pass.
            return false;
        }
        let Some(good) = state.rebuild(column, &range, |bytes| self.passes(piece, bad, bytes)) else {
            return false;
        };
        let Some(site) = self
            .stripe(column)
            .and_then(|stripe| site(self.job, self.arrived, piece, stripe, &bad.range))
        else {
            return false;
        };
        let outcome = self.job.mend(&site, &good);
        state.replace(column, range, &good);
        self.job.note(&site, bad.cause.clone(), outcome);
        true
    }

    /// Returns whether rebuilt bytes are the expected ones. Rebuilt data without checksums cannot
    /// be checked.
    fn passes(&self, piece: &Piece, bad: &Bad, bytes: &[u8]) -> bool {
        let format = &self.job.format;
        match &piece.expected {
            Expected::Tree { generation, level } => {
                crate::verify::tree_block(bytes, piece, *generation, *level, format).is_none()
            }
            Expected::Sums(packed) => {
                let stored = stored_checksum(&self.arrived.group, packed, &bad.range, format);
                stored == Some(format.checksum_type.compute(bytes).as_bytes())
            }
            // Parity of a row may cover unknown data.
            Expected::Bare => !self.arrived.group.is_partial,
        }
    }

    /// Computes parity from the data, and rewrites wrong parity. The parity check skips sectors
    /// with untrusted data.
    fn check_parity(&self, state: &Columns) {
        let data = self.data_columns();
        let parities: &[(usize, Part)] = match self.has_q() {
            true => &[(data, Part::P), (data.exact_add(1), Part::Q)],
            false => &[(data, Part::P)],
        };
        for range in sectors(self.length(), sector_of(&self.job.format)) {
            if !state.data_is_trusted(&range) {
                continue;
            }
            let computed = [state.p(&range), state.q(&range)];
            let fits: Vec<bool> = parities
                .iter()
                .zip(&computed)
                .map(|((column, _), computed)| {
                    state.is_trusted(*column, &range) && state.get(*column, &range) == Some(computed)
                })
                .collect();
            if fits.iter().all(|fits| *fits) {
                continue;
            }
            let uses = self.uses(&range);
            let is_doubtful = uses.bare && !fits.contains(&true);
            if !uses.bare && !uses.known {
                // All used space in this range was preallocated and never written.
                continue;
            }
            for (((column, part), computed), fits) in parities.iter().zip(&computed).zip(&fits) {
                if !fits {
                    self.mend_parity(state, *column, *part, &range, computed, is_doubtful);
                }
            }
        }
    }

    /// Returns the use of a part of the span.
    fn uses(&self, range: &Range<usize>) -> Uses {
        let overlaps = |piece: &Piece| {
            let own = self.within(piece);
            own.start < range.end && range.start < own.end
        };
        let mut uses = Uses::default();
        for (_, piece) in self.pieces.iter().filter(|(_, piece)| overlaps(piece)) {
            if piece.expected != Expected::Bare {
                uses.known = true;
            } else {
                let length = ByteCount::of(piece.length);
                uses.bare |= self.job.is_written(&self.arrived.group, piece.logical, length);
            }
        }
        uses
    }

    fn mend_parity(
        &self,
        state: &Columns,
        column: usize,
        part: Part,
        range: &Range<usize>,
        computed: &[u8],
        is_doubtful: bool,
    ) {
        let offset = self.range.start.exact_add(ByteCount::of(range.start).get());
        let place = self
            .stripe(column)
            .and_then(|stripe| site_of(&self.arrived.group.chunk, stripe, offset));
        let Some((slot, physical)) = place.filter(|(slot, _)| slot.in_use().is_some()) else {
            return;
        };
        let chunk = &self.arrived.group.chunk;
        let first = self
            .stripe(0)
            .and_then(|stripe| chunk.layout().content(stripe, StripeOffset::new(offset)));
        let in_chunk = match first {
            Some(Content::Data(offset)) => offset,
            _ => ChunkOffset::new(0),
        };
        let unreadable = self.view(column).and_then(|view| view.unreadable(range));
        let site = Site {
            slot,
            physical,
            logical: chunk.start().exact_add(ByteCount::new(in_chunk.get())),
            length: range.len(),
            part,
            errors: 1,
        };
        let is_unreadable = unreadable.is_some() || !state.is_trusted(column, range);
        // Clamp: parity that could be read does not match the data.
        let cause = unreadable.unwrap_or(Cause::Parity);
        if is_doubtful && !is_unreadable {
            self.job.note(&site, Cause::Differs, Outcome::Unverified);
            return;
        }
        if buttress_faults::on("scrub-parity-unmended") {
            return;
        }
        let outcome = self.job.mend(&site, computed);
        self.job.note(&site, cause, outcome);
    }
}
