//! Errors of sending.

use crate::trail::Trail;
use buttress_format::printable::Printable;
use buttress_format::{ErrorKind, InodeNumber, SubvolumeId};
use core::fmt;
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::path::PathBuf;

/// Reason why a send failed, or stopped early.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Reading the volume failed, or the caller cancelled the send.
    #[error(transparent)]
    Filesystem(#[from] buttress_fs::Error),
    /// The output failed.
    #[error("the stream could not be written at byte {offset}: {error}")]
    Output {
        /// Number of stream bytes written before the failure.
        offset: u64,
        /// Error of the output.
        error: io::Error,
    },
    /// A subvolume to send or to compare with is writable.
    #[error("subvolume {subvolume} ({}) is not read-only: make a read-only snapshot and send that", Printable(.path.as_os_str().as_bytes()))]
    NotReadOnly {
        /// The subvolume.
        subvolume: SubvolumeId,
        /// Its path from the top level.
        path: PathBuf,
    },
    /// A subvolume is deleted, perhaps partly dropped.
    #[error("subvolume {subvolume} was deleted and cannot be sent")]
    Deleted {
        /// The subvolume.
        subvolume: SubvolumeId,
    },
    /// A subvolume has no UUID, so a receiver could not identify it later.
    #[error("subvolume {subvolume} has no UUID, so it cannot be sent")]
    NoUuid {
        /// The subvolume.
        subvolume: SubvolumeId,
    },
    /// The snapshot's tree contradicts itself about the names of an inode.
    #[error("subvolume {subvolume}, inode {inode}: {problem}")]
    Names {
        /// The subvolume.
        subvolume: SubvolumeId,
        /// The inode.
        inode: InodeNumber,
        /// Problem with the inode's names.
        problem: NamesProblem,
    },
    /// A path is longer than a stream can hold.
    #[error("subvolume {subvolume}, inode {inode}: its path has more than {limit_bytes} bytes")]
    PathTooLong {
        /// The subvolume.
        subvolume: SubvolumeId,
        /// The inode.
        inode: InodeNumber,
        /// Largest length of a path in bytes.
        limit_bytes: usize,
    },
    /// The output does not match the receiver's trail.
    #[error(
        "the receiver has the beginning of another stream: its token {wanted} does not match the first {bytes} bytes of this stream"
    )]
    OtherStream {
        /// Trail of the receiver.
        wanted: Trail,
        /// Output position at which the mismatch was found, in bytes.
        bytes: u64,
    },
    /// A command does not fit the format of the stream.
    #[error(transparent)]
    Encode(#[from] crate::error::Error),
    /// The options of the send contradict each other.
    #[error("{0}")]
    Options(&'static str),
}

/// Problem with the names of an inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NamesProblem {
    /// The inode has links, but the tree holds no name of it.
    None,
    /// A directory has several names.
    Several,
    /// The chain of parents of a directory leads back to the directory.
    Loop,
    /// A symbolic link has no target.
    NoTarget,
    /// The directory that holds a name does not exist.
    NoParent,
}

impl fmt::Display for NamesProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::None => "it has a link count, but no name",
            Self::Several => "a directory with more than one name",
            Self::Loop => "a directory that is its own ancestor",
            Self::NoTarget => "a symbolic link without a target",
            Self::NoParent => "the directory that holds its name does not exist",
        })
    }
}

impl Error {
    /// Returns the kind of the error.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::Filesystem(error) => error.kind(),
            Self::Output { .. } => ErrorKind::Io,
            Self::Names { .. } => ErrorKind::Corrupt,
            _ => ErrorKind::Caller,
        }
    }
}

/// The result of a part of a send.
pub type Result<T, E = Error> = core::result::Result<T, E>;
