//! The content of a file as ranges that point into stream files.
//!
//! [`ExtentMap`] is a persistent map: a copy is a pointer, and shares with its original everything
//! that neither changes. A snapshot in the view therefore shares the extent maps and costs nothing.
//! A range cloned from many pieces of another file is one extent that holds the other file's map at
//! the time of the clone ([`Source::Shared`]).
//!
//! Invariants:
//! - Extents of a map do not overlap, none is empty, and none ends beyond 2^63 - 1.
//! - Extent maps nest at most [`DEPTH_MAX`] deep. The view copies a range that would nest deeper
//!   piece by piece. [`CopyBudget`] bounds these copies for all streams together, so memory is
//!   bounded by the number of commands, however often a stream clones its clones.
//! - Walking the pieces of a range ([`Pieces`]) needs no recursion, and memory only for the nesting
//!   depth.

use super::error::Problem;
use buttress_format::send::EncodedCompression;
use rpds::RedBlackTreeMapSync;
use std::sync::Arc;

/// Largest nesting depth of extent maps. A file that repeatedly appends itself reaches its largest
/// size earlier.
const DEPTH_MAX: u32 = 64;

/// Largest number of pieces that a clone copies; a range of more pieces is shared.
const PIECES_COPIED_MAX: usize = 16;

/// Largest total number of pieces that all too deeply nested clones may copy.
const DEEP_PIECES_MAX: u64 = 1 << 20;

/// Largest size of a file in bytes.
pub(super) const FILE_BYTES_MAX: u64 = i64::MAX as u64;

/// The whole data of an encoded write.
#[derive(Debug)]
pub(crate) struct Encoded {
    /// Number of the input that holds the bytes.
    pub(crate) file: u32,
    /// Offset of the encoded bytes in the input.
    pub(crate) position: u64,
    pub(crate) encoded_bytes: u64,
    pub(crate) unencoded_bytes: u64,
    pub(crate) compression: EncodedCompression,
}

/// Source of an extent's bytes.
#[derive(Clone, Debug)]
pub(crate) enum Source {
    /// Plain bytes of an input, starting at `position`.
    Stored { file: u32, position: u64 },
    /// Decoded bytes of an encoded write.
    Encoded(Arc<Encoded>),
    /// Bytes of another extent map.
    Shared(Arc<ExtentMap>),
}

/// A file range that is not entirely a hole.
#[derive(Clone, Debug)]
pub(crate) struct Extent {
    pub(super) length: u64,
    /// Offset of the extent in its source.
    pub(super) skip: u64,
    pub(super) source: Source,
}

impl Extent {
    /// Returns the part `[from, from + length)` of the extent.
    fn part(&self, from: u64, length: u64) -> Self {
        Self {
            length,
            skip: self.skip.saturating_add(from),
            source: self.source.clone(),
        }
    }
}

/// Remaining number of pieces that too deeply nested clones may copy.
#[derive(Debug)]
pub(super) struct CopyBudget(u64);

impl Default for CopyBudget {
    fn default() -> Self {
        Self(DEEP_PIECES_MAX)
    }
}

/// The extents of a file by their file offsets.
#[derive(Clone, Debug, Default)]
pub(crate) struct ExtentMap {
    extents: RedBlackTreeMapSync<u64, Extent>,
    /// Largest nesting depth of maps in this map.
    depth: u32,
}

impl ExtentMap {
    /// Inserts `extent` at `offset`, and replaces overlapping extents.
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

    /// Turns `[start, end)` into a hole.
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

    /// Splits the extent that crosses `position`.
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

    /// Returns the extent that contains `position`, with its offset.
    fn covering(&self, position: u64) -> Option<(u64, &Extent)> {
        let (offset, extent) = self.extents.range(..=position).next_back()?;
        (offset.saturating_add(extent.length) > position).then_some((*offset, extent))
    }

    /// Returns the first extent that contains or follows `position`.
    fn at_or_after(&self, position: u64) -> Option<(u64, &Extent)> {
        self.covering(position).or_else(|| {
            let (offset, extent) = self.extents.range(position..).next()?;
            Some((*offset, extent))
        })
    }

    /// Returns the extents clipped to `[start, end)`, with their offsets, without resolving shared
    /// extents.
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

    /// Clones `[source_offset, source_offset + length)` of `source` to `[offset, offset + length)`.
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

    /// Returns the number of bytes below `size` in extents, including holes in shared extents.
    pub(super) fn covered_bytes(&self, size: u64) -> u64 {
        self.extents.range(..size).fold(0, |sum: u64, (offset, extent)| {
            let end = offset.saturating_add(extent.length).min(size);
            sum.saturating_add(end.saturating_sub(*offset))
        })
    }
}

/// A file range whose bytes all have one source.
#[derive(Clone, Debug)]
pub(crate) struct Piece {
    /// Offset of the piece in the file.
    pub(crate) offset: u64,
    pub(crate) length: u64,
    /// Offset in the source, and the source; `None` is a hole.
    pub(crate) data: Option<(u64, Source)>,
}

/// State of the walk in one map.
#[derive(Debug)]
struct Level {
    map: Arc<ExtentMap>,
    /// Next position of the walk, in offsets of this map.
    position: u64,
    end: u64,
}

/// Iterator over the pieces of a file from its beginning to its size, in order, with holes.
/// Consecutive pieces may have the same source.
#[derive(Debug)]
pub(crate) struct Pieces {
    stack: Vec<Level>,
    /// Next offset in the file.
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
