//! Verifies one copy of a piece against the expected content.

use crate::damage::Cause;
use crate::fetched::View;
use crate::group::{Expected, Group, Piece};
use buttress_exact::{Exact as _, usize_of};
use buttress_format::checksum::CHECKSUM_FIELD_BYTES;
use buttress_format::node::{Header, RawHeader};
use buttress_format::{BlockFormat, BlockProblem, ChecksumType, Generation};
use core::ops::Range;
use std::sync::Arc;
use zerocopy::FromBytes;

/// Wrong bytes of a piece: one sector of data, or a whole tree block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Bad {
    pub(crate) range: Range<usize>,
    pub(crate) cause: Cause,
}

/// Returns the wrong parts of a copy. Usually no sectors are bad, and the list allocates nothing.
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
            // Clamp: data whose checksums are missing is bad as a whole.
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

/// Returns the sectors of a buffer of `length` bytes, as byte ranges.
pub(crate) fn sectors(length: usize, sector_bytes: usize) -> impl Iterator<Item = Range<usize>> {
    (0..length)
        .step_by(sector_bytes.max(1))
        .map(move |start| start..start.exact_add(sector_bytes).min(length))
}

pub(crate) fn sector_of(format: &BlockFormat) -> usize {
    usize_of(format.sector_bytes)
}

/// Verifies data against its packed checksums.
fn data(view: &View<'_>, packed: &[u8], format: &BlockFormat) -> Vec<Bad> {
    bad_sectors(view, packed, format.checksum_type, sector_of(format))
}

fn bad_sectors(view: &View<'_>, packed: &[u8], sums: ChecksumType, sector_bytes: usize) -> Vec<Bad> {
    let size = sums.size_bytes();
    let mut computed = Vec::with_capacity(packed.len());
    sums.compute_sectors(view.bytes, sector_bytes, &mut computed);
    if (computed == packed || buttress_faults::on("scrub-data-unverified")) && view.is_whole() {
        return Vec::new();
    }
    // A sector without a checksum counts as bad.
    let stored = packed.chunks(size).map(Some).chain(core::iter::repeat(None));
    let judged = sectors(view.bytes.len(), sector_bytes)
        .zip(computed.chunks(size).zip(stored))
        .filter_map(|(range, (computed, stored))| {
            let is_wrong = match stored {
                None => !buttress_faults::on("scrub-data-without-sums-clean"),
                Some(stored) => stored != computed,
            };
            let wrong = is_wrong.then_some(Cause::Checksum);
            let cause = view.unreadable(&range).or(wrong)?;
            Some(Bad { range, cause })
        });
    judged.collect()
}

/// Verifies a tree block against its checksum and its extent item.
pub(crate) fn tree_block(
    bytes: &[u8],
    piece: &Piece,
    generation: Generation,
    level: Option<u8>,
    format: &BlockFormat,
) -> Option<Cause> {
    let (raw, _) = RawHeader::ref_from_prefix(bytes).ok()?;
    let header = Header::from_raw(raw, format.checksum_type);
    // Clamp: a header is longer than its checksum.
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the bad sectors among three intact sectors, of which only the first `with_checksum`
    /// have a checksum.
    fn bad_of_three(with_checksum: usize) -> Vec<Range<usize>> {
        let bytes = vec![7_u8; 3 * 4096];
        let mut packed = Vec::new();
        ChecksumType::Crc32c.compute_sectors(&bytes, 4096, &mut packed);
        packed.truncate(with_checksum * 4);
        let bad = bad_sectors(&View::of(&bytes), &packed, ChecksumType::Crc32c, 4096);
        bad.into_iter().map(|bad| bad.range).collect()
    }

    #[test]
    fn sectors_without_their_checksums_are_bad() {
        assert_eq!(bad_of_three(3), [0..0; 0]);
        assert_eq!(bad_of_three(2), Vec::from_iter(core::iter::once(8192..12288)));
    }

    #[test]
    fn data_without_any_checksum_is_bad() {
        assert_eq!(bad_of_three(0), [0..4096, 4096..8192, 8192..12288]);
    }
}
