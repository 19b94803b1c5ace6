//! Refusals of writes, and the error state that stops writing for good.
//!
//! After a failed write or flush, it is unknown which of the bytes since the last good flush the
//! device holds. A later successful flush proves nothing about the failed bytes, so the volume must
//! not depend on them. If the volume cannot do without the failed device
//! ([`failures`](super::failures)), every later write fails with this failure as its reason.
//! Reading continues.

use crate::Volume;
use crate::devices::DeviceSlot;
use crate::error::Error;
use crate::write::NeededDevice;
use buttress_format::error::ErrorKind;
use buttress_format::superblock::SuperblockError;
use buttress_format::{ByteCount, DeviceId, Logical};
use std::sync::{Arc, OnceLock};

/// The reason why a write is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WriteRefusal {
    /// A write or a flush has failed before.
    #[error("writing has stopped: {cause}; close the volume, and run `buttress check` before the next write")]
    Stopped {
        /// The first failure.
        cause: Arc<str>,
    },
    /// The volume needs a device that failed.
    #[error(transparent)]
    Needed(Box<NeededDevice>),
    /// Too many devices are missing, left out or behind, so the bytes could not be read back.
    #[error(
        "logical range [{logical}, +{length}) cannot be written: too many of its devices are missing, were left out or \
         missed commits"
    )]
    OutOfReach {
        /// The first address of the write.
        logical: Logical,
        /// The number of bytes.
        length: ByteCount,
    },
    /// A device was opened for reading only.
    #[error("{device} is open read-only; open it for writing")]
    ReadOnlyDevice {
        /// The device's name.
        device: Arc<str>,
    },
    /// The device belongs to the seed that the volume sprouted from.
    #[error("{device} belongs to the volume's seed, which is never written to")]
    Seed {
        /// The device's name.
        device: Arc<str>,
    },
    /// The RAID stripe tree locates the chunk's bytes, and this version cannot write that tree.
    #[error("logical {logical}: writing to chunks of the RAID stripe tree is not supported")]
    StripeTree {
        /// The logical address of the write.
        logical: Logical,
    },
    /// The chunk to remove does not exist.
    #[error("no chunk begins at logical {logical}")]
    NoSuchChunk {
        /// The first logical address of the missing chunk.
        logical: Logical,
    },
    /// No device has this id, or the device belongs to a seed.
    #[error("the volume has no device {device}")]
    NoSuchDevice {
        /// The id of the device.
        device: DeviceId,
    },
    /// Another replacement is in progress.
    #[error("a device of the volume is already being replaced")]
    Replacing,
    /// No device can replace another: no target was given, or it failed.
    #[error("no target device for the replacement: it failed, or none is given")]
    NoTarget,
    /// The device to bring up to date missed no commit, or is missing.
    #[error("the volume has no device with uuid {uuid} that missed commits")]
    NotBehind {
        /// The device's uuid.
        uuid: uuid::Uuid,
    },
    /// The new superblocks lack the item of a device.
    #[error("no device item for {device}: its superblock cannot be written")]
    NoDeviceItem {
        /// The device's name.
        device: Arc<str>,
    },
    /// The volume could not be opened again with the superblock to be written.
    #[error("the superblock was not written, because it could not be opened again: {0}")]
    Superblock(SuperblockError),
    /// No device can receive a superblock.
    #[error("no device of the volume can be written to")]
    NoDevice,
}

impl WriteRefusal {
    /// Returns the kind of the refusal.
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

/// The first failure, once one has occurred.
#[derive(Debug, Default)]
pub(crate) struct ErrorState {
    cause: OnceLock<Arc<str>>,
}

impl Volume {
    /// Stops writing for good. Keeps only the first cause of the stop. Layers above the volume call
    /// this if they cannot guarantee the correctness of written data.
    pub fn stop_writing(&self, cause: &dyn core::fmt::Display) {
        let _ = self.latch().cause.set(cause.to_string().into());
    }

    /// Returns the reason why writing has stopped, if it has.
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

    /// Refuses devices of a seed, and devices that were opened read-only.
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

    /// Returns true if every present device of the volume itself was opened for writing.
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
