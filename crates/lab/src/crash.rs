//! The crash laboratory: what is left on a set of devices when the power goes at any moment.
//!
//! A drive may hold back what it was given until it is told to flush, and write it in any order, in part, or not at all
//! when the power fails. A program that stores things has to cope with every outcome. Here all of them can be had:
//!
//! 1. a [`CrashLab`] hands out devices that work as usual and records every write, zeroing, discard and flush of all of
//!    them in one order, and what the program says of its own ([`CrashLab::mark`]: "commit 7 has returned");
//! 2. its [`History`] then gives, for any cut of that order and any [`Outcome`] of what was not flushed by then, the
//!    devices as they would be found after the crash ([`History::images_at`]).
//!
//! What a flush promises, and no more, is kept: writes that had returned before it began, once it has returned. All other
//! writes that had begun are *in doubt*: each may be there whole, in part (sector by sector), or not at all. Sectors are
//! never torn within: drives write them whole.
//!
//! Images are cheap: they share all pages with the history and copy what is written to them, so that a hundred thousand
//! cuts of one run can be tried. They are devices like others, and can be recovered, written to and recorded in turn.
//! Everything follows from the recorded order and the seeds: a failure is found again by its cut and its seed.
//!
//! ```
//! use buttress_lab::crash::{CrashLab, Outcome};
//! use buttress_lab::{Device, Engine, IoError, MemoryBackend};
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
//! let lab = CrashLab::new();
//! let disk = lab.device(Arc::new(MemoryBackend::new("disk", vec![0; 8192])));
//! let device = Device::with_backend(disk, Engine::Inline);
//! for number in 1..=9 {
//!     store(&device, number)?;
//!     lab.mark(number.into());
//! }
//!
//! let history = lab.history();
//! for cut in 0..=history.len() {
//!     for seed in 0..20 {
//!         let image = history.images_at(cut, Outcome::Drawn { seed }).remove(0);
//!         let found = load(&Device::with_backend(image, Engine::Inline))?;
//!         let promised = history.last_mark(cut).unwrap_or(0);
//!         assert!(u64::from(found) >= promised, "cut {cut}, seed {seed}: {found} after {promised}");
//!     }
//! }
//! # Ok::<(), IoError>(())
//! ```

mod history;
mod pages;
mod recording;

pub use history::{History, Outcome};

use std::ops::Range;
use std::sync::Arc;

use buttress_locks::unscheduled::Mutex;
use buttress_locks::{Rank, lock_class};
use bytes::Bytes;

use buttress_device::Backend;
use pages::Pages;
use recording::RecordingDevice;

lock_class!(LogLock, "log", Rank::LEAF);
lock_class!(BasesLock, "bases", Rank::LEAF);

/// What a laboratory's devices record into.
type SharedLog = Arc<Mutex<Log, LogLock>>;

/// The unit that is written whole or not at all, in bytes.
pub const SECTOR_BYTES: u64 = 512;

/// One thing that happened, in the order in which things began; a flush counts when it has returned.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Event {
    /// Bytes were given to a device.
    Write {
        /// The device, by the order in which the lab handed them out.
        device: usize,
        /// Where.
        offset_bytes: u64,
        /// What.
        bytes: Bytes,
    },
    /// A range was made zero.
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

    /// A device that holds what `base` holds. `base` itself is never written to, and must not change while the lab or
    /// its history is in use. What fails (see [`crate::FaultyBackend`]) is put over it, not under it.
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

/// The range that an event changes on its device.
fn target(event: &Event) -> Option<(usize, Range<u64>)> {
    match event {
        Event::Write {
            device,
            offset_bytes,
            bytes,
        } => {
            let end = offset_bytes.saturating_add(crate::layer::byte_length(bytes.len()));
            Some((*device, *offset_bytes..end))
        }
        Event::Zero { device, range } | Event::Discard { device, range } => Some((*device, range.clone())),
        Event::Flush { .. } | Event::Mark { .. } => None,
    }
}
