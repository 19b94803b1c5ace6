//! File data that shares rows of RAID5 and RAID6 with written extents.
//!
//! New parity over damaged data would match the damage, and destroy the old parity, which can still
//! restore the data. The volume does not know the checksums of data, which are in a tree above.
//! Before it writes, the writer therefore requests the affected data ([`Volume::data_beside`]), and
//! passes a judge to [`Volume::write_data`]. Neighbouring data that fails its checksum is replaced
//! by the data that the old parity yields, if that data passes. The restored data is written
//! together with the row, because the new parity depends on that data.
//!
//! Left out: data without checksums, and extents that a commit writes to mixed block groups.

use super::rows::Rows;
use super::{Batch, ExtentWrite};
use crate::Volume;
use crate::chunk_map::MappedChunk;
use crate::error::Error;
use crate::read::ExtentRead;
use buttress_exact::{Defect, Exact as _, copy_into, u64_of, usize_of};
use buttress_format::ByteCount;
use buttress_format::block_group::BlockGroupFlags;
use bytes::{Bytes, BytesMut};
use core::ops::Range;

/// A verifier for ranges of [`Volume::data_beside`]. The verifier appends the ranges of sectors
/// that do not match their checksums, in order.
pub type VerifyBeside<'a> = dyn Fn(ExtentRead, &[u8], &mut Vec<Range<usize>>) + 'a;

impl Volume {
    /// Returns the file data that a write of these extents reads to compute parity. The result is
    /// empty if no extent is in a chunk with parity, or if all rows are written completely.
    ///
    /// # Errors
    /// Fails as [`Volume::write`] does.
    pub fn data_beside(&self, extents: &[ExtentWrite]) -> Result<Vec<ExtentRead>, Error> {
        let map = self.chunk_map();
        let mut rows = Rows::default();
        for extent in extents {
            let chunk = map.find(extent.logical);
            let shares_rows = |chunk: &std::sync::Arc<MappedChunk>| {
                chunk.layout().has_parity() && chunk.flags().contains(BlockGroupFlags::DATA)
            };
            if chunk.is_some_and(shares_rows) {
                self.plan_write(extent, &mut Batch::default(), &mut rows)?;
            }
        }
        Ok(rows.reads())
    }
}

/// Returns `bytes`, which were read from `read`, with bad sectors restored from the old parity.
pub(super) fn restore(
    volume: &Volume,
    chunk: &MappedChunk,
    read: ExtentRead,
    bytes: Bytes,
    verify: &VerifyBeside<'_>,
) -> Result<Bytes, Defect> {
    let mut bad = Vec::new();
    verify(read, &bytes, &mut bad);
    if bad.is_empty() {
        return Ok(bytes);
    }
    let mut restored = BytesMut::from(&bytes[..]);
    let step = usize_of(volume.superblock().sector_bytes);
    for range in bad.iter().flat_map(|range| sectors(range, step)) {
        let sector = ExtentRead {
            logical: read.logical.exact_add(ByteCount::of(range.start)),
            length: range.len(),
        };
        let as_read = bytes.get(range.clone()).ok_or_else(|| {
            Defect::new("a damaged sector is not in what was read")
                .with("end", u64_of(range.end))
                .with("bytes", u64_of(bytes.len()))
        })?;
        let mut passes = |copy: &[u8]| {
            put(&mut restored, &range, copy)?;
            let mut still_bad = Vec::new();
            verify(read, &restored, &mut still_bad);
            Ok(!still_bad.iter().any(|bad| bad.contains(&range.start)))
        };
        let copies = (2..=chunk.layout().ways()).filter_map(|copy| volume.read_copy(sector, copy).ok());
        let mut is_restored = false;
        for copy in copies {
            is_restored = passes(&copy)?;
            if is_restored {
                break;
            }
        }
        if !is_restored {
            put(&mut restored, &range, as_read)?;
        }
    }
    Ok(restored.freeze())
}

fn put(bytes: &mut [u8], range: &Range<usize>, copy: &[u8]) -> Result<(), Defect> {
    copy_into(
        bytes,
        range.clone(),
        copy,
        "a copy of a sector does not fit its place",
    )
}

/// Splits a range that consists of whole sectors into these sectors.
fn sectors(range: &Range<usize>, step: usize) -> impl Iterator<Item = Range<usize>> {
    let end = range.end;
    range
        .clone()
        .step_by(step)
        .map(move |start| start..start.exact_add(step.min(end.exact_sub(start))))
}
