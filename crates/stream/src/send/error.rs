//! What can stop a send.

use crate::trail::Trail;
use buttress_format::printable::Printable;
use buttress_format::{ErrorKind, InodeNumber, SubvolumeId};
use core::fmt;
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::path::PathBuf;

/// Why nothing, or not all, was sent.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The volume could not be read, or the caller cancelled.
    #[error(transparent)]
    Filesystem(#[from] buttress_fs::Error),
    /// The stream could not be written out.
    #[error("the stream could not be written at byte {offset}: {error}")]
    Output {
        /// How many bytes of the stream were written before.
        offset: u64,
        /// What the output said.
        error: io::Error,
    },
    /// A subvolume that is to be sent, or that others are compared with, can change.
    #[error("subvolume {subvolume} ({}) is not read-only: make a read-only snapshot and send that", Printable(.path.as_os_str().as_bytes()))]
    NotReadOnly {
        /// The subvolume.
        subvolume: SubvolumeId,
        /// Its path from the top level.
        path: PathBuf,
    },
    /// A subvolume is deleted, or half dropped.
    #[error("subvolume {subvolume} was deleted and cannot be sent")]
    Deleted {
        /// The subvolume.
        subvolume: SubvolumeId,
    },
    /// A subvolume has no UUID, so that a receiver could not find it again.
    #[error("subvolume {subvolume} has no UUID, so it cannot be sent")]
    NoUuid {
        /// The subvolume.
        subvolume: SubvolumeId,
    },
    /// What the tree of the snapshot says of its names cannot be.
    #[error("subvolume {subvolume}, inode {inode}: {problem}")]
    Names {
        /// The subvolume.
        subvolume: SubvolumeId,
        /// The inode.
        inode: InodeNumber,
        /// What is wrong with its names.
        problem: NamesProblem,
    },
    /// A path is longer than a stream can hold.
    #[error("subvolume {subvolume}, inode {inode}: its path has more than {limit_bytes} bytes")]
    PathTooLong {
        /// The subvolume.
        subvolume: SubvolumeId,
        /// The inode.
        inode: InodeNumber,
        /// The longest path.
        limit_bytes: usize,
    },
    /// The commands are not those that the receiver has.
    #[error(
        "the receiver has the beginning of another stream: {wanted} of it, which does not fit what would be sent up to byte {bytes}"
    )]
    OtherStream {
        /// How far the receiver came.
        wanted: Trail,
        /// Where that was seen.
        bytes: u64,
    },
    /// A command does not fit into the stream.
    #[error(transparent)]
    Encode(#[from] crate::error::Error),
    /// The options contradict each other.
    #[error("{0}")]
    Options(&'static str),
}

/// What can be wrong with the names of an inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NamesProblem {
    /// It is linked, but the tree holds no name of it.
    None,
    /// It is a directory with several names.
    Several,
    /// Its parents lead back to itself.
    Loop,
    /// A symbolic link without a target.
    NoTarget,
    /// The directory that holds a name does not exist.
    NoParent,
}

impl fmt::Display for NamesProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::None => "it has links, but no name",
            Self::Several => "a directory with more than one name",
            Self::Loop => "a directory that is its own ancestor",
            Self::NoTarget => "a symbolic link without a target",
            Self::NoParent => "the directory that holds its name does not exist",
        })
    }
}

impl Error {
    /// Which of the four kinds this is.
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

/// The result of a step of sending.
pub type Result<T, E = Error> = core::result::Result<T, E>;
