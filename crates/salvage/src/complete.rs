//! A reader of a whole file that never ends early: if the reader fails, the rest of the file follows
//! in damaged pieces, which a [`Judge`](crate::Judge) reads again without checksums.
//!
//! Invariant: after a failure, the inner reader is not asked again, because it would return holes.

use buttress_exact::Exact as _;
use buttress_format::{ByteCount, FileOffset};
use buttress_fs::{Chunk, Content, Error, FileReader, Progress};

/// The largest number of bytes that are read again at once.
const PIECE_BYTES: u64 = 1 << 20;

/// The content of a file up to its size; see the module's documentation.
#[derive(Debug)]
pub struct CompleteReader {
    reader: FileReader,
    size: u64,
    read_to: FileOffset,
    /// The failure of the reader.
    failure: Option<Error>,
}

impl CompleteReader {
    /// Returns a reader of a file with `size` bytes.
    #[must_use]
    pub const fn new(reader: FileReader, size: ByteCount) -> Self {
        Self {
            reader,
            size: size.get(),
            read_to: FileOffset::MIN,
            failure: None,
        }
    }

    /// Returns the next chunk, or `None` at the end of the file.
    ///
    /// # Errors
    /// Fails only if `progress` was cancelled.
    pub fn next_chunk(&mut self, progress: &Progress) -> Result<Option<Chunk>, Error> {
        progress.check()?;
        if self.failure.is_none() {
            match self.reader.next_chunk() {
                Ok(chunk) => {
                    self.read_to = chunk.as_ref().map_or(self.read_to, Chunk::end);
                    return Ok(chunk);
                }
                Err(error) => {
                    // A cancelled job fails all its reads.
                    progress.check()?;
                    self.failure = Some(error);
                }
            }
        }
        let rest = self.size.checked_sub(self.read_to.get());
        let Some((error, rest)) = self.failure.clone().zip(rest.filter(|rest| *rest > 0)) else {
            return Ok(None);
        };
        let length = ByteCount::new(rest.min(PIECE_BYTES));
        let piece = Chunk {
            offset: self.read_to,
            length,
            content: Content::Damaged(error),
        };
        self.read_to = FileOffset::new(self.read_to.get().exact_add(length.get()));
        Ok(Some(piece))
    }
}
