//! Reading the content of a file out of the streams.
//!
//! Memory: one buffer of at most 1 MiB, and one decoded extent, which may have 128 KiB, or, where an encoded write
//! is not compressed, is not held at all.

use super::error::{Error, Result};
use super::extents::{Encoded, Piece, Pieces, Source};
use super::input::Input;
use buttress_exact::{Defect, Exact as _, u64_of, usize_of};
use buttress_format::send::EncodedCompression;
use buttress_format::{ByteCount, Compression, CompressionError, Decompressor, FileOffset};
use core::ops::Range;
use std::sync::Arc;

/// How much is read at once.
const CHUNK_BYTES: u64 = 1 << 20;

/// What compressed data may have, encoded and decoded.
pub(crate) const COMPRESSED_BYTES_MAX: u64 = 128 << 10;

/// The next part of a file.
#[derive(Debug)]
pub struct Chunk<'a> {
    /// Where it begins; chunks follow each other without gaps.
    pub offset: FileOffset,
    /// How long it is; not zero.
    pub length: ByteCount,
    /// What it holds.
    pub content: Content<'a>,
}

/// What a part of a file holds.
#[derive(Debug)]
pub enum Content<'a> {
    /// These bytes.
    Data(&'a [u8]),
    /// Zeros, without data.
    Hole,
    /// What the stream does not give back, and why. Reading can go on behind it.
    Damaged(Error),
}

/// Reads a file from its beginning to its end. From [`Series::content`](super::Series::content).
#[derive(Debug)]
pub struct ContentReader<'a> {
    inputs: &'a [Input],
    pieces: Pieces,
    /// What is left of the last piece.
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

    /// The next part; `None` at the end of the file.
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

    /// Fills the buffer with `length` bytes from `skip` on.
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

/// Decodes data of encoded writes, and keeps the last.
#[derive(Debug, Default)]
struct Decoder {
    decompressor: Decompressor,
    last: Option<Arc<Encoded>>,
    encoded: Vec<u8>,
    decoded: Vec<u8>,
}

impl Decoder {
    /// All that `encoded` decodes to.
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

/// Fills `out` with what `encoded` decodes to; where that is shorter, with zeros.
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
