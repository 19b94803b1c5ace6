//! Contents of files below a directory. The source opens a file again for its content, and compares it
//! with the state that its entry describes.

use super::beneath::{Identity, open_beneath};
use super::{DirectorySource, FILE_FLAGS, host_path};
use crate::entry::{EntryPath, FileContent};
use crate::source::{ContentReader, Contents, SourceError};
use buttress_format::FileOffset;
use core::ops::Range;
use rustix::fs::SeekFrom;
use rustix::io::Errno;
use std::fs::{File, Metadata};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::PathBuf;
use std::sync::Arc;

/// The state of a file when its entry was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Seen {
    identity: Identity,
    pub(super) size: u64,
    mtime: (i64, i64),
    ctime: (i64, i64),
    /// True if the file allocates fewer blocks than its length, so that it may have holes.
    pub(super) sparse: bool,
}

impl Seen {
    pub(super) fn of(metadata: &Metadata) -> Self {
        Self {
            identity: Identity::of(metadata),
            size: metadata.len(),
            mtime: (metadata.mtime(), metadata.mtime_nsec()),
            ctime: (metadata.ctime(), metadata.ctime_nsec()),
            sparse: metadata.blocks().saturating_mul(512) < metadata.len(),
        }
    }

    pub(super) fn encode(&self) -> Vec<u8> {
        let numbers = [
            self.identity.device.to_le_bytes(),
            self.identity.inode.to_le_bytes(),
            self.size.to_le_bytes(),
            self.mtime.0.to_le_bytes(),
            self.mtime.1.to_le_bytes(),
            self.ctime.0.to_le_bytes(),
            self.ctime.1.to_le_bytes(),
        ];
        let mut bytes = numbers.concat();
        bytes.push(u8::from(self.sparse));
        bytes
    }

    fn decode(bytes: &[u8]) -> Option<Self> {
        let mut parts = bytes.chunks(8);
        let mut next = || parts.next()?.try_into().ok();
        Some(Self {
            identity: Identity {
                device: u64::from_le_bytes(next()?),
                inode: u64::from_le_bytes(next()?),
            },
            size: u64::from_le_bytes(next()?),
            mtime: (i64::from_le_bytes(next()?), i64::from_le_bytes(next()?)),
            ctime: (i64::from_le_bytes(next()?), i64::from_le_bytes(next()?)),
            sparse: bytes.last() == Some(&1),
        })
    }

    /// Returns the difference from the file's current state as text.
    fn difference(&self, now: &Self) -> Option<String> {
        if now.identity != self.identity {
            return Some("another file has replaced it".to_owned());
        }
        if now.size != self.size {
            return Some(format!(
                "its size changed from {} to {} bytes",
                self.size, now.size
            ));
        }
        if now.mtime != self.mtime || now.ctime != self.ctime {
            return Some("its change time differs".to_owned());
        }
        None
    }
}

/// A reader of files below a directory.
#[derive(Debug)]
pub(super) struct DirectoryContents {
    pub(super) root: PathBuf,
    pub(super) top: Arc<OwnedFd>,
    pub(super) below: EntryPath,
}

impl Contents for DirectoryContents {
    fn open(&self, path: &EntryPath, content: &FileContent) -> Result<Box<dyn ContentReader>, SourceError> {
        let path = path.as_bytes();
        let inside = path.strip_prefix(self.below.as_bytes()).unwrap_or(path);
        let inside = inside.strip_prefix(b"/").unwrap_or(inside);
        let host = host_path(&self.root, inside);
        let file = open_beneath(self.top.as_fd(), inside, FILE_FLAGS);
        let file = file.map_err(|error| DirectorySource::failed("opening", &host, error.into()))?;
        let seen = Seen::decode(&content.locator).ok_or_else(|| SourceError::Changed {
            place: host.display().to_string(),
            what: "its recorded state is lost".to_owned(),
        })?;
        let mut reader = FileReader {
            file: file.into(),
            host,
            seen,
        };
        reader.finish()?;
        Ok(Box::new(reader))
    }
}

/// A file that is being read.
#[derive(Debug)]
struct FileReader {
    file: File,
    host: PathBuf,
    seen: Seen,
}

impl FileReader {
    fn failed(&self, cause: io::Error) -> SourceError {
        DirectorySource::failed("reading", &self.host, cause)
    }
}

impl ContentReader for FileReader {
    fn next_data(&mut self, from: FileOffset) -> Result<Option<Range<FileOffset>>, SourceError> {
        let size = self.seen.size;
        if from.get() >= size {
            return Ok(None);
        }
        if !self.seen.sparse {
            return Ok(Some(from..FileOffset::new(size)));
        }
        let start = match rustix::fs::seek(&self.file, SeekFrom::Data(from.get())) {
            Ok(start) => start,
            Err(Errno::NXIO) => return Ok(None),
            Err(Errno::INVAL) => return Ok(Some(from..FileOffset::new(size))),
            Err(error) => return Err(self.failed(error.into())),
        };
        let end = rustix::fs::seek(&self.file, SeekFrom::Hole(start));
        let end = end.map_err(|error| self.failed(error.into()))?;
        if start >= size {
            return Ok(None);
        }
        Ok(Some(FileOffset::new(start)..FileOffset::new(end.min(size))))
    }

    fn read_exact_at(&mut self, at: FileOffset, into: &mut [u8]) -> Result<(), SourceError> {
        match self.file.read_exact_at(into, at.get()) {
            Ok(()) => Ok(()),
            Err(cause) if cause.kind() == io::ErrorKind::UnexpectedEof => Err(SourceError::Changed {
                place: self.host.display().to_string(),
                what: format!("it is truncated (expected {} bytes)", self.seen.size),
            }),
            Err(cause) => Err(self.failed(cause)),
        }
    }

    fn host_file(&self) -> Option<BorrowedFd<'_>> {
        Some(self.file.as_fd())
    }

    fn finish(&mut self) -> Result<(), SourceError> {
        let metadata = self.file.metadata().map_err(|cause| self.failed(cause))?;
        match self.seen.difference(&Seen::of(&metadata)) {
            Some(what) => Err(SourceError::Changed {
                place: self.host.display().to_string(),
                what,
            }),
            None => Ok(()),
        }
    }
}
