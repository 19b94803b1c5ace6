//! The chunks of the new volume as its items name them, and the use of data chunks.

use crate::error::Result;
use crate::layout::{Layout, Piece, Placed};
use buttress_exact::{Defect, Exact as _};
use buttress_format::{BlockGroupFlags, ByteCount, Logical, Physical};
use buttress_mkfs::PlannedChunk;
use core::ops::Range;

/// Returns the chunk of a placed copy or copies.
pub(crate) fn placed(chunk: &Placed, kind: BlockGroupFlags) -> Option<PlannedChunk> {
    let first = chunk.copies.first()?;
    let profile = if chunk.copies.len() > 1 {
        BlockGroupFlags::DUP
    } else {
        BlockGroupFlags::empty()
    };
    let stripes = chunk.copies.iter().map(|copy| (0, *copy)).collect();
    let logical = Logical::new(first.get());
    Some(PlannedChunk::new(
        logical,
        kind | profile,
        chunk.length,
        chunk.length,
        stripes,
    ))
}

/// A data chunk, its used bytes, and its free ranges.
pub(crate) struct DataChunk {
    pub(crate) chunk: PlannedChunk,
    pub(crate) used_bytes: u64,
    pub(crate) free: Vec<Range<Logical>>,
    at: u64,
    end: u64,
}

/// The data chunks in order. Pieces come in order, too.
pub(crate) struct DataChunks {
    chunks: Vec<DataChunk>,
    current: usize,
}

impl DataChunks {
    pub(crate) fn new(layout: &Layout) -> Self {
        let chunk = |range: &Range<u64>| {
            let length = ByteCount::new(range.end.exact_sub(range.start));
            let stripes = vec![(0, Physical::new(range.start))];
            let logical = Logical::new(range.start);
            DataChunk {
                chunk: PlannedChunk::new(logical, BlockGroupFlags::DATA, length, length, stripes),
                used_bytes: 0,
                free: Vec::new(),
                at: range.start,
                end: range.end,
            }
        };
        Self {
            chunks: layout.data.iter().map(chunk).collect(),
            current: 0,
        }
    }

    /// Counts a piece as used.
    pub(crate) fn used(&mut self, piece: &Piece) -> Result<()> {
        let end = piece.logical.exact_add(piece.length);
        loop {
            let Some(chunk) = self.chunks.get_mut(self.current) else {
                let defect = Defect::new("a piece is in no data chunk").with("logical", piece.logical);
                return Err(defect.into());
            };
            if piece.logical < chunk.end {
                chunk.gap(piece.logical);
                chunk.at = end;
                chunk.used_bytes = chunk.used_bytes.exact_add(piece.length);
                return Ok(());
            }
            self.current = self.current.exact_add(1);
        }
    }

    /// Returns the chunks with all free ranges.
    pub(crate) fn finish(mut self) -> Vec<DataChunk> {
        for chunk in &mut self.chunks {
            chunk.gap(chunk.end);
        }
        self.chunks
    }
}

impl DataChunk {
    /// Records the free range before `until`.
    fn gap(&mut self, until: u64) {
        if self.at < until {
            self.free.push(Logical::new(self.at)..Logical::new(until));
        }
    }
}
