//! Where entries and contents come from.
//!
//! A [`Source`] hands over all of its entries first, in any order, and then [`Contents`], which the builder's workers ask
//! for the content of one file after the other: each once, in the order in which the tree is laid out, several at a time.
//! A source that can be read only once (a pipe, a compressed archive) spools contents to a file of its own while it hands
//! over entries.
//!
//! A source owns what it reads from; the builder owns entries from the moment on that they are handed over. Content is
//! asked for only after the last entry, and only for entries that stay.

use crate::entry::{Entry, EntryPath, FileContent};
use buttress_exact::Exact as _;
use buttress_format::{ByteCount, ErrorKind, FileOffset};
use core::ops::Range;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

/// Something that holds a tree.
pub trait Source: Send {
    /// What it is called in messages: a directory, an archive.
    fn name(&self) -> String;

    /// The next entry; `None` after the last.
    ///
    /// # Errors
    /// What the source fails with. Nothing more is asked of it then.
    fn next_entry(&mut self) -> Result<Option<Entry>, SourceError>;

    /// Where contents are found, once all entries were handed over.
    ///
    /// # Errors
    /// What the source fails with.
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
    /// A file that is gone or cannot be read.
    fn open(&self, path: &EntryPath, content: &FileContent) -> Result<Box<dyn ContentReader>, SourceError>;
}

/// The content of one file, while it is read: from the beginning to the end.
pub trait ContentReader: Send {
    /// The first range of data that does not end at or before `from`; `None` where only a hole follows. What is not in
    /// any such range is a hole.
    ///
    /// # Errors
    /// What the source fails with.
    fn next_data(&mut self, from: FileOffset) -> Result<Option<Range<FileOffset>>, SourceError>;

    /// Fills all of `into` from this place on.
    ///
    /// # Errors
    /// What the source fails with; content that ends before `into` is full is [`SourceError::Changed`].
    fn read_exact_at(&mut self, at: FileOffset, into: &mut [u8]) -> Result<(), SourceError>;

    /// The file of this system that holds the content as it is, at the same places: a target may share its blocks.
    fn host_file(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    /// Called when all was read: whether what was read is still what the entry told of.
    ///
    /// # Errors
    /// [`SourceError::Changed`] when it is not.
    fn finish(&mut self) -> Result<(), SourceError>;
}

/// What a source ends with when it fails.
#[derive(Debug, thiserror::Error)]
pub enum SourceError {
    /// The system refused something.
    #[error("{action} {place}: {cause}")]
    Io {
        /// What was done: "reading".
        action: &'static str,
        /// To what.
        place: String,
        /// What the system said.
        cause: std::io::Error,
    },
    /// A file is not what it was when its entry was made.
    #[error("{place} changed while it was read: {what}")]
    Changed {
        /// The file.
        place: String,
        /// What is different, with the numbers.
        what: String,
    },
    /// What is in the source breaks a rule of its format, or cannot be in a volume.
    #[error("{place}: {problem}")]
    Invalid {
        /// Where: the file and the place in it.
        place: String,
        /// What is wrong.
        problem: Box<dyn std::error::Error + Send + Sync>,
    },
    /// What is in the source is in order, but cannot be read by this version.
    #[error("{place}: {what} is not supported")]
    Unsupported {
        /// Where.
        place: String,
        /// What.
        what: String,
    },
}

impl SourceError {
    /// The kind of the error.
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

/// Entries and contents that are in memory: for programs that make a tree themselves, and for tests. A file's locator is
/// its content.
#[derive(Debug, Default)]
pub struct MemorySource {
    entries: std::vec::IntoIter<Entry>,
}

impl MemorySource {
    /// A source of these entries.
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
