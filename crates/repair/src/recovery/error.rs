//! The errors of a recovery.

use buttress_format::{DeviceId, ErrorKind, Generation, Logical};
use buttress_salvage::Unproven;

/// The error of a recovery.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A scan or its index failed.
    #[error(transparent)]
    Salvage(#[from] buttress_salvage::Error),
    /// The volume could not be read or written.
    #[error(transparent)]
    Filesystem(#[from] buttress_fs::Error),
    /// The mapping of a chunk is not proved.
    #[error("chunk {start}: {reason}{}", more(*.others))]
    Unproven {
        /// The address of the first such chunk.
        start: Logical,
        /// The reason.
        reason: Unproven,
        /// The number of further such chunks.
        others: usize,
    },
    /// A readable chunk item has no device extents, or other ones.
    #[error(
        "chunk {start}: its item is readable, and contradicts the device extents; repair them with `buttress check --repair`"
    )]
    Contradiction {
        /// The address of the chunk.
        start: Logical,
    },
    /// A part of the device tree is lost.
    #[error("blocks of the device tree are lost, so chunks without readable device extents are unknown")]
    DeviceTree,
    /// A device missed commits.
    #[error("device {device} is behind (generation {generation}, the volume has {newest})")]
    Behind {
        /// The device.
        device: DeviceId,
        /// The generation of its superblock.
        generation: Generation,
        /// The newest generation.
        newest: Generation,
    },
    /// A device was not given.
    #[error("found {found} of {expected} devices; give the other ones with --device")]
    MissingDevices {
        /// The number of given devices.
        found: u64,
        /// The number of devices of the volume.
        expected: u64,
    },
    /// The volume has a state that a recovery does not know.
    #[error("this version recovers no volume with {what}")]
    Unsupported {
        /// The state.
        what: &'static str,
    },
    /// The trees that account for space cannot be rebuilt. A later allocation could then take the
    /// places of the new blocks.
    #[error("the trees that account for space cannot be rebuilt: {reason}")]
    NotAccounted {
        /// The reason.
        reason: String,
    },
    /// No free address for the blocks of the new tree.
    #[error("the chunks have no free place for {blocks} blocks of the new tree")]
    NoSpace {
        /// The number of blocks.
        blocks: usize,
    },
}

impl Error {
    /// Returns the kind of the error.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::Salvage(error) => error.kind(),
            Self::Filesystem(error) => error.kind(),
            Self::Unsupported { .. } => ErrorKind::Unsupported,
            Self::MissingDevices { .. } => ErrorKind::Caller,
            _ => ErrorKind::Corrupt,
        }
    }
}

impl From<buttress_volume::Error> for Error {
    fn from(error: buttress_volume::Error) -> Self {
        Self::Filesystem(error.into())
    }
}

/// Returns the words for further chunks.
fn more(others: usize) -> String {
    match others {
        0 => String::new(),
        others => format!(" (and {others} more chunks)"),
    }
}

/// The result of a recovery.
pub(super) type Result<T> = core::result::Result<T, Error>;
