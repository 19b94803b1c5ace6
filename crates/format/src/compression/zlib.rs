//! zlib streams.
//!
//! This module checks the two header bytes of a zlib stream and inflates the rest as raw deflate.
//! The module ignores the trailing Adler-32, because the checksum tree already verifies the stored
//! bytes.
//!
//! Source: RFC 1950, section 2.2 (header); RFC 1951 (deflate).

use super::error::CompressionError;
use zlib_rs::{Inflate, InflateFlush, Status};

/// The largest window of deflate: 32 KiB.
pub(super) const WINDOW_BITS: u8 = 15;

pub(super) fn decompress(
    decoder: &mut Option<Inflate>,
    stored: &[u8],
    out: &mut [u8],
) -> Result<usize, CompressionError> {
    let Some((header, deflated)) = stored.split_first_chunk::<2>() else {
        return Err(CompressionError::ZlibHeader { header: 0 });
    };
    check_header(u16::from_be_bytes(*header))?;
    let decoder = decoder.get_or_insert_with(|| Inflate::new(false, WINDOW_BITS));
    decoder.reset(false);
    let status = decoder.decompress(deflated, out, InflateFlush::Finish);
    let content_bytes = decoder.total_out();
    match status {
        Err(_) => Err(CompressionError::ZlibDamaged {
            offset: decoder.total_in().saturating_add(2),
            stored_bytes: stored.len(),
            content_bytes,
        }),
        Ok(Status::Ok | Status::BufError) if usize::try_from(content_bytes) != Ok(out.len()) => {
            Err(CompressionError::ZlibCut {
                stored_bytes: stored.len(),
                content_bytes,
            })
        }
        Ok(_) => Ok(usize::try_from(content_bytes).unwrap_or(out.len())),
    }
}

/// Checks a header: deflate with a window of at most 32 KiB, no preset dictionary, and a multiple
/// of 31.
fn check_header(header: u16) -> Result<(), CompressionError> {
    let is_deflate = header & 0x0f00 == 0x0800 && header >> 12 <= 7;
    let has_dictionary = header & 0x0020 != 0;
    if is_deflate && !has_dictionary && header.is_multiple_of(31) {
        Ok(())
    } else {
        Err(CompressionError::ZlibHeader { header })
    }
}
