//! Bytes that are written once and read in order: in memory while they fit, then in a file without
//! a name.

use crate::error::{Error, Result};
use buttress_exact::{Exact as _, at_most};
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The number of bytes that a reader fetches at once.
const READ_BYTES: usize = 128 << 10;

/// The folder of spool files, which errors name.
#[derive(Clone, Debug)]
pub struct SpoolFolder(PathBuf);

impl SpoolFolder {
    /// Names a folder; without one, the system's folder for temporary files.
    #[must_use]
    pub fn new(folder: Option<&Path>) -> Self {
        Self(folder.map_or_else(std::env::temp_dir, Path::to_owned))
    }

    fn failed(&self, cause: io::Error) -> Error {
        Error::Spool {
            folder: self.0.clone(),
            cause,
        }
    }

    fn file(&self) -> Result<File> {
        tempfile::tempfile_in(&self.0).map_err(|error| self.failed(error))
    }
}

/// A spool that is being written.
#[derive(Debug)]
pub struct Spool {
    folder: SpoolFolder,
    limit: usize,
    buffer: Vec<u8>,
    file: Option<File>,
    in_file: u64,
}

impl Spool {
    /// Makes a spool that keeps at most `limit` bytes in memory.
    #[must_use]
    pub const fn new(folder: SpoolFolder, limit: usize) -> Self {
        Self {
            folder,
            limit,
            buffer: Vec::new(),
            file: None,
            in_file: 0,
        }
    }

    /// Appends bytes.
    ///
    /// # Errors
    /// Fails if the spool file cannot be written.
    pub fn append(&mut self, bytes: &[u8]) -> Result<()> {
        self.buffer.extend_from_slice(bytes);
        if self.buffer.len() > self.limit {
            self.put_aside()?;
        }
        Ok(())
    }

    /// Returns the length in bytes.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.in_file.exact_add(self.buffer.len() as u64)
    }

    /// Returns true if nothing was appended.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn put_aside(&mut self) -> Result<()> {
        let file = match self.file.take() {
            Some(file) => file,
            None => self.folder.file()?,
        };
        let written = file.write_all_at(&self.buffer, self.in_file);
        written.map_err(|error| self.folder.failed(error))?;
        self.in_file = self.len();
        self.buffer.clear();
        self.file = Some(file);
        Ok(())
    }

    /// Ends writing.
    #[must_use]
    pub fn finish(self) -> Spooled {
        Spooled {
            folder: self.folder,
            buffer: Arc::new(self.buffer),
            file: self.file.map(Arc::new),
            in_file: self.in_file,
        }
    }
}

/// A written spool, which can be read any number of times.
#[derive(Clone, Debug)]
pub struct Spooled {
    folder: SpoolFolder,
    buffer: Arc<Vec<u8>>,
    file: Option<Arc<File>>,
    in_file: u64,
}

impl Spooled {
    /// Returns the length in bytes.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.in_file.exact_add(self.buffer.len() as u64)
    }

    /// Returns a reader of the bytes from the beginning.
    #[must_use]
    pub fn reader(&self) -> SpoolReader {
        SpoolReader {
            spooled: self.clone(),
            at: 0,
            ahead: Vec::new(),
            ahead_at: 0,
        }
    }

    /// Returns true if the spool holds no byte.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Fills `into` from this offset on.
    fn read_at(&self, into: &mut [u8], at: u64) -> Result<()> {
        // Clamp: bytes past the file are in the buffer.
        let from_file = self.in_file.saturating_sub(at).min(into.len() as u64);
        let (first, rest) = into.split_at_mut(at_most(from_file, into.len()));
        if let (Some(file), false) = (&self.file, first.is_empty()) {
            let read = file.read_exact_at(first, at);
            read.map_err(|error| self.folder.failed(error))?;
        }
        if rest.is_empty() {
            return Ok(());
        }
        let start = at.exact_add(from_file).exact_sub(self.in_file);
        let start = start.narrow::<usize>();
        let kept = self.buffer.get(start..start.exact_add(rest.len()));
        match kept {
            Some(kept) => rest.copy_from_slice(kept),
            None => return Err(self.folder.failed(io::ErrorKind::UnexpectedEof.into())),
        }
        Ok(())
    }
}

/// A reader from the beginning to the end.
#[derive(Debug)]
pub struct SpoolReader {
    spooled: Spooled,
    at: u64,
    ahead: Vec<u8>,
    ahead_at: usize,
}

impl SpoolReader {
    /// Returns true after the last byte.
    #[must_use]
    pub fn at_end(&self) -> bool {
        self.left() == 0
    }

    fn left(&self) -> u64 {
        let ahead = self.ahead.len().exact_sub(self.ahead_at) as u64;
        self.spooled.len().exact_sub(self.at).exact_add(ahead)
    }

    /// Replaces the content of `into` by the next `length` bytes.
    ///
    /// # Errors
    /// Fails if fewer bytes follow, or if the spool file cannot be read.
    pub fn read(&mut self, into: &mut Vec<u8>, length: usize) -> Result<()> {
        into.clear();
        if length as u64 > self.left() {
            return Err(self.spooled.folder.failed(io::ErrorKind::UnexpectedEof.into()));
        }
        while into.len() < length {
            let wanted = length.exact_sub(into.len());
            let end = self.ahead_at.exact_add(wanted).min(self.ahead.len());
            if let Some(bytes) = self
                .ahead
                .get(self.ahead_at..end)
                .filter(|bytes| !bytes.is_empty())
            {
                into.extend_from_slice(bytes);
                self.ahead_at = end;
                continue;
            }
            let rest = self.spooled.len().exact_sub(self.at);
            let next = at_most(rest, READ_BYTES);
            self.ahead.resize(next, 0);
            self.spooled.read_at(&mut self.ahead, self.at)?;
            self.at = self.at.exact_add(next as u64);
            self.ahead_at = 0;
        }
        Ok(())
    }
}
