//! Errors of the volume layer: each check has one variant, in one of the four kinds of
//! [`ErrorKind`].
//!
//! A bad copy causes an error only if no other copy can replace it. The fault log records the
//! copies that a successful read skipped ([`crate::faults`]).

use crate::faults::FaultReason;
use crate::layout::LayoutError;
use crate::membership_refusal::MembershipRefusal;
use crate::superblocks::PrimaryFailure;
use crate::write::WriteRefusal;
use buttress_device::IoError;
use buttress_exact::Defect;
use buttress_format::error::{ErrorKind, Unsupported};
use buttress_format::{ByteCount, DeviceId, Generation, Logical, Physical};
use core::fmt;
use uuid::Uuid;

/// The error of opening, reading or writing a volume.
#[derive(Clone, Debug, thiserror::Error)]
pub enum Error {
    /// Bytes on disk violate the format.
    #[error(transparent)]
    Corrupt(#[from] Box<Corruption>),
    /// The volume needs a feature that this version does not support.
    #[error(transparent)]
    Unsupported(#[from] Unsupported),
    /// A device failed.
    #[error(transparent)]
    Io(#[from] IoError),
    /// No copy of an extent could be read.
    #[error(transparent)]
    Unreadable(#[from] Box<Unreadable>),
    /// The given devices do not form one volume.
    #[error(transparent)]
    Devices(#[from] Box<DevicesError>),
    /// A write was refused.
    #[error(transparent)]
    Write(#[from] WriteRefusal),
    /// A change of the volume's devices was refused.
    #[error(transparent)]
    Membership(Box<MembershipRefusal>),
    /// The layer above could not read the RAID stripe tree, which locates an address.
    #[error("logical {logical}: the RAID stripe tree cannot be read: {reason}")]
    StripeTree {
        /// The address.
        logical: Logical,
        /// The kind of the error that the failure causes.
        kind: ErrorKind,
        /// The failure, as the layer above the volume reports it.
        reason: String,
    },
    /// The length of a read is zero, or exceeds the longest extent.
    #[error(
        "invalid read length at logical {logical} (found {length_bytes} bytes, expected 1 to {maximum_bytes})"
    )]
    ReadLength {
        /// The first address of the read.
        logical: Logical,
        /// The requested length in bytes.
        length_bytes: usize,
        /// The maximum length in bytes.
        maximum_bytes: usize,
    },
    /// A defect: an invariant of this program is broken. The error replaces bytes that may be
    /// wrong.
    #[error(transparent)]
    Defect(#[from] Box<Defect>),
    /// The chunk does not have the requested copy.
    #[error("logical {logical} has no copy {copy} (expected 1 to {copies})")]
    NoSuchCopy {
        /// The address.
        logical: Logical,
        /// The number of the requested copy, from 1.
        copy: u32,
        /// The number of copies.
        copies: u32,
    },
}

impl Error {
    /// Returns the kind of the error.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::Corrupt(corruption) => corruption.kind(),
            Self::Defect(_) => ErrorKind::Corrupt,
            Self::Unsupported(_) => ErrorKind::Unsupported,
            Self::Io(_) => ErrorKind::Io,
            Self::Unreadable(unreadable) => unreadable.kind(),
            Self::Devices(error) => error.kind(),
            Self::Write(refusal) => refusal.kind(),
            Self::Membership(refusal) => refusal.kind(),
            Self::StripeTree { kind, .. } => *kind,
            Self::ReadLength { .. } | Self::NoSuchCopy { .. } => ErrorKind::Caller,
        }
    }
}

impl Error {
    /// Returns true if an invariant of this program is broken.
    #[must_use]
    pub const fn is_defect(&self) -> bool {
        matches!(self, Self::Defect(_))
    }
}

impl From<Defect> for Error {
    fn from(defect: Defect) -> Self {
        Self::Defect(Box::new(defect))
    }
}

impl From<Corruption> for Error {
    fn from(corruption: Corruption) -> Self {
        Self::Corrupt(Box::new(corruption))
    }
}

impl From<Unreadable> for Error {
    fn from(unreadable: Unreadable) -> Self {
        Self::Unreadable(Box::new(unreadable))
    }
}

impl From<DevicesError> for Error {
    fn from(error: DevicesError) -> Self {
        Self::Devices(Box::new(error))
    }
}

/// The error of a volume's superblocks or chunks.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Corruption {
    /// No superblock of a device is valid. The error contains the failure of the primary
    /// superblock.
    #[error("no valid btrfs superblock on {device} ({size_bytes} bytes): primary at 65536: {primary}")]
    NoSuperblock {
        /// The device's name.
        device: String,
        /// The device's size in bytes.
        size_bytes: u64,
        /// The failure of the primary superblock.
        primary: PrimaryFailure,
    },
    /// The primary superblock is bad, and its copies belong to different volumes or devices.
    #[error(
        "{device}: the primary superblock is damaged ({primary}), and its copies differ: fsid {first} and {second}"
    )]
    SuperblockCopiesDisagree {
        /// The device's name.
        device: String,
        /// The failure of the primary superblock.
        primary: PrimaryFailure,
        /// The fsid of one copy.
        first: Uuid,
        /// The fsid of another copy. If both are equal, the device uuids differ.
        second: Uuid,
    },
    /// Two chunks map the same logical addresses.
    #[error("chunk [{start}, {end}) overlaps chunk [{other_start}, {other_end})")]
    ChunksOverlap {
        /// The start of the chunk that was added later.
        start: Logical,
        /// The end of the chunk that was added later.
        end: Logical,
        /// The start of the chunk that was added first.
        other_start: Logical,
        /// The end of the chunk that was added first.
        other_end: Logical,
    },
    /// A chunk ends beyond the last address.
    #[error("chunk at {start} of {length} bytes ends past the logical address space")]
    ChunkTooLong {
        /// The chunk's start.
        start: Logical,
        /// The chunk's length.
        length: ByteCount,
    },
    /// The chunk's profile does not allow its layout.
    #[error("chunk at {start}: {error}")]
    ChunkLayout {
        /// The chunk's start.
        start: Logical,
        /// The error of the layout.
        error: LayoutError,
    },
    /// No chunk maps an address.
    #[error("no chunk maps the logical range [{logical}, +{length})")]
    Unmapped {
        /// The first address without a chunk.
        logical: Logical,
        /// The number of bytes requested from that address on.
        length: ByteCount,
    },
    /// A stripe leaves the physical address space of its device.
    #[error(
        "chunk at {start}: stripe {stripe_index} on device {device} starts at {physical}; \
         {offset} bytes further is past the physical address space"
    )]
    StripeOverflow {
        /// The chunk's start.
        start: Logical,
        /// The stripe's index in the chunk.
        stripe_index: usize,
        /// The id of the stripe's device.
        device: DeviceId,
        /// The first byte of the stripe on its device.
        physical: Physical,
        /// The offset in the stripe, which is outside the address space.
        offset: u64,
    },
    /// The raid-stripe-tree has no entry for an address.
    #[error("no RAID stripe extent for logical {logical}, whose chunk needs one")]
    NoStripeExtent {
        /// The address.
        logical: Logical,
    },
    /// The RAID stripe tree's entry extends beyond the stripe unit or chunk in which it begins.
    #[error(
        "the RAID stripe extent [{start}, +{length}) crosses stripe units of its chunk, so the position of logical {logical} is unknown"
    )]
    StripeExtentTooLong {
        /// The address at which the entry starts.
        start: Logical,
        /// The length of the entry in bytes.
        length: ByteCount,
        /// The address to read, which is after the stripe unit.
        logical: Logical,
    },
    /// The RAID stripe tree's entry does not name the device that the chunk names.
    #[error("the RAID stripe extent at logical {logical} has no stripe on device {device}")]
    NoStripeOnDevice {
        /// Start of the entry.
        logical: Logical,
        /// The device that the chunk names.
        device: DeviceId,
    },
    /// Two device items of one id or one uuid differ.
    #[error(
        "device item {device} has uuid {uuid}, which contradicts device {other_device} with uuid {other_uuid}"
    )]
    DeviceItemsDisagree {
        /// The id in the device item.
        device: DeviceId,
        /// Uuid in the item.
        uuid: Uuid,
        /// Id of the known device.
        other_device: DeviceId,
        /// Uuid of the known device.
        other_uuid: Uuid,
    },
}

impl Corruption {
    /// Returns [`ErrorKind::Corrupt`]. Returns another kind than that if the only superblock could
    /// not be read or uses unknown features.
    #[must_use]
    pub const fn kind(&self) -> ErrorKind {
        match self {
            Self::NoSuperblock { primary, .. } => primary.kind(),
            _ => ErrorKind::Corrupt,
        }
    }
}

/// The error of devices that do not form one volume. The error names the devices as they were named
/// at opening.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DevicesError {
    /// No device was given.
    #[error("no device is given")]
    None,
    /// The devices belong to two volumes.
    #[error(
        "{first} belongs to volume {first_fsid}, {second} to volume {second_fsid}; give devices of one volume"
    )]
    Foreign {
        /// A device's name.
        first: String,
        /// The first device's fsid.
        first_fsid: Uuid,
        /// Another device's name.
        second: String,
        /// The second device's fsid.
        second_fsid: Uuid,
    },
    /// The devices' blocks belong to one volume, but their superblocks have two fsids: a change of
    /// the fsid was interrupted.
    #[error(
        "{first} has fsid {first_fsid}, {second} has {second_fsid}, and the blocks of both have the uuid {metadata_uuid}: a change of the fsid was interrupted; to finish it, run `buttress tune` with -m or -u, as before"
    )]
    FsidChangeCutOff {
        /// A device's name.
        first: String,
        /// The first device's fsid.
        first_fsid: Uuid,
        /// Another device's name.
        second: String,
        /// The second device's fsid.
        second_fsid: Uuid,
        /// The metadata uuid that the volume's tree blocks carry.
        metadata_uuid: Uuid,
    },
    /// A device was given twice, or a copy of it was given too.
    #[error("{first} and {second} are both device {device} with uuid {uuid} of the volume; give one of them")]
    Duplicate {
        /// A device's name.
        first: String,
        /// Another device's name.
        second: String,
        /// The device id that both devices have.
        device: DeviceId,
        /// The device uuid that both devices have.
        uuid: Uuid,
    },
    /// Two devices were each written without the other. Each of the two devices lacks the changes
    /// of the other.
    #[error(
        "{first} is at generation {first_generation}, {second} at generation {second_generation}, and neither state follows from the other: each device was written without the other. Open each alone with --degraded, and save files that exist on only one. Then replace the other device with `buttress replace start`"
    )]
    Diverged {
        /// A device's name.
        first: String,
        /// The first device's generation.
        first_generation: Generation,
        /// Another device's name.
        second: String,
        /// The second device's generation.
        second_generation: Generation,
    },
    /// Devices of the volume were not given.
    #[error("{}; to open the volume without it, use degraded", MissingList(.0))]
    Missing(Vec<MissingDevice>),
}

impl DevicesError {
    /// Returns the kind of the error: I/O for a missing device, unsupported for an interrupted
    /// change of the fsid. All other errors come from the caller's choice of devices.
    #[must_use]
    pub const fn kind(&self) -> ErrorKind {
        match self {
            Self::Missing(_) => ErrorKind::Io,
            Self::FsidChangeCutOff { .. } => ErrorKind::Unsupported,
            Self::None | Self::Foreign { .. } | Self::Duplicate { .. } | Self::Diverged { .. } => {
                ErrorKind::Caller
            }
        }
    }
}

/// A device of the volume that was not given.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MissingDevice {
    /// The device's id.
    pub device: DeviceId,
    /// The device's uuid.
    pub uuid: Uuid,
}

struct MissingList<'a>(&'a [MissingDevice]);

impl fmt::Display for MissingList<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.len() {
            1 => f.write_str("a device of the volume is missing: ")?,
            count => write!(f, "{count} devices of the volume are missing: ")?,
        }
        for (position, missing) in self.0.iter().enumerate() {
            let comma = if position == 0 { "" } else { ", " };
            write!(f, "{comma}devid {} uuid {}", missing.device, missing.uuid)?;
        }
        Ok(())
    }
}

/// A failed attempt to read bytes of an extent.
#[derive(Clone, Debug)]
pub struct Attempt {
    /// The number of the copy, from 1. With parity, copies from 2 on are ways to rebuild the bytes.
    pub copy: u32,
    /// The device that failed. For a rebuild, the device is that of a column that the rebuild
    /// needs.
    pub device: DeviceId,
    /// The physical address on the device.
    pub physical: Physical,
    /// The reason for the failure.
    pub reason: FaultReason,
}

/// The error of an extent for which all copies failed.
#[derive(Clone, Debug)]
pub struct Unreadable {
    /// The first unreadable address.
    pub logical: Logical,
    /// The length of the unreadable range.
    pub length: ByteCount,
    /// The failed attempts.
    pub attempts: Vec<Attempt>,
}

impl Unreadable {
    /// Returns [`ErrorKind::Io`] if no copy could be read, or [`ErrorKind::Corrupt`] if one was
    /// read but was bad.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        if self.attempts.iter().any(|attempt| attempt.reason.is_corruption()) {
            ErrorKind::Corrupt
        } else {
            ErrorKind::Io
        }
    }
}

impl core::error::Error for Unreadable {}

impl fmt::Display for Unreadable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "logical range [{}, +{}) cannot be read: ",
            self.logical, self.length
        )?;
        for (position, attempt) in self.attempts.iter().enumerate() {
            let separator = if position == 0 { "" } else { "; " };
            let Attempt {
                copy,
                device,
                physical,
                reason,
            } = attempt;
            write!(
                f,
                "{separator}copy {copy} (device {device}, physical {physical}): {reason}"
            )?;
        }
        Ok(())
    }
}

/// A device whose generation is behind the volume's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stale {
    /// The generation of the device's superblock.
    pub generation: Generation,
    /// The volume's newest generation.
    pub newest: Generation,
}
