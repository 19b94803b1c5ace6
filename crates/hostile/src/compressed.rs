//! Targets for compressed extents.
//!
//! An input is a byte of choices (sector size, inline or regular), two bytes of buffer size in
//! units of 3, and the stored bytes. The LZO target repairs the framing, because a wrong total
//! length would reject most inputs.

use crate::Depth;
use crate::input::Input;
use buttress_format::{Compression, Decompressor};
use std::cell::RefCell;

const SECTOR_SIZES: [usize; 5] = [4096, 8192, 16_384, 32_768, 65_536];

/// The target of a zlib extent.
pub fn zlib(bytes: &[u8]) -> Depth {
    run(bytes, Compression::Zlib, |_, _| {})
}

/// The target of a zstd extent.
pub fn zstd(bytes: &[u8]) -> Depth {
    run(bytes, Compression::Zstd, |_, _| {})
}

/// The target of an LZO extent with a correct total length.
pub fn lzo(bytes: &[u8]) -> Depth {
    run(bytes, Compression::Lzo, |stored, inline| {
        let length = stored.len();
        let Ok(total) = u32::try_from(length) else { return };
        if let Some(field) = stored.first_chunk_mut::<4>()
            && !(4..=total).contains(&u32::from_le_bytes(*field))
        {
            *field = total.to_le_bytes();
        }
        mend_segments(stored);
        if let Some(field) = stored.get_mut(4..8)
            && inline
        {
            field.copy_from_slice(&total.saturating_sub(8).to_le_bytes());
        }
    })
}

/// Returns the input with which a compression target decompresses `stored` into a buffer of
/// `length` bytes, rounded up.
#[must_use]
pub fn encode(stored: &[u8], length: usize, inline: bool) -> Vec<u8> {
    let units = u16::try_from(length.div_ceil(3)).unwrap_or(u16::MAX);
    [&[u8::from(inline) << 3][..], &units.to_le_bytes(), stored].concat()
}

/// Shortens each segment that is too long to the end of the extent, so that the decoder does not
/// reject it at once.
fn mend_segments(stored: &mut [u8]) {
    let mut at = 4_usize;
    while at + 4 <= stored.len() {
        let rest = stored.len() - at - 4;
        let length = usize::from(u16::from_le_bytes([stored[at], stored[at + 1]])).min(rest);
        let field = u32::try_from(length).unwrap_or(0).to_le_bytes();
        stored[at..at + 4].copy_from_slice(&field);
        if let Some(end) = stored[at + 4..at + 4 + length].last_chunk_mut::<3>() {
            // The end mark.
            *end = [17, 0, 0];
        }
        at += 4 + length;
        if at % 4096 > 4092 {
            at = at.next_multiple_of(4096);
        }
    }
}

/// Returns the first segments of a regular LZO extent of 4 KiB sectors, as a separate extent.
#[must_use]
pub fn first_segments(stored: &[u8], segments: usize) -> Vec<u8> {
    let mut at = 4_usize;
    for _ in 0..segments {
        if at % 4096 > 4092 {
            at = at.next_multiple_of(4096);
        }
        let length = stored.get(at..at + 4).and_then(|bytes| bytes.first_chunk::<4>());
        at += 4 + length.map_or(0, |bytes| u32::from_le_bytes(*bytes) as usize);
    }
    let mut cut = stored[..at.min(stored.len())].to_vec();
    let total = u32::try_from(cut.len()).unwrap_or(0);
    cut[..4].copy_from_slice(&total.to_le_bytes());
    cut
}

/// Compresses content to a zlib stream.
///
/// # Errors
/// Panics if the compression fails.
pub fn deflate(content: &[u8], level: i32) -> std::io::Result<Vec<u8>> {
    let level = flate2::Compression::new(level.unsigned_abs());
    let mut encoder = flate2::write::ZlibEncoder::new(Vec::new(), level);
    std::io::Write::write_all(&mut encoder, content)?;
    encoder.finish()
}

fn run(bytes: &[u8], compression: Compression, mend: fn(&mut [u8], bool)) -> Depth {
    thread_local! {
        // A single decompressor serves all inputs, as in readers, so that the state after one input
        // meets the next.
        static DECOMPRESSOR: RefCell<Decompressor> = RefCell::new(Decompressor::new());
    }
    let mut input = Input::new(bytes);
    let choices = input.byte();
    let sector_bytes = SECTOR_SIZES[usize::from(choices & 7) % SECTOR_SIZES.len()];
    let inline = choices & 8 != 0;
    let mut out = vec![0xaa; usize::from(input.u16()) * 3];
    let mut stored = input.rest().to_vec();
    mend(&mut stored, inline);
    let result = DECOMPRESSOR.with_borrow_mut(|decompressor| {
        decompressor.decompress(compression, &stored, &mut out, sector_bytes, inline)
    });
    match result {
        Ok(content_bytes) => {
            assert!(content_bytes <= out.len(), "more content than there is space for");
            assert!(
                out[content_bytes..].iter().all(|byte| *byte == 0),
                "the rest is not zero"
            );
            Depth::Passed
        }
        Err(error) => {
            std::hint::black_box(error.to_string());
            Depth::Refused
        }
    }
}
