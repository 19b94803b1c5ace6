//! What reads passed over: copies that failed while another stood in, and those that nothing could replace.
//!
//! The log keeps the first [`FAULTS_KEPT`] faults one by one and counts the rest, so that a device full of
//! noise cannot fill memory; counters per device and kind are exact. A place that fails again and again is
//! counted each time. Recording happens only when something failed, behind one lock.
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

/// How many faults are kept one by one.
pub const FAULTS_KEPT: usize = 1024;

/// Why a verifier did not accept the bytes that it was shown.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rejection {
    reason: Arc<str>,
}

impl Rejection {
    /// A rejection for a reason, such as the error of the check that failed.
    #[must_use]
    pub fn new(reason: impl fmt::Display) -> Self {
        Self {
            reason: reason.to_string().into(),
        }
    }

    /// The reason in words.
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

/// Why a copy was passed over.
#[derive(Clone, Debug)]
pub enum FaultReason {
    /// The device was not given.
    Missing,
    /// The device failed a write or a flush, and was left out since.
    LeftOut,
    /// The device missed commits, and the bytes have no checksum that shows whether they are current.
    Stale,
    /// The device failed to read.
    Io(IoError),
    /// The read would go past the end of the device: an image cut short, or a chunk that lies.
    BeyondEnd {
        /// First byte past what was to be read.
        end: Physical,
        /// The device's size.
        size_bytes: u64,
    },
    /// The bytes were read and did not pass their check.
    Rejected(Rejection),
    /// Sectors of the bytes that were read did not match their checksums.
    BadSectors {
        /// How many bytes.
        bytes: u64,
    },
}

impl FaultReason {
    /// Why a device that is not in use is not read.
    pub(crate) fn of_absence(slot: &DeviceSlot) -> Self {
        match (slot.failure(), slot.stale()) {
            (Some(_), _) => Self::LeftOut,
            (None, Some(_)) => Self::Stale,
            (None, None) => Self::Missing,
        }
    }

    /// Whether bytes came back and were wrong, rather than not coming back.
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

/// A copy that was passed over.
#[derive(Clone, Debug)]
pub struct Fault {
    /// The device.
    pub device: DeviceId,
    /// The name it was opened by; `missing` for one that was not given.
    pub device_name: Arc<str>,
    /// Where on the device.
    pub physical: Physical,
    /// What lies there.
    pub logical: Logical,
    /// How many bytes of it.
    pub length: ByteCount,
    /// The copy, from 1; with parity, copies from 2 on are ways to rebuild.
    pub copy: u32,
    /// Why it was passed over.
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

/// How often copies on one device were passed over.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FaultCounts {
    /// Because the device was missing or left out.
    pub missing: u64,
    /// Because it failed to read, or ended too early.
    pub read_errors: u64,
    /// Because the bytes were wrong.
    pub corruptions: u64,
}

impl FaultCounts {
    /// All of them.
    #[must_use]
    pub const fn total(&self) -> u64 {
        self.missing
            .saturating_add(self.read_errors)
            .saturating_add(self.corruptions)
    }
}

/// The log as it was at one moment.
#[derive(Clone, Debug, Default)]
pub struct FaultLog {
    /// The first faults, in the order in which they were met.
    pub faults: Vec<Fault>,
    /// How many came after those.
    pub not_kept: u64,
    /// Counters per device, all faults included.
    pub counts: BTreeMap<DeviceId, FaultCounts>,
}

impl FaultLog {
    /// Whether nothing was passed over.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.counts.is_empty()
    }

    /// How many faults there were on all devices.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.counts
            .values()
            .fold(0, |sum, counts| sum.saturating_add(counts.total()))
    }
}

/// Is told of a fault, on the thread of the reader that met it.
pub type HearFault = dyn Fn(&Fault) + Send + Sync;

/// Who is told of faults.
#[derive(Clone)]
pub(crate) struct HearsFaults(pub(crate) Arc<HearFault>);

impl fmt::Debug for HearsFaults {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("HearsFaults")
    }
}

/// Where faults are recorded.
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
