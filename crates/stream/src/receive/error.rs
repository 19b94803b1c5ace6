//! Errors of receiving a stream.

use crate::error::Place;
use crate::trail::Trail;
use crate::view::Problem as TreeProblem;
use buttress_format::printable::Printable;
use buttress_format::send::{CommandKind, Version};
use buttress_format::{ErrorKind, Uuid};
use std::path::PathBuf;

/// The result of a part of a receive.
pub type Result<T, E = Error> = core::result::Result<T, E>;

/// Reason why a stream was not received. After this error the volume shows nothing of the stream.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The bytes are not a complete stream, or the input failed.
    #[error(transparent)]
    Stream(#[from] crate::Error),
    /// A command failed.
    #[error("{place}: {command}: {problem}")]
    Refused {
        /// Position of the command in the input.
        place: Place,
        /// Kind of the command.
        command: CommandKind,
        /// Reason for the failure.
        problem: Box<Problem>,
    },
    /// The volume failed, or the caller cancelled.
    #[error(transparent)]
    Filesystem(#[from] buttress_fs::Error),
    /// The kept part of an interrupted receive belongs to another stream.
    #[error("the kept part belongs to another stream (found {found}, expected {kept})")]
    OtherStream {
        /// Trail of the kept part.
        kept: Trail,
        /// Trail of this stream after the same number of bytes.
        found: Trail,
    },
}

impl Error {
    /// Returns the kind of the error.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::Stream(error) => error.kind(),
            Self::Refused { problem, .. } => problem.kind(),
            Self::Filesystem(error) => error.kind(),
            Self::OtherStream { .. } => ErrorKind::Caller,
        }
    }
}

/// Reason why a command failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Problem {
    /// The request of the command is impossible for the tree.
    #[error(transparent)]
    Command(#[from] TreeProblem),
    /// The volume refuses the command, or fails.
    #[error("{}: {error}", Shown(path))]
    Filesystem {
        /// Path in the command.
        path: Vec<u8>,
        /// Error of the volume.
        #[source]
        error: buttress_fs::Error,
    },
    /// The volume lacks the parent snapshot of the stream.
    #[error(
        "cannot find parent subvolume: no subvolume has the uuid or received uuid {uuid}; receive the parent first, or send without -p"
    )]
    ParentMissing {
        /// UUID of the parent snapshot.
        uuid: Uuid,
    },
    /// The parent snapshot of the stream may have changed.
    #[error(
        "the parent subvolume {} (uuid {uuid}) is not read-only, and changed since it was sent",
        path.display()
    )]
    ParentChanged {
        /// UUID of the parent snapshot.
        uuid: Uuid,
        /// Path of the parent snapshot in the volume.
        path: PathBuf,
    },
    /// The volume lacks the clone source snapshot.
    #[error("clone: did not find source subvol: no subvolume has the uuid or received uuid {uuid}")]
    CloneSourceMissing {
        /// UUID of the clone source.
        uuid: Uuid,
    },
    /// The subvolume's name is a path of several names.
    #[error("the subvolume name {} is not a single name", Printable(name))]
    Name {
        /// Name of the subvolume in the stream.
        name: Vec<u8>,
    },
    /// The directory already has an entry with the subvolume's name.
    #[error(
        "{} already exists; receive into another directory, or delete it first",
        Printable(name)
    )]
    Exists {
        /// Name of the subvolume.
        name: Vec<u8>,
    },
    /// The stream has ranges of data instead of the data itself.
    #[error("the stream was made without file data (--no-data), and cannot be received")]
    NoData,
    /// The command enables fs-verity.
    #[error("fs-verity (enable_verity) is not supported")]
    Verity,
    /// The receiver does not support the stream's version, although the decoder knows it.
    #[error("streams of version {0} cannot be received: their commands are not final")]
    Version(Version),
    /// An earlier command failed, and a later command detected it.
    #[error("{place}: {command}: {problem}")]
    Earlier {
        /// Position of the failed command in the input.
        place: Place,
        /// Kind of the failed command.
        command: CommandKind,
        /// Reason for the failure.
        problem: Box<Problem>,
    },
    /// A stream has more subvolumes than the receiver supports.
    #[error("the stream has more than {limit} subvolumes")]
    TooMany {
        /// Largest supported number of subvolumes.
        limit: usize,
    },
}

impl Problem {
    /// Returns the kind of the error.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::Filesystem { error, .. } => error.kind(),
            Self::Command(problem) => problem.kind(),
            Self::Earlier { problem, .. } => problem.kind(),
            Self::Verity | Self::Version(_) | Self::TooMany { .. } => ErrorKind::Unsupported,
            Self::ParentMissing { .. }
            | Self::ParentChanged { .. }
            | Self::CloneSourceMissing { .. }
            | Self::Exists { .. }
            | Self::NoData => ErrorKind::Caller,
            Self::Name { .. } => ErrorKind::Corrupt,
        }
    }

    /// Returns whether the volume lacks space for the command.
    pub(super) fn is_no_space(&self) -> bool {
        match self {
            Self::Filesystem { error, .. } => error.is_out_of_space(),
            Self::Earlier { problem, .. } => problem.is_no_space(),
            _ => false,
        }
    }

    /// Returns whether the receiver may try the next command: the volume works and has space.
    pub(super) fn is_of_one_command(&self) -> bool {
        match self {
            Self::Filesystem { error, .. } => {
                error.kind() == ErrorKind::Caller
                    && !error.is_out_of_space()
                    && !matches!(error, buttress_fs::Error::Cancelled)
            }
            Self::Command(_) | Self::CloneSourceMissing { .. } => true,
            _ => false,
        }
    }
}

/// Formats a path in messages, from the subvolume's root.
struct Shown<'a>(&'a [u8]);

impl core::fmt::Display for Shown<'_> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self.0 {
            [] => f.write_str("/"),
            path => Printable(path).fmt(f),
        }
    }
}
