//! The parts of stripes that hold a range of logical addresses.
//!
//! A range may span chunks. Each part is the largest range of one stripe that holds only bytes of
//! the range. For RAID5 and RAID6, each part is whole rows, including parity.

use crate::Volume;
use crate::chunk_map::MappedChunk;
use crate::error::{Corruption, Error};
use crate::layout::{ChunkOffset, StripeOffset};
use buttress_device::{Device, IoError};
use buttress_format::{ByteCount, Logical, Physical};
use std::sync::Arc;

/// A range of bytes within one stripe.
pub(super) struct Part {
    stripe_index: usize,
    pub(super) physical: Physical,
    pub(super) length: u64,
}

impl Part {
    /// The length of this part joined with the range at `physical`, if that range follows this
    /// part.
    fn joined(&self, physical: Physical, length: u64) -> Option<u64> {
        let follows = self.physical.checked_add(ByteCount::new(self.length)) == Some(physical);
        follows.then(|| self.length.checked_add(length))?
    }
}

/// The rows with parity that contain a range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Rows {
    /// Only rows that the range covers as a whole.
    Whole,
    /// Rows that the range covers wholly or in part.
    Touched,
}

impl Volume {
    /// Calls `act` for each part of `[logical, logical + length)` on a device that is written.
    ///
    /// # Errors
    /// Fails with [`Corruption::Unmapped`] if no chunk maps the range, or with an error of `act`.
    pub(super) fn each_part(
        &self,
        logical: Logical,
        length: ByteCount,
        rows: Rows,
        act: impl Fn(&Device, &Part) -> Result<(), IoError>,
    ) -> Result<(), Error> {
        let map = self.chunk_map();
        let (mut at, mut left) = (logical, length);
        while left > ByteCount::ZERO {
            let unmapped = || Corruption::Unmapped {
                logical: at,
                length: left,
            };
            let chunk = map.find(at).ok_or_else(unmapped)?;
            let offset = chunk.offset_of(at).ok_or_else(unmapped)?.get();
            let in_chunk = chunk.length().checked_sub(ByteCount::new(offset));
            let count = left.min(in_chunk.ok_or_else(unmapped)?);
            for part in parts(chunk, offset, count.get(), rows)?.ok_or_else(unmapped)? {
                if let Some(device) = self.stripe_to_write(chunk, part.stripe_index)? {
                    act(device, &part)?;
                }
            }
            let (next, rest) = at
                .checked_add(count)
                .zip(left.checked_sub(count))
                .ok_or_else(unmapped)?;
            (at, left) = (next, rest);
        }
        Ok(())
    }
}

/// Returns the parts that hold `[offset, offset + length)` of a chunk. Parts of one stripe that
/// follow each other are joined. Returns `None` if the range leaves the chunk.
fn parts(chunk: &Arc<MappedChunk>, offset: u64, length: u64, rows: Rows) -> Result<Option<Vec<Part>>, Error> {
    let layout = chunk.layout();
    if layout.has_parity() {
        return whole_rows(chunk, offset, length, rows);
    }
    let mut parts: Vec<Part> = Vec::new();
    let mut done = 0;
    while let Some(left) = length.checked_sub(done).filter(|left| *left > 0) {
        let at = offset.checked_add(done).map(ChunkOffset::new);
        let Some(place) = at.and_then(|at| layout.place(at)) else {
            return Ok(None);
        };
        let count = place.length.get().min(left);
        for stripe_index in (place.stripe_index..).take(place.copies) {
            let physical = chunk.physical(stripe_index, place.stripe_offset)?;
            let before = parts
                .iter_mut()
                .rev()
                .find(|part| part.stripe_index == stripe_index);
            let joined = before.and_then(|part| part.joined(physical, count).map(|joined| (part, joined)));
            match joined {
                Some((part, joined)) => part.length = joined,
                None => parts.push(Part {
                    stripe_index,
                    physical,
                    length: count,
                }),
            }
        }
        let Some(next) = done.checked_add(count).filter(|_| count > 0) else {
            return Ok(None);
        };
        done = next;
    }
    Ok(Some(parts))
}

/// Returns the whole rows of a range, as a part of each stripe.
fn whole_rows(chunk: &MappedChunk, offset: u64, length: u64, rows: Rows) -> Result<Option<Vec<Part>>, Error> {
    let layout = chunk.layout();
    let row_bytes = ByteCount::of(layout.data_columns())
        .get()
        .checked_mul(layout.stripe_bytes())
        .filter(|bytes| *bytes > 0);
    let Some((row_bytes, end)) = row_bytes.zip(offset.checked_add(length)) else {
        return Ok(None);
    };
    let up = |at: u64| at.div_ceil(row_bytes);
    let down = |at: u64| at.checked_div(row_bytes);
    let numbers = match rows {
        Rows::Touched => down(offset).map(|first| first..up(end)),
        Rows::Whole => down(end).map(|end| up(offset)..end),
    };
    let Some(numbers) = numbers.filter(|numbers| !numbers.is_empty()) else {
        return Ok(Some(Vec::new()));
    };
    let bytes = |rows: Option<u64>| rows.and_then(|rows| rows.checked_mul(layout.stripe_bytes()));
    let (start, length) = (
        bytes(Some(numbers.start)),
        bytes(numbers.end.checked_sub(numbers.start)),
    );
    let Some((start, length)) = start.zip(length) else {
        return Ok(None);
    };
    let part = |stripe_index| {
        let physical = chunk.physical(stripe_index, StripeOffset::new(start))?;
        Ok(Part {
            stripe_index,
            physical,
            length,
        })
    };
    (0..layout.stripe_count())
        .map(part)
        .collect::<Result<_, Error>>()
        .map(Some)
}
