//! The map of a file, asked for one place after the other, and what is compared in it.

use crate::send::error::Result;
use buttress_format::{ByteCount, FileOffset};
use buttress_fs::{FileExtents, FileRange, RangeKind};
use std::collections::VecDeque;

/// How many ranges that items describe are kept, for a file that is compared.
const KNOWN_MAX: usize = 64;

/// How many ranges are looked at to find the end of a row of ranges that read as zeros.
const ZEROS_AHEAD_MAX: usize = 64;

/// The ranges of a part of a file, as the items that differ told them.
#[derive(Debug, Default)]
pub(super) struct Known {
    old: Vec<FileRange>,
    new: Vec<FileRange>,
    /// Whether there are others, or too many.
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

    /// The part is not only what these ranges cover.
    pub(super) const fn spoil(&mut self) {
        self.partial = true;
    }

    /// The maps of `[start, end)` in both files, if these ranges say all of it: if the new ones are data without a
    /// gap, since how far a hole goes is not known here.
    pub(super) fn maps(self, start: FileOffset, end: FileOffset) -> Option<(Map, Map)> {
        let covered = self.new.iter().try_fold(start, |position, range| {
            (range.offset <= position && !range.is_zero()).then(|| range.end())
        });
        let whole = !self.partial && covered.is_some_and(|covered| covered >= end);
        whole.then(|| (Map::known(self.old, start), Map::known(self.new, start)))
    }
}

/// Where a map's ranges come from.
enum Ranges {
    Tree(FileExtents),
    /// What lies between them and before `next` is a hole.
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

/// A map of a file that is asked for one place after the other.
pub(super) struct Map {
    ranges: Ranges,
    current: Option<FileRange>,
    /// The ranges after the current one, where they had to be known.
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
                None => self.ranges.next()?,
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
