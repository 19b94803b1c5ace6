//! From ranges of a file to their bytes: planning, reading, verifying, decompressing.
//!
//! A range is split into `Piece`s, each one read of the volume: up to `PIECE_BYTES` of plain data,
//! or one whole compressed extent. Reading, verifying and decompressing a piece yields [`Chunk`]s.
//! A chunk is content, or the damage in its place. Damage never spreads: only sectors that no copy
//! provides are lost, or the whole extent if it is compressed.
//!
//! Rules:
//! - data is verified sector by sector against the checksum tree, unless the inode has no checksums
//!   or the volume was opened with `rescue=ignoredatacsums`. A sector without a checksum is an
//!   error, as in the kernel;
//! - compressed extents are verified completely in their stored form before decompression;
//! - the size of a piece bounds memory, whatever the sizes on disk.

mod plan;

use crate::checksums::{ChecksumReader, ExpectedChecksums};
use crate::error::{Corruption, Error, Result};
use crate::extents::{DiskExtent, InlineContent};
use crate::filesystem::Filesystem;
use crate::location::Location;
use buttress_exact::{Defect, Exact as _, at_most, u64_of, usize_of};
use buttress_format::{ByteCount, Compression, FileOffset, Logical, decompress};
use buttress_volume::{ExtentRead, PendingExtent};
use bytes::Bytes;
use smallvec::{SmallVec, smallvec};
use std::ops::Range;

pub use plan::plan;

/// The largest read of plain data. This read size is large enough for full speed, and small enough
/// to spread over workers.
pub const PIECE_BYTES: u64 = 512 << 10;

/// A run of a file's content.
#[derive(Clone, Debug)]
pub struct Chunk {
    /// The offset of the run in the file.
    pub offset: FileOffset,
    /// The length of the run.
    pub length: ByteCount,
    /// The content of the run.
    pub content: Content,
}

/// The content of a run of a file.
#[derive(Clone, Debug)]
pub enum Content {
    /// The bytes of the chunk.
    Data(Bytes),
    /// A hole or a preallocated range: zeros of any length.
    Hole,
    /// Lost bytes: unreadable, or with a wrong checksum.
    Damaged(Error),
}

impl Chunk {
    /// Makes a damaged chunk: `length` bytes from `offset` on.
    pub fn damaged(offset: FileOffset, length: ByteCount, error: impl Into<Error>) -> Self {
        Self {
            offset,
            length,
            content: Content::Damaged(error.into()),
        }
    }

    /// Returns the exclusive end of the run.
    #[must_use]
    pub const fn end(&self) -> FileOffset {
        // Clamp: cannot overflow, because planning checked the sum; `exact_add` is not const.
        self.offset.saturating_add(self.length)
    }
}

/// The chunks of one piece: usually one.
pub type Chunks = SmallVec<[Chunk; 1]>;

/// The position of a run of a file in the bytes of a piece.
#[derive(Clone, Debug)]
struct Slice {
    offset: FileOffset,
    inside: Range<usize>,
}

impl Slice {
    fn length(&self) -> ByteCount {
        ByteCount::of(self.inside.len())
    }
}

/// A read of the volume, and the runs that it serves.
#[derive(Debug)]
pub struct Piece {
    location: Location,
    read: ExtentRead,
    compression: Compression,
    /// The piece's size after decompression, if it is compressed.
    ram_bytes: usize,
    slices: SmallVec<[Slice; 1]>,
    expected: Option<ExpectedChecksums>,
}

/// A planned run of a file.
#[derive(Debug)]
pub enum Planned {
    /// A run that needs no read.
    Ready(Chunk),
    /// Compressed inline content.
    Inline(Location, FileOffset, InlineContent, ByteCount),
    /// A run of content that needs a read.
    Read(Piece),
}

/// Returns true if the planned reads provide every byte of a range without gaps. With such reads,
/// the caller need not clear the buffer first. Holes are not read, so a range with a hole does not
/// count as covered.
#[must_use]
pub fn covers(planned: &[Planned], range: &Range<FileOffset>) -> bool {
    let mut next = range.start;
    for planned in planned {
        let Planned::Read(piece) = planned else {
            return false;
        };
        for slice in &piece.slices {
            if slice.offset != next {
                return false;
            }
            next = next.exact_add(slice.length());
        }
    }
    next >= range.end
}

impl Piece {
    /// Makes a piece of a whole extent in its stored form, whatever its compression.
    pub fn stored(location: Location, offset: FileOffset, extent: &DiskExtent) -> Self {
        let length = extent.disk_bytes.exact_usize();
        Self {
            location,
            read: ExtentRead {
                logical: extent.logical,
                length,
            },
            compression: Compression::None,
            ram_bytes: 0,
            slices: smallvec![Slice {
                offset,
                inside: 0..length,
            }],
            expected: None,
        }
    }

    /// Returns the range to read.
    pub const fn read(&self) -> ExtentRead {
        self.read
    }

    /// Returns the memory of the piece, from the start of its read until its chunks are used.
    pub fn memory_bytes(&self) -> usize {
        self.read.length.exact_add(self.ram_bytes)
    }

    /// Looks up the expected checksums of the piece.
    pub(crate) fn expect(&mut self, checksums: &mut ChecksumReader) -> Result<()> {
        self.expected = Some(checksums.expected(self.read.logical, self.read.length)?);
        Ok(())
    }

    /// Sets the expected checksums of the piece, which the caller looked up.
    pub fn expect_these(&mut self, expected: ExpectedChecksums) {
        self.expected = Some(expected);
    }

    /// Returns the chunks of a piece that is lost completely, for one reason.
    pub fn lost(&self, error: &Error) -> Chunks {
        self.slices
            .iter()
            .map(|slice| Chunk::damaged(slice.offset, slice.length(), error.clone()))
            .collect()
    }

    /// Reads the piece on this thread.
    pub fn read_now(self, filesystem: &Filesystem) -> Chunks {
        let volume = filesystem.volume();
        let result = match &self.expected {
            Some(_) => volume.read_data(self.read, &|data, bad| self.verify(data, bad)),
            None => volume.read_unverified(self.read),
        };
        self.finish(
            filesystem,
            result.map(|(buffer, lost)| (buffer.into_bytes(), lost)),
        )
    }

    /// Waits for the piece's read.
    pub fn wait(self, filesystem: &Filesystem, pending: PendingExtent) -> Chunks {
        let pending = match &self.expected {
            Some(_) => pending,
            None => pending.unverified(),
        };
        let result = pending.wait_data(filesystem.volume(), &|data, bad| self.verify(data, bad));
        self.finish(
            filesystem,
            result.map(|(buffer, lost)| (buffer.into_bytes(), lost)),
        )
    }

    fn verify(&self, data: &[u8], bad: &mut Vec<Range<usize>>) {
        if let Some(expected) = &self.expected {
            expected.verify(data, bad);
        }
    }

    fn finish(
        self,
        filesystem: &Filesystem,
        result: Result<(Bytes, Vec<buttress_volume::LostRange>), buttress_volume::Error>,
    ) -> Chunks {
        let (bytes, lost) = match result {
            Ok(read) => read,
            Err(error) => return self.lost(&error.into()),
        };
        if bytes.len() != self.read.length {
            let defect = Defect::new("a read gave another number of bytes")
                .with("logical", self.read.logical.get())
                .with("expected_bytes", u64_of(self.read.length))
                .with("found_bytes", u64_of(bytes.len()));
            return self.lost(&defect.into());
        }
        let mut damage: Vec<(Range<usize>, Option<Error>)> = lost
            .into_iter()
            .map(|lost| (lost.range, lost_error(lost.error)))
            .collect();
        if let Some(expected) = &self.expected {
            damage.extend(expected.missing().iter().map(|range| {
                let error = Corruption::DataChecksumMissing {
                    location: self.location,
                    offset: self.file_offset(range.start),
                    length: ByteCount::of(range.len()),
                    logical: self.address(range.start),
                };
                (range.clone(), Some(error.into()))
            }));
        }
        damage.sort_by_key(|(range, _)| range.start);
        if self.compression == Compression::None {
            return self
                .slices
                .iter()
                .flat_map(|slice| self.cut(slice, &bytes, &damage))
                .collect();
        }
        match damage.into_iter().next() {
            Some((range, error)) => self.lost(&error.unwrap_or_else(|| self.checksum_error(&range))),
            None => self.decompress(filesystem, &bytes),
        }
    }

    fn address(&self, inside: usize) -> Logical {
        self.read.logical.exact_add(ByteCount::of(inside))
    }

    /// Returns the file offset of a byte of the piece, as far as it is known. The file offset is
    /// exact for uncompressed data.
    fn file_offset(&self, inside: usize) -> FileOffset {
        let Some(slice) = self.slices.first() else {
            return FileOffset::MIN;
        };
        if self.compression != Compression::None {
            return slice.offset;
        }
        // Clamp: the offset only appears in a message; a read may begin before a slice at the start
        // of the file.
        let start = slice.offset.get().saturating_sub(u64_of(slice.inside.start));
        FileOffset::new(start.exact_add(u64_of(inside)))
    }

    fn checksum_error(&self, range: &Range<usize>) -> Error {
        Corruption::DataChecksum {
            location: self.location,
            offset: self.file_offset(range.start),
            length: ByteCount::of(range.len()),
            logical: self.address(range.start),
        }
        .into()
    }

    /// Returns a slice of plain data, with separate chunks for its damaged parts.
    fn cut(&self, slice: &Slice, bytes: &Bytes, damage: &[(Range<usize>, Option<Error>)]) -> Chunks {
        let mut chunks = Chunks::new();
        let end = slice.inside.end;
        let mut position = slice.inside.start;
        let at = |inside: usize| {
            slice
                .offset
                .exact_add(ByteCount::of(inside.exact_sub(slice.inside.start)))
        };
        let good = |chunks: &mut Chunks, from: usize, to: usize| {
            if from < to {
                let content = Content::Data(bytes.slice(from..to));
                let length = ByteCount::of(to.exact_sub(from));
                chunks.push(Chunk {
                    offset: at(from),
                    length,
                    content,
                });
            }
        };
        for (range, error) in damage {
            let (from, to) = (range.start.max(position), range.end.min(end));
            if from >= to {
                continue;
            }
            good(&mut chunks, position, from);
            let error = error.clone().unwrap_or_else(|| self.checksum_error(&(from..to)));
            chunks.push(Chunk::damaged(at(from), ByteCount::of(to.exact_sub(from)), error));
            position = to;
        }
        good(&mut chunks, position, end);
        chunks
    }

    fn decompress(&self, filesystem: &Filesystem, stored: &[u8]) -> Chunks {
        let sector_bytes = filesystem.sector_bytes();
        match inflate(self.compression, stored, self.ram_bytes, sector_bytes, false) {
            Ok(bytes) => self
                .slices
                .iter()
                .map(|slice| Chunk {
                    offset: slice.offset,
                    length: slice.length(),
                    // A check ensured that slices lie inside the decompressed size.
                    content: Content::Data(bytes.slice(slice.inside.clone())),
                })
                .collect(),
            Err(error) => self.lost(
                &Corruption::Decompression {
                    location: self.location,
                    offset: self.file_offset(0),
                    logical: self.read.logical,
                    error,
                }
                .into(),
            ),
        }
    }
}

/// Returns the error of a lost range if a read failed, or if its location is unknown. Returns
/// `None` if only checksums failed: the caller's error then names the place in the file.
fn lost_error(error: buttress_volume::Error) -> Option<Error> {
    let only_checksums = matches!(error, buttress_volume::Error::Unreadable(_))
        && error.kind() == buttress_format::ErrorKind::Corrupt;
    (!only_checksums).then(|| error.into())
}

/// Decompresses into `ram_bytes` bytes. Bytes of the extent beyond the decompressed content are
/// zero, as in the kernel.
fn inflate(
    compression: Compression,
    stored: &[u8],
    ram_bytes: usize,
    sector_bytes: u32,
    inline: bool,
) -> Result<Bytes, buttress_format::CompressionError> {
    let mut bytes = vec![0; ram_bytes];
    let sector_bytes = usize_of(sector_bytes);
    let filled = decompress(compression, stored, &mut bytes, sector_bytes, inline)?;
    if let Some(rest) = bytes.get_mut(filled..) {
        rest.fill(0);
    }
    Ok(Bytes::from(bytes))
}

/// Returns the chunk of compressed inline content. `length` is the requested length from the
/// content's start.
pub(crate) fn inflate_inline(
    filesystem: &Filesystem,
    location: Location,
    offset: FileOffset,
    inline: &InlineContent,
    length: ByteCount,
) -> Chunk {
    let sector_bytes = filesystem.sector_bytes();
    let limit = crate::extents::COMPRESSED_EXTENT_LIMIT;
    if inline.ram_bytes > limit {
        return Chunk::damaged(
            offset,
            length,
            Corruption::CompressedTooLarge {
                location,
                offset,
                disk_bytes: ByteCount::of(inline.stored.len()),
                ram_bytes: inline.ram_bytes,
                limit,
            },
        );
    }
    let ram_bytes = inline.ram_bytes.exact_usize();
    match inflate(inline.compression, &inline.stored, ram_bytes, sector_bytes, true) {
        Ok(bytes) => {
            // Inline content begins at offset 0 of its file, so the file offset is also the offset
            // in the content.
            let start = at_most(offset.get(), bytes.len());
            let end = start.exact_add(length.at_most(bytes.len().exact_sub(start)));
            Chunk {
                offset,
                length: ByteCount::of(end.exact_sub(start)),
                content: Content::Data(bytes.slice(start..end)),
            }
        }
        Err(error) => Chunk::damaged(
            offset,
            length,
            Corruption::Decompression {
                location,
                offset,
                logical: Logical::MIN,
                error,
            },
        ),
    }
}
