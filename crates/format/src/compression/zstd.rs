//! zstd frames.
//!
//! Each compressed extent is one zstd frame. The window of an extent's frame is at most 128 KiB.
//! The kernel allocates no larger window, so the kernel and this module refuse larger ones. Bytes
//! after the frame are padding.
//!
//! Source: RFC 8878; the window: btrfs(5), section "Compression".

use super::error::CompressionError;
use zstd_safe::{DCtx, DParameter, InBuffer, OutBuffer, ResetDirective, get_error_name};

/// The binary logarithm of the largest window in bytes.
const WINDOW_LOG_MAX: u32 = 17;

pub(super) fn decompress(
    decoder: &mut Option<DCtx<'static>>,
    stored: &[u8],
    out: &mut [u8],
) -> Result<usize, CompressionError> {
    let decoder = match decoder {
        Some(decoder) => decoder,
        None => decoder.insert(new_decoder()?),
    };
    let damaged = |offset, content_bytes, code| CompressionError::ZstdDamaged {
        offset,
        stored_bytes: stored.len(),
        content_bytes,
        reason: get_error_name(code),
    };
    // After an error, the state of the decoder is undefined until it is reset.
    decoder
        .reset(ResetDirective::SessionOnly)
        .map_err(|code| damaged(0, 0, code))?;
    let out_bytes = out.len();
    let mut input = InBuffer::around(stored);
    let mut output = OutBuffer::around(out);
    loop {
        let before = (input.pos(), output.pos());
        let missing = decoder
            .decompress_stream(&mut output, &mut input)
            .map_err(|code| damaged(input.pos(), output.pos(), code))?;
        let is_frame_over = missing == 0;
        if is_frame_over || output.pos() == out_bytes {
            return Ok(output.pos());
        }
        if (input.pos(), output.pos()) == before {
            return Err(CompressionError::ZstdCut {
                stored_bytes: stored.len(),
                content_bytes: output.pos(),
            });
        }
    }
}

fn new_decoder() -> Result<DCtx<'static>, CompressionError> {
    let mut decoder = DCtx::try_create().ok_or(CompressionError::ZstdMemory)?;
    decoder
        .set_parameter(DParameter::WindowLogMax(WINDOW_LOG_MAX))
        .map_err(|_| CompressionError::ZstdMemory)?;
    Ok(decoder)
}
