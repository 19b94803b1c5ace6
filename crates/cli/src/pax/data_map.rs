//! Data ranges of a sparse file, in GNU tar's sparse format 1.0.
//!
//! The format requires ranges that begin and end at blocks of 512 bytes, except at the end of the
//! file: GNU tar reads every range from a block boundary. Ranges are widened to blocks; the added
//! bytes read as zeros.

use super::BLOCK_BYTES;

/// Data ranges of a file: ascending, disjoint, in whole blocks (except at the file's end).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DataMap {
    size_bytes: u64,
    ranges: Vec<(u64, u64)>,
}

impl DataMap {
    /// Creates the map of a file of `size_bytes` that is one hole.
    pub fn new(size_bytes: u64) -> Self {
        Self {
            size_bytes,
            ranges: Vec::new(),
        }
    }

    /// Adds the range `[offset, offset + length)`, which must not begin before an earlier one. If
    /// the map extends beyond the file's size, the part beyond is ignored.
    pub fn add(&mut self, offset: u64, length: u64) {
        let start = offset.saturating_sub(offset.checked_rem(BLOCK_BYTES).unwrap_or(0));
        let end = offset.saturating_add(length);
        let end = end
            .checked_next_multiple_of(BLOCK_BYTES)
            .unwrap_or(end)
            .min(self.size_bytes);
        if start >= end || length == 0 {
            return;
        }
        match self.ranges.last_mut() {
            Some((_, last_end)) if start <= *last_end => *last_end = end.max(*last_end),
            _ => self.ranges.push((start, end)),
        }
    }

    /// Returns the file's size with holes.
    pub fn size_bytes(&self) -> u64 {
        self.size_bytes
    }

    /// Returns the number of ranges.
    pub fn range_count(&self) -> usize {
        self.ranges.len()
    }

    /// Returns the total length of the ranges in bytes.
    pub fn data_bytes(&self) -> u64 {
        self.ranges.iter().fold(0, |sum, (start, end)| {
            sum.saturating_add(end.saturating_sub(*start))
        })
    }

    /// Returns whether the file has any hole.
    pub fn has_holes(&self) -> bool {
        self.data_bytes() < self.size_bytes
    }

    /// Returns the ranges as `[start, end)`.
    pub fn ranges(&self) -> impl Iterator<Item = (u64, u64)> {
        self.ranges.iter().copied()
    }

    /// Returns the map's text before the data: the number of ranges, then offset and length of
    /// each, one per line, padded to a whole block. An empty range at the file's size represents a
    /// hole at the end.
    pub(super) fn text(&self) -> Vec<u8> {
        let data_end = self.ranges.last().map_or(0, |(_, end)| *end);
        let tail = (data_end < self.size_bytes).then_some((self.size_bytes, self.size_bytes));
        let count = self.ranges.len().saturating_add(usize::from(tail.is_some()));
        let mut text = format!("{count}\n");
        for (start, end) in self.ranges().chain(tail) {
            text.push_str(&format!("{start}\n{}\n", end.saturating_sub(start)));
        }
        let mut text = text.into_bytes();
        let padded = text.len().next_multiple_of(512);
        text.resize(padded, 0);
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_whole_blocks_up_to_the_end_of_the_file() {
        let mut map = DataMap::new(10_000);
        map.add(0, 100);
        map.add(1000, 100);
        map.add(8192, 4096);
        map.add(20_000, 10);
        assert_eq!(map.ranges().collect::<Vec<_>>(), [(0, 1536), (8192, 10_000)]);
        assert!(map.has_holes());
        assert!(map.text().starts_with(b"2\n0\n1536\n8192\n1808\n\0"));
        assert_eq!(map.text().len(), 512);
    }

    #[test]
    fn a_hole_at_the_end_is_told() {
        let mut map = DataMap::new(5000);
        assert!(map.text().starts_with(b"1\n5000\n0\n\0"));
        map.add(0, 4096);
        assert!(map.text().starts_with(b"2\n0\n4096\n5000\n0\n\0"));
        map.add(4096, u64::MAX);
        assert!(!map.has_holes());
        assert!(map.text().starts_with(b"1\n0\n5000\n\0"));
    }
}
