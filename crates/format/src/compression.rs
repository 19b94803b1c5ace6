//! Compression and decompression of extents: zlib, zstd, and LZO in btrfs's own framing.
//!
//! [`Compressor`] makes the stored form of one extent, where that saves a sector; [`looks_compressible`] guesses
//! beforehand whether it will.
//!
//! [`decompress`] takes the stored bytes of one compressed extent (all `disk_bytes` of it, or the inline content)
//! and fills a buffer with the beginning of its content. A buffer shorter than the content is filled and
//! the rest is not looked at; where the content ends before the buffer does, the rest of the buffer is
//! zeroed, as the kernel does. Stored extents are padded with zeros to whole sectors: what follows the end of
//! a stream is ignored.
//!
//! Invariants of decompression, for any input:
//! - nothing is written outside the buffer, and every byte of it is written unless an error is returned;
//! - memory is bounded: one window of 128 KiB (zstd) or 32 KiB (zlib), one sector (LZO);
//! - time is bounded by the sizes of input and buffer.
//!
//! The decoders are kept for reuse in a [`Decompressor`]; [`decompress`] keeps one for each thread.
//!
//! Left out: checksums. Stored bytes are verified against the checksum tree before they come
//! here; the Adler-32 at the end of a zlib stream is not looked at, as the kernel does not either.

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

/// Decoders that are kept from one extent to the next. Made as they are first needed.
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
    /// Without any decoder yet.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Fills `out` with the beginning of the content of one extent and returns how many bytes of it are content;
    /// the rest is zeroed. `stored` is the whole extent as it lies on disk; `inline` says whether it is inline
    /// content instead, which LZO frames differently.
    ///
    /// # Errors
    /// A [`CompressionError`] with the first thing that is wrong before `out` is full. What `out` then holds is
    /// not defined.
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

/// [`Decompressor::decompress`] with a decompressor that belongs to the calling thread.
///
/// # Errors
/// As there.
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

/// What is wrong with a compressed extent. Offsets count from the beginning of the stored bytes.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CompressionError {
    /// A zlib stream begins with two bytes that no zlib stream begins with.
    #[error("zlib header {header:#06x} is invalid")]
    ZlibHeader {
        /// Both bytes, the first one in the upper half; zero where the extent ends before them.
        header: u16,
    },
    /// A zlib stream breaks the rules of deflate.
    #[error(
        "zlib stream is damaged at or before byte {offset} of {stored_bytes}, {content_bytes} bytes into the content"
    )]
    ZlibDamaged {
        /// How far the stream was read.
        offset: u64,
        /// Length of the extent.
        stored_bytes: usize,
        /// How much content came out before.
        content_bytes: u64,
    },
    /// A zlib stream goes on beyond the end of the extent.
    #[error(
        "zlib stream does not end within its {stored_bytes} bytes, {content_bytes} bytes into the content"
    )]
    ZlibCut {
        /// Length of the extent.
        stored_bytes: usize,
        /// How much content came out before.
        content_bytes: u64,
    },
    /// A zstd frame breaks its rules, or needs a window of more than 128 KiB.
    #[error(
        "zstd frame is damaged at or before byte {offset} of {stored_bytes}, {content_bytes} bytes into the content: {reason}"
    )]
    ZstdDamaged {
        /// How far the frame was read.
        offset: usize,
        /// Length of the extent.
        stored_bytes: usize,
        /// How much content came out before.
        content_bytes: usize,
        /// What the zstd library says.
        reason: &'static str,
    },
    /// A zstd frame goes on beyond the end of the extent.
    #[error(
        "zstd frame does not end within its {stored_bytes} bytes, {content_bytes} bytes into the content"
    )]
    ZstdCut {
        /// Length of the extent.
        stored_bytes: usize,
        /// How much content came out before.
        content_bytes: usize,
    },
    /// The zstd library found no memory for its decoder.
    #[error("no memory for a zstd decoder")]
    ZstdMemory,
    /// The first number of an LZO extent, its total length, cannot be right.
    #[error("LZO total length is {total_bytes}, but the extent is {stored_bytes} bytes long")]
    LzoTotalLength {
        /// The number.
        total_bytes: u32,
        /// Length of the extent.
        stored_bytes: usize,
    },
    /// An LZO extent ends inside the length of a segment, or before it.
    #[error("LZO segment length at byte {offset} lies outside the {total_bytes} bytes of the extent")]
    LzoHeaderCut {
        /// Where the length should be.
        offset: usize,
        /// The extent's total length.
        total_bytes: usize,
    },
    /// The length of an LZO segment cannot be right.
    #[error("LZO segment at byte {offset} is {segment_bytes} bytes long, at most {limit_bytes} are possible")]
    LzoSegmentLength {
        /// Where the segment begins, after its length.
        offset: usize,
        /// The length.
        segment_bytes: u32,
        /// What a sector needs at worst, or what is left of the extent.
        limit_bytes: usize,
    },
    /// A segment of an LZO extent breaks the rules of LZO1X.
    #[error("LZO segment at byte {offset}: {error}")]
    LzoSegment {
        /// Where the segment begins, after its length.
        offset: usize,
        /// What is wrong in it; its offsets count from the beginning of the segment.
        error: Lzo1xError,
    },
}

#[cfg(test)]
mod tests;
