//! Data chunks over the used units of a device.

use super::reserved::reserved_units;
use super::units::{UNIT_BYTES, Units};
use buttress_exact::Exact as _;
use core::ops::Range;

/// The length of a data chunk, unless a reserved range or another chunk follows: 32 MiB.
const CHUNK_UNITS_MIN: u64 = 512;

/// The longest data chunk: 1 GiB.
const CHUNK_UNITS_MAX: u64 = 16_384;

/// Returns chunks, as ranges of bytes, that cover the units of `content` outside of the reserved
/// ranges. No chunk has units of `placed`.
pub(super) fn chunks(content: &Units, placed: &Units) -> Vec<Range<u64>> {
    let mut obstacles = placed.clone();
    for range in reserved_units() {
        obstacles.mark(range);
    }
    let mut chunks = Vec::new();
    for segment in obstacles.runs(0..obstacles.len(), false) {
        let mut at = segment.start;
        loop {
            let start = content.find(at..segment.end, true);
            if start >= segment.end {
                break;
            }
            at = chunk_end(content, start, segment.end);
            let end = at.exact_mul(UNIT_BYTES).min(content.device_bytes());
            chunks.push(start.exact_mul(UNIT_BYTES)..end);
        }
    }
    chunks
}

/// Returns the end of the chunk that begins at the used unit `start`. The chunk ends with its last
/// used run, at least 32 MiB and at most 1 GiB after the start, and not after `limit`.
fn chunk_end(content: &Units, start: u64, limit: u64) -> u64 {
    let most = start.exact_add(CHUNK_UNITS_MAX).min(limit);
    let mut end = start.exact_add(CHUNK_UNITS_MIN).min(most);
    while end < most && content.is_used(end) {
        end = content.find(end..most, false);
    }
    end
}
