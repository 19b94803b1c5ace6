//! A reader of a whole file that never ends early: if the reader fails, the rest of the file follows
//! in damaged pieces, which a [`Judge`](crate::Judge) reads again without checksums.
//!
//! # Invariants
//!
//! - After a failure, the inner reader is not asked again, because it would return holes.
//! - After a failure, a hole of any length is one chunk, and lost ranges of the map are one chunk each. The
//!   number of chunks depends on the data, not on the size of the file.

use buttress_exact::Exact as _;
use buttress_format::{ByteCount, FileOffset};
use buttress_fs::{Chunk, Content, Error, FileExtents, FileRange, FileReader, Progress, RangeKind};

/// The largest number of bytes that are read again at once.
const PIECE_BYTES: u64 = 1 << 20;

/// The content of a file up to its size; see the module's documentation.
#[derive(Debug)]
pub struct CompleteReader {
    reader: FileReader,
    size: u64,
    read_to: FileOffset,
    /// The part after a failure of the reader.
    rest: Option<Rest<FileExtents>>,
}

impl CompleteReader {
    /// Returns a reader of a file with `size` bytes.
    #[must_use]
    pub const fn new(reader: FileReader, size: ByteCount) -> Self {
        Self {
            reader,
            size: size.get(),
            read_to: FileOffset::MIN,
            rest: None,
        }
    }

    /// Returns the next chunk, or `None` at the end of the file.
    ///
    /// # Errors
    /// Fails only if `progress` was cancelled.
    pub fn next_chunk(&mut self, progress: &Progress) -> Result<Option<Chunk>, Error> {
        progress.check()?;
        if let Some(rest) = &mut self.rest {
            return Ok(rest.next_chunk());
        }
        let failure = match self.reader.next_chunk() {
            Ok(chunk) => {
                self.read_to = chunk.as_ref().map_or(self.read_to, Chunk::end);
                return Ok(chunk);
            }
            Err(error) => error,
        };
        // A cancelled job fails all its reads.
        progress.check()?;
        let ranges = self.reader.file().extents();
        let rest = Rest {
            lost_map: ranges.as_ref().err().cloned(),
            ranges: ranges.ok(),
            range: None,
            failure,
            read_to: self.read_to.get(),
            size: self.size,
        };
        Ok(self.rest.insert(rest).next_chunk())
    }
}

/// The chunks after a failure of the reader.
#[derive(Debug)]
struct Rest<I> {
    /// The ranges of the file, from its start on.
    ranges: Option<I>,
    /// The range that is being returned.
    range: Option<FileRange>,
    /// The failure of the reader.
    failure: Error,
    /// The error of the map: the next hole may hold lost ranges.
    lost_map: Option<Error>,
    read_to: u64,
    size: u64,
}

impl<I: Iterator<Item = Result<FileRange, Error>>> Rest<I> {
    fn next_chunk(&mut self) -> Option<Chunk> {
        while self.read_to < self.size {
            let range = match self.range.take() {
                Some(range) => range,
                None => match self.ranges.as_mut().and_then(Iterator::next) {
                    Some(Ok(range)) => range,
                    Some(Err(error)) => {
                        self.lost_map.get_or_insert(error);
                        continue;
                    }
                    None => return Some(self.gap(self.size)),
                },
            };
            let end = range.end().get().min(self.size);
            if end <= self.read_to {
                continue;
            }
            if range.offset.get() > self.read_to {
                let start = range.offset.get().min(self.size);
                self.range = Some(range);
                return Some(self.gap(start));
            }
            if matches!(range.kind, RangeKind::Hole | RangeKind::Preallocated(_)) {
                return Some(self.gap(end));
            }
            self.lost_map = None;
            self.range = Some(range);
            let length = end.exact_sub(self.read_to).min(PIECE_BYTES);
            let content = Content::Damaged(self.failure.clone());
            return Some(self.chunk(self.read_to.exact_add(length), content));
        }
        None
    }

    /// Returns a part without data: a hole, or a part of the map that cannot be read.
    fn gap(&mut self, end: u64) -> Chunk {
        let content = self.lost_map.take().map_or(Content::Hole, Content::Damaged);
        self.chunk(end, content)
    }

    fn chunk(&mut self, end: u64, content: Content) -> Chunk {
        let offset = FileOffset::new(self.read_to);
        let length = ByteCount::new(end.exact_sub(self.read_to));
        self.read_to = end;
        Chunk {
            offset,
            length,
            content,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{PIECE_BYTES, Rest};
    use buttress_format::{FileOffset, InodeNumber, SubvolumeId};
    use buttress_fs::{Content, Error, FileRange, Location};

    fn error() -> Error {
        let location = Location::new(SubvolumeId::TOP_LEVEL, InodeNumber::new(257));
        Error::InodeNotFound { location }
    }

    #[test]
    fn rest_of_huge_sparse_file_is_one_chunk() {
        let size = i64::MAX.unsigned_abs();
        let hole = FileRange::hole(FileOffset::MIN, FileOffset::new(size)).unwrap();
        for (range, is_hole) in [(Ok(hole), true), (Err(error()), false)] {
            let mut rest = Rest {
                ranges: Some([range].into_iter()),
                range: None,
                failure: error(),
                lost_map: None,
                read_to: PIECE_BYTES,
                size,
            };
            let chunk = rest.next_chunk().unwrap();
            assert_eq!(chunk.offset.get(), PIECE_BYTES);
            assert_eq!(chunk.end().get(), size);
            assert_eq!(matches!(chunk.content, Content::Hole), is_hole);
            assert!(rest.next_chunk().is_none());
        }
    }
}
