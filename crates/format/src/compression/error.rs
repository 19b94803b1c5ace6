//! The errors of compressed extents: one variant for each check.

use super::lzo1x::Lzo1xError;

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
