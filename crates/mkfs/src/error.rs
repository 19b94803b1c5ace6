//! Why a volume cannot be made.

use buttress_device::IoError;
use buttress_format::{ByteCount, ErrorKind, Profile};

/// What making a volume ends with when it fails.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// No device at all.
    #[error("no device was given")]
    NoDevice,
    /// The number of device uuids is not that of the devices.
    #[error("{uuids} device uuids for {devices} devices")]
    Uuids {
        /// How many uuids.
        uuids: usize,
        /// How many devices.
        devices: usize,
    },
    /// A profile needs more devices.
    #[error("profile {profile} needs at least {needed} devices, {given} given")]
    TooFewDevices {
        /// The profile.
        profile: Profile,
        /// How many it needs.
        needed: u16,
        /// How many there are.
        given: usize,
    },
    /// A device has no space for the first chunks.
    #[error(
        "{device} is too small: {size} bytes; with these options each device needs at least {least} bytes"
    )]
    TooSmall {
        /// The device.
        device: String,
        /// How large it is.
        size: ByteCount,
        /// How large it must be.
        least: ByteCount,
    },
    /// A device is smaller than the size that was asked for.
    #[error("{device} has {size} bytes, fewer than the {wanted} that are to be used of each device")]
    DeviceTooShort {
        /// The device.
        device: String,
        /// How large it is.
        size: ByteCount,
        /// How much of it was to be used.
        wanted: ByteCount,
    },
    /// A sector size that no volume can have.
    #[error("a sector size of {bytes} bytes; powers of two from 4096 to 65536 are possible")]
    SectorSize {
        /// The size.
        bytes: u32,
    },
    /// A node size that no volume can have.
    #[error(
        "a node size of {bytes} bytes; powers of two from the sector size ({sector_bytes}) to 65536 are possible"
    )]
    NodeSize {
        /// The size.
        bytes: u32,
        /// The sector size.
        sector_bytes: u32,
    },
    /// Mixed block groups with nodes that are not sectors.
    #[error("with mixed block groups the node size is the sector size ({sector_bytes}), not {bytes}")]
    MixedNodeSize {
        /// The node size.
        bytes: u32,
        /// The sector size.
        sector_bytes: u32,
    },
    /// Mixed block groups with two profiles.
    #[error("with mixed block groups data and metadata have one profile, not {data} and {metadata}")]
    MixedProfiles {
        /// The data profile.
        data: Profile,
        /// The metadata profile.
        metadata: Profile,
    },
    /// A label that does not fit.
    #[error("a label of {bytes} bytes; at most 255 are possible, without line breaks and zero bytes")]
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
    #[error("quota and squota cannot both be on: a volume has quotas of one kind")]
    BothQuotas,
    /// Quotas for a volume that is made without an account of what is in it.
    #[error("quotas come with a volume that is built, be it of nothing; an empty one is made without")]
    QuotasOfEmpty,
    /// The volume layer failed.
    #[error(transparent)]
    Volume(#[from] buttress_volume::Error),
    /// A device failed.
    #[error(transparent)]
    Io(#[from] IoError),
    /// Items that cannot be laid out: the trees of a new volume do not fit its first chunks.
    #[error("{what} do not fit the volume's first chunks")]
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
