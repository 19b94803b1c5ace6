//! LZO1X in btrfs's framing.
//!
//! All numbers are 32-bit little-endian. An LZO extent begins with its total length, which includes
//! the length field. The compressed segments follow the total length. Each segment is a length and
//! that many bytes of LZO1X, which hold one sector of content:
//!
//! ```text
//! | total | length | segment 0 … | length | segment 1 … | 0 0 | length | segment 2 … | 0 …
//!                                                        ^ sector boundary
//! ```
//!
//! A length field never crosses a sector boundary of the stored extent. If fewer than four bytes
//! are left before a sector boundary, they are zeros, and the length field follows the boundary.
//! LZO segments may cross sector boundaries. Zeros fill the last sector of an LZO extent after its
//! total length. Inline content has one segment, without padding.
//!
//! Source: on-disk format documentation, section "LZO compressed data" and the description of the format
//! in btrfs(5).

use super::copy::copy;
use super::error::CompressionError;
use super::lzo1x::{self, Lzo1xError};
use crate::file_extent::COMPRESSED_EXTENT_BYTES_MAX;
use buttress_exact::{u64_of, usize_of};

const LENGTH_BYTES: usize = 4;

/// Decodes a regular extent into `out`, and returns the length of the content. `sector` is scratch
/// space.
pub(super) fn decompress(
    sector: &mut Vec<u8>,
    stored: &[u8],
    out: &mut [u8],
    sector_bytes: usize,
) -> Result<usize, CompressionError> {
    let sector_bytes = sector_bytes.max(LENGTH_BYTES);
    let total_bytes = total_length(stored, sector_bytes)?;
    let segment_limit = worst_segment_bytes(sector_bytes);
    let mut offset = LENGTH_BYTES;
    let mut content_bytes = 0_usize;
    while offset < total_bytes {
        let left_in_sector = sector_bytes.saturating_sub(offset.checked_rem(sector_bytes).unwrap_or(0));
        if left_in_sector < LENGTH_BYTES {
            offset = offset.saturating_add(left_in_sector);
            continue;
        }
        let Some(length) = length_at(stored, offset, total_bytes) else {
            return Err(CompressionError::LzoHeaderCut { offset, total_bytes });
        };
        offset = offset.saturating_add(LENGTH_BYTES);
        let limit_bytes = segment_limit.min(total_bytes.saturating_sub(offset));
        let segment = segment_at(stored, offset, length, limit_bytes)?;
        let room = out.get_mut(content_bytes..).unwrap_or_default();
        let produced = decode_sector(sector, segment, room, sector_bytes)
            .map_err(|error| CompressionError::LzoSegment { offset, error })?;
        content_bytes = content_bytes.saturating_add(produced);
        if content_bytes == out.len() {
            break;
        }
        offset = offset.saturating_add(segment.len());
    }
    Ok(content_bytes)
}

/// Decodes inline content into `out`, and returns the length of the content. `sector` is a scratch
/// buffer for a decoded sector.
pub(super) fn decompress_inline(
    sector: &mut Vec<u8>,
    stored: &[u8],
    out: &mut [u8],
    sector_bytes: usize,
) -> Result<usize, CompressionError> {
    let total = length_at(stored, 0, stored.len()).unwrap_or(0);
    if usize::try_from(total) != Ok(stored.len()) {
        return Err(CompressionError::LzoTotalLength {
            total_bytes: total,
            stored_bytes: stored.len(),
        });
    }
    let Some(length) = length_at(stored, LENGTH_BYTES, stored.len()) else {
        return Err(CompressionError::LzoHeaderCut {
            offset: LENGTH_BYTES,
            total_bytes: stored.len(),
        });
    };
    let offset = LENGTH_BYTES.saturating_mul(2);
    let limit_bytes = stored.len().saturating_sub(offset);
    let segment = segment_at(stored, offset, length, limit_bytes)?;
    if segment.len() != limit_bytes {
        return Err(CompressionError::LzoSegmentLength {
            offset,
            segment_bytes: length,
            limit_bytes,
        });
    }
    decode_sector(sector, segment, out, sector_bytes)
        .map_err(|error| CompressionError::LzoSegment { offset, error })
}

/// Returns the stored form of `content` without padding at its end, or `None` if it exceeds
/// `limit_bytes`. Inline content has the same framing, with one segment.
pub(super) fn compress(
    encoder: &mut lzo1x::Encoder,
    content: &[u8],
    sector_bytes: usize,
    limit_bytes: usize,
) -> Option<Vec<u8>> {
    let mut stored = Vec::with_capacity(limit_bytes.saturating_add(worst_segment_bytes(sector_bytes)));
    stored.extend_from_slice(&[0; LENGTH_BYTES]);
    for sector in content.chunks(sector_bytes) {
        let left_in_sector = sector_bytes.saturating_sub(stored.len().checked_rem(sector_bytes)?);
        if left_in_sector < LENGTH_BYTES {
            stored.resize(stored.len().saturating_add(left_in_sector), 0);
        }
        let length_at = stored.len();
        stored.extend_from_slice(&[0; LENGTH_BYTES]);
        let segment_at = stored.len();
        encoder.compress(sector, &mut stored);
        if stored.len() > limit_bytes {
            return None;
        }
        let segment_bytes = stored.len().saturating_sub(segment_at);
        put_length(&mut stored, length_at, segment_bytes)?;
    }
    let total_bytes = stored.len();
    put_length(&mut stored, 0, total_bytes)?;
    Some(stored)
}

fn put_length(stored: &mut [u8], at: usize, length: usize) -> Option<()> {
    let length = u32::try_from(length).ok()?;
    *stored.get_mut(at..)?.first_chunk_mut::<LENGTH_BYTES>()? = length.to_le_bytes();
    Some(())
}

/// Returns the total length of an LZO extent. Checks that the total length fits the extent and ends
/// in the extent's last sector.
fn total_length(stored: &[u8], sector_bytes: usize) -> Result<usize, CompressionError> {
    let total = length_at(stored, 0, stored.len()).unwrap_or(0);
    let limit = COMPRESSED_EXTENT_BYTES_MAX.min(u64_of(stored.len()));
    let total_bytes = usize_of(total);
    let rounded = total_bytes
        .checked_next_multiple_of(sector_bytes)
        .unwrap_or(usize::MAX);
    if total_bytes < LENGTH_BYTES || u64::from(total) > limit || rounded < stored.len() {
        return Err(CompressionError::LzoTotalLength {
            total_bytes: total,
            stored_bytes: stored.len(),
        });
    }
    Ok(total_bytes)
}

/// Returns the length stored at `offset`, or `None` if the length field ends beyond `end`.
fn length_at(stored: &[u8], offset: usize, end: usize) -> Option<u32> {
    stored
        .get(offset..end)?
        .first_chunk::<LENGTH_BYTES>()
        .map(|bytes| u32::from_le_bytes(*bytes))
}

fn segment_at(
    stored: &[u8],
    offset: usize,
    length: u32,
    limit_bytes: usize,
) -> Result<&[u8], CompressionError> {
    usize::try_from(length)
        .ok()
        .filter(|&length| length <= limit_bytes)
        .and_then(|length| stored.get(offset..)?.get(..length))
        .ok_or(CompressionError::LzoSegmentLength {
            offset,
            segment_bytes: length,
            limit_bytes,
        })
}

/// Returns the LZO1X bytes of an incompressible sector in the worst case, plus two spare bytes.
const fn worst_segment_bytes(sector_bytes: usize) -> usize {
    sector_bytes
        .saturating_add(sector_bytes / 16)
        .saturating_add(64 + 3 + 2)
}

/// Decodes one segment, at most a sector of content, into the beginning of `room`. If the segment's
/// content may exceed `room`, it is decoded into `sector` first.
fn decode_sector(
    sector: &mut Vec<u8>,
    segment: &[u8],
    room: &mut [u8],
    sector_bytes: usize,
) -> Result<usize, Lzo1xError> {
    if let Some(room) = room.get_mut(..sector_bytes) {
        return lzo1x::decompress(segment, room);
    }
    sector.resize(sector_bytes, 0);
    let produced = lzo1x::decompress(segment, sector)?;
    Ok(copy(sector.get(..produced).unwrap_or_default(), room))
}
