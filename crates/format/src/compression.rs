//! Compression and decompression of extents: zlib, zstd, and LZO in btrfs's own framing.
//!
//! A [`Compressor`] compresses one extent and returns the stored form if it saves at least a
//! sector. [`looks_compressible`] predicts before the compression whether it will save a sector.
//!
//! [`decompress`] reads all stored bytes of one compressed extent: its `disk_bytes`, or the inline
//! content. The function fills a buffer with the beginning of the content. If the buffer is shorter
//! than the content, the rest of the content is not decompressed. If the content is shorter than
//! the buffer, the remaining bytes of the buffer are zeroed, as in the kernel. A stored extent is
//! padded with zeros to whole sectors, so the decoder ignores bytes after a stream's end.
//!
//! Invariants of decompression, for any input:
//! - the decoder writes nothing outside the buffer, and writes every byte of it unless it returns
//!   an error;
//! - memory is bounded: one window of 128 KiB (zstd) or 32 KiB (zlib), one sector (LZO);
//! - time is bounded by the sizes of input and buffer.
//!
//! A [`Decompressor`] keeps its decoders for reuse; [`decompress`] keeps one `Decompressor` for
//! each thread.
//!
//! Left out of this module: checksums. The caller of `decompress` verifies stored bytes against the
//! checksum tree first. Like the kernel, this module ignores the Adler-32 at the end of a zlib
//! stream.

mod compressor;
mod copy;
mod error;
mod heuristic;
mod lzo;
mod lzo1x;
mod zlib;
mod zstd;

pub use compressor::{CompressionMethod, Compressor};
pub use error::CompressionError;
pub use heuristic::looks_compressible;
pub use lzo1x::Lzo1xError;

use crate::file_extent::Compression;
use copy::copy;
use core::cell::RefCell;

/// The decoders, kept from one extent to the next. Each decoder is created at its first use.
#[derive(Default)]
pub struct Decompressor {
    zlib: Option<zlib_rs::Inflate>,
    zstd: Option<zstd_safe::DCtx<'static>>,
    lzo_sector: Vec<u8>,
}

impl core::fmt::Debug for Decompressor {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Decompressor").finish_non_exhaustive()
    }
}

impl Decompressor {
    /// Makes a decompressor that has created no decoder yet.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Fills `out` with the beginning of the content of one extent, and zeroes the rest. Returns
    /// the number of bytes of content. `stored` is the whole extent in its stored form. If `inline`
    /// is set, `stored` is inline content, which LZO frames differently.
    ///
    /// # Errors
    /// Fails with a [`CompressionError`] for the first problem before `out` is full. The content of
    /// `out` is then undefined.
    pub fn decompress(
        &mut self,
        compression: Compression,
        stored: &[u8],
        out: &mut [u8],
        sector_bytes: usize,
        inline: bool,
    ) -> Result<usize, CompressionError> {
        let content_bytes = match compression {
            Compression::None => copy(stored, out),
            Compression::Zlib => zlib::decompress(&mut self.zlib, stored, out)?,
            Compression::Zstd => zstd::decompress(&mut self.zstd, stored, out)?,
            Compression::Lzo if inline => {
                lzo::decompress_inline(&mut self.lzo_sector, stored, out, sector_bytes)?
            }
            Compression::Lzo => lzo::decompress(&mut self.lzo_sector, stored, out, sector_bytes)?,
        };
        if let Some(rest) = out.get_mut(content_bytes..) {
            rest.fill(0);
        }
        Ok(content_bytes)
    }
}

/// Decompresses with a [`Decompressor`] that belongs to the calling thread.
///
/// # Errors
/// Fails as [`Decompressor::decompress`] does.
pub fn decompress(
    compression: Compression,
    stored: &[u8],
    out: &mut [u8],
    sector_bytes: usize,
    inline: bool,
) -> Result<usize, CompressionError> {
    thread_local! {
        static DECOMPRESSOR: RefCell<Decompressor> = RefCell::new(Decompressor::new());
    }
    DECOMPRESSOR.with_borrow_mut(|decompressor| {
        decompressor.decompress(compression, stored, out, sector_bytes, inline)
    })
}

#[cfg(test)]
mod tests;
