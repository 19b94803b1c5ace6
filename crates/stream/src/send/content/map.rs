//! The map of a file, asked for one place after the other, and what is compared in it.

use crate::send::error::Result;
use buttress_format::{ByteCount, FileOffset};
use buttress_fs::{FileExtents, FileRange, RangeKind};
use std::collections::VecDeque;

/// How many ranges are looked at to find the end of a row of ranges that read as zeros.
const ZEROS_AHEAD_MAX: usize = 64;

/// A map of a file that is asked for one place after the other.
pub(super) struct Map {
    ranges: FileExtents,
    current: Option<FileRange>,
    /// The ranges after the current one, where they had to be known.
    following: VecDeque<FileRange>,
}

impl Map {
    pub(super) const fn new(ranges: FileExtents) -> Self {
        Self {
            ranges,
            current: None,
            following: VecDeque::new(),
        }
    }

    /// The range that covers `position`, which never goes back; `None` after the last one.
    pub(super) fn at(&mut self, position: FileOffset) -> Result<Option<FileRange>> {
        loop {
            if let Some(range) = &self.current
                && position < range.end()
            {
                return Ok(Some(range.clone()));
            }
            self.current = match self.following.pop_front() {
                Some(range) => Some(range),
                None => self.ranges.next().transpose()?,
            };
            if self.current.is_none() {
                return Ok(None);
            }
        }
    }

    /// Up to where all reads as zeros, from the range of the last call of [`Self::at`] on: at least the end of that
    /// range, though more of many small ranges may.
    pub(super) fn zeros_end(&mut self) -> Result<FileOffset> {
        let Some(current) = &self.current else {
            return Ok(FileOffset::MAX);
        };
        let mut end = current.end();
        let mut index = 0_usize;
        while index < ZEROS_AHEAD_MAX {
            if index >= self.following.len() {
                match self.ranges.next().transpose()? {
                    Some(range) => self.following.push_back(range),
                    None => break,
                }
            }
            match self.following.get(index) {
                Some(range) if range.is_zero() && range.offset == end => end = range.end(),
                _ => break,
            }
            index = index.saturating_add(1);
        }
        Ok(end)
    }
}

/// The part `[from, to)` of a range, cut off at the range's ends.
pub(super) fn part_of(range: &FileRange, from: FileOffset, to: FileOffset) -> FileRange {
    let from = from.max(range.offset);
    let to = to.min(range.end());
    let length = to.checked_distance_from(from).unwrap_or(ByteCount::ZERO);
    let skipped = from
        .checked_distance_from(range.offset)
        .unwrap_or(ByteCount::ZERO);
    let mut part = range.clone();
    part.offset = from;
    part.length = length;
    if let RangeKind::Data(extent) | RangeKind::Preallocated(extent) = &mut part.kind {
        extent.offset = extent.offset.saturating_add(skipped);
    }
    part
}

/// The end of the sector that `offset` lies in, or itself where one ends there.
pub(super) fn align_up(offset: FileOffset, sector_bytes: u64) -> FileOffset {
    let length = ByteCount::new(offset.get()).checked_align_up(sector_bytes);
    length.map_or(offset, |length| FileOffset::new(length.get()))
}

/// Whether a part of a range of data goes on where the part before it ended.
pub(super) fn continues(before: &FileRange, piece: &FileRange) -> bool {
    match (&before.kind, &piece.kind) {
        (RangeKind::Data(a), RangeKind::Data(b)) => {
            a.logical == b.logical && a.offset.saturating_add(before.length) == b.offset
        }
        _ => false,
    }
}

/// Whether two ranges at the same place of a file of one volume use the same bytes of the same extent.
pub(super) fn same_bytes(a: &FileRange, b: &FileRange) -> bool {
    match (&a.kind, &b.kind) {
        (RangeKind::Data(a), RangeKind::Data(b)) => {
            a.logical == b.logical && a.offset == b.offset && a.compression == b.compression
        }
        (RangeKind::Inline(x), RangeKind::Inline(y)) => {
            x.stored == y.stored && x.compression == y.compression && x.ram_bytes == y.ram_bytes
        }
        _ => false,
    }
}
