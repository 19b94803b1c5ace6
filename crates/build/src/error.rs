//! Why an image cannot be built.

use crate::source::SourceError;
use buttress_format::{ByteCount, ErrorKind, ItemProblem};
use buttress_mkfs as mkfs;
use std::path::PathBuf;

/// What building ends with when it fails.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A source failed.
    #[error(transparent)]
    Source(#[from] SourceError),
    /// The volume cannot be made.
    #[error(transparent)]
    Volume(#[from] mkfs::Error),
    /// The job was asked to stop.
    #[error("interrupted before the image was complete")]
    Cancelled,
    /// What does not fit memory cannot be put aside.
    #[error("cannot write a spool file in {}: {cause}", folder.display())]
    Spool {
        /// Where.
        folder: PathBuf,
        /// What the system said.
        cause: std::io::Error,
    },
    /// Two entries of one path, of which neither has precedence.
    #[error("{source_name} names {path:?} twice")]
    Duplicate {
        /// The path.
        path: String,
        /// The source.
        source_name: String,
    },
    /// Something lies below what is no directory.
    #[error("{path:?}: its parent {above:?} is not a directory")]
    NotADirectory {
        /// The path.
        path: String,
        /// What it lies below.
        above: String,
    },
    /// A hard link to nothing, to a directory, or in a circle.
    #[error("{path:?} is a hard link to {target:?}, {problem}")]
    HardLink {
        /// The link.
        path: String,
        /// What it leads to.
        target: String,
        /// What is wrong with that.
        problem: &'static str,
    },
    /// Something that an option names is not in the tree, or is not what it must be.
    #[error("{option} {path:?}: {problem}")]
    Option {
        /// The option: "subvolume".
        option: &'static str,
        /// What it names.
        path: String,
        /// What is wrong.
        problem: &'static str,
    },
    /// An inode holds what no inode can.
    #[error("{path:?}: {problem}")]
    Entry {
        /// The path.
        path: String,
        /// What is wrong, with the numbers.
        problem: String,
    },
    /// The devices are too small.
    #[error("no space for {what}: the devices are {needed} bytes too small")]
    NoRoom {
        /// What was to be written.
        what: &'static str,
        /// How much is missing, as far as is known.
        needed: ByteCount,
    },
    /// More sources than can be told apart.
    #[error("too many sources (expected at most 65,534)")]
    Sources,
    /// As small as possible is only possible on one device.
    #[error("a volume of minimal size needs exactly one device (found {devices})")]
    LeastSizeDevices {
        /// How many.
        devices: usize,
    },
    /// The blocks of a file cannot be shared with the target.
    #[error("{path:?}: its blocks cannot be shared with the image: {cause}")]
    NotShared {
        /// The file, by its path in the volume.
        path: String,
        /// What the system said.
        cause: buttress_device::IoError,
    },
    /// Data of this profile cannot be shared with files.
    #[error("data of profile {profile} cannot share blocks with files (expected single or dup)")]
    SharedProfile {
        /// The profile.
        profile: buttress_format::Profile,
    },
    /// What writes to the devices ended before all was written; it says why itself.
    #[error("writing ended before the image was complete")]
    WriterGone,
    /// The builder contradicts itself: a defect of this program.
    #[error("a defect of the builder: {what}")]
    Defect {
        /// What should not be.
        what: &'static str,
    },
}

impl Error {
    /// The kind of the error.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::Source(error) => error.kind(),
            Self::Volume(error) => error.kind(),
            Self::Spool { .. } => ErrorKind::Io,
            _ => ErrorKind::Caller,
        }
    }

    /// Something that one inode cannot have.
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

impl From<buttress_fs::Error> for Error {
    fn from(_: buttress_fs::Error) -> Self {
        Self::Cancelled
    }
}

/// A path for messages.
pub(crate) fn shown(path: &[u8]) -> String {
    format!("/{}", String::from_utf8_lossy(path))
}

/// The result of building.
pub type Result<T> = core::result::Result<T, Error>;
