//! Stream files: read once in order, then at the offsets of file content.

use super::error::{Error, Result};
use buttress_exact::Exact as _;
use core::fmt;
use std::io::{self, Read};
use std::os::unix::fs::FileExt;

/// An unchanging file, or a similar object, that holds one or more streams.
pub trait StreamFile: Send + Sync {
    /// Reads bytes at `offset`; returns 0 only at the end of the file.
    ///
    /// # Errors
    /// The error of the system.
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize>;
}

impl StreamFile for std::fs::File {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        FileExt::read_at(self, buffer, offset)
    }
}

impl StreamFile for Vec<u8> {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        let start = offset.narrow::<usize>();
        let rest = self.get(start..).unwrap_or_default();
        let length = rest.len().min(buffer.len());
        for (to, from) in buffer.iter_mut().zip(rest) {
            *to = *from;
        }
        Ok(length)
    }
}

/// A stream file with its name for messages.
pub(super) struct Input {
    pub(super) name: String,
    pub(super) file: Box<dyn StreamFile>,
}

impl fmt::Debug for Input {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Input").field(&self.name).finish()
    }
}

impl Input {
    /// Fills `buffer` with the bytes at `offset`.
    pub(super) fn read_exact_at(&self, buffer: &mut [u8], offset: u64) -> Result<()> {
        let length_bytes = buffer.len() as u64;
        let failed = |error| Error::Read {
            file: self.name.clone(),
            offset,
            length_bytes,
            error,
        };
        let mut rest = buffer;
        let mut position = offset;
        while !rest.is_empty() {
            match self.file.read_at(rest, position) {
                Ok(0) => return Err(failed(io::ErrorKind::UnexpectedEof.into())),
                Ok(read_bytes) => {
                    position = position.saturating_add(read_bytes as u64);
                    rest = rest.get_mut(read_bytes..).unwrap_or_default();
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(failed(error)),
            }
        }
        Ok(())
    }
}

/// Reader of a file from its beginning to its end.
pub(super) struct InOrder<'a> {
    file: &'a dyn StreamFile,
    position: u64,
}

impl<'a> InOrder<'a> {
    pub(super) fn new(input: &'a Input) -> Self {
        Self {
            file: input.file.as_ref(),
            position: 0,
        }
    }
}

impl Read for InOrder<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read_bytes = self.file.read_at(buffer, self.position)?;
        self.position = self.position.saturating_add(read_bytes as u64);
        Ok(read_bytes)
    }
}
