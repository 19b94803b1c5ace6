//! When writing is refused, and the latch that stops it for good.
//!
//! A device that fails a write or a flush leaves unknown which of the bytes since the last good flush it holds. A later
//! flush that succeeds says nothing about them, so nothing may be built on them. Where the volume cannot do without the
//! device ([`failures`](super::failures)), the failure is kept, and whatever wants to write afterwards gets it as the
//! reason. Reading goes on.

use crate::Volume;
use crate::devices::DeviceSlot;
use crate::error::Error;
use crate::write::NeededDevice;
use buttress_format::error::ErrorKind;
use buttress_format::superblock::SuperblockError;
use buttress_format::{ByteCount, DeviceId, Logical};
use std::sync::{Arc, OnceLock};

/// Why something is not written.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WriteRefusal {
    /// A write or a flush failed before.
    #[error("writing has stopped: {cause}; close the volume, and run `buttress check` before the next write")]
    Stopped {
        /// What failed first.
        cause: Arc<str>,
    },
    /// A device failed that the volume cannot do without.
    #[error(transparent)]
    Needed(Box<NeededDevice>),
    /// So many of the devices are missing, left out, or behind, that the bytes could not be read back.
    #[error(
        "logical range [{logical}, +{length}) cannot be written: too many of its devices are missing, were left out or \
         missed commits"
    )]
    OutOfReach {
        /// First address.
        logical: Logical,
        /// How many bytes.
        length: ByteCount,
    },
    /// A device was opened for reading only.
    #[error("{device} was opened read-only; open it for writing")]
    ReadOnlyDevice {
        /// Its name.
        device: Arc<str>,
    },
    /// The device belongs to the seed that the volume sprouted from.
    #[error("{device} belongs to the volume's seed, which is never written to")]
    Seed {
        /// Its name.
        device: Arc<str>,
    },
    /// The chunk's bytes lie where the RAID stripe tree says, which cannot be written yet.
    #[error("logical {logical}: writing to chunks of the RAID stripe tree is not supported")]
    StripeTree {
        /// The address.
        logical: Logical,
    },
    /// A chunk is to be taken away that is not there.
    #[error("no chunk begins at logical {logical}")]
    NoSuchChunk {
        /// The address.
        logical: Logical,
    },
    /// There is no device with this id, or it is a seed's.
    #[error("the volume has no device {device}")]
    NoSuchDevice {
        /// The id.
        device: DeviceId,
    },
    /// A device is being replaced already.
    #[error("a device of the volume is already being replaced")]
    Replacing,
    /// No device can take the place of another: none was given, or it failed.
    #[error("no target device for the replacement: it failed, or none is given")]
    NoTarget,
    /// A device was to be brought up to date that missed no commit, or is missing.
    #[error("the volume has no device with uuid {uuid} that missed commits")]
    NotBehind {
        /// Its uuid.
        uuid: uuid::Uuid,
    },
    /// Superblocks were to be written without the item of one of the devices.
    #[error("no device item for {device}: its superblock cannot be written")]
    NoDeviceItem {
        /// Its name.
        device: Arc<str>,
    },
    /// A superblock that could not be opened again.
    #[error("the superblock was not written, because it could not be opened again: {0}")]
    Superblock(SuperblockError),
    /// Not one device can take a superblock.
    #[error("no device of the volume can be written to")]
    NoDevice,
}

impl WriteRefusal {
    /// The kind of the refusal.
    #[must_use]
    pub const fn kind(&self) -> ErrorKind {
        match self {
            Self::Needed(_) | Self::OutOfReach { .. } | Self::NoDevice | Self::NoTarget => ErrorKind::Io,
            Self::StripeTree { .. } => ErrorKind::Unsupported,
            Self::Superblock(_)
            | Self::Stopped { .. }
            | Self::ReadOnlyDevice { .. }
            | Self::Seed { .. }
            | Self::NoSuchChunk { .. }
            | Self::NoSuchDevice { .. }
            | Self::Replacing
            | Self::NotBehind { .. }
            | Self::NoDeviceItem { .. } => ErrorKind::Caller,
        }
    }
}

/// The first failure, once there is one.
#[derive(Debug, Default)]
pub(crate) struct ErrorState {
    cause: OnceLock<Arc<str>>,
}

impl Volume {
    /// Stops writing for good. Only the first cause is kept. Layers above call this when they cannot vouch for what was
    /// written.
    pub fn stop_writing(&self, cause: &dyn core::fmt::Display) {
        let _ = self.latch().cause.set(cause.to_string().into());
    }

    /// Why writing has stopped, if it has.
    #[must_use]
    pub fn stopped(&self) -> Option<Arc<str>> {
        self.latch().cause.get().cloned()
    }

    pub(super) fn require_writing(&self) -> Result<(), Error> {
        match self.stopped() {
            Some(cause) => Err(WriteRefusal::Stopped { cause }.into()),
            None => Ok(()),
        }
    }

    pub(super) fn stop_if_failed<T>(&self, result: Result<T, Error>) -> Result<T, Error> {
        if let Err(error) = &result
            && !buttress_faults::on("volume-writes-after-failure")
        {
            self.stop_writing(error);
        }
        result
    }

    /// Refuses devices of a seed, and those that were opened read-only.
    pub(crate) fn require_own(&self, slot: &DeviceSlot) -> Result<(), Error> {
        let device = || Arc::clone(slot.name());
        if slot.fsid() != self.superblock().fsid {
            return Err(WriteRefusal::Seed { device: device() }.into());
        }
        if !slot.device().is_some_and(buttress_device::Device::is_writable) {
            return Err(WriteRefusal::ReadOnlyDevice { device: device() }.into());
        }
        Ok(())
    }

    /// Whether every device that is there and belongs to the volume itself was opened for writing.
    #[must_use]
    pub fn is_open_for_writing(&self) -> bool {
        let fsid = self.superblock().fsid;
        let slots = self.devices();
        let mut own = slots
            .iter()
            .filter(|slot| slot.fsid() == fsid)
            .filter_map(|slot| slot.device())
            .peekable();
        own.peek().is_some() && own.all(buttress_device::Device::is_writable)
    }
}
