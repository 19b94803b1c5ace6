//! The map of a file for ascending lookups, and helpers to compare ranges.

use crate::send::error::Result;
use buttress_format::{ByteCount, FileOffset};
use buttress_fs::{FileExtents, FileRange, RangeKind};
use std::collections::VecDeque;

/// Largest number of item ranges that are kept for the comparison of a file.
const KNOWN_MAX: usize = 64;

/// Largest number of ranges read to find the end of a run of zeros.
const ZEROS_AHEAD_MAX: usize = 64;

/// Ranges of a part of a file, collected from the differing items.
#[derive(Debug, Default)]
pub(super) struct Known {
    old: Vec<FileRange>,
    new: Vec<FileRange>,
    /// True if ranges are missing, or are too many.
    partial: bool,
}

impl Known {
    pub(super) fn add(&mut self, old: Option<FileRange>, new: Option<FileRange>) {
        self.partial |= self.old.len().max(self.new.len()) >= KNOWN_MAX;
        if !self.partial {
            self.old.extend(old);
            self.new.extend(new);
        }
    }

    /// Marks the collected ranges of the file as incomplete.
    pub(super) const fn spoil(&mut self) {
        self.partial = true;
    }

    /// Returns the maps of `[start, end)` in both files, if the collected ranges suffice: the new
    /// ranges must be data without a gap, because the length of a hole is unknown here.
    pub(super) fn maps(self, start: FileOffset, end: FileOffset) -> Option<(Map, Map)> {
        let covered = self.new.iter().try_fold(start, |position, range| {
            (range.offset <= position && !range.is_zero()).then(|| range.end())
        });
        let whole = !self.partial && covered.is_some_and(|covered| covered >= end);
        whole.then(|| (Map::known(self.old, start), Map::known(self.new, start)))
    }
}

/// Source of a map's ranges.
enum Ranges {
    Tree(FileExtents),
    /// Collected ranges; gaps between them and before `next` are holes.
    Known {
        ranges: VecDeque<FileRange>,
        next: FileOffset,
    },
}

impl Ranges {
    fn next(&mut self) -> Result<Option<FileRange>> {
        match self {
            Self::Tree(ranges) => Ok(ranges.next().transpose()?),
            Self::Known { ranges, next } => {
                let Some(range) = ranges.front() else {
                    return Ok(None);
                };
                let gap = range.offset.checked_distance_from(*next);
                if let Some(length) = gap.filter(|gap| *gap != ByteCount::ZERO) {
                    let offset = core::mem::replace(next, range.offset);
                    return Ok(Some(FileRange {
                        offset,
                        length,
                        generation: None,
                        kind: RangeKind::Hole,
                    }));
                }
                *next = range.end();
                Ok(ranges.pop_front())
            }
        }
    }
}

/// Map of a file for ascending lookups.
pub(super) struct Map {
    ranges: Ranges,
    current: Option<FileRange>,
    /// Ranges after the current one that an earlier call had to read.
    following: VecDeque<FileRange>,
}

impl Map {
    pub(super) const fn new(ranges: FileExtents) -> Self {
        Self::of(Ranges::Tree(ranges))
    }

    fn known(ranges: Vec<FileRange>, start: FileOffset) -> Self {
        Self::of(Ranges::Known {
            ranges: ranges.into(),
            next: start,
        })
    }

    const fn of(ranges: Ranges) -> Self {
        Self {
            ranges,
            current: None,
            following: VecDeque::new(),
        }
    }

    /// Returns the file range that covers `position`, or `None` after the last range. The positions
    /// of successive calls must not decrease.
    pub(super) fn at(&mut self, position: FileOffset) -> Result<Option<FileRange>> {
        loop {
            if let Some(range) = &self.current
                && position < range.end()
            {
                return Ok(Some(range.clone()));
            }
            self.current = match self.following.pop_front() {
                Some(range) => Some(range),
                None => self.ranges.next()?,
            };
            if self.current.is_none() {
                return Ok(None);
            }
        }
    }

    /// Returns the end of the run of zeros that begins with the range of the last [`Self::at`]
    /// call. The result is at least the end of the last returned range. A run of zeros with many
    /// small ranges may be longer than the result.
    pub(super) fn zeros_end(&mut self) -> Result<FileOffset> {
        let Some(current) = &self.current else {
            return Ok(FileOffset::MAX);
        };
        let mut end = current.end();
        let mut index = 0_usize;
        while index < ZEROS_AHEAD_MAX {
            if index >= self.following.len() {
                match self.ranges.next()? {
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

/// Returns the part of a range that lies in `[from, to)`.
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

/// Rounds `offset` up to a sector boundary.
pub(super) fn align_up(offset: FileOffset, sector_bytes: u64) -> FileOffset {
    let length = ByteCount::new(offset.get()).checked_align_up(sector_bytes);
    length.map_or(offset, |length| FileOffset::new(length.get()))
}

/// Returns whether a piece of a data range directly continues the piece before it.
pub(super) fn continues(before: &FileRange, piece: &FileRange) -> bool {
    match (&before.kind, &piece.kind) {
        (RangeKind::Data(a), RangeKind::Data(b)) => {
            a.logical == b.logical && a.offset.saturating_add(before.length) == b.offset
        }
        _ => false,
    }
}

/// Returns whether two ranges at the same offset of a file use the same bytes of the same extent.
/// Both ranges must be in one volume.
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
