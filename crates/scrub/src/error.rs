//! Why a volume is not scrubbed, or a device not replaced.

use buttress_device::IoError;
use buttress_format::{DeviceId, ErrorKind};

/// Why a volume is not scrubbed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A feature whose volumes are not scrubbed.
    #[error("scrub does not support volumes with {feature}")]
    Unsupported {
        /// Its name.
        feature: &'static str,
    },
    /// A tree without which nothing is known of what is in use; that the job was cancelled.
    #[error(transparent)]
    Filesystem(#[from] buttress_fs::Error),
    /// No device is being replaced.
    #[error("no device of the volume is being replaced")]
    NoReplacement,
    /// The target of a replacement failed.
    #[error("the target failed: {0}; the replacement is suspended, and continues once the target works")]
    TargetFailed(IoError),
    /// A device that is brought up to date failed.
    #[error("{device} failed while it was brought up to date: {failure}; the device stays out of date")]
    ReturnFailed {
        /// Its name.
        device: String,
        /// With what.
        failure: IoError,
    },
    /// No copy has good bytes for some of what a device missed.
    #[error(
        "{device} cannot be brought up to date: {bytes} bytes that it missed have no readable copy. The device is unchanged. To continue, remove the files that `buttress scrub start -B -r` lists"
    )]
    ReturnLacks {
        /// Its name.
        device: String,
        /// How many bytes.
        bytes: u64,
    },
    /// Parts of the extent tree cannot be read, so what a device missed is not known.
    #[error("{device} cannot be brought up to date: {}; the device is unchanged", .parts.join("; "))]
    ReturnNotWalked {
        /// Its name.
        device: String,
        /// The parts, and why they cannot be read.
        parts: Vec<String>,
    },
    /// Metadata has no good copy, or the target lacks it. The replacement ended, and the source is the device as
    /// before.
    #[error("device {device}: metadata is lost (found {}, expected none): {}; the replacement was cancelled", count(.blocks), .blocks.join("; "))]
    MetadataLost {
        /// The source.
        device: DeviceId,
        /// Each lost block with its tree, or a part of the extent tree that cannot be walked.
        blocks: Vec<String>,
    },
    /// The volume cannot be opened with the target in the source's place.
    #[error("the volume cannot be opened with the target in place of the source: {0}")]
    NotOpened(String),
}

/// Returns the number of blocks as text.
fn count(blocks: &[String]) -> String {
    match blocks.len() {
        1 => "1 block without a good copy".to_owned(),
        more => format!("{more} blocks without a good copy"),
    }
}

impl Error {
    /// The kind of the error.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::Unsupported { .. } => ErrorKind::Unsupported,
            Self::Filesystem(error) => error.kind(),
            Self::NoReplacement => ErrorKind::Caller,
            Self::TargetFailed(_) | Self::ReturnFailed { .. } => ErrorKind::Io,
            Self::MetadataLost { .. }
            | Self::NotOpened(_)
            | Self::ReturnLacks { .. }
            | Self::ReturnNotWalked { .. } => ErrorKind::Corrupt,
        }
    }
}
