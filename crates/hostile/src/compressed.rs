//! Targets for compressed extents.
//!
//! An input is a byte of choices (sector size, inline or regular), two bytes of buffer size in units of 3, and
//! the stored bytes. LZO's framing is mended, else its total length would end most inputs.

use crate::Depth;
use crate::input::Input;
use buttress_format::{Compression, Decompressor};
use std::cell::RefCell;

const SECTOR_SIZES: [usize; 5] = [4096, 8192, 16_384, 32_768, 65_536];

/// A zlib extent.
pub fn zlib(bytes: &[u8]) -> Depth {
    run(bytes, Compression::Zlib, |_, _| {})
}

/// A zstd extent.
pub fn zstd(bytes: &[u8]) -> Depth {
    run(bytes, Compression::Zstd, |_, _| {})
}

/// An LZO extent with a total length that fits.
pub fn lzo(bytes: &[u8]) -> Depth {
    run(bytes, Compression::Lzo, |stored, inline| {
        let length = stored.len();
        let Ok(total) = u32::try_from(length) else { return };
        if let Some(field) = stored.first_chunk_mut::<4>()
            && !(4..=total).contains(&u32::from_le_bytes(*field))
        {
            *field = total.to_le_bytes();
        }
        if let Some(field) = stored.get_mut(4..8)
            && inline
        {
            field.copy_from_slice(&total.saturating_sub(8).to_le_bytes());
        }
    })
}

/// The input of a compression target that decompresses `stored` into a buffer of `length` bytes, rounded up.
#[must_use]
pub fn encode(stored: &[u8], length: usize, inline: bool) -> Vec<u8> {
    let units = u16::try_from(length.div_ceil(3)).unwrap_or(u16::MAX);
    [&[u8::from(inline) << 3][..], &units.to_le_bytes(), stored].concat()
}

fn run(bytes: &[u8], compression: Compression, mend: fn(&mut [u8], bool)) -> Depth {
    thread_local! {
        // One decompressor for all inputs, as readers have it: what one input leaves behind meets the next.
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
            assert!(content_bytes <= out.len(), "more content than there is room for");
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
