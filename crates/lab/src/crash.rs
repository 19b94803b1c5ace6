//! The crash laboratory: what is left on a set of devices when the power goes at any moment.
//!
//! A drive may hold back what it was given until it is told to flush, and write it in any order, in
//! part, or not at all when the power fails. A program that stores things has to cope with every
//! outcome. This lab can produce each possible outcome:
//!
//! 1. a [`CrashLab`] hands out devices that work as usual and records every write, zeroing, discard and flush of all of
//!    them in one order, and what the program says of its own ([`CrashLab::mark`]: "commit 7 has returned");
//! 2. its [`History`] then gives, for any cut of that order and any [`Outcome`] of what was not flushed by then, the
//!    devices as they would be found after the crash ([`History::images_at`]);
//! 3. a judge function of the caller inspects the devices after each cut that [`Cuts`] chooses, and
//!    returns the problems ([`History::judge`]).
//!
//! Several threads may write and flush at once. A history keeps the order in which requests began and ended: of writes that
//! overlapped in time, the one that reached the device first comes first. A flush covers the writes of all threads that had
//! returned before it began.
//!
//! What a flush promises, and no more, is kept: writes that had returned before it began, once it
//! has returned. All other writes that had begun are *in doubt*: each may be there whole, in part
//! (sector by sector), or not at all. A power cut never tears a sector: drives write sectors whole.
//!
//! Images are cheap: they share all pages with the history and copy what is written to them, so
//! that a hundred thousand cuts of one run can be tried. The images after a cut are ordinary
//! devices, and can be recovered, written to and recorded in turn. Everything follows from the
//! recorded order and the seeds: a failure is found again by its cut and its seed.
//!
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

/// What a laboratory's devices record into.
type SharedLog = Arc<Mutex<Log, LogLock>>;

/// The unit in bytes that a drive writes whole or not at all.
pub const SECTOR_BYTES: u64 = 512;

/// One thing that happened, in the order in which things began; a flush counts when it has returned.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Event {
    /// The program wrote bytes to a device.
    Write {
        /// The number of the device in the order in which the lab created the devices.
        device: usize,
        /// Where.
        offset_bytes: u64,
        /// What.
        bytes: Bytes,
    },
    /// A byte range was set to zero.
    Zero {
        /// The device.
        device: usize,
        /// Where.
        range: Range<u64>,
    },
    /// A range was given up.
    Discard {
        /// The device.
        device: usize,
        /// Where.
        range: Range<u64>,
    },
    /// A device returned from a flush.
    Flush {
        /// The device.
        device: usize,
    },
    /// The program said something.
    Mark {
        /// What.
        label: u64,
    },
}

/// An event, and when it ended.
#[derive(Clone, Debug)]
struct Recorded {
    event: Event,
    /// For what is written: when it returned, if it has. For a flush: when it began. Times count what happens.
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

/// Hands out devices that record what is done to them. Cheap to clone; all clones are one lab.
#[derive(Clone, Debug, Default)]
pub struct CrashLab {
    log: SharedLog,
    bases: Arc<Mutex<Vec<Pages>, BasesLock>>,
}

impl CrashLab {
    /// A lab without devices.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Runs a program on devices that hold what `bases` hold, and returns what happened to them. The program gets the lab for
    /// its marks, and the devices as [`Engine::Inline`] serves them. Threads of the program may use them at once.
    ///
    /// # Errors
    /// As the program.
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

    /// Returns a device with the content of `base`. `base` itself is never written to, and must not
    /// change while the lab or its history is in use. A faulty backend (see
    /// [`crate::fault::FaultyBackend`]) goes over this device, not under it.
    #[must_use]
    pub fn device(&self, base: Arc<dyn Backend>) -> Arc<dyn Backend> {
        let pages = Pages::over(base);
        let mut bases = self.bases.lock();
        bases.push(pages.clone());
        let number = bases.len().saturating_sub(1);
        Arc::new(RecordingDevice::new(number, pages, Arc::clone(&self.log)))
    }

    /// Puts a mark into the order of events: all that the program did before has returned.
    pub fn mark(&self, label: u64) {
        let mut log = self.log.lock();
        let time = Some(log.tick());
        log.events.push(Recorded {
            event: Event::Mark { label },
            time,
        });
    }

    /// How many events there are so far: a cut after the last of them.
    #[must_use]
    pub fn len(&self) -> usize {
        self.log.lock().events.len()
    }

    /// Whether nothing happened yet.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// What happened so far. Going on with the devices does not change it.
    #[must_use]
    pub fn history(&self) -> History {
        let events = self.log.lock().events.clone();
        History::new(self.bases.lock().clone(), events)
    }
}

/// Returns a device that begins as `base` and keeps what is written to it in memory. `base` itself
/// is never written to, and must not change while the copy is in use. Copies of an image cost
/// little: they share all unchanged pages.
#[must_use]
pub fn copy_of(base: Arc<dyn Backend>) -> Arc<dyn Backend> {
    Arc::new(CrashImage::new(Pages::over(base)))
}

/// The range that an event of the history changes on its device.
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
