//! The errors of scans and their indexes.

use buttress_format::{ErrorKind, Generation};
use std::path::{Path, PathBuf};
use uuid::Uuid;

/// The error of a scan.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A device failed.
    #[error(transparent)]
    Device(#[from] buttress_device::IoError),
    /// The job was cancelled.
    #[error("interrupted before the scan was complete")]
    Cancelled,
    /// The devices hold no tree block.
    #[error("no superblock and no tree block on {devices} (read {bytes} bytes)")]
    NoBlocks {
        /// The names of the devices.
        devices: String,
        /// The number of bytes that were read.
        bytes: u64,
    },
    /// The devices hold no tree block of the wanted file system.
    #[error("no tree block of the file system {fsid} on {devices}")]
    NoSuchFileSystem {
        /// The wanted uuid.
        fsid: Uuid,
        /// The names of the devices.
        devices: String,
    },
    /// More devices than an index can hold.
    #[error("too many devices for an index (found {devices}, expected at most {most})")]
    TooManyDevices {
        /// The number of given devices.
        devices: usize,
        /// The largest number of devices.
        most: usize,
    },
    /// A device is larger than an index can describe.
    #[error("{device} is too large for an index (found {bytes} bytes, expected at most {most})")]
    DeviceTooLarge {
        /// The name of the device.
        device: String,
        /// The size of the device.
        bytes: u64,
        /// The largest size.
        most: u64,
    },
    /// The index file could not be read or written.
    #[error("index {}: {cause}", path.display())]
    IndexFile {
        /// The path of the index.
        path: PathBuf,
        /// The error of the system.
        cause: std::io::Error,
    },
    /// The index file has wrong content.
    #[error("index {}: {problem}", path.display())]
    Index {
        /// The path of the index.
        path: PathBuf,
        /// The failed check.
        problem: IndexProblem,
    },
    /// The records could not be sorted.
    #[error(transparent)]
    Packing(#[from] buttress_packing::Error),
    /// No chunk tree leads from addresses to places on the devices.
    #[error("generation {generation}: no chunk tree can be read ({tried} candidates)")]
    NoChunkTree {
        /// The generation of the state.
        generation: Generation,
        /// The number of chunk roots that were tried.
        tried: usize,
    },
    /// No device extent of a state is left, so no chunk is known.
    #[error("generation {generation}: neither the chunk tree nor the device tree can be read")]
    NoDeviceExtents {
        /// The generation of the state.
        generation: Generation,
    },
    /// No state has this generation.
    #[error("no root tree of generation {generation} is known")]
    NoState {
        /// The wanted generation.
        generation: Generation,
    },
    /// A state could not be opened.
    #[error("generation {generation}: {cause}")]
    State {
        /// The generation of the state.
        generation: Generation,
        /// The reason.
        cause: Box<buttress_fs::Error>,
    },
    /// A defect of this program.
    #[error(transparent)]
    Defect(#[from] buttress_exact::Defect),
}

/// A failed check of an index file.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum IndexProblem {
    /// The file is no index.
    #[error("the file is not an index of a scan; nothing was written to it")]
    NoIndex,
    /// The version is unknown.
    #[error("unknown format (found version {found}, expected version {expected})")]
    Version {
        /// The version in the file.
        found: u32,
        /// The known version.
        expected: u32,
    },
    /// No copy of the header passes its checks.
    #[error("both copies of the header are damaged")]
    Header,
    /// A field of the header has a value that no scan writes.
    #[error("the header has a wrong {field} (found {found})")]
    Field {
        /// The name of the field.
        field: &'static str,
        /// The value.
        found: u64,
    },
    /// The scan is not complete.
    #[error("the scan is not complete; to continue it, run `buttress rescue scan`")]
    Incomplete,
    /// The file ends before its content.
    #[error("the file is too short (found {found} bytes, expected {expected})")]
    Length {
        /// The size of the file.
        found: u64,
        /// The size that the header demands.
        expected: u64,
    },
    /// A page is damaged.
    #[error("page {page} is damaged: {what}")]
    Page {
        /// The number of the page.
        page: u64,
        /// The failed check.
        what: &'static str,
    },
    /// A record has a value that no scan writes.
    #[error("record {record} has a wrong {field} (found {found})")]
    Record {
        /// The number of the record.
        record: u64,
        /// The name of the field.
        field: &'static str,
        /// The value.
        found: u64,
    },
    /// Records are not in order.
    #[error("record {record} is not in order")]
    Order {
        /// The number of the record.
        record: u64,
    },
    /// The index belongs to another file system.
    #[error("the index is of file system {found}, expected {expected}; give another --index, or delete it")]
    OtherFileSystem {
        /// The uuid in the index.
        found: Uuid,
        /// The uuid of the devices.
        expected: Uuid,
    },
    /// Another process writes the index.
    #[error("another process writes it; wait for that process")]
    InUse,
}

impl Error {
    /// Returns the kind of the error.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::Device(_) | Self::IndexFile { .. } => ErrorKind::Io,
            Self::Packing(buttress_packing::Error::Spool { .. }) => ErrorKind::Io,
            Self::State { cause, .. } => cause.kind(),
            Self::NoBlocks { .. }
            | Self::NoSuchFileSystem { .. }
            | Self::Index { .. }
            | Self::NoChunkTree { .. }
            | Self::NoDeviceExtents { .. }
            | Self::NoState { .. } => ErrorKind::Corrupt,
            _ => ErrorKind::Caller,
        }
    }

    /// Returns whether no further state can be read after this error of opening a state.
    pub(crate) fn ends_search(&self) -> bool {
        matches!(self, Self::Cancelled) || self.kind() == ErrorKind::Unsupported
    }

    /// Returns whether devices of a state are missing.
    pub(crate) fn lacks_devices(&self) -> bool {
        use buttress_volume::{DevicesError, Error as VolumeError};
        let Self::State { cause, .. } = self else {
            return false;
        };
        match &**cause {
            buttress_fs::Error::Volume(VolumeError::Devices(error)) => {
                matches!(**error, DevicesError::Missing(_))
            }
            _ => false,
        }
    }

    pub(crate) fn file(path: &Path, cause: std::io::Error) -> Self {
        Self::IndexFile {
            path: path.to_owned(),
            cause,
        }
    }

    pub(crate) fn index(path: &Path, problem: IndexProblem) -> Self {
        Self::Index {
            path: path.to_owned(),
            problem,
        }
    }
}

impl From<buttress_fs::Error> for Error {
    /// Converts the error of a progress, which only reports cancellation.
    fn from(_: buttress_fs::Error) -> Self {
        Self::Cancelled
    }
}

/// The result of a scan.
pub type Result<T, E = Error> = core::result::Result<T, E>;
