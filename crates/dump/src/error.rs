//! Errors of dumps.

use std::io;

/// The result of a call of this crate.
pub type Result<T> = core::result::Result<T, Error>;

/// The reason why a dump cannot be written, read or restored.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The dump cannot be read or written.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// The volume, or a device of the restored volume, failed.
    #[error(transparent)]
    Volume(#[from] buttress_fs::Error),
    /// A device failed.
    #[error(transparent)]
    Device(#[from] buttress_device::IoError),
    /// Bytes of the dump violate the format.
    #[error("the dump is damaged at byte {offset}: {what} (found {found:#x}, expected {expected:#x})")]
    Damaged {
        /// The offset of the cluster or item in the dump.
        offset: u64,
        /// The violated rule.
        what: &'static str,
        /// The found number.
        found: u64,
        /// The expected number, or the limit.
        expected: u64,
    },
    /// The dump has an item that is not what the volume needs.
    #[error("the dump cannot be restored: {what} (address {logical})")]
    Unusable {
        /// The missing or wrong part.
        what: &'static str,
        /// The logical address of the part.
        logical: u64,
    },
    /// The dump does not fit the given devices.
    #[error("the dump is of a volume with {expected} devices (found {found})")]
    Devices {
        /// The number of given devices.
        found: usize,
        /// The number of devices of the dumped volume.
        expected: u64,
    },
    /// A dump does not show the finding that was to be reduced.
    #[error("a check of a dump reports no finding {code}: a dump has no data, and one copy of each block")]
    FindingMissing {
        /// The code of the finding.
        code: String,
    },
    /// The volume has too much metadata for a reduction.
    #[error("the volume has {bytes} bytes of tree blocks, and a reduction takes at most {most}")]
    TooLarge {
        /// The number of bytes of tree blocks.
        bytes: u64,
        /// The limit.
        most: u64,
    },
    /// A strictly sanitised dump would keep names.
    #[error("{count} names have no replacement that keeps the order of the trees")]
    NamesKept {
        /// The number of names.
        count: u64,
    },
}

impl From<buttress_volume::Error> for Error {
    fn from(error: buttress_volume::Error) -> Self {
        Self::Volume(error.into())
    }
}
