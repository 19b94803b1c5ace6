//! The fault log: copies that reads skipped, whether another copy replaced them or not.
//!
//! The log keeps the first [`FAULTS_KEPT`] faults individually and counts the rest, so a failing
//! device cannot exhaust memory. The counters for each device and kind are exact. A place that
//! fails repeatedly is counted each time. The log of faults records only failures, under one lock.
//!
//! Clamps: counters of statistics may stop at their largest number.

use crate::devices::DeviceSlot;
use buttress_device::IoError;
use buttress_format::{ByteCount, DeviceId, Logical, Physical};
use buttress_locks::{Mutex, Rank, lock_class};
use core::fmt;
use std::collections::BTreeMap;
use std::sync::Arc;

lock_class!(LogLock, "log", Rank::LEAF);

/// The number of faults that the log keeps individually.
pub const FAULTS_KEPT: usize = 1024;

/// The reason why a verifier rejected bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rejection {
    reason: Arc<str>,
}

impl Rejection {
    /// Makes a rejection with this reason, such as the error of the failed check.
    #[must_use]
    pub fn new(reason: impl fmt::Display) -> Self {
        Self {
            reason: reason.to_string().into(),
        }
    }

    /// Returns the reason as text.
    #[must_use]
    pub fn reason(&self) -> &str {
        &self.reason
    }
}

impl fmt::Display for Rejection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.reason)
    }
}

impl<E: core::error::Error> From<E> for Rejection {
    fn from(error: E) -> Self {
        Self::new(error)
    }
}

/// The reason why a copy was skipped.
#[derive(Clone, Debug)]
pub enum FaultReason {
    /// The device was not given.
    Missing,
    /// The device was left out after a failed write or flush.
    LeftOut,
    /// The device missed commits, and no checksum can show if the bytes are current.
    Stale,
    /// The read of the copy failed.
    Io(IoError),
    /// The read extends beyond the end of the device: the image is truncated, or the chunk is
    /// wrong.
    BeyondEnd {
        /// The exclusive end of the read.
        end: Physical,
        /// The device's size.
        size_bytes: u64,
    },
    /// The bytes failed their check.
    Rejected(Rejection),
    /// Sectors do not match their checksums.
    BadSectors {
        /// The size of the bad sectors in bytes.
        bytes: u64,
    },
}

impl FaultReason {
    /// Returns the reason why reads skip a device that is missing, stale or left out.
    pub(crate) fn of_absence(slot: &DeviceSlot) -> Self {
        match (slot.failure(), slot.stale()) {
            (Some(_), _) => Self::LeftOut,
            (None, Some(_)) => Self::Stale,
            (None, None) => Self::Missing,
        }
    }

    /// Returns true if bytes were read but are wrong. Returns false if no bytes could be read.
    #[must_use]
    pub const fn is_corruption(&self) -> bool {
        matches!(self, Self::Rejected(_) | Self::BadSectors { .. })
    }
}

impl fmt::Display for FaultReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Missing => f.write_str("device missing"),
            Self::LeftOut => f.write_str("device left out after a failed write or flush"),
            Self::Stale => f.write_str("device missed commits, and nothing verifies the bytes"),
            Self::Io(error) => write!(f, "{error}"),
            Self::BeyondEnd { end, size_bytes } => {
                write!(f, "ends at physical {end}, past the device's end at {size_bytes}")
            }
            Self::Rejected(rejection) => write!(f, "{rejection}"),
            Self::BadSectors { bytes } => write!(f, "checksum mismatch in {bytes} bytes"),
        }
    }
}

/// A copy of bytes that a reader skipped.
#[derive(Clone, Debug)]
pub struct Fault {
    /// The device.
    pub device: DeviceId,
    /// The name by which the device was opened, or `missing` for a device that was not given.
    pub device_name: Arc<str>,
    /// The physical address on the device.
    pub physical: Physical,
    /// The logical address of the bytes.
    pub logical: Logical,
    /// The length of the bytes.
    pub length: ByteCount,
    /// The number of the copy, from 1. With parity, copies from 2 on are ways to rebuild.
    pub copy: u32,
    /// The reason why the copy was skipped.
    pub reason: FaultReason,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "device {} ({}), physical {}: copy {} of logical [{}, +{}) skipped: {}",
            self.device, self.device_name, self.physical, self.copy, self.logical, self.length, self.reason
        )
    }
}

/// The number of skipped copies on one device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FaultCounts {
    /// The number of copies skipped because the device was missing or left out.
    pub missing: u64,
    /// The number of copies skipped because of a failed read or the end of the device.
    pub read_errors: u64,
    /// The number of copies that readers skipped because of wrong bytes.
    pub corruptions: u64,
}

impl FaultCounts {
    /// Returns the sum of all counters.
    #[must_use]
    pub const fn total(&self) -> u64 {
        self.missing
            .saturating_add(self.read_errors)
            .saturating_add(self.corruptions)
    }
}

/// The log at one moment.
#[derive(Clone, Debug, Default)]
pub struct FaultLog {
    /// The first faults that readers met, in the order of their occurrence.
    pub faults: Vec<Fault>,
    /// The number of further faults, of which only the number is kept.
    pub not_kept: u64,
    /// The fault counters of each device, including faults that are not kept in the list.
    pub counts: BTreeMap<DeviceId, FaultCounts>,
}

impl FaultLog {
    /// Returns true if no copy was skipped.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.counts.is_empty()
    }

    /// Returns the number of faults on all devices.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.counts
            .values()
            .fold(0, |sum, counts| sum.saturating_add(counts.total()))
    }
}

/// A callback that receives each fault, on the thread of the reader that found it.
pub type HearFault = dyn Fn(&Fault) + Send + Sync;

/// The callback that receives faults.
#[derive(Clone)]
pub(crate) struct HearsFaults(pub(crate) Arc<HearFault>);

impl fmt::Debug for HearsFaults {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("HearsFaults")
    }
}

/// The recorder of faults.
#[derive(Debug, Default)]
pub(crate) struct FaultRecorder {
    log: Mutex<FaultLog, LogLock>,
}

impl FaultRecorder {
    pub(crate) fn record(&self, fault: Fault) {
        let mut log = self.log.lock();
        let counts = log.counts.entry(fault.device).or_default();
        let counter = match &fault.reason {
            FaultReason::Missing | FaultReason::LeftOut | FaultReason::Stale => &mut counts.missing,
            FaultReason::Io(_) | FaultReason::BeyondEnd { .. } => &mut counts.read_errors,
            FaultReason::Rejected(_) | FaultReason::BadSectors { .. } => &mut counts.corruptions,
        };
        *counter = counter.saturating_add(1);
        if log.faults.len() < FAULTS_KEPT {
            log.faults.push(fault);
        } else {
            log.not_kept = log.not_kept.saturating_add(1);
        }
    }

    pub(crate) fn snapshot(&self) -> FaultLog {
        self.log.lock().clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_log_is_bounded_and_the_counters_are_not() {
        let recorder = FaultRecorder::default();
        for round in 0..FAULTS_KEPT as u64 + 5 {
            recorder.record(Fault {
                device: DeviceId::new(round % 2 + 1),
                device_name: "a.img".into(),
                physical: Physical::new(round),
                logical: Logical::new(round),
                length: ByteCount::new(4096),
                copy: 1,
                reason: if round == 0 {
                    FaultReason::Missing
                } else {
                    FaultReason::BadSectors { bytes: 4096 }
                },
            });
        }
        let log = recorder.snapshot();
        assert_eq!(log.faults.len(), FAULTS_KEPT);
        assert_eq!(log.not_kept, 5);
        assert_eq!(log.total(), FAULTS_KEPT as u64 + 5);
        let first = log.counts[&DeviceId::new(1)];
        assert_eq!((first.missing, first.read_errors), (1, 0));
        assert_eq!(
            log.faults[0].to_string(),
            "device 1 (a.img), physical 0: copy 1 of logical [0, +4096) skipped: device missing"
        );
    }
}
