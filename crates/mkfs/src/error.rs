//! The errors of making a volume.

use buttress_device::IoError;
use buttress_format::{ByteCount, ErrorKind, Profile};

/// The error of making a volume.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// No device was given.
    #[error("no device is given")]
    NoDevice,
    /// The number of device uuids differs from the number of devices.
    #[error("wrong number of device uuids (found {uuids}, expected {devices})")]
    Uuids {
        /// The number of uuids.
        uuids: usize,
        /// The number of devices.
        devices: usize,
    },
    /// A profile needs more devices than were given.
    #[error("profile {profile} needs at least {needed} devices (found {given})")]
    TooFewDevices {
        /// The profile.
        profile: Profile,
        /// The number of devices that the profile needs.
        needed: u16,
        /// The number of given devices.
        given: usize,
    },
    /// A device has no space for the first chunks.
    #[error("{device} is too small (found {size} bytes, expected at least {least} with these options)")]
    TooSmall {
        /// The device's name.
        device: String,
        /// The device's size.
        size: ByteCount,
        /// The minimum size of the device.
        least: ByteCount,
    },
    /// A device is smaller than the requested size.
    #[error("{device} is smaller than the requested size (found {size} bytes, expected at least {wanted})")]
    DeviceTooShort {
        /// The device's name.
        device: String,
        /// The device's size.
        size: ByteCount,
        /// The requested size of the device.
        wanted: ByteCount,
    },
    /// No volume can have this sector size.
    #[error("invalid sector size (found {bytes} bytes, expected a power of two from 4096 to 65536)")]
    SectorSize {
        /// The size.
        bytes: u32,
    },
    /// No volume can have this node size.
    #[error(
        "invalid node size (found {bytes} bytes, expected a power of two from the sector size {sector_bytes} to 65536)"
    )]
    NodeSize {
        /// The size.
        bytes: u32,
        /// The sector size.
        sector_bytes: u32,
    },
    /// Mixed block groups were requested with different node and sector sizes.
    #[error(
        "mixed block groups need a node size equal to the sector size (found {bytes}, expected {sector_bytes})"
    )]
    MixedNodeSize {
        /// The node size.
        bytes: u32,
        /// The sector size.
        sector_bytes: u32,
    },
    /// Mixed block groups were requested with two profiles.
    #[error("mixed block groups need the same profile for data and metadata (found {data} and {metadata})")]
    MixedProfiles {
        /// The data profile.
        data: Profile,
        /// The metadata profile.
        metadata: Profile,
    },
    /// The label is too long.
    #[error("invalid label (found {bytes} bytes, expected at most 255, without line breaks and zero bytes)")]
    Label {
        /// The label's length in bytes.
        bytes: usize,
    },
    /// A feature was requested without a feature that it needs.
    #[error("feature {feature} needs {needed}")]
    FeatureNeeds {
        /// The feature.
        feature: &'static str,
        /// The missing feature that the requested feature needs.
        needed: &'static str,
    },
    /// Both kinds of quotas were requested.
    #[error("quota and squota cannot be combined; enable one of them")]
    BothQuotas,
    /// Quotas were requested for an empty volume, which is made without an accounting of its
    /// content.
    #[error("an empty volume cannot be made with quotas; build it from a source, which may be empty")]
    QuotasOfEmpty,
    /// The volume layer failed.
    #[error(transparent)]
    Volume(#[from] buttress_volume::Error),
    /// A device failed.
    #[error(transparent)]
    Io(#[from] IoError),
    /// The trees of a new volume do not fit its first chunks.
    #[error("the first chunks of the volume are too small for {what}")]
    NoRoom {
        /// The object that does not fit.
        what: &'static str,
    },
}

impl Error {
    /// Returns the kind of the error.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::Volume(error) => error.kind(),
            Self::Io(_) => ErrorKind::Io,
            _ => ErrorKind::Caller,
        }
    }
}
