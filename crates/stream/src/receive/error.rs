//! What can stop a stream from being received.

use crate::error::Place;
use crate::trail::Trail;
use crate::view::Problem as TreeProblem;
use buttress_format::printable::Printable;
use buttress_format::send::{CommandKind, Version};
use buttress_format::{ErrorKind, Uuid};
use std::path::PathBuf;

/// The result of a step of receiving.
pub type Result<T, E = Error> = core::result::Result<T, E>;

/// Why a stream was not received. Nothing of it is in the volume then.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The bytes are not a whole stream, or the input failed.
    #[error(transparent)]
    Stream(#[from] crate::Error),
    /// A command cannot be carried out.
    #[error("{place}: {command}: {problem}")]
    Refused {
        /// Where it is.
        place: Place,
        /// Which command.
        command: CommandKind,
        /// Why.
        problem: Box<Problem>,
    },
    /// The volume could not be read or written, or the caller cancelled.
    #[error(transparent)]
    Filesystem(#[from] buttress_fs::Error),
    /// What was kept to go on with is the beginning of another stream.
    #[error("what was kept is the beginning of another stream: {kept}, this one has {found}")]
    OtherStream {
        /// How far what is kept comes.
        kept: Trail,
        /// What the stream has up to there.
        found: Trail,
    },
}

impl Error {
    /// The kind of the error.
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

/// Why a command cannot be carried out.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Problem {
    /// What the command asks for cannot be.
    #[error(transparent)]
    Command(#[from] TreeProblem),
    /// The volume refuses it, or fails.
    #[error("{}: {error}", Shown(path))]
    Filesystem {
        /// The path that it is about.
        path: Vec<u8>,
        /// What the volume says.
        #[source]
        error: buttress_fs::Error,
    },
    /// The snapshot that the stream builds on is not in the volume.
    #[error(
        "cannot find parent subvolume: none has uuid {uuid}, or was received from it; receive that one before, or send \
         without -p"
    )]
    ParentMissing {
        /// Its uuid.
        uuid: Uuid,
    },
    /// The snapshot that the stream builds on can have changed.
    #[error(
        "the parent subvolume {} (uuid {uuid}) is not read-only, and changed since it was sent",
        path.display()
    )]
    ParentChanged {
        /// Its uuid.
        uuid: Uuid,
        /// Where it is.
        path: PathBuf,
    },
    /// The snapshot that is cloned from is not in the volume.
    #[error("clone: did not find source subvol: none has uuid {uuid}, or was received from it")]
    CloneSourceMissing {
        /// Its uuid.
        uuid: Uuid,
    },
    /// The subvolume's name is a path.
    #[error("the subvolume's name {} is not the name of one directory", Printable(name))]
    Name {
        /// The name.
        name: Vec<u8>,
    },
    /// Something has the name already.
    #[error(
        "{} exists already; receive into another directory, or delete it before",
        Printable(name)
    )]
    Exists {
        /// The name.
        name: Vec<u8>,
    },
    /// The stream has places of data instead of data.
    #[error("the stream was made without file data (--no-data), and cannot be received")]
    NoData,
    /// The command turns fs-verity on.
    #[error("fs-verity (enable_verity) is not supported")]
    Verity,
    /// The version of the stream is known, and not received.
    #[error("streams of version {0} are not received: its commands are not settled")]
    Version(Version),
    /// A command cannot be carried out, which was found behind it.
    #[error("{place}: {command}: {problem}")]
    Earlier {
        /// Where it is.
        place: Place,
        /// Which command.
        command: CommandKind,
        /// Why.
        problem: Box<Problem>,
    },
    /// A stream has more subvolumes than are received at once.
    #[error("the stream has more than {limit} subvolumes")]
    TooMany {
        /// The most that are.
        limit: usize,
    },
}

impl Problem {
    /// The kind of the error.
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

    /// Whether there is no space for it in the volume.
    pub(super) fn is_no_space(&self) -> bool {
        match self {
            Self::Filesystem { error, .. } => error.is_out_of_space(),
            Self::Earlier { problem, .. } => problem.is_no_space(),
            _ => false,
        }
    }

    /// Whether the next command may be tried: the volume is fine, and has room.
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

/// A path in messages, from the subvolume's root.
struct Shown<'a>(&'a [u8]);

impl core::fmt::Display for Shown<'_> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self.0 {
            [] => f.write_str("/"),
            path => Printable(path).fmt(f),
        }
    }
}
