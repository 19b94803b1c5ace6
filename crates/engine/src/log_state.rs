//! What the log has of an inode, and what it lacks: kept in the live inode, for the length of a transaction.
//!
//! [`LogState`] begins with the first change of an inode in a transaction, which its item's `transid` tells, or when the inode is
//! logged. Without a state, an inode that changed in this transaction is one of which nothing is known: all of it is to be
//! logged. So it is with inodes that are new.
//!
//! Invariant: while there is a state, every range of a file whose items changed since the file was last logged is in
//! [`LogState::changed`], and every name that a directory got has an index from [`LogState::first_index`] on.

use buttress_format::{Generation, InodeItem};
use core::ops::Range;

/// More ranges than this count as the whole file.
const RANGES_MAX: usize = 1024;

/// The log's side of a live inode. See the module.
#[derive(Clone, Debug, Default)]
pub struct LogState {
    /// The transaction that it is of; zero: there is none.
    pub generation: Generation,
    /// Of a file: what changed and was not logged.
    pub changed: ChangedRanges,
    /// What was logged last.
    pub logged: Option<Box<Logged>>,
    /// Of a directory: the first index that it gave in this transaction.
    pub first_index: Option<u64>,
    /// Of a directory: the log has all names with an index from the first one up to this one. The next sync begins behind
    /// it, and so costs what is new, however large the directory is.
    pub last_logged_index: u64,
}

/// What was logged of an inode.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Logged {
    /// Its item then.
    pub item: InodeItem,
    /// The batch that it was in.
    pub batch: u64,
}

impl LogState {
    pub(crate) fn new(generation: Generation) -> Self {
        Self {
            generation,
            ..Self::default()
        }
    }

    /// Whether there is none.
    pub const fn is_none(&self) -> bool {
        self.generation.get() == 0
    }
}

/// Ranges of a file, in order and apart from one another.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ChangedRanges(Vec<Range<u64>>);

impl ChangedRanges {
    /// Returns whether there is no range.
    pub const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the ranges in order.
    pub fn iter(&self) -> impl Iterator<Item = &Range<u64>> {
        self.0.iter()
    }

    /// Whether one of them has something in common with a range.
    pub fn meets(&self, range: &Range<u64>) -> bool {
        let from = self.0.partition_point(|other| other.end <= range.start);
        self.0.get(from).is_some_and(|other| other.start < range.end)
    }

    pub(crate) fn whole() -> Self {
        Self(core::iter::once(0..u64::MAX).collect())
    }

    /// Adds a range.
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
    fn ranges_meet_what_they_share_bytes_with() {
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
