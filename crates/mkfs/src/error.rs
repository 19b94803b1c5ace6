//! Why a volume cannot be made.

use buttress_device::IoError;
use buttress_format::{ByteCount, ErrorKind, Profile};

/// What making a volume ends with when it fails.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// No device at all.
    #[error("no device is given")]
    NoDevice,
    /// The number of device uuids is not that of the devices.
    #[error("wrong number of device uuids (found {uuids}, expected {devices})")]
    Uuids {
        /// How many uuids.
        uuids: usize,
        /// How many devices.
        devices: usize,
    },
    /// A profile needs more devices.
    #[error("profile {profile} needs at least {needed} devices (found {given})")]
    TooFewDevices {
        /// The profile.
        profile: Profile,
        /// How many it needs.
        needed: u16,
        /// How many there are.
        given: usize,
    },
    /// A device has no space for the first chunks.
    #[error("{device} is too small (found {size} bytes, expected at least {least} with these options)")]
    TooSmall {
        /// The device.
        device: String,
        /// How large it is.
        size: ByteCount,
        /// How large it must be.
        least: ByteCount,
    },
    /// A device is smaller than the size that was asked for.
    #[error("{device} is smaller than the requested size (found {size} bytes, expected at least {wanted})")]
    DeviceTooShort {
        /// The device.
        device: String,
        /// How large it is.
        size: ByteCount,
        /// How much of it was to be used.
        wanted: ByteCount,
    },
    /// A sector size that no volume can have.
    #[error("invalid sector size (found {bytes} bytes, expected a power of two from 4096 to 65536)")]
    SectorSize {
        /// The size.
        bytes: u32,
    },
    /// A node size that no volume can have.
    #[error(
        "invalid node size (found {bytes} bytes, expected a power of two from the sector size {sector_bytes} to 65536)"
    )]
    NodeSize {
        /// The size.
        bytes: u32,
        /// The sector size.
        sector_bytes: u32,
    },
    /// Mixed block groups with nodes that are not sectors.
    #[error(
        "mixed block groups need a node size equal to the sector size (found {bytes}, expected {sector_bytes})"
    )]
    MixedNodeSize {
        /// The node size.
        bytes: u32,
        /// The sector size.
        sector_bytes: u32,
    },
    /// Mixed block groups with two profiles.
    #[error("mixed block groups need the same profile for data and metadata (found {data} and {metadata})")]
    MixedProfiles {
        /// The data profile.
        data: Profile,
        /// The metadata profile.
        metadata: Profile,
    },
    /// A label that does not fit.
    #[error("invalid label (found {bytes} bytes, expected at most 255, without line breaks and zero bytes)")]
    Label {
        /// How long it is.
        bytes: usize,
    },
    /// A feature without one that it needs.
    #[error("feature {feature} needs {needed}")]
    FeatureNeeds {
        /// The feature.
        feature: &'static str,
        /// What it needs.
        needed: &'static str,
    },
    /// Both kinds of quotas.
    #[error("quota and squota cannot be combined; enable one of them")]
    BothQuotas,
    /// Quotas for a volume that is made without an account of what is in it.
    #[error("an empty volume cannot be made with quotas; build it from a source, which may be empty")]
    QuotasOfEmpty,
    /// The volume layer failed.
    #[error(transparent)]
    Volume(#[from] buttress_volume::Error),
    /// A device failed.
    #[error(transparent)]
    Io(#[from] IoError),
    /// Items that cannot be laid out: the trees of a new volume do not fit its first chunks.
    #[error("the first chunks of the volume are too small for {what}")]
    NoRoom {
        /// What does not fit.
        what: &'static str,
    },
}

impl Error {
    /// The kind of the error.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::Volume(error) => error.kind(),
            Self::Io(_) => ErrorKind::Io,
            _ => ErrorKind::Caller,
        }
    }
}
