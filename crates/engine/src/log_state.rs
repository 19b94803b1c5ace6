//! The log's record of a live inode in one transaction: logged parts, and changes that the log
//! lacks.
//!
//! [`LogState`] begins with the first change of an inode in a transaction, or when the inode is
//! logged. The item's `transid` tells whether a change is the first. If an inode changed in this
//! transaction and has no state, its changes are unknown, and all of it must be logged. New inodes
//! have no state either.
//!
//! Invariants, while an inode has a log state:
//! - [`LogState::changed`] contains every range of a file whose items changed since the file was
//!   last logged.
//! - Each name that a directory got since its last logging has an index of at least
//!   [`LogState::first_index`].

use buttress_format::{Generation, InodeItem};
use core::ops::Range;

/// The number of changed ranges above which the whole file counts as changed.
const RANGES_MAX: usize = 1024;

/// The log state of a live inode. See the module's documentation.
#[derive(Clone, Debug, Default)]
pub struct LogState {
    /// The transaction that this state belongs to; zero if there is no state.
    pub generation: Generation,
    /// The ranges of a file that changed and were not logged.
    pub changed: ChangedRanges,
    /// The last logged state of the inode.
    pub logged: Option<Box<Logged>>,
    /// The first index that a directory gave to a name in this transaction.
    pub first_index: Option<u64>,
    /// The last logged index of a directory: the log has all names from the first index up to this
    /// one. The next sync begins after this index, so its cost depends on new names, not on the
    /// directory's size.
    pub last_logged_index: u64,
}

/// The state of an inode at its last logging.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Logged {
    /// The inode item at that logging.
    pub item: InodeItem,
    /// The number of the batch that logged the inode.
    pub batch: u64,
}

impl LogState {
    pub(crate) fn new(generation: Generation) -> Self {
        Self {
            generation,
            ..Self::default()
        }
    }

    /// Returns whether the inode has no log state.
    pub const fn is_none(&self) -> bool {
        self.generation.get() == 0
    }
}

/// Changed ranges of a file, in order and not touching.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ChangedRanges(Vec<Range<u64>>);

impl ChangedRanges {
    /// Returns whether the set holds no range.
    pub const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the changed ranges in order.
    pub fn iter(&self) -> impl Iterator<Item = &Range<u64>> {
        self.0.iter()
    }

    /// Returns whether any changed range overlaps a range.
    pub fn meets(&self, range: &Range<u64>) -> bool {
        let from = self.0.partition_point(|other| other.end <= range.start);
        self.0.get(from).is_some_and(|other| other.start < range.end)
    }

    pub(crate) fn whole() -> Self {
        Self(core::iter::once(0..u64::MAX).collect())
    }

    /// Adds a range to the changed ranges.
    pub fn add(&mut self, range: &Range<u64>) {
        if range.start >= range.end {
            return;
        }
        let from = self.0.partition_point(|other| other.end < range.start);
        let to = self.0.partition_point(|other| other.start <= range.end);
        let met = self.0.get(from..to).unwrap_or_default();
        let start = met
            .first()
            .map_or(range.start, |first| first.start.min(range.start));
        let end = met.last().map_or(range.end, |last| last.end.max(range.end));
        self.0.splice(from..to.max(from), core::iter::once(start..end));
        if self.0.len() > RANGES_MAX {
            *self = Self::whole();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ranges(of: &[Range<u64>]) -> Vec<Range<u64>> {
        let mut changed = ChangedRanges::default();
        of.iter().for_each(|range| changed.add(range));
        changed.iter().cloned().collect()
    }

    #[test]
    fn ranges_that_meet_are_one() {
        assert_eq!(ranges(&[0..4, 8..12, 4..8]), vec![0..12]);
        assert_eq!(ranges(&[8..12, 0..4]), vec![0..4, 8..12]);
        assert_eq!(ranges(&[0..4, 8..12, 20..24, 2..21]), vec![0..24]);
        assert_eq!(ranges(&[0..20, 4..8]), vec![0..20]);
        assert_eq!(ranges(&[4..4, 0..2]), vec![0..2]);
    }

    #[test]
    fn ranges_meet_ranges_that_overlap_them() {
        let mut changed = ChangedRanges::default();
        changed.add(&(4..8));
        changed.add(&(12..16));
        for (range, meets) in [
            (0..4, false),
            (0..5, true),
            (7..12, true),
            (8..12, false),
            (8..13, true),
            (16..20, false),
        ] {
            assert_eq!(changed.meets(&range), meets, "{range:?}");
        }
    }

    #[test]
    fn very_many_ranges_are_the_whole_file() {
        let many: Vec<Range<u64>> = (0..2000).map(|number| number * 8..number * 8 + 4).collect();
        assert_eq!(ranges(&many[..1000]).len(), 1000);
        assert_eq!(ranges(&many), vec![0..u64::MAX]);
    }
}
