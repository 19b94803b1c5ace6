//! Columns of devices that missed commits, which may be older than the rest of their row.

use super::Span;
use super::rebuild::Columns;
use crate::group::Expected;
use crate::verify::{sector_of, sectors};
use core::ops::Range;

impl Span<'_> {
    /// Marks bytes of devices that missed commits as untrusted, unless the bytes pass their own
    /// check. Free ranges, data without checksums, and parity may be older than the rest of the
    /// row.
    pub(super) fn distrust_unknown(&self, state: &mut Columns) {
        (0..state.len())
            .filter(|column| self.is_behind(*column))
            .for_each(|column| self.distrust_unverified(state, column));
    }

    /// Returns whether a column's device missed commits.
    pub(super) fn is_behind(&self, column: usize) -> bool {
        let chunk = &self.arrived.group.chunk;
        let slot = self.stripe(column).and_then(|stripe| chunk.devices().get(stripe));
        slot.is_some_and(|slot| slot.stale().is_some())
    }

    fn distrust_unverified(&self, state: &mut Columns, column: usize) {
        let is_verified = |range: &Range<usize>| {
            self.pieces.iter().any(|(own, piece)| {
                let within = self.within(piece);
                let covers = within.start <= range.start && range.end <= within.end;
                *own == column && piece.expected != Expected::Bare && covers
            })
        };
        for range in sectors(self.length(), sector_of(&self.job.format)) {
            if !is_verified(&range) {
                state.distrust(column, range);
            }
        }
    }

    /// Rebuilds untrusted data in a range as far as possible.
    pub(super) fn complete_data(&self, state: &mut Columns, range: &Range<usize>) {
        for column in 0..self.data_columns() {
            if state.is_trusted(column, range) {
                continue;
            }
            if let Some(bytes) = state.rebuild(column, range, |_| true) {
                state.replace(column, range.clone(), &bytes);
            }
        }
    }
}
