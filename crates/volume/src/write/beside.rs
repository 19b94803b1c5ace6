//! File data that shares rows of RAID5 and RAID6 with what is written.
//!
//! New parity over damaged data fits the damage, and the old parity, which could still give the data back, is gone. The
//! volume does not know the checksums of data: they are in a tree above. So the writer asks which data it is about
//! ([`Volume::data_beside`]) before it writes, and passes a judge to [`Volume::write_data`]. What does not pass is replaced by
//! what the old parity gives, if that passes, and written with the row: the new parity counts on it.
//!
//! Left out: data without checksums, and what is written to block groups that hold data and metadata by a commit.

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

/// Finds the sectors of a range of [`Volume::data_beside`] that do not match their checksums: pushes their ranges, in order.
pub type VerifyBeside<'a> = dyn Fn(ExtentRead, &[u8], &mut Vec<Range<usize>>) + 'a;

impl Volume {
    /// The file data that writing some extents reads to compute parity. Empty if no extent is in a chunk with parity, or all
    /// rows are written whole.
    ///
    /// # Errors
    /// As for [`Volume::write`].
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

/// `bytes`, which were read from `read`, with the sectors that only the old parity still has.
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

/// A range of whole sectors, sector by sector.
fn sectors(range: &Range<usize>, step: usize) -> impl Iterator<Item = Range<usize>> {
    let end = range.end;
    range
        .clone()
        .step_by(step)
        .map(move |start| start..start.exact_add(step.min(end.exact_sub(start))))
}
