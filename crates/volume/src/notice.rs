//! What opening a volume, and writing to it, says aloud without failing: the caller shows it, the volume is used all the
//! same.

use crate::error::{MissingDevice, Stale};
use crate::superblocks::PrimaryFailure;
use buttress_device::IoError;
use buttress_format::{
    ByteCount, DeviceId, Generation, Logical, Physical, UnfinishedChange, UsedBytesProblem,
};
use core::fmt;
use uuid::Uuid;

/// Something about a volume that the user should know.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Notice {
    /// The primary superblock of a device is bad; a copy was used.
    SuperblockCopyUsed {
        /// The device's name.
        device: String,
        /// What is wrong with the primary.
        primary: PrimaryFailure,
        /// Where the copy lies.
        copy: Physical,
        /// The copy's generation.
        generation: Generation,
    },
    /// Features that only writers must know. The volume is read-only.
    UnknownCompatRo {
        /// Their names.
        names: Vec<String>,
    },
    /// A device missed the last commits; its copies are used only when no other is there.
    StaleDevice {
        /// The device's name.
        device: String,
        /// Its id.
        id: DeviceId,
        /// Its generation and the volume's.
        generations: Stale,
    },
    /// A device failed a write or a flush, and the volume goes on without it.
    DeviceLeftOut {
        /// Its id.
        id: DeviceId,
        /// What it failed with: the device's name, where, and why.
        failure: IoError,
    },
    /// A device was not given, and the volume was opened degraded.
    MissingDevice(MissingDevice),
    /// More of a chunk's devices are missing than its profile tolerates: some of it cannot be read.
    ChunkBeyondTolerance {
        /// The chunk's start.
        logical: Logical,
        /// Its length.
        length: ByteCount,
        /// The profile's name.
        profile: &'static str,
        /// How many of its stripes lie on missing devices.
        missing: usize,
        /// How many may.
        tolerated: usize,
    },
    /// A device is smaller than its device item says: an image cut short.
    DeviceCutShort {
        /// The device's name.
        device: String,
        /// Its id.
        id: DeviceId,
        /// How large it is.
        size_bytes: u64,
        /// How large it should be.
        expected: ByteCount,
    },
    /// A chunk's stripe goes past the end of its device as the device item gives it.
    StripePastDevice {
        /// The chunk's start.
        logical: Logical,
        /// The device.
        device: DeviceId,
        /// Where the stripe ends.
        end: Physical,
        /// How large the device is.
        device_bytes: ByteCount,
    },
    /// The superblock counts other devices than the chunk tree lists.
    DeviceCount {
        /// The superblock's count.
        superblock: u64,
        /// Device items in the chunk tree.
        found: u64,
    },
    /// A system chunk in the superblock differs from the chunk tree's item; the superblock's is used.
    SystemChunkDiffers {
        /// The chunk's start.
        logical: Logical,
    },
    /// A device that was given and that the chunk tree does not list; it is not used.
    UnlistedDevice {
        /// The device's name.
        device: String,
        /// Its uuid.
        uuid: Uuid,
    },
    /// A device that was to take another's place, and that came no further.
    ReplacementTarget {
        /// The device's name.
        device: String,
        /// Its uuid.
        uuid: Uuid,
    },
    /// The volume is a seed: it is read-only for good.
    Seed,
    /// The superblock's count of bytes in use cannot be right.
    UsedBytes(UsedBytesProblem),
    /// btrfstune was cut off half way.
    Unfinished(UnfinishedChange),
    /// An image of a volume's metadata, without its data.
    MetadataImage,
}

impl Notice {
    /// Whether a writer must not touch the volume while this holds.
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
            Self::ChunkBeyondTolerance { .. }
            | Self::StripePastDevice { .. }
            | Self::SystemChunkDiffers { .. } => self.fmt_chunk(f),
        }
    }
}

impl Notice {
    /// The notices about chunks.
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
