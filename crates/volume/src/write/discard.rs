//! Telling devices which bytes are no longer needed.
//!
//! Only ranges that nothing uses, and that no durable superblock leads to any more, may be discarded. Of RAID5 and RAID6
//! only whole rows are, parity included: half a row without its data would not fit its parity.

use crate::Volume;
use crate::chunk_map::MappedChunk;
use crate::error::{Corruption, Error};
use crate::layout::StripeOffset;
use buttress_format::{ByteCount, Logical, Physical};
use std::sync::Arc;

/// A range of one stripe.
pub(super) struct Part {
    pub(super) stripe_index: usize,
    pub(super) physical: Physical,
    pub(super) length: u64,
}

impl Volume {
    /// Discards `[logical, logical + length)` on all devices that hold it. Devices without discard do nothing.
    ///
    /// # Errors
    /// [`Corruption::Unmapped`] when no chunk maps the range; what a device fails with. That does not stop writing: the
    /// bytes are not needed.
    pub fn discard(&self, logical: Logical, length: ByteCount) -> Result<(), Error> {
        self.require_writing()?;
        let map = self.chunk_map();
        let mut done = 0;
        while let Some(left) = length.get().checked_sub(done).filter(|left| *left > 0) {
            let at = logical.saturating_add(ByteCount::new(done));
            let unmapped = || Corruption::Unmapped {
                logical: at,
                length: ByteCount::new(left),
            };
            let chunk = map.find(at).ok_or_else(unmapped)?;
            let offset = chunk.offset_of(at).ok_or_else(unmapped)?.get();
            let count = left.min(chunk.length().get().saturating_sub(offset));
            for part in parts(chunk, offset, count, false)? {
                if let Some(device) = self.stripe_to_write(chunk, part.stripe_index)? {
                    device.discard(part.physical.get(), part.length)?;
                }
            }
            done = done.saturating_add(count);
        }
        Ok(())
    }
}

/// The ranges of stripes that hold `[offset, offset + length)` of a chunk and nothing else. Ranges of one stripe that
/// follow each other are one. Of rows with parity only whole rows are among them. With `widens`, rows that the range
/// covers in part are among them too.
pub(super) fn parts(
    chunk: &Arc<MappedChunk>,
    offset: u64,
    length: u64,
    widens: bool,
) -> Result<Vec<Part>, Error> {
    let layout = chunk.layout();
    let row_bytes = ByteCount::of(layout.data_columns())
        .get()
        .saturating_mul(layout.stripe_bytes());
    let mut parts: Vec<Part> = Vec::new();
    if layout.has_parity() {
        let row_bytes = row_bytes.max(1);
        let until = offset.saturating_add(length);
        let down = |at: u64| at.checked_div(row_bytes).unwrap_or(0);
        let (first, end) = match widens {
            true => (down(offset), until.div_ceil(row_bytes)),
            false => (offset.div_ceil(row_bytes), down(until)),
        };
        if first < end {
            let start = StripeOffset::new(first.saturating_mul(layout.stripe_bytes()));
            let length = end.saturating_sub(first).saturating_mul(layout.stripe_bytes());
            for stripe_index in 0..layout.stripe_count() {
                parts.push(Part {
                    stripe_index,
                    physical: chunk.physical(stripe_index, start)?,
                    length,
                });
            }
        }
        return Ok(parts);
    }
    let mut done = 0;
    while done < length {
        let at = crate::layout::ChunkOffset::new(offset.saturating_add(done));
        let Some(place) = layout.place(at) else { break };
        let count = place.length.get().min(length.saturating_sub(done));
        for copy in 0..place.copies {
            let stripe_index = place.stripe_index.saturating_add(copy);
            let physical = chunk.physical(stripe_index, place.stripe_offset)?;
            let before = parts
                .iter_mut()
                .rev()
                .find(|part| part.stripe_index == stripe_index);
            match before {
                Some(part) if part.physical.saturating_add(ByteCount::new(part.length)) == physical => {
                    part.length = part.length.saturating_add(count);
                }
                _ => parts.push(Part {
                    stripe_index,
                    physical,
                    length: count,
                }),
            }
        }
        done = done.saturating_add(count);
    }
    Ok(parts)
}
