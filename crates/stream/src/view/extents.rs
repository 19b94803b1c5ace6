//! The content of a file as ranges that point into stream files.
//!
//! [`ExtentMap`] is a persistent map: a clone of it is a pointer, and shares with its original what neither
//! changes. So a snapshot costs nothing, and a range that was cloned from another file is, where it is made of
//! many pieces, one extent that holds the other file's map as it was then ([`Source::Shared`]).
//!
//! Invariants:
//! - extents of a map do not overlap, none is empty, and none ends beyond 2^63 - 1;
//! - maps in maps are nested at most [`DEPTH_MAX`] deep. A range that would go deeper is copied piece by piece,
//!   and [`CopyBudget`] bounds how much of that all streams together can ask for: memory is bounded by the
//!   number of commands, however often a stream clones its clones;
//! - walking the pieces of a range ([`Pieces`]) needs no recursion and no more memory than the depth.

use super::error::Problem;
use buttress_format::send::EncodedCompression;
use rpds::RedBlackTreeMapSync;
use std::sync::Arc;

/// How deep maps may be nested in maps. A file that takes itself twice is at its largest size before.
const DEPTH_MAX: u32 = 64;

/// Up to this many pieces a clone copies; a range of more is shared.
const PIECES_COPIED_MAX: usize = 16;

/// How many pieces all clones that are nested too deeply may copy together.
const DEEP_PIECES_MAX: u64 = 1 << 20;

/// The largest size of a file.
pub(super) const FILE_BYTES_MAX: u64 = i64::MAX as u64;

/// Data of an encoded write, whole.
#[derive(Debug)]
pub(crate) struct Encoded {
    /// Which input.
    pub(crate) file: u32,
    /// Where the encoded bytes begin in it.
    pub(crate) position: u64,
    pub(crate) encoded_bytes: u64,
    pub(crate) unencoded_bytes: u64,
    pub(crate) compression: EncodedCompression,
}

/// Where the bytes of an extent are.
#[derive(Clone, Debug)]
pub(crate) enum Source {
    /// As they are, in an input from `position` on.
    Stored { file: u32, position: u64 },
    /// In what these data decode to.
    Encoded(Arc<Encoded>),
    /// In another map.
    Shared(Arc<ExtentMap>),
}

/// A range of a file that is not a hole, or not wholly.
#[derive(Clone, Debug)]
pub(crate) struct Extent {
    pub(super) length: u64,
    /// How far from the beginning of the source it begins.
    pub(super) skip: u64,
    pub(super) source: Source,
}

impl Extent {
    /// The part `[from, from + length)` of it.
    fn part(&self, from: u64, length: u64) -> Self {
        Self {
            length,
            skip: self.skip.saturating_add(from),
            source: self.source.clone(),
        }
    }
}

/// What is left of the copies that deeply nested clones may make.
#[derive(Debug)]
pub(super) struct CopyBudget(u64);

impl Default for CopyBudget {
    fn default() -> Self {
        Self(DEEP_PIECES_MAX)
    }
}

/// The extents of a file by their offsets in it.
#[derive(Clone, Debug, Default)]
pub(crate) struct ExtentMap {
    extents: RedBlackTreeMapSync<u64, Extent>,
    /// How deep maps are nested in it, at most.
    depth: u32,
}

impl ExtentMap {
    /// Puts `extent` at `offset`, in place of what was there.
    pub(super) fn insert(&mut self, offset: u64, extent: Extent) {
        self.remove(offset, offset.saturating_add(extent.length));
        self.put(offset, extent);
    }

    fn put(&mut self, offset: u64, extent: Extent) {
        if extent.length == 0 {
            return;
        }
        if let Source::Shared(map) = &extent.source {
            self.depth = self.depth.max(map.depth.saturating_add(1));
        }
        self.extents.insert_mut(offset, extent);
    }

    /// Makes a hole of `[start, end)`.
    pub(super) fn remove(&mut self, start: u64, end: u64) {
        if start >= end {
            return;
        }
        self.split(start);
        self.split(end);
        while let Some((offset, _)) = self.extents.range(start..end).next() {
            let offset = *offset;
            self.extents.remove_mut(&offset);
        }
        if self.extents.is_empty() {
            self.depth = 0;
        }
    }

    /// Makes an extent that goes over `position` two.
    fn split(&mut self, position: u64) {
        let Some((offset, extent)) = self.covering(position) else {
            return;
        };
        let before = position.saturating_sub(offset);
        if before == 0 {
            return;
        }
        let after = extent.part(before, extent.length.saturating_sub(before));
        let front = extent.part(0, before);
        self.extents.insert_mut(offset, front);
        self.extents.insert_mut(position, after);
    }

    /// The extent that holds `position`, with its offset.
    fn covering(&self, position: u64) -> Option<(u64, &Extent)> {
        let (offset, extent) = self.extents.range(..=position).next_back()?;
        (offset.saturating_add(extent.length) > position).then_some((*offset, extent))
    }

    /// The first extent that holds `position` or lies behind it.
    fn at_or_after(&self, position: u64) -> Option<(u64, &Extent)> {
        self.covering(position).or_else(|| {
            let (offset, extent) = self.extents.range(position..).next()?;
            Some((*offset, extent))
        })
    }

    /// The parts of its extents that lie in `[start, end)`, with their offsets, without looking into shared ones.
    fn parts(&self, start: u64, end: u64) -> impl Iterator<Item = (u64, Extent)> {
        let mut position = start;
        core::iter::from_fn(move || {
            let (offset, extent) = self.at_or_after(position).filter(|(offset, _)| *offset < end)?;
            let from = position.max(offset);
            let extent_end = offset.saturating_add(extent.length);
            position = extent_end;
            let length = extent_end.min(end).saturating_sub(from);
            Some((from, extent.part(from.saturating_sub(offset), length)))
        })
    }

    /// Makes `[offset, offset + length)` what `[source_offset, source_offset + length)` of `source` is.
    ///
    /// # Errors
    /// [`Problem::ClonesTooDeep`].
    pub(super) fn clone_range(
        &mut self,
        offset: u64,
        source: &Self,
        source_offset: u64,
        length: u64,
        budget: &mut CopyBudget,
    ) -> Result<(), Problem> {
        let source_end = source_offset.saturating_add(length);
        let few = source
            .parts(source_offset, source_end)
            .take(PIECES_COPIED_MAX.saturating_add(1))
            .count()
            <= PIECES_COPIED_MAX;
        if !few && source.depth < DEPTH_MAX {
            let shared = Extent {
                length,
                skip: source_offset,
                source: Source::Shared(Arc::new(source.clone())),
            };
            self.insert(offset, shared);
            return Ok(());
        }
        self.remove(offset, offset.saturating_add(length));
        for (place, extent) in source.parts(source_offset, source_end) {
            if !few {
                budget.0 = budget.0.checked_sub(1).ok_or(Problem::ClonesTooDeep {
                    pieces_max: DEEP_PIECES_MAX,
                })?;
            }
            self.put(offset.saturating_add(place.saturating_sub(source_offset)), extent);
        }
        Ok(())
    }

    /// How many bytes below `size` its extents cover; holes in shared ones are counted in.
    pub(super) fn covered_bytes(&self, size: u64) -> u64 {
        self.extents.range(..size).fold(0, |sum: u64, (offset, extent)| {
            let end = offset.saturating_add(extent.length).min(size);
            sum.saturating_add(end.saturating_sub(*offset))
        })
    }
}

/// A range of a file whose bytes lie in one place.
#[derive(Clone, Debug)]
pub(crate) struct Piece {
    /// Where in the file.
    pub(crate) offset: u64,
    pub(crate) length: u64,
    /// How far into the source, and the source; `None` is a hole.
    pub(crate) data: Option<(u64, Source)>,
}

/// A map that is being walked.
#[derive(Debug)]
struct Level {
    map: Arc<ExtentMap>,
    /// From here on, in offsets of this map.
    position: u64,
    end: u64,
}

/// The pieces of a file from its beginning to its size, holes too, in order. Pieces that follow each other may be
/// of the same kind.
#[derive(Debug)]
pub(crate) struct Pieces {
    stack: Vec<Level>,
    /// In the file.
    offset: u64,
}

impl Pieces {
    pub(super) fn new(map: &ExtentMap, size: u64) -> Self {
        Self {
            stack: vec![Level {
                map: Arc::new(map.clone()),
                position: 0,
                end: size,
            }],
            offset: 0,
        }
    }

    fn piece(&mut self, length: u64, data: Option<(u64, Source)>) -> Piece {
        let offset = self.offset;
        self.offset = offset.saturating_add(length);
        Piece { offset, length, data }
    }
}

impl Iterator for Pieces {
    type Item = Piece;

    fn next(&mut self) -> Option<Piece> {
        loop {
            let level = self.stack.last_mut()?;
            if level.position >= level.end {
                self.stack.pop();
                continue;
            }
            let map = Arc::clone(&level.map);
            let found = map.at_or_after(level.position);
            let Some((offset, extent)) = found.filter(|(offset, _)| *offset < level.end) else {
                let length = level.end.saturating_sub(level.position);
                level.position = level.end;
                return Some(self.piece(length, None));
            };
            if offset > level.position {
                let length = offset.saturating_sub(level.position);
                level.position = offset;
                return Some(self.piece(length, None));
            }
            let into = level.position.saturating_sub(offset);
            let length = extent
                .length
                .saturating_sub(into)
                .min(level.end.saturating_sub(level.position));
            level.position = level.position.saturating_add(length);
            let skip = extent.skip.saturating_add(into);
            match &extent.source {
                Source::Shared(shared) => self.stack.push(Level {
                    map: Arc::clone(shared),
                    position: skip,
                    end: skip.saturating_add(length),
                }),
                source => return Some(self.piece(length, Some((skip, source.clone())))),
            }
        }
    }
}

#[cfg(test)]
mod tests;
