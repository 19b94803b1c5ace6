//! The expected checksums of data: the checksums that the checksum tree holds for the sectors of an
//! extent.
//!
//! An item holds the checksums of consecutive sectors, packed. The key of a checksum item holds the
//! address of the first sector. A sector that no checksum item covers has no checksum.
//! `ChecksumReader` keeps its position in the tree, so reads in address order look up each item
//! once.
//!
//! Source: on-disk format documentation, section "EXTENT_CSUM".

use crate::error::{Error, Result};
use crate::filesystem::Filesystem;
use buttress_exact::{Exact as _, at_most, u64_of, usize_of};
use buttress_format::{ChecksumType, ItemType, Key, Logical, ObjectId, TreeId};
use buttress_tree::{Cursor, ReadAhead, Tree};
use std::ops::Range;

/// The expected checksums of the sectors of an extent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExpectedChecksums {
    checksum_type: ChecksumType,
    sector_bytes: usize,
    /// The packed checksums, one for each sector. A sector without a checksum has zeros in its
    /// place.
    packed: Vec<u8>,
    /// The ranges of the extent without checksums, in whole sectors, in order.
    missing: Vec<Range<usize>>,
}

impl ExpectedChecksums {
    /// Appends the sectors of `data` that do not match. The verification skips sectors without a
    /// checksum.
    pub fn verify(&self, data: &[u8], bad: &mut Vec<Range<usize>>) {
        let mut computed = Vec::with_capacity(self.packed.len());
        self.checksum_type
            .compute_sectors(data, self.sector_bytes, &mut computed);
        if computed == self.packed {
            return;
        }
        let size = self.checksum_type.size_bytes();
        let pairs = computed.chunks_exact(size).zip(self.packed.chunks_exact(size));
        let mut start = 0_usize;
        for (found, expected) in pairs {
            let end = start.exact_add(self.sector_bytes).min(data.len());
            if found != expected && !self.missing.iter().any(|range| range.contains(&start)) {
                match bad.last_mut() {
                    Some(last) if last.end == start => last.end = end,
                    _ => bad.push(start..end),
                }
            }
            start = end;
        }
    }

    /// Returns the ranges of the extent without checksums.
    pub fn missing(&self) -> &[Range<usize>] {
        &self.missing
    }

    /// Returns the checksums as runs of consecutive sectors. Each run consists of the offset of its
    /// first byte in the extent, and its packed checksums.
    #[must_use]
    pub fn runs(&self) -> Vec<(usize, &[u8])> {
        let size = self.checksum_type.size_bytes();
        let length = self.packed.len().quotient(size).exact_mul(self.sector_bytes);
        let ends = self.missing.iter().map(|range| (range.start, range.end));
        let mut start = 0_usize;
        let mut runs = Vec::new();
        for (end, next) in ends.chain(core::iter::once((length, length))) {
            let packed = |at: usize| at.quotient(self.sector_bytes).exact_mul(size);
            match self.packed.get(packed(start)..packed(end)) {
                Some(sums) if !sums.is_empty() => runs.push((start, sums)),
                _ => {}
            }
            start = next;
        }
        runs
    }

    /// Returns expected checksums like [`Filesystem::expected_checksums`], from this checksum tree.
    ///
    /// # Errors
    /// Fails if a block of the tree cannot be read.
    pub fn in_tree(
        tree: &Tree,
        checksum_type: ChecksumType,
        sector_bytes: u32,
        logical: Logical,
        length: usize,
    ) -> Result<Self> {
        let mut reader = ChecksumReader {
            cursor: tree.cursor(ReadAhead::None),
            checksum_type,
            sector_bytes,
        };
        reader.expected(logical, length)
    }

    /// Looks up the checksums that the sectors of `[logical, +length)` must match. Address and
    /// length must be whole sectors.
    pub fn look_up(
        items: &mut impl ChecksumItems,
        checksum_type: ChecksumType,
        sector_bytes: u32,
        logical: Logical,
        length: usize,
    ) -> Result<Self> {
        let size = checksum_type.size_bytes();
        let step = u64::from(sector_bytes);
        let sector_bytes = usize_of(sector_bytes);
        let sectors = length.div_ceil(sector_bytes);
        let mut expected = Self {
            checksum_type,
            sector_bytes,
            packed: Vec::with_capacity(sectors.exact_mul(size)),
            missing: Vec::new(),
        };
        let mut done = 0_usize;
        while done < sectors {
            let passed = u64_of(done).exact_mul(step);
            // Clamp: the address comes from disk; no item covers the last address.
            let at = logical.get().saturating_add(passed);
            items.approach(at)?;
            let rest = sectors.exact_sub(done);
            let sectors_up_to = |end: u64| {
                // An item's key may hold any number, so a partial sector counts as one sector.
                at_most(end.exact_sub(at).quotient(step), rest).max(1)
            };
            let taken = match items.covered() {
                Some((start, end)) if start <= at && at < end => {
                    let taken = sectors_up_to(end);
                    // An item is not longer than a leaf.
                    let skipped: usize = at.exact_sub(start).quotient(step).narrow();
                    let from = skipped.exact_mul(size);
                    match items.sums(from..from.exact_add(taken.exact_mul(size))) {
                        Some(bytes) => expected.packed.extend_from_slice(bytes),
                        None => expected.push_missing(done..done.exact_add(taken)),
                    }
                    taken
                }
                Some((start, _)) if start > at => {
                    let taken = sectors_up_to(start);
                    expected.push_missing(done..done.exact_add(taken));
                    taken
                }
                _ => {
                    expected.push_missing(done..sectors);
                    rest
                }
            };
            done = done.exact_add(taken);
        }
        Ok(expected)
    }

    fn push_missing(&mut self, sectors: Range<usize>) {
        let to_bytes = |sector: usize| sector.exact_mul(self.sector_bytes);
        let bytes = to_bytes(sectors.start)..to_bytes(sectors.end);
        let filled = self
            .packed
            .len()
            .exact_add(sectors.len().exact_mul(self.checksum_type.size_bytes()));
        self.packed.resize(filled, 0);
        match self.missing.last_mut() {
            Some(last) if last.end == bytes.start => last.end = bytes.end,
            _ => self.missing.push(bytes),
        }
    }
}

/// A reader of the checksum tree.
#[derive(Debug)]
pub(crate) struct ChecksumReader {
    cursor: Cursor,
    checksum_type: ChecksumType,
    sector_bytes: u32,
}

impl ChecksumReader {
    /// Makes a reader of the volume's checksum tree. Returns `None` if the options ask for
    /// unverified reads, or if the tree is missing and the options allow that.
    pub(crate) fn new(filesystem: &Filesystem) -> Result<Option<Self>> {
        let rescue = filesystem.rescue();
        if rescue.ignore_data_checksums {
            return Ok(None);
        }
        match filesystem.tree(TreeId::CHECKSUM) {
            Ok(tree) => Ok(Some(Self {
                cursor: tree.cursor(ReadAhead::Forward),
                checksum_type: filesystem.checksum_type(),
                sector_bytes: filesystem.sector_bytes(),
            })),
            Err(Error::TreeNotFound { .. }) if rescue.ignore_bad_roots => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Returns the expected checksums of the sectors of `[logical, +length)`. Address and length
    /// must be whole sectors.
    pub(crate) fn expected(&mut self, logical: Logical, length: usize) -> Result<ExpectedChecksums> {
        ExpectedChecksums::look_up(self, self.checksum_type, self.sector_bytes, logical, length)
    }
}

impl Filesystem {
    /// Returns the expected checksums of the sectors of `[logical, +length)` in this state of the
    /// volume. Address and length of the range must be whole sectors. Returns `None` if the volume
    /// is read without checksums.
    ///
    /// # Errors
    /// Fails if a block of the checksum tree cannot be read.
    pub fn expected_checksums(&self, logical: Logical, length: usize) -> Result<Option<ExpectedChecksums>> {
        let reader = ChecksumReader::new(self)?;
        reader
            .map(|mut reader| reader.expected(logical, length))
            .transpose()
    }
}

/// A cursor over items of the checksum tree.
pub trait ChecksumItems {
    /// Moves to the checksum item that covers `at`, or to the first item after it.
    fn approach(&mut self, at: u64) -> Result<()>;

    /// Returns the addresses that the item covers, as `(start, end)`.
    fn covered(&self) -> Option<(u64, u64)>;

    /// Returns a part of the item's packed checksums; `range` counts bytes of the item's data.
    fn sums(&self, range: Range<usize>) -> Option<&[u8]>;
}

impl ChecksumItems for ChecksumReader {
    fn covered(&self) -> Option<(u64, u64)> {
        let item = self.cursor.current()?;
        if item.key.objectid != ObjectId::EXTENT_CHECKSUM || item.key.item_type != ItemType::EXTENT_CSUM {
            return None;
        }
        let sectors = item.data.len().quotient(self.checksum_type.size_bytes());
        let length = u64_of(sectors).exact_mul(u64::from(self.sector_bytes));
        // Clamp: the address comes from disk.
        Some((item.key.offset, item.key.offset.saturating_add(length)))
    }

    fn approach(&mut self, at: u64) -> Result<()> {
        match self.covered() {
            Some((start, end)) if start <= at && at < end => return Ok(()),
            Some((_, end)) if end == at => {
                self.cursor.next()?;
                if self.covered().is_some_and(|(start, end)| start <= at && at < end) {
                    return Ok(());
                }
            }
            _ => {}
        }
        let key = Key::new(ObjectId::EXTENT_CHECKSUM, ItemType::EXTENT_CSUM, at);
        self.cursor.seek_at_or_before(&key)?;
        // Nothing lies before the first checksum item. If the found item does not cover `at`, the
        // item's end is at most `at`.
        if self.cursor.current().is_none() {
            self.cursor.seek(&key)?;
        } else if self.covered().is_none_or(|(_, end)| end <= at) {
            self.cursor.next()?;
        }
        Ok(())
    }

    fn sums(&self, range: Range<usize>) -> Option<&[u8]> {
        self.cursor.current().and_then(|item| item.data.get(range))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bad_sectors_are_merged_and_unchecked_sectors_skipped() {
        let data = vec![7_u8; 5 * 512];
        let mut packed = Vec::new();
        ChecksumType::Crc32c.compute_sectors(&data, 512, &mut packed);
        let mut expected = ExpectedChecksums {
            checksum_type: ChecksumType::Crc32c,
            sector_bytes: 512,
            packed,
            missing: std::iter::once(3 * 512..4 * 512).collect(),
        };
        let mut bad = Vec::new();
        expected.verify(&data, &mut bad);
        assert!(bad.is_empty());
        for sector in [1, 2, 3] {
            expected.packed[sector * 4] ^= 1;
        }
        expected.verify(&data, &mut bad);
        assert_eq!((bad.len(), bad.first()), (1, Some(&(512..3 * 512))));
    }
}
