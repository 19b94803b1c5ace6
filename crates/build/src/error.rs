//! The errors of building an image.

use crate::source::SourceError;
use buttress_format::{ByteCount, ErrorKind, ItemProblem};
use buttress_mkfs as mkfs;
use buttress_packing as packing;
use std::path::PathBuf;

/// The error of building an image.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A source failed.
    #[error(transparent)]
    Source(#[from] SourceError),
    /// The volume could not be made.
    #[error(transparent)]
    Volume(#[from] mkfs::Error),
    /// The job was cancelled.
    #[error("interrupted before the image was complete")]
    Cancelled,
    /// Data that exceeds the memory could not be spooled.
    #[error("cannot write a spool file in {}: {cause}", folder.display())]
    Spool {
        /// The folder of spool files.
        folder: PathBuf,
        /// The error of the system.
        cause: std::io::Error,
    },
    /// Two entries have one path, and neither has precedence.
    #[error("{source_name} names {path:?} twice")]
    Duplicate {
        /// The path.
        path: String,
        /// The name of the source.
        source_name: String,
    },
    /// An entry lies below an entry that is no directory.
    #[error("{path:?}: its parent {above:?} is not a directory")]
    NotADirectory {
        /// The path.
        path: String,
        /// The path of the entry above this entry.
        above: String,
    },
    /// A hard link leads to nothing, to a directory, or in a cycle.
    #[error("{path:?} is a hard link to {target:?}, {problem}")]
    HardLink {
        /// The path of the link.
        path: String,
        /// The path of its target.
        target: String,
        /// The problem of the target.
        problem: &'static str,
    },
    /// An entry that an option names does not exist, or has the wrong kind.
    #[error("{option} {path:?}: {problem}")]
    Option {
        /// The name of the option: "subvolume".
        option: &'static str,
        /// The path that the option names.
        path: String,
        /// The problem of the entry.
        problem: &'static str,
    },
    /// An entry has attributes that no inode can have.
    #[error("{path:?}: {problem}")]
    Entry {
        /// The path.
        path: String,
        /// The problem, with the numbers.
        problem: String,
    },
    /// The devices are too small for the content.
    #[error("no space for {what}: the devices are {needed} bytes too small")]
    NoRoom {
        /// The kind of data that could not be written.
        what: &'static str,
        /// The number of missing bytes, as far as it is known.
        needed: ByteCount,
    },
    /// The number of sources exceeds the limit.
    #[error("too many sources (expected at most 65,534)")]
    Sources,
    /// The smallest possible size was requested for several devices.
    #[error("a volume of minimal size needs exactly one device (found {devices})")]
    LeastSizeDevices {
        /// The number of devices.
        devices: usize,
    },
    /// The blocks of a source file cannot be shared with the image.
    #[error("{path:?}: its blocks cannot be shared with the image: {cause}")]
    NotShared {
        /// The path of the file in the volume.
        path: String,
        /// The error of the system.
        cause: buttress_device::IoError,
    },
    /// Data of this profile cannot share blocks with files of the host.
    #[error("data of profile {profile} cannot share blocks with files (expected single or dup)")]
    SharedProfile {
        /// The profile.
        profile: buttress_format::Profile,
    },
    /// The thread that writes to the devices ended early; it reports the reason itself.
    #[error("writing ended before the image was complete")]
    WriterGone,
    /// A defect: the builder contradicts itself.
    #[error("a defect of the builder: {what}")]
    Defect {
        /// The violated rule.
        what: &'static str,
    },
}

impl Error {
    /// Returns the kind of the error.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::Source(error) => error.kind(),
            Self::Volume(error) => error.kind(),
            Self::Spool { .. } => ErrorKind::Io,
            _ => ErrorKind::Caller,
        }
    }

    /// Makes the error of an attribute that no inode can have.
    pub(crate) fn of_item(path: &[u8], problem: &ItemProblem) -> Self {
        Self::Entry {
            path: shown(path),
            problem: problem.to_string(),
        }
    }
}

impl From<buttress_volume::Error> for Error {
    fn from(error: buttress_volume::Error) -> Self {
        Self::Volume(error.into())
    }
}

impl From<buttress_device::IoError> for Error {
    fn from(error: buttress_device::IoError) -> Self {
        Self::Volume(error.into())
    }
}

impl From<packing::Error> for Error {
    fn from(error: packing::Error) -> Self {
        match error {
            packing::Error::Spool { folder, cause } => Self::Spool { folder, cause },
            packing::Error::Defect { what } => Self::Defect { what },
            // The builder's places and sinks return no error of their own.
            _ => Self::Defect {
                what: "an unknown error of packing",
            },
        }
    }
}

impl From<buttress_fs::Error> for Error {
    fn from(_: buttress_fs::Error) -> Self {
        Self::Cancelled
    }
}

/// Returns a path in the form for messages.
pub(crate) fn shown(path: &[u8]) -> String {
    format!("/{}", String::from_utf8_lossy(path))
}

/// The result of building.
pub type Result<T> = core::result::Result<T, Error>;
