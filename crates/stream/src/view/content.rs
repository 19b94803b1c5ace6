//! A reader of file content in the streams.
//!
//! Memory: one buffer of at most 1 MiB, and one decoded extent of at most 128 KiB. An uncompressed
//! encoded write needs no decoded extent.

use super::error::{Error, Result};
use super::extents::{Encoded, Piece, Pieces, Source};
use super::input::Input;
use buttress_exact::{Defect, Exact as _, u64_of, usize_of};
use buttress_format::send::EncodedCompression;
use buttress_format::{ByteCount, Compression, CompressionError, Decompressor, FileOffset};
use core::ops::Range;
use std::sync::Arc;

/// Largest length of one read in bytes.
const CHUNK_BYTES: u64 = 1 << 20;

/// Largest length of compressed data in bytes, both encoded and decoded.
pub(crate) const COMPRESSED_BYTES_MAX: u64 = 128 << 10;

/// A part of a file.
#[derive(Debug)]
pub struct Chunk<'a> {
    /// Offset of the chunk in the file; chunks follow each other without gaps.
    pub offset: FileOffset,
    /// Length of the chunk in bytes, never zero.
    pub length: ByteCount,
    /// Content of the chunk.
    pub content: Content<'a>,
}

/// Content of a part of a file.
#[derive(Debug)]
pub enum Content<'a> {
    /// Bytes of data.
    Data(&'a [u8]),
    /// A hole, which reads as zeros.
    Hole,
    /// A range that the reader cannot read from the stream, with the error. Reading may continue
    /// after this damaged range.
    Damaged(Error),
}

/// Reader of a file from its beginning to its end, from
/// [`Series::content`](super::Series::content).
#[derive(Debug)]
pub struct ContentReader<'a> {
    inputs: &'a [Input],
    pieces: Pieces,
    /// Unread rest of the last piece.
    rest: Option<Piece>,
    buffer: Vec<u8>,
    decoder: Decoder,
}

impl<'a> ContentReader<'a> {
    pub(super) fn new(inputs: &'a [Input], pieces: Pieces) -> Self {
        Self {
            inputs,
            pieces,
            rest: None,
            buffer: Vec::new(),
            decoder: Decoder::default(),
        }
    }

    /// Returns the next chunk; `None` at the end of the file.
    pub fn next_chunk(&mut self) -> Option<Chunk<'_>> {
        let mut piece = self.rest.take().or_else(|| self.pieces.next())?;
        let whole = piece.length;
        let offset = FileOffset::new(piece.offset);
        let content = match &mut piece.data {
            None => Content::Hole,
            Some((skip, source)) => {
                piece.length = whole.min(CHUNK_BYTES);
                let content = self.read(*skip, source, piece.length);
                *skip = skip.saturating_add(piece.length);
                match content {
                    Ok(()) => Content::Data(&self.buffer),
                    Err(error) => Content::Damaged(error),
                }
            }
        };
        let length = piece.length;
        if length < whole {
            piece.offset = piece.offset.exact_add(length);
            piece.length = whole.exact_sub(length);
            self.rest = Some(piece);
        }
        Some(Chunk {
            offset,
            length: ByteCount::new(length),
            content,
        })
    }

    /// Reads `length` bytes into the buffer, starting `skip` bytes into the source.
    fn read(&mut self, skip: u64, source: &Source, length: u64) -> Result<()> {
        self.buffer.clear();
        match source {
            Source::Stored { file, position } => {
                self.read_stored(*file, position.saturating_add(skip), length)
            }
            Source::Encoded(encoded) if encoded.compression == EncodedCompression::None => {
                self.read_stored(encoded.file, encoded.position.saturating_add(skip), length)
            }
            Source::Encoded(encoded) => {
                let decoded = self.decoder.decode(self.inputs, encoded)?;
                let part = range_of(skip, length).and_then(|range| decoded.get(range));
                let part = part.ok_or_else(|| {
                    Defect::new("a part of an encoded write is not in what it decodes to")
                        .with("skip", skip)
                        .with("length", length)
                        .with("decoded_bytes", u64_of(decoded.len()))
                })?;
                self.buffer.extend_from_slice(part);
                Ok(())
            }
            Source::Shared(_) => Err(Defect::new("a piece of a file has a shared source").into()),
        }
    }

    fn read_stored(&mut self, file: u32, position: u64, length: u64) -> Result<()> {
        self.buffer.resize(length.narrow(), 0);
        input(self.inputs, file)?.read_exact_at(&mut self.buffer, position)
    }
}

/// Returns `[skip, skip + length)` as a range in memory.
fn range_of(skip: u64, length: u64) -> Option<Range<usize>> {
    let end = usize::try_from(skip.checked_add(length)?).ok()?;
    Some(usize::try_from(skip).ok()?..end)
}

fn input(inputs: &[Input], number: u32) -> Result<&Input> {
    let input = inputs.get(usize_of(number));
    Ok(input.ok_or_else(|| Defect::new("content is in no file of the streams").with("number", number))?)
}

/// Decoder of encoded writes that caches the last decoded data.
#[derive(Debug, Default)]
struct Decoder {
    decompressor: Decompressor,
    last: Option<Arc<Encoded>>,
    encoded: Vec<u8>,
    decoded: Vec<u8>,
}

impl Decoder {
    /// Returns the decoded form of `encoded`.
    fn decode(&mut self, inputs: &[Input], encoded: &Arc<Encoded>) -> Result<&[u8]> {
        if self.last.as_ref().is_some_and(|last| Arc::ptr_eq(last, encoded)) {
            return Ok(&self.decoded);
        }
        self.last = None;
        let size = |bytes: u64| bytes.min(COMPRESSED_BYTES_MAX).narrow::<usize>();
        self.encoded.resize(size(encoded.encoded_bytes), 0);
        self.decoded.resize(size(encoded.unencoded_bytes), 0);
        let input = input(inputs, encoded.file)?;
        input.read_exact_at(&mut self.encoded, encoded.position)?;
        decompress(
            &mut self.decompressor,
            encoded.compression,
            &self.encoded,
            &mut self.decoded,
        )
        .map_err(|error| Error::Decode {
            file: input.name.clone(),
            offset: encoded.position,
            error,
        })?;
        self.last = Some(Arc::clone(encoded));
        Ok(&self.decoded)
    }
}

/// Decodes `encoded` into `out`, and fills the rest of `out` with zeros.
pub(crate) fn decompress(
    decompressor: &mut Decompressor,
    compression: EncodedCompression,
    encoded: &[u8],
    out: &mut [u8],
) -> Result<(), CompressionError> {
    let (compression, sector_bytes) = match compression {
        EncodedCompression::None => (Compression::None, 0x1000),
        EncodedCompression::Zlib => (Compression::Zlib, 0x1000),
        EncodedCompression::Zstd => (Compression::Zstd, 0x1000),
        EncodedCompression::Lzo4K => (Compression::Lzo, 0x1000),
        EncodedCompression::Lzo8K => (Compression::Lzo, 0x2000),
        EncodedCompression::Lzo16K => (Compression::Lzo, 0x4000),
        EncodedCompression::Lzo32K => (Compression::Lzo, 0x8000),
        EncodedCompression::Lzo64K => (Compression::Lzo, 0x1_0000),
    };
    decompressor
        .decompress(compression, encoded, out, sector_bytes, false)
        .map(|_| ())
}
