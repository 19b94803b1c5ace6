//! Why an image cannot be built.

use crate::source::SourceError;
use buttress_format::ErrorKind;
use buttress_writer::mkfs;

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
    #[error("stopped before the image was whole")]
    Cancelled,
}

impl Error {
    /// The kind of the error.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::Source(error) => error.kind(),
            Self::Volume(error) => error.kind(),
            Self::Cancelled => ErrorKind::Caller,
        }
    }
}

/// The result of building.
pub type Result<T> = core::result::Result<T, Error>;
