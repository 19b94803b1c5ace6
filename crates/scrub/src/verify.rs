//! One copy of a piece: is it what it must be?

use crate::damage::Cause;
use crate::fetched::View;
use crate::group::{Expected, Group, Piece};
use buttress_format::checksum::CHECKSUM_FIELD_BYTES;
use buttress_format::node::{Header, RawHeader};
use buttress_format::{BlockFormat, BlockProblem, Generation};
use core::ops::Range;
use std::sync::Arc;
use zerocopy::FromBytes;

/// Bytes of a piece that are wrong: of data a sector, of a tree block all of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Bad {
    pub(crate) range: Range<usize>,
    pub(crate) cause: Cause,
}

/// What is wrong with a copy of a piece. Nothing is, as a rule: then nothing is allocated.
pub(crate) fn judge(group: &Group, piece: &Piece, view: &View<'_>, format: &BlockFormat) -> Vec<Bad> {
    match &piece.expected {
        Expected::Tree { generation, level } => {
            let whole = 0..piece.length;
            let cause = view
                .unreadable(&whole)
                .or_else(|| tree_block(view.bytes, piece, *generation, *level, format));
            cause
                .map(|cause| Bad { range: whole, cause })
                .into_iter()
                .collect()
        }
        Expected::Sums(packed) => {
            let packed = group.packed.get(packed.clone()).unwrap_or_default();
            data(view, packed, format)
        }
        Expected::Bare if view.is_whole() => Vec::new(),
        Expected::Bare => sectors(view.bytes.len(), sector_of(format))
            .filter_map(|range| {
                let cause = view.unreadable(&range)?;
                Some(Bad { range, cause })
            })
            .collect(),
    }
}

/// The sectors of so many bytes.
pub(crate) fn sectors(length: usize, sector_bytes: usize) -> impl Iterator<Item = Range<usize>> {
    (0..length)
        .step_by(sector_bytes.max(1))
        .map(move |start| start..start.saturating_add(sector_bytes).min(length))
}

pub(crate) fn sector_of(format: &BlockFormat) -> usize {
    usize::try_from(format.sector_bytes).unwrap_or(4096).max(1)
}

/// Data against its packed checksums.
fn data(view: &View<'_>, packed: &[u8], format: &BlockFormat) -> Vec<Bad> {
    let sector_bytes = sector_of(format);
    let size = format.checksum_type.size_bytes();
    let mut computed = Vec::with_capacity(packed.len());
    format
        .checksum_type
        .compute_sectors(view.bytes, sector_bytes, &mut computed);
    if (computed == packed || buttress_faults::on("scrub-data-unverified")) && view.is_whole() {
        return Vec::new();
    }
    let pairs = computed.chunks(size).zip(packed.chunks(size));
    let judged =
        sectors(view.bytes.len(), sector_bytes)
            .zip(pairs)
            .filter_map(|(range, (computed, stored))| {
                let wrong = (computed != stored).then_some(Cause::Checksum);
                let cause = view.unreadable(&range).or(wrong)?;
                Some(Bad { range, cause })
            });
    judged.collect()
}

/// A tree block against its checksum, and what the extent tree says of it.
pub(crate) fn tree_block(
    bytes: &[u8],
    piece: &Piece,
    generation: Generation,
    level: Option<u8>,
    format: &BlockFormat,
) -> Option<Cause> {
    let (raw, _) = RawHeader::ref_from_prefix(bytes).ok()?;
    let header = Header::from_raw(raw, format.checksum_type);
    let covered = bytes.get(CHECKSUM_FIELD_BYTES..).unwrap_or_default();
    if header.checksum != format.checksum_type.compute(covered) {
        return Some(Cause::Checksum);
    }
    let problem = if header.logical != piece.logical {
        Some(BlockProblem::Address {
            stored: header.logical,
        })
    } else if header.fsid != format.fsid && !format.seed_fsids.contains(&header.fsid) {
        Some(BlockProblem::Fsid {
            stored: header.fsid,
            expected: format.fsid,
        })
    } else {
        format
            .chunk_tree_uuid
            .filter(|expected| *expected != header.chunk_tree_uuid)
            .map(|expected| BlockProblem::ChunkTreeUuid {
                stored: header.chunk_tree_uuid,
                expected,
            })
    };
    if let Some(problem) = problem.filter(|_| !buttress_faults::on("scrub-misdirected-write-accepted")) {
        return Some(Cause::Header(Arc::new(problem)));
    }
    if header.generation != generation && !buttress_faults::on("scrub-lost-write-accepted") {
        return Some(Cause::Generation {
            stored: header.generation,
            expected: generation,
        });
    }
    let expected = level.filter(|expected| *expected != raw.level)?;
    Some(Cause::Header(Arc::new(BlockProblem::Level {
        stored: raw.level,
        expected,
    })))
}
