//! Errors of scrubs, replacements and resynchronisations.

use buttress_device::IoError;
use buttress_format::{DeviceId, ErrorKind, Generation};

/// The reason why a job failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The volume has a feature that scrub does not support.
    #[error("scrub does not support volumes with {feature}")]
    Unsupported {
        /// The name of the unsupported feature.
        feature: &'static str,
    },
    /// The volume was opened at an older state, which nothing may change.
    #[error("scrub repairs the newest state only (found {shown}, expected {newest})")]
    OlderState {
        /// The generation of the open state.
        shown: Generation,
        /// The newest generation.
        newest: Generation,
    },
    /// A required tree is unreadable, or the job was cancelled.
    #[error(transparent)]
    Filesystem(#[from] buttress_fs::Error),
    /// No device is being replaced.
    #[error("no device of the volume is being replaced")]
    NoReplacement,
    /// The target of a replacement failed.
    #[error("the target failed: {0}; the replacement is suspended, and continues once the target works")]
    TargetFailed(IoError),
    /// A device failed while the resync updated it.
    #[error("{device} failed while it was brought up to date: {failure}; the device stays out of date")]
    ReturnFailed {
        /// The name of the device.
        device: String,
        /// The device's error.
        failure: IoError,
    },
    /// Some bytes that a stale device missed have no valid copy.
    #[error(
        "{device} cannot be brought up to date: {bytes} bytes that it missed have no readable copy. The device is unchanged. To continue, remove the files that `buttress scrub start -B -r` lists"
    )]
    ReturnLacks {
        /// The name of the device.
        device: String,
        /// The number of these bytes.
        bytes: u64,
    },
    /// Parts of the extent tree are unreadable, so the writes that a device missed are unknown.
    #[error("{device} cannot be brought up to date: {}; the device is unchanged", .parts.join("; "))]
    ReturnNotWalked {
        /// The name of the device.
        device: String,
        /// The unreadable parts, with their errors.
        parts: Vec<String>,
    },
    /// Some metadata has no valid copy, or the target lacks it. The replacement ended, and the
    /// source remains the volume's device.
    #[error("device {device}: metadata is lost (found {}, expected none): {}; the replacement was cancelled", count(.blocks), .blocks.join("; "))]
    MetadataLost {
        /// The id of the source.
        device: DeviceId,
        /// Each lost block with its tree, or an unreadable part of the extent tree.
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
    /// Returns the kind of the error.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::Unsupported { .. } => ErrorKind::Unsupported,
            Self::Filesystem(error) => error.kind(),
            Self::NoReplacement | Self::OlderState { .. } => ErrorKind::Caller,
            Self::TargetFailed(_) | Self::ReturnFailed { .. } => ErrorKind::Io,
            Self::MetadataLost { .. }
            | Self::NotOpened(_)
            | Self::ReturnLacks { .. }
            | Self::ReturnNotWalked { .. } => ErrorKind::Corrupt,
        }
    }
}
