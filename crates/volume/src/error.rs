//! Errors of the volume layer, one variant per check, in the four kinds of [`ErrorKind`].
//!
//! An error that a bad copy causes says so only when no other copy could stand in for it: what was passed over
//! on the way to a good read is in the fault log ([`crate::faults`]).

use crate::faults::FaultReason;
use crate::layout::LayoutError;
use crate::membership::MembershipRefusal;
use crate::superblocks::PrimaryFailure;
use crate::write::WriteRefusal;
use buttress_device::IoError;
use buttress_exact::Defect;
use buttress_format::error::{ErrorKind, Unsupported};
use buttress_format::{ByteCount, DeviceId, Generation, Logical, Physical};
use core::fmt;
use uuid::Uuid;

/// What opening or reading a volume ends with when it fails.
#[derive(Clone, Debug, thiserror::Error)]
pub enum Error {
    /// Something on disk breaks the format.
    #[error(transparent)]
    Corrupt(#[from] Box<Corruption>),
    /// The volume needs what this version cannot do.
    #[error(transparent)]
    Unsupported(#[from] Unsupported),
    /// A device failed.
    #[error(transparent)]
    Io(#[from] IoError),
    /// No copy of an extent could be read.
    #[error(transparent)]
    Unreadable(#[from] Box<Unreadable>),
    /// The devices given do not make up one volume.
    #[error(transparent)]
    Devices(#[from] Box<DevicesError>),
    /// Something is not written.
    #[error(transparent)]
    Write(#[from] WriteRefusal),
    /// The volume's devices stay as they are.
    #[error(transparent)]
    Membership(Box<MembershipRefusal>),
    /// The RAID stripe tree, which the layer above reads, could not tell where an address lies.
    #[error("logical {logical}: the RAID stripe tree cannot be read: {reason}")]
    StripeTree {
        /// The address.
        logical: Logical,
        /// The kind of the failure.
        kind: ErrorKind,
        /// The failure, as the layer above tells it.
        reason: String,
    },
    /// A read of no bytes, or of more than an extent can hold.
    #[error("a read of {length_bytes} bytes at logical {logical}: reads are of 1 to {maximum_bytes} bytes")]
    ReadLength {
        /// Where the read was to start.
        logical: Logical,
        /// How long it was to be.
        length_bytes: usize,
        /// How long a read can be.
        maximum_bytes: usize,
    },
    /// An invariant of this program is broken: reported instead of bytes that may be wrong.
    #[error(transparent)]
    Defect(#[from] Box<Defect>),
    /// A copy was asked for that the chunk does not have.
    #[error("copy {copy} of logical {logical}: it has copies 1 to {copies}")]
    NoSuchCopy {
        /// The address.
        logical: Logical,
        /// The copy asked for, from 1.
        copy: u32,
        /// How many there are.
        copies: u32,
    },
}

impl Error {
    /// The kind of the error.
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
    /// Returns whether an invariant of this program is broken.
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

/// What can be wrong with a volume's superblocks and chunks.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Corruption {
    /// No superblock is valid; the primary's failure is given.
    #[error("no valid btrfs superblock on {device} ({size_bytes} bytes): primary at 65536: {primary}")]
    NoSuperblock {
        /// The device's name.
        device: String,
        /// Its size.
        size_bytes: u64,
        /// What is wrong with the primary.
        primary: PrimaryFailure,
    },
    /// The primary superblock is bad, and its copies belong to different volumes or devices.
    #[error(
        "{device}: the primary superblock is bad ({primary}), and its copies disagree: fsid {first} and {second}"
    )]
    SuperblockCopiesDisagree {
        /// The device's name.
        device: String,
        /// What is wrong with the primary.
        primary: PrimaryFailure,
        /// The fsid of one copy.
        first: Uuid,
        /// The fsid of another, or the same with another device uuid.
        second: Uuid,
    },
    /// Two chunks claim the same logical addresses.
    #[error("chunk [{start}, {end}) overlaps chunk [{other_start}, {other_end})")]
    ChunksOverlap {
        /// Start of the chunk that came later.
        start: Logical,
        /// Its end.
        end: Logical,
        /// Start of the chunk that was there.
        other_start: Logical,
        /// Its end.
        other_end: Logical,
    },
    /// A chunk that ends past the last address.
    #[error("chunk at {start} of {length} bytes ends past the logical address space")]
    ChunkTooLong {
        /// Its start.
        start: Logical,
        /// Its length.
        length: ByteCount,
    },
    /// A chunk that its profile does not allow.
    #[error("chunk at {start}: {error}")]
    ChunkLayout {
        /// Its start.
        start: Logical,
        /// What is wrong with it.
        error: LayoutError,
    },
    /// An address that no chunk maps.
    #[error("logical range [{logical}, +{length}) is not mapped by any chunk")]
    Unmapped {
        /// The first address without a chunk.
        logical: Logical,
        /// How much was wanted from there.
        length: ByteCount,
    },
    /// A stripe that leaves the address space of its device.
    #[error(
        "chunk at {start}: stripe {stripe_index} on device {device} starts at {physical}; \
         {offset} bytes further is past the physical address space"
    )]
    StripeOverflow {
        /// The chunk's start.
        start: Logical,
        /// The stripe's number in the chunk.
        stripe_index: usize,
        /// Its device.
        device: DeviceId,
        /// Where it starts.
        physical: Physical,
        /// The offset in it that cannot be reached.
        offset: u64,
    },
    /// The raid-stripe-tree has no entry for an address.
    #[error("no RAID stripe extent for logical {logical}, which lies in a chunk that needs one")]
    NoStripeExtent {
        /// The address.
        logical: Logical,
    },
    /// The raid-stripe-tree's entry goes on past the stripe unit, or the chunk, that it begins in.
    #[error(
        "the RAID stripe extent [{start}, +{length}) does not lie in one stripe unit of its chunk: \
         it does not tell where logical {logical} lies"
    )]
    StripeExtentTooLong {
        /// Start of the entry.
        start: Logical,
        /// Its length.
        length: ByteCount,
        /// The address past the unit.
        logical: Logical,
    },
    /// The raid-stripe-tree's entry does not name the device that the chunk does.
    #[error("the RAID stripe extent at logical {logical} has no stripe on device {device}")]
    NoStripeOnDevice {
        /// Start of the entry.
        logical: Logical,
        /// The device.
        device: DeviceId,
    },
    /// Device items of one id or one uuid that differ.
    #[error(
        "device item {device} has uuid {uuid}, but device {other_device} with uuid {other_uuid} is known"
    )]
    DeviceItemsDisagree {
        /// Id in the item.
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
    /// [`ErrorKind::Corrupt`], unless the only superblock could not be read or uses what is not known.
    #[must_use]
    pub const fn kind(&self) -> ErrorKind {
        match self {
            Self::NoSuperblock { primary, .. } => primary.kind(),
            _ => ErrorKind::Corrupt,
        }
    }
}

/// Devices that do not fit together. The names are those that the devices were opened by.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DevicesError {
    /// None at all.
    #[error("no device was given")]
    None,
    /// Devices of two volumes.
    #[error(
        "{first} belongs to volume {first_fsid}, {second} to volume {second_fsid}; give devices of one volume"
    )]
    Foreign {
        /// A device's name.
        first: String,
        /// Its volume.
        first_fsid: Uuid,
        /// Another device's name.
        second: String,
        /// Its volume.
        second_fsid: Uuid,
    },
    /// Devices whose blocks are of one volume, and whose superblocks are of two: a change of the fsid was cut off between
    /// them.
    #[error(
        "{first} has fsid {first_fsid}, {second} has {second_fsid}, and the blocks of both carry the uuid \
         {metadata_uuid}: a change of the fsid was cut off between them; `btrfstune -m` goes on with it"
    )]
    FsidChangeCutOff {
        /// A device's name.
        first: String,
        /// Its fsid.
        first_fsid: Uuid,
        /// Another device's name.
        second: String,
        /// Its fsid.
        second_fsid: Uuid,
        /// What their blocks carry.
        metadata_uuid: Uuid,
    },
    /// One device twice, or a device and a copy of it.
    #[error("{first} and {second} are both device {device} with uuid {uuid} of the volume; give one of them")]
    Duplicate {
        /// A device's name.
        first: String,
        /// Another device's name.
        second: String,
        /// The id that both have.
        device: DeviceId,
        /// The uuid that both have.
        uuid: Uuid,
    },
    /// Two devices that were each written while the other was away: neither has what the other has.
    #[error(
        "{first} is at generation {first_generation}, {second} at generation {second_generation}, and neither state follows \
         from the other: each was written without the other. Open one alone with --degraded, save what is only on the other, \
         then put the other in its place again with `buttress replace start`"
    )]
    Diverged {
        /// A device's name.
        first: String,
        /// Its generation.
        first_generation: Generation,
        /// Another device's name.
        second: String,
        /// Its generation.
        second_generation: Generation,
    },
    /// Devices of the volume that were not given.
    #[error("{}; without it the volume is only opened degraded", MissingList(.0))]
    Missing(Vec<MissingDevice>),
}

impl DevicesError {
    /// A missing device is an I/O matter; the rest is the caller's choice of devices.
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
    /// Its id.
    pub device: DeviceId,
    /// Its uuid.
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

/// One failed attempt to get bytes of an extent.
#[derive(Clone, Debug)]
pub struct Attempt {
    /// The copy, from 1. With parity, copies from 2 on are ways to rebuild the bytes.
    pub copy: u32,
    /// The device that the copy, or the one needed for rebuilding it that failed, lies on.
    pub device: DeviceId,
    /// Where on it.
    pub physical: Physical,
    /// What happened.
    pub reason: FaultReason,
}

/// All copies of an extent failed.
#[derive(Clone, Debug)]
pub struct Unreadable {
    /// Start of what could not be read.
    pub logical: Logical,
    /// Its length.
    pub length: ByteCount,
    /// What was tried.
    pub attempts: Vec<Attempt>,
}

impl Unreadable {
    /// [`ErrorKind::Io`] when no copy could be had at all, [`ErrorKind::Corrupt`] when one was read but was bad.
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
    /// The device's generation.
    pub generation: Generation,
    /// The volume's.
    pub newest: Generation,
}
