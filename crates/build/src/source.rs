//! Sources of entries and contents.
//!
//! A [`Source`] first passes on all of its entries, in any order, and then [`Contents`]. The
//! builder's workers ask it for the content of each file once, in the order of the tree's layout,
//! several in parallel. A source that can be read only once (a pipe, a compressed archive) spools
//! contents to a file of its own while it passes on entries.
//!
//! A source owns its input, and the builder owns entries once it has received them. Content is
//! requested only after the last entry, and only for entries of the final tree.

use crate::entry::{Entry, EntryPath, FileContent};
use buttress_exact::Exact as _;
use buttress_format::{ByteCount, ErrorKind, FileOffset};
use core::ops::Range;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

/// A provider of a tree of entries for an image.
pub trait Source: Send {
    /// Returns the source's name in messages: a directory, an archive.
    fn name(&self) -> String;

    /// Returns the next entry; `None` after the last.
    ///
    /// # Errors
    /// Fails if the source fails. The builder then makes no further call.
    fn next_entry(&mut self) -> Result<Option<Entry>, SourceError>;

    /// Returns the provider of contents, after all entries were passed on.
    ///
    /// # Errors
    /// Fails if the source fails.
    fn contents(&mut self) -> Result<Arc<dyn Contents>, SourceError>;
}

impl Source for Box<dyn Source> {
    fn name(&self) -> String {
        (**self).name()
    }

    fn next_entry(&mut self) -> Result<Option<Entry>, SourceError> {
        (**self).next_entry()
    }

    fn contents(&mut self) -> Result<Arc<dyn Contents>, SourceError> {
        (**self).contents()
    }
}

/// The contents of a source's files.
pub trait Contents: Send + Sync {
    /// Opens the content of one entry.
    ///
    /// # Errors
    /// Fails if the file does not exist any more, or cannot be read.
    fn open(&self, path: &EntryPath, content: &FileContent) -> Result<Box<dyn ContentReader>, SourceError>;
}

/// The content of one file, read from the beginning to the end.
pub trait ContentReader: Send {
    /// Returns the first range of data that ends after `from`; `None` if only a hole follows. Bytes
    /// outside these ranges are holes.
    ///
    /// # Errors
    /// Fails if the source fails.
    fn next_data(&mut self, from: FileOffset) -> Result<Option<Range<FileOffset>>, SourceError>;

    /// Fills all of `into` from this offset on.
    ///
    /// # Errors
    /// Fails if the source fails. If the content ends before `into` is full, the error is
    /// [`SourceError::Changed`].
    fn read_exact_at(&mut self, at: FileOffset, into: &mut [u8]) -> Result<(), SourceError>;

    /// Returns the file of this system with the same content at the same offsets. A target may
    /// share its blocks.
    fn host_file(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    /// Called after the last read. The call checks that the content still matches its entry.
    ///
    /// # Errors
    /// Returns [`SourceError::Changed`] if the content does not match its entry.
    fn finish(&mut self) -> Result<(), SourceError>;
}

/// The error of a source.
#[derive(Debug, thiserror::Error)]
pub enum SourceError {
    /// The system refused an operation.
    #[error("{action} {place}: {cause}")]
    Io {
        /// The operation: "reading".
        action: &'static str,
        /// The object of the refused operation, such as a path.
        place: String,
        /// The error of the system.
        cause: std::io::Error,
    },
    /// A file has changed since its entry was made.
    #[error("{place} changed while it was read: {what}")]
    Changed {
        /// The file.
        place: String,
        /// The difference between the entry and the content, with the numbers.
        what: String,
    },
    /// The content of the source violates its format, or cannot be stored in a volume.
    #[error("{place}: {problem}")]
    Invalid {
        /// The file, and the place in it.
        place: String,
        /// The problem.
        problem: Box<dyn std::error::Error + Send + Sync>,
    },
    /// The content of the source is valid, but this version cannot read it.
    #[error("{place}: {what} is not supported")]
    Unsupported {
        /// The place.
        place: String,
        /// The unsupported feature.
        what: String,
    },
}

impl SourceError {
    /// Returns the kind of the error.
    #[must_use]
    pub const fn kind(&self) -> ErrorKind {
        match self {
            Self::Io { .. } => ErrorKind::Io,
            Self::Changed { .. } => ErrorKind::Caller,
            Self::Invalid { .. } => ErrorKind::Corrupt,
            Self::Unsupported { .. } => ErrorKind::Unsupported,
        }
    }
}

/// Entries and contents in memory: for programs that make a tree themselves, and for tests. A
/// file's locator is its content.
#[derive(Debug, Default)]
pub struct MemorySource {
    entries: std::vec::IntoIter<Entry>,
}

impl MemorySource {
    /// Makes a source of these entries.
    #[must_use]
    pub fn new(entries: Vec<Entry>) -> Self {
        Self {
            entries: entries.into_iter(),
        }
    }
}

impl Source for MemorySource {
    fn name(&self) -> String {
        "memory".to_owned()
    }

    fn next_entry(&mut self) -> Result<Option<Entry>, SourceError> {
        Ok(self.entries.next())
    }

    fn contents(&mut self) -> Result<Arc<dyn Contents>, SourceError> {
        Ok(Arc::new(LocatorContents))
    }
}

/// Contents whose locators are the bytes themselves.
#[derive(Clone, Copy, Debug)]
pub struct LocatorContents;

impl Contents for LocatorContents {
    fn open(&self, path: &EntryPath, content: &FileContent) -> Result<Box<dyn ContentReader>, SourceError> {
        Ok(Box::new(LocatorReader {
            place: String::from_utf8_lossy(path.as_bytes()).into_owned(),
            bytes: content.locator.clone(),
        }))
    }
}

struct LocatorReader {
    place: String,
    bytes: Vec<u8>,
}

impl ContentReader for LocatorReader {
    fn next_data(&mut self, from: FileOffset) -> Result<Option<Range<FileOffset>>, SourceError> {
        let end = FileOffset::new(ByteCount::of(self.bytes.len()).get());
        Ok((from < end).then_some(from..end))
    }

    fn read_exact_at(&mut self, at: FileOffset, into: &mut [u8]) -> Result<(), SourceError> {
        let start = at.get().narrow::<usize>();
        let wanted = self.bytes.get(start..start.saturating_add(into.len()));
        let Some(wanted) = wanted else {
            return Err(SourceError::Changed {
                place: self.place.clone(),
                what: format!("it has {} bytes", self.bytes.len()),
            });
        };
        into.copy_from_slice(wanted);
        Ok(())
    }

    fn finish(&mut self) -> Result<(), SourceError> {
        Ok(())
    }
}
