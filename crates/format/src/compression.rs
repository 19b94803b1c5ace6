//! Compression and decompression of extents: zlib, zstd, and LZO in btrfs's own framing.
//!
//! A [`Compressor`] compresses one extent and returns the stored form if it saves at least a
//! sector. [`looks_compressible`] predicts before the compression whether it will save a sector.
//!
//! [`decompress`] reads the stored bytes of one compressed extent: all its `disk_bytes`, or the
//! inline content. The function fills a buffer with the beginning of the content. If the buffer is
//! shorter than the content, the rest of the content is not decompressed. If the content is shorter
//! than the buffer, the remaining bytes of the buffer are zeroed, as in the kernel. A stored extent
//! is padded with zeros to whole sectors, so the decoder ignores bytes after a stream's end.
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
//! Left out of this module: checksums. The caller verifies stored bytes against the checksum tree
//! before decompression. Like the kernel, this module ignores the Adler-32 at the end of a zlib
//! stream.

mod compressor;
mod heuristic;
mod lzo;
mod lzo1x;
mod zlib;
mod zstd;

pub use compressor::{CompressionMethod, Compressor};
pub use heuristic::looks_compressible;
pub use lzo1x::Lzo1xError;

use crate::file_extent::Compression;
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
    /// the number of bytes of content. `stored` is the whole extent as stored on disk. If `inline`
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

fn copy(from: &[u8], to: &mut [u8]) -> usize {
    let length = from.len().min(to.len());
    to.iter_mut().zip(from).for_each(|(to, from)| *to = *from);
    length
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

/// The reason why a compressed extent is invalid. Offsets count from the beginning of the stored
/// bytes.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CompressionError {
    /// The first two bytes are not a valid zlib header.
    #[error("zlib header {header:#06x} is invalid")]
    ZlibHeader {
        /// The first two bytes, the first of them in the upper half. The number is zero if the
        /// extent is shorter than two bytes.
        header: u16,
    },
    /// The zlib stream violates the deflate format.
    #[error(
        "zlib stream is damaged at or before byte {offset} of {stored_bytes}, {content_bytes} bytes into the content"
    )]
    ZlibDamaged {
        /// The number of bytes of the stream that were read.
        offset: u64,
        /// The length of the extent in bytes.
        stored_bytes: usize,
        /// The number of bytes decompressed before the error.
        content_bytes: u64,
    },
    /// The zlib stream does not end within the extent.
    #[error(
        "zlib stream does not end within its {stored_bytes} bytes, {content_bytes} bytes into the content"
    )]
    ZlibCut {
        /// The length of the extent in bytes.
        stored_bytes: usize,
        /// The number of bytes decompressed before the error.
        content_bytes: u64,
    },
    /// The zstd frame violates the format, or needs a window of more than 128 KiB.
    #[error(
        "zstd frame is damaged at or before byte {offset} of {stored_bytes}, {content_bytes} bytes into the content: {reason}"
    )]
    ZstdDamaged {
        /// The number of bytes of the frame that were read.
        offset: usize,
        /// The length of the extent in bytes.
        stored_bytes: usize,
        /// The number of bytes decompressed before the error.
        content_bytes: usize,
        /// The error text of the zstd library.
        reason: &'static str,
    },
    /// The zstd frame does not end within the extent.
    #[error(
        "zstd frame does not end within its {stored_bytes} bytes, {content_bytes} bytes into the content"
    )]
    ZstdCut {
        /// The length of the compressed extent in bytes.
        stored_bytes: usize,
        /// The number of bytes decompressed before the error.
        content_bytes: usize,
    },
    /// The zstd library could not allocate memory for its decoder.
    #[error("no memory for a zstd decoder")]
    ZstdMemory,
    /// The first number of an LZO extent, its total length, does not fit the extent.
    #[error(
        "LZO total length is {total_bytes}, which contradicts the length of the extent, {stored_bytes} bytes"
    )]
    LzoTotalLength {
        /// The total length that the compressed extent states.
        total_bytes: u32,
        /// The length of the extent in bytes.
        stored_bytes: usize,
    },
    /// An LZO extent ends before or inside the length field of a segment.
    #[error("LZO segment length at byte {offset} is outside of the extent's {total_bytes} bytes")]
    LzoHeaderCut {
        /// The offset of the segment's length field.
        offset: usize,
        /// The total length that the extent states.
        total_bytes: usize,
    },
    /// The length of an LZO segment exceeds the limit.
    #[error("LZO segment at byte {offset} is {segment_bytes} bytes long, expected at most {limit_bytes}")]
    LzoSegmentLength {
        /// The offset of the segment, after its length field.
        offset: usize,
        /// The length of the segment in bytes.
        segment_bytes: u32,
        /// The exceeded limit: the worst-case length of a compressed sector, or the bytes left in
        /// the extent.
        limit_bytes: usize,
    },
    /// A segment of an LZO extent violates the LZO1X format.
    #[error("LZO segment at byte {offset}: {error}")]
    LzoSegment {
        /// The offset of the segment, after its length field.
        offset: usize,
        /// The error in the segment. The offsets in the error count from the beginning of the
        /// segment.
        error: Lzo1xError,
    },
}

#[cfg(test)]
mod tests;
