//! The errors of making a volume.

use buttress_device::IoError;
use buttress_format::{ByteCount, ErrorKind, Profile};

/// The error of making a volume.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// No device was given.
    #[error("no device was given")]
    NoDevice,
    /// The number of device uuids differs from the number of devices.
    #[error("{uuids} device uuids for {devices} devices")]
    Uuids {
        /// The number of uuids.
        uuids: usize,
        /// The number of devices.
        devices: usize,
    },
    /// A profile needs more devices than were given.
    #[error("profile {profile} needs at least {needed} devices, {given} given")]
    TooFewDevices {
        /// The profile.
        profile: Profile,
        /// The number of devices that the profile needs.
        needed: u16,
        /// The number of given devices.
        given: usize,
    },
    /// A device has no space for the first chunks.
    #[error(
        "{device} is too small: {size} bytes; with these options each device needs at least {least} bytes"
    )]
    TooSmall {
        /// The device's name.
        device: String,
        /// The device's size.
        size: ByteCount,
        /// The minimum size.
        least: ByteCount,
    },
    /// A device is smaller than the requested size.
    #[error("{device} has {size} bytes, fewer than the {wanted} that are to be used of each device")]
    DeviceTooShort {
        /// The device's name.
        device: String,
        /// The device's size.
        size: ByteCount,
        /// The requested size.
        wanted: ByteCount,
    },
    /// No volume can have this sector size.
    #[error("a sector size of {bytes} bytes; powers of two from 4096 to 65536 are possible")]
    SectorSize {
        /// The size.
        bytes: u32,
    },
    /// No volume can have this node size.
    #[error(
        "a node size of {bytes} bytes; powers of two from the sector size ({sector_bytes}) to 65536 are possible"
    )]
    NodeSize {
        /// The size.
        bytes: u32,
        /// The sector size.
        sector_bytes: u32,
    },
    /// Mixed block groups were requested with different node and sector sizes.
    #[error("with mixed block groups the node size is the sector size ({sector_bytes}), not {bytes}")]
    MixedNodeSize {
        /// The node size.
        bytes: u32,
        /// The sector size.
        sector_bytes: u32,
    },
    /// Mixed block groups were requested with two profiles.
    #[error("with mixed block groups data and metadata have one profile, not {data} and {metadata}")]
    MixedProfiles {
        /// The data profile.
        data: Profile,
        /// The metadata profile.
        metadata: Profile,
    },
    /// The label is too long.
    #[error("a label of {bytes} bytes; at most 255 are possible, without line breaks and zero bytes")]
    Label {
        /// The label's length in bytes.
        bytes: usize,
    },
    /// A feature was requested without a feature that it needs.
    #[error("feature {feature} needs {needed}")]
    FeatureNeeds {
        /// The feature.
        feature: &'static str,
        /// The feature that it needs.
        needed: &'static str,
    },
    /// Both kinds of quotas were requested.
    #[error("quota and squota cannot both be on: a volume has quotas of one kind")]
    BothQuotas,
    /// Quotas were requested for an empty volume, which is made without an accounting of its
    /// content.
    #[error("quotas come with a volume that is built, be it of nothing; an empty one is made without")]
    QuotasOfEmpty,
    /// The volume layer failed.
    #[error(transparent)]
    Volume(#[from] buttress_volume::Error),
    /// A device failed.
    #[error(transparent)]
    Io(#[from] IoError),
    /// The trees of a new volume do not fit its first chunks.
    #[error("{what} do not fit the volume's first chunks")]
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
