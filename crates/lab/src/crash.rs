//! The crash laboratory: the state of a set of devices after a power failure at any moment.
//!
//! A drive may hold writes back until a flush. If the power fails, the drive may have written
//! held-back writes in any order, in part, or not at all. A program that stores data has to handle
//! every outcome. The laboratory produces all of these outcomes:
//!
//! 1. A [`CrashLab`] hands out ordinary devices. It records their writes, zeroings, discards and
//!    flushes in one order, together with the program's own marks ([`CrashLab::mark`]: "commit 7
//!    has returned").
//! 2. The [`History`] of a lab gives the devices after a crash, for any cut of that order and any
//!    [`Outcome`] of the unflushed writes ([`History::images_at`]).
//! 3. The caller's judge inspects the devices at all cuts that [`Cuts`] chooses, and returns the
//!    problems ([`History::judge`]).
//!
//! Several threads may write and flush at once. A history records the order in which requests began
//! and ended. Of two writes that overlapped in time, the write that reached the device first comes
//! first. A flush covers the writes of all threads that had returned before the flush began.
//!
//! The laboratory keeps exactly the promise of a flush: once the flush has returned, writes that
//! had returned before it began are present. All other writes that had begun are *in doubt*: each
//! may be present whole, in part (sector by sector), or not at all. A sector is never torn, because
//! drives write sectors whole.
//!
//! Images are cheap: they share all pages with the history and copy only pages that are written. A
//! test can therefore try a hundred thousand cuts of a run. An image is a device like others: a
//! program can recover it, write to it and record it in turn. All results follow from the recorded
//! order and the seeds, so a cut and a seed reproduce a failure.
//! ```
//! use buttress_lab::crash::{CrashLab, Cuts};
//! use buttress_lab::{Backend, Device, IoError, MemoryBackend};
//! use std::sync::Arc;
//!
//! // A store of one number: two slots that are written in turn, and a flush that makes a number count.
//! fn store(device: &Device, number: u8) -> Result<(), IoError> {
//!     let slot = u64::from(number % 2) * 4096;
//!     device.write(slot, &[number; 512])?;
//!     device.flush()
//! }
//! fn load(device: &Device) -> Result<u8, IoError> {
//!     let (even, odd) = (device.read(0, 512)?, device.read(4096, 512)?);
//!     Ok(even[0].max(odd[0]))
//! }
//!
//! let disk: Arc<dyn Backend> = Arc::new(MemoryBackend::new("disk", vec![0; 8192]));
//! let history = CrashLab::record([disk], |lab, devices| {
//!     for number in 1..=9 {
//!         store(&devices[0], number)?;
//!         lab.mark(number.into());
//!     }
//!     Ok::<(), IoError>(())
//! })?;
//!
//! let verdict = history.judge(&Cuts::every().draws(20), |state| {
//!     let found = load(&state.devices()[0]).map_err(|error| error.to_string())?;
//!     let promised = state.last_mark().unwrap_or(0);
//!     match u64::from(found) >= promised {
//!         true => Ok(()),
//!         false => Err(format!("{found} after {promised}")),
//!     }
//! });
//! assert!(verdict.accepted()? > 19);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! Clamps: of a laboratory for tests, whose images are compared as a whole.

mod history;
mod judging;
mod pages;
mod recording;

pub use history::{History, Outcome};
pub use judging::{Complaint, CutState, Cuts, Rejected, Verdict};

use std::ops::Range;
use std::sync::Arc;

use buttress_locks::unscheduled::Mutex;
use buttress_locks::{Rank, lock_class};
use bytes::Bytes;

use buttress_device::Backend;
use buttress_device::{Device, Engine};
use pages::Pages;
use recording::{CrashImage, RecordingDevice};

lock_class!(LogLock, "log", Rank::LEAF);
lock_class!(BasesLock, "bases", Rank::LEAF);

/// The log into which a laboratory's devices record.
type SharedLog = Arc<Mutex<Log, LogLock>>;

/// The unit that drives write whole or not at all, in bytes.
pub const SECTOR_BYTES: u64 = 512;

/// A recorded event. Events are in the order of their beginnings; a flush counts as an event when
/// it has returned.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Event {
    /// A write of bytes to a device.
    Write {
        /// The device's number, in the order in which the lab handed devices out.
        device: usize,
        /// The offset of the write on the device.
        offset_bytes: u64,
        /// The written bytes.
        bytes: Bytes,
    },
    /// A zeroing of a range.
    Zero {
        /// The device's number.
        device: usize,
        /// The zeroed range, in bytes.
        range: Range<u64>,
    },
    /// A discard of a range.
    Discard {
        /// The device's number.
        device: usize,
        /// The discarded range, in bytes.
        range: Range<u64>,
    },
    /// A device returned from a flush.
    Flush {
        /// The device's number.
        device: usize,
    },
    /// A mark of the program.
    Mark {
        /// The label of the mark.
        label: u64,
    },
}

/// An event, with the time of its end.
#[derive(Clone, Debug)]
struct Recorded {
    event: Event,
    /// For a change of bytes: the time of its return, if it has returned. For a flush: the time of
    /// its beginning. Times count recorded events.
    time: Option<u64>,
}

#[derive(Debug, Default)]
struct Log {
    clock: u64,
    events: Vec<Recorded>,
}

impl Log {
    fn tick(&mut self) -> u64 {
        self.clock = self.clock.saturating_add(1);
        self.clock
    }
}

/// A laboratory of devices that record their requests. Cloning a lab is cheap; all clones are one
/// lab.
#[derive(Clone, Debug, Default)]
pub struct CrashLab {
    log: SharedLog,
    bases: Arc<Mutex<Vec<Pages>, BasesLock>>,
}

impl CrashLab {
    /// Returns a lab without devices.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Runs a program on copies of `bases`, and returns the history of these devices. The program
    /// gets the lab for its marks, and the devices as [`Engine::Inline`] serves them. Threads of
    /// the program may use the devices at once.
    ///
    /// # Errors
    /// Returns the error of the program.
    pub fn record<E>(
        bases: impl IntoIterator<Item = Arc<dyn Backend>>,
        program: impl FnOnce(&Self, Vec<Device>) -> Result<(), E>,
    ) -> Result<History, E> {
        let lab = Self::new();
        let device = |base| Device::with_backend(lab.device(base), Engine::Inline);
        let devices = bases.into_iter().map(device).collect();
        program(&lab, devices)?;
        Ok(lab.history())
    }

    /// Returns a recording device with the content of `base`. The lab never writes to `base`, which
    /// must not change while the lab or its history is in use. Faults (see
    /// [`crate::fault::FaultyBackend`]) go over this device, not under it.
    #[must_use]
    pub fn device(&self, base: Arc<dyn Backend>) -> Arc<dyn Backend> {
        let pages = Pages::over(base);
        let mut bases = self.bases.lock();
        bases.push(pages.clone());
        let number = bases.len().saturating_sub(1);
        Arc::new(RecordingDevice::new(number, pages, Arc::clone(&self.log)))
    }

    /// Puts a mark into the order of events. All earlier calls of the program must have returned.
    pub fn mark(&self, label: u64) {
        let mut log = self.log.lock();
        let time = Some(log.tick());
        log.events.push(Recorded {
            event: Event::Mark { label },
            time,
        });
    }

    /// Returns the number of events so far: the cut after the last event.
    #[must_use]
    pub fn len(&self) -> usize {
        self.log.lock().events.len()
    }

    /// Returns whether no event has happened yet.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the history so far. Later use of the devices does not change the returned history.
    #[must_use]
    pub fn history(&self) -> History {
        let events = self.log.lock().events.clone();
        History::new(self.bases.lock().clone(), events)
    }
}

/// Returns a device that starts as `base` and keeps its writes in memory. The copy never writes to
/// `base`, which must not change while the copy is in use. Copies are cheap, because all of them
/// share unchanged pages.
#[must_use]
pub fn copy_of(base: Arc<dyn Backend>) -> Arc<dyn Backend> {
    Arc::new(CrashImage::new(Pages::over(base)))
}

/// Returns the device and the range that an event changes.
fn target(event: &Event) -> Option<(usize, Range<u64>)> {
    match event {
        Event::Write {
            device,
            offset_bytes,
            bytes,
        } => {
            let end = offset_bytes.saturating_add(buttress_exact::u64_of(bytes.len()));
            Some((*device, *offset_bytes..end))
        }
        Event::Zero { device, range } | Event::Discard { device, range } => Some((*device, range.clone())),
        Event::Flush { .. } | Event::Mark { .. } => None,
    }
}
