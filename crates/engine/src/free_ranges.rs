//! The free ranges of one block group in memory.
//!
//! Ranges never overlap or touch. The ranges are indexed by start and by length, so a lookup finds
//! the next free byte after an address, and the largest range, without a scan.

use buttress_exact::Exact as _;
use std::collections::{BTreeMap, BTreeSet};

/// Free ranges `[start, start + length)` by logical address, in bytes.
#[derive(Clone, Debug, Default)]
pub struct FreeRanges {
    by_start: BTreeMap<u64, u64>,
    by_length: BTreeSet<(u64, u64)>,
    total: u64,
}

impl FreeRanges {
    /// Returns the total of free bytes.
    pub const fn total_bytes(&self) -> u64 {
        self.total
    }

    /// Returns the length of the largest range, or zero if there is none.
    pub fn largest_bytes(&self) -> u64 {
        self.by_length.last().map_or(0, |(length, _)| *length)
    }

    /// Returns the number of ranges.
    pub fn count(&self) -> usize {
        self.by_start.len()
    }

    /// Removes and returns the first `count` ranges, or all ranges if fewer exist.
    pub fn take_first(&mut self, count: usize) -> Vec<(u64, u64)> {
        let first: Vec<(u64, u64)> = self.iter().take(count).collect();
        for (start, _) in &first {
            self.take_out(*start);
        }
        first
    }

    /// Returns the ranges as `(start, length)`, in order of address.
    pub fn iter(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        self.by_start.iter().map(|(start, length)| (*start, *length))
    }

    /// Returns the ranges that end after `at` as `(start, length)`, in order of address.
    pub fn from(&self, at: u64) -> impl Iterator<Item = (u64, u64)> + '_ {
        let holding = self.by_start.range(..at).next_back();
        let holding = holding.filter(move |(start, length)| start.saturating_add(**length) > at);
        let following = self.by_start.range(at..);
        holding
            .into_iter()
            .chain(following)
            .map(|(start, length)| (*start, *length))
    }

    fn put(&mut self, start: u64, length: u64) {
        if length > 0 {
            self.by_start.insert(start, length);
            self.by_length.insert((length, start));
            self.total = self.total.exact_add(length);
        }
    }

    fn take_out(&mut self, start: u64) -> Option<u64> {
        let length = self.by_start.remove(&start)?;
        self.by_length.remove(&(length, start));
        if !buttress_faults::on("free-total-keeps-taken") {
            self.total = self.total.exact_sub(length);
        }
        Some(length)
    }

    /// Adds a range to the free ranges. Ranges that overlap free ranges are allowed: free parts
    /// stay free.
    pub fn add(&mut self, start: u64, length: u64) {
        if length == 0 {
            return;
        }
        let mut first = start;
        let mut end = start.saturating_add(length);
        if let Some((before, before_length)) = self.by_start.range(..=start).next_back() {
            let (before, before_end) = (*before, before.saturating_add(*before_length));
            if before_end >= start {
                self.take_out(before);
                first = before;
                end = end.max(before_end);
            }
        }
        while let Some((next, next_length)) = self.by_start.range(first..=end).next() {
            let (next, next_end) = (*next, next.saturating_add(*next_length));
            self.take_out(next);
            end = end.max(next_end);
        }
        self.put(first, end.exact_sub(first));
    }

    /// Returns how many bytes of a range are free.
    pub fn overlap_bytes(&self, start: u64, length: u64) -> u64 {
        let end = start.saturating_add(length);
        let ranges = self.from(start).take_while(|(first, _)| *first < end);
        ranges.fold(0, |sum: u64, (first, length)| {
            let until = first.saturating_add(length).min(end);
            sum.saturating_add(until.saturating_sub(first.max(start)))
        })
    }

    /// Removes the free parts of a range. Returns how many bytes were free.
    pub fn remove(&mut self, start: u64, length: u64) -> u64 {
        let end = start.saturating_add(length);
        let before = self.total;
        let mut from = self
            .by_start
            .range(..=start)
            .next_back()
            .map_or(start, |(first, _)| *first);
        while let Some((first, first_length)) = self.by_start.range(from..end).next() {
            let (first, first_end) = (*first, first.saturating_add(*first_length));
            from = first.saturating_add(1);
            if first_end <= start {
                continue;
            }
            self.take_out(first);
            // Clamp: the free range may begin or end inside the removed range.
            let (before, after) = (start.saturating_sub(first), first_end.saturating_sub(end));
            let after_start = match buttress_faults::on("free-rest-from-start") {
                true => first,
                false => end.max(first),
            };
            self.put(first, before);
            self.put(after_start, after);
        }
        before.exact_sub(self.total)
    }

    /// Removes a run whose start and length are multiples of `unit_bytes`. The removed run has
    /// `wanted` bytes, or else the length of the largest range, at least `least`. The allocation
    /// prefers the first suitable range at or after `from`.
    ///
    /// Returns start and length.
    pub fn allocate(&mut self, wanted: u64, least: u64, unit_bytes: u64, from: u64) -> Option<(u64, u64)> {
        let (start, length) = self
            .near(wanted, unit_bytes, from)
            .or_else(|| self.fitting(wanted, unit_bytes))
            .or_else(|| self.largest(wanted, least, unit_bytes))?;
        self.remove(start, length);
        Some((start, length))
    }

    /// Returns the range that contains `from`, or the next range, if it has space for `wanted`
    /// bytes.
    fn near(&self, wanted: u64, unit_bytes: u64, from: u64) -> Option<(u64, u64)> {
        let holding = self.by_start.range(..=from).next_back();
        let following = self.by_start.range(from..).next();
        holding.into_iter().chain(following).find_map(|(start, length)| {
            let end = start.saturating_add(*length);
            let first = align_up((*start).max(from), unit_bytes)?;
            (first.saturating_add(wanted) <= end).then_some((first, wanted))
        })
    }

    /// Returns the smallest range with space for `wanted` bytes.
    fn fitting(&self, wanted: u64, unit_bytes: u64) -> Option<(u64, u64)> {
        self.by_length.range((wanted, 0)..).find_map(|(length, start)| {
            let first = align_up(*start, unit_bytes)?;
            (first.saturating_add(wanted) <= start.saturating_add(*length)).then_some((first, wanted))
        })
    }

    /// Returns the largest range, if it has space for `least` bytes.
    fn largest(&self, wanted: u64, least: u64, unit_bytes: u64) -> Option<(u64, u64)> {
        self.by_length.iter().rev().take(8).find_map(|(length, start)| {
            let first = align_up(*start, unit_bytes)?;
            let room = start.saturating_add(*length).checked_sub(first)?;
            let room = room.saturating_sub(room.checked_rem(unit_bytes)?).min(wanted);
            (room >= least && room > 0).then_some((first, room))
        })
    }
}

fn align_up(value: u64, unit_bytes: u64) -> Option<u64> {
    value.checked_next_multiple_of(unit_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// Adding, removing and allocating ranges agree with a model: a set of units.
        #[test]
        fn agrees_with_a_set(steps in prop::collection::vec((0..3_u8, 0..64_u64, 1..16_u64), 1..200)) {
            let mut ranges = FreeRanges::default();
            let mut model = BTreeSet::new();
            for (step, start, length) in steps {
                match step {
                    0 => {
                        ranges.add(start, length);
                        model.extend(start..start + length);
                    }
                    1 => {
                        let had = (start..start + length).filter(|unit| model.remove(unit)).count();
                        prop_assert_eq!(ranges.remove(start, length), had as u64);
                    }
                    _ => match ranges.allocate(length, 1, 1, start) {
                        Some((first, got)) => {
                            prop_assert!(got >= 1 && got <= length);
                            for unit in first..first + got {
                                prop_assert!(model.remove(&unit));
                            }
                        }
                        None => prop_assert!(model.is_empty()),
                    },
                }
                prop_assert_eq!(ranges.total_bytes(), model.len() as u64);
                let units: Vec<u64> = ranges.iter().flat_map(|(first, length)| first..first + length).collect();
                prop_assert_eq!(units, model.iter().copied().collect::<Vec<_>>());
                let starts: Vec<_> = ranges.iter().collect();
                for pair in starts.windows(2) {
                    prop_assert!(pair[0].0 + pair[0].1 < pair[1].0);
                }
            }
        }

        /// Units larger than one keep their alignment.
        #[test]
        fn runs_are_aligned(free in prop::collection::vec((0..1000_u64, 1..100_u64), 1..10), wanted in 1..8_u64) {
            let mut ranges = FreeRanges::default();
            for (start, length) in free {
                ranges.add(start, length);
            }
            while let Some((start, length)) = ranges.allocate(wanted * 16, 16, 16, 0) {
                prop_assert_eq!((start % 16, length % 16), (0, 0));
            }
            let none_left = ranges.iter().all(|(start, length)| start.next_multiple_of(16) + 16 > start + length);
            prop_assert!(none_left);
        }
    }
}
