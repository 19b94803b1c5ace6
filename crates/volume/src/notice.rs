//! Notices of opening and writing a volume, for conditions that are no failures. The caller shows
//! these notices, and uses the volume.

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
        /// The physical address of the superblock copy.
        copy: Physical,
        /// The copy's generation.
        generation: Generation,
    },
    /// The volume has features that only writers must support. A volume with unknown `compat_ro`
    /// features is read-only.
    UnknownCompatRo {
        /// The names of the features.
        names: Vec<String>,
    },
    /// A device missed the last commits. The copies on a stale device are used only if no other
    /// copy can be read.
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
        /// The failed write or flush, with the device's name, the address, and the reason.
        failure: IoError,
    },
    /// A device was not given, so the volume was opened degraded.
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
        /// The number of the chunk's stripes on missing devices.
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
        /// The superblock's count of devices.
        superblock: u64,
        /// The number of device items in the chunk tree.
        found: u64,
    },
    /// A system chunk in the superblock differs from the chunk tree's item. The volume uses the
    /// chunk of the superblock.
    SystemChunkDiffers {
        /// The chunk's start.
        logical: Logical,
    },
    /// A given device is not listed in the chunk tree, so the volume does not use it.
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
    /// The volume shows an older state.
    OlderState {
        /// The generation that is shown.
        shown: Generation,
        /// The newest known generation.
        newest: Generation,
    },
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
            | Self::OlderState { .. }
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
                "{device}: the primary superblock at 65536 is damaged ({primary}); the copy at {copy} (generation {generation}) is used. The kernel will refuse to mount the volume. To repair it, run `buttress filesystem sync` or `btrfs rescue super-recover`"
            ),
            Self::UnknownCompatRo { names } => {
                write!(
                    f,
                    "the volume has unknown compat_ro features ({}): it is read-only",
                    names.join(", ")
                )
            }
            Self::StaleDevice {
                device,
                id,
                generations,
            } => write!(
                f,
                "{device} (device {id}) missed commits (found generation {}, expected {}): its copies are used last",
                generations.generation, generations.newest
            ),
            Self::DeviceLeftOut { id, failure } => write!(
                f,
                "{failure}; device {id} is left out from now on, and the volume is degraded: later writes do not reach this device. Replace it with `buttress replace start`"
            ),
            Self::MissingDevice(missing) => {
                write!(
                    f,
                    "device {} with uuid {} is missing: the volume is degraded",
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
                "{device} (device {id}) is truncated (found {size_bytes} bytes, expected {expected}): data past its end is unreadable"
            ),
            Self::DeviceCount { superblock, found } => {
                write!(
                    f,
                    "the superblock has {superblock} devices, the chunk tree has {found}"
                )
            }
            Self::UnlistedDevice { device, uuid } => {
                write!(
                    f,
                    "{device} (uuid {uuid}) is no longer a device of this volume, and is not used"
                )
            }
            Self::ReplacementTarget { device, uuid } => write!(
                f,
                "{device} (uuid {uuid}) is the target of an unfinished replacement: nothing is read from it"
            ),
            Self::Seed => f.write_str("the volume is a seed: it is read-only"),
            Self::UsedBytes(problem) => write!(
                f,
                "the used bytes in the superblock are wrong ({problem}). Reading works, but the kernel may refuse to mount the volume. To repair it, run `buttress filesystem sync`"
            ),
            Self::Unfinished(UnfinishedChange { what, remedy }) => write!(
                f,
                "a change of {what} was interrupted: the volume is read-only, and part of it may be unreadable; {remedy}"
            ),
            Self::MetadataImage => {
                f.write_str("this is a metadata image made by btrfs-image: it contains no file data")
            }
            Self::OlderState { shown, newest } => {
                write!(f, "generation {shown} is shown; the newest one is {newest}")
            }
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
                "chunk [{logical}, +{length}), {profile}: too many stripes are on missing devices (found {missing}, expected at most {tolerated}); part of it is unreadable"
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
