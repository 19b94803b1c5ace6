//! Notices of opening and writing a volume that are no failures. The caller shows them, and uses
//! the volume.

use crate::error::{MissingDevice, Stale};
use crate::superblocks::PrimaryFailure;
use buttress_device::IoError;
use buttress_format::{
    ByteCount, DeviceId, Generation, Logical, Physical, UnfinishedChange, UsedBytesProblem,
};
use core::fmt;
use uuid::Uuid;

/// A fact about a volume that the user should know.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Notice {
    /// The primary superblock of a device is bad, and a copy was used.
    SuperblockCopyUsed {
        /// The device's name.
        device: String,
        /// The failure of the primary superblock.
        primary: PrimaryFailure,
        /// The physical address of the copy.
        copy: Physical,
        /// The copy's generation.
        generation: Generation,
    },
    /// The volume has features that only writers must support. The volume is read-only.
    UnknownCompatRo {
        /// The names of the features.
        names: Vec<String>,
    },
    /// A device missed the last commits. Its copies are used only if no other copy can be read.
    StaleDevice {
        /// The device's name.
        device: String,
        /// The device's id.
        id: DeviceId,
        /// The device's generation and the volume's.
        generations: Stale,
    },
    /// A device failed a write or a flush, and the volume continues without it.
    DeviceLeftOut {
        /// The device's id.
        id: DeviceId,
        /// The failure, with the device's name, the address, and the reason.
        failure: IoError,
    },
    /// A device was not given, and the volume was opened degraded.
    MissingDevice(MissingDevice),
    /// More of a chunk's devices are missing than its profile tolerates, so a part of the chunk is
    /// unreadable.
    ChunkBeyondTolerance {
        /// The chunk's start.
        logical: Logical,
        /// The chunk's length.
        length: ByteCount,
        /// The profile's name.
        profile: &'static str,
        /// The number of its stripes on missing devices.
        missing: usize,
        /// The number of stripes that the profile tolerates.
        tolerated: usize,
    },
    /// A device is smaller than its device item states: the image is truncated.
    DeviceCutShort {
        /// The device's name.
        device: String,
        /// The device's id.
        id: DeviceId,
        /// The device's size in bytes.
        size_bytes: u64,
        /// The size that the device item states.
        expected: ByteCount,
    },
    /// A chunk's stripe extends beyond the device size that the device item states.
    StripePastDevice {
        /// The chunk's start.
        logical: Logical,
        /// The device.
        device: DeviceId,
        /// The end of the stripe on the device.
        end: Physical,
        /// The device's size.
        device_bytes: ByteCount,
    },
    /// The superblock's device count differs from the number of devices in the chunk tree.
    DeviceCount {
        /// The superblock's count.
        superblock: u64,
        /// The number of device items in the chunk tree.
        found: u64,
    },
    /// A system chunk in the superblock differs from the chunk tree's item. The superblock's chunk
    /// is used.
    SystemChunkDiffers {
        /// The chunk's start.
        logical: Logical,
    },
    /// A given device is not listed in the chunk tree, and is not used.
    UnlistedDevice {
        /// The device's name.
        device: String,
        /// The device's uuid.
        uuid: Uuid,
    },
    /// A given device is the target of an unfinished replacement.
    ReplacementTarget {
        /// The device's name.
        device: String,
        /// The device's uuid.
        uuid: Uuid,
    },
    /// The volume is a seed, and permanently read-only.
    Seed,
    /// The superblock's count of bytes in use is impossible.
    UsedBytes(UsedBytesProblem),
    /// btrfstune was interrupted.
    Unfinished(UnfinishedChange),
    /// The volume is an image of metadata without data.
    MetadataImage,
}

impl Notice {
    /// Returns true if a writer must not change the volume because of this notice.
    #[must_use]
    pub const fn forbids_writing(&self) -> bool {
        match self {
            Self::UnknownCompatRo { .. }
            | Self::ChunkBeyondTolerance { .. }
            | Self::DeviceCutShort { .. }
            | Self::StripePastDevice { .. }
            | Self::SystemChunkDiffers { .. }
            | Self::Unfinished(_)
            | Self::MetadataImage
            | Self::Seed => true,
            Self::SuperblockCopyUsed { .. }
            | Self::StaleDevice { .. }
            | Self::DeviceLeftOut { .. }
            | Self::MissingDevice(_)
            | Self::DeviceCount { .. }
            | Self::UsedBytes(_)
            | Self::ReplacementTarget { .. }
            | Self::UnlistedDevice { .. } => false,
        }
    }
}

impl fmt::Display for Notice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::SuperblockCopyUsed {
                device,
                primary,
                copy,
                generation,
            } => write!(
                f,
                "{device}: the primary superblock, at 65536, is bad ({primary}); the copy at {copy}, of generation \
                 {generation}, is used. The kernel does not mount the volume before the primary is mended: the next \
                 commit by buttress writes it anew (`buttress filesystem sync` is one), or `btrfs rescue super-recover`"
            ),
            Self::UnknownCompatRo { names } => {
                write!(
                    f,
                    "the volume has compat_ro features that this version does not know ({}): it can only be read",
                    names.join(", ")
                )
            }
            Self::StaleDevice {
                device,
                id,
                generations,
            } => write!(
                f,
                "{device} (device {id}) is at generation {}, the volume at {}: its copies are used last",
                generations.generation, generations.newest
            ),
            Self::DeviceLeftOut { id, failure } => write!(
                f,
                "{failure}; device {id} is left out from here on, and the volume is degraded: what is written does not \
                 reach it any more. Replace it"
            ),
            Self::MissingDevice(missing) => {
                write!(
                    f,
                    "device {} with uuid {} is missing: the volume is open degraded",
                    missing.device, missing.uuid
                )
            }
            Self::DeviceCutShort {
                device,
                id,
                size_bytes,
                expected,
            } => write!(
                f,
                "{device} (device {id}) has {size_bytes} bytes and should have {expected}: it was cut short, \
                 and what lies past its end cannot be read"
            ),
            Self::DeviceCount { superblock, found } => {
                write!(
                    f,
                    "the superblock counts {superblock} devices, the chunk tree lists {found}"
                )
            }
            Self::UnlistedDevice { device, uuid } => {
                write!(
                    f,
                    "{device} (uuid {uuid}) is not a device of this volume any more; it is not used"
                )
            }
            Self::ReplacementTarget { device, uuid } => write!(
                f,
                "{device} (uuid {uuid}) is the target of a replacement that has not come to its end: nothing is read from it"
            ),
            Self::Seed => f.write_str("the volume is a seed: it can only be read"),
            Self::UsedBytes(problem) => write!(
                f,
                "the superblock counts the bytes in use wrongly ({problem}); reading does not depend on it, but the \
                 kernel may refuse to mount the volume. The next commit by buttress mends it (`buttress filesystem \
                 sync` is one)"
            ),
            Self::Unfinished(UnfinishedChange { what, remedy }) => write!(
                f,
                "a change of {what} was begun and not ended: the volume can only be read, and not all of it may be \
                 readable; {remedy}"
            ),
            Self::MetadataImage => f.write_str(
                "this is an image of a volume's metadata, as btrfs-image makes it: the content of files is not in it",
            ),
            Self::ChunkBeyondTolerance { .. }
            | Self::StripePastDevice { .. }
            | Self::SystemChunkDiffers { .. } => self.fmt_chunk(f),
        }
    }
}

impl Notice {
    /// Formats the notices about chunks.
    fn fmt_chunk(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::ChunkBeyondTolerance {
                logical,
                length,
                profile,
                missing,
                tolerated,
            } => write!(
                f,
                "chunk [{logical}, +{length}), {profile}: {missing} of its stripes are on missing devices, \
                 {tolerated} may be; part of it cannot be read"
            ),
            Self::StripePastDevice {
                logical,
                device,
                end,
                device_bytes,
            } => write!(
                f,
                "chunk {logical}: its stripe on device {device} ends at physical {end}, past the device's \
                 {device_bytes} bytes"
            ),
            Self::SystemChunkDiffers { logical } => write!(
                f,
                "system chunk {logical} differs between superblock and chunk tree; the superblock's is used"
            ),
            _ => Ok(()),
        }
    }
}
