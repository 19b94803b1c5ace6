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
) -> Bytes {
    let mut bad = Vec::new();
    verify(read, &bytes, &mut bad);
    if bad.is_empty() {
        return bytes;
    }
    let mut restored = BytesMut::from(&bytes[..]);
    let step = usize::try_from(volume.superblock().sector_bytes).unwrap_or(4096);
    for range in bad.iter().flat_map(|range| sectors(range, step)) {
        let sector = ExtentRead {
            logical: read.logical.saturating_add(ByteCount::of(range.start)),
            length: range.len(),
        };
        let Some(place) = restored.get(range.clone()).map(<[u8]>::to_vec) else {
            continue;
        };
        let mut passes = |copy: &[u8]| {
            put(&mut restored, &range, copy);
            let mut still_bad = Vec::new();
            verify(read, &restored, &mut still_bad);
            !still_bad.iter().any(|bad| bad.contains(&range.start))
        };
        let mut copies = (2..=chunk.layout().ways()).filter_map(|copy| volume.read_copy(sector, copy).ok());
        if !copies.any(|copy| passes(&copy)) {
            put(&mut restored, &range, &place);
        }
    }
    restored.freeze()
}

fn put(bytes: &mut [u8], range: &Range<usize>, copy: &[u8]) {
    if let Some(place) = bytes
        .get_mut(range.clone())
        .filter(|place| place.len() == copy.len())
    {
        place.copy_from_slice(copy);
    }
}

/// A range of whole sectors, sector by sector.
fn sectors(range: &Range<usize>, step: usize) -> impl Iterator<Item = Range<usize>> {
    let end = range.end;
    range
        .clone()
        .step_by(step.max(1))
        .map(move |start| start..start.saturating_add(step).min(end))
}
