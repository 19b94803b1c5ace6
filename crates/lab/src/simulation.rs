//! Simulated disks: real bytes, virtual time.
//!
//! A simulated device takes its bytes from any backend (memory, a file, faults over either), and
//! the times of reads and writes from a drive model. Nothing runs beside the caller: the clock
//! ([`VirtualClock`]) moves only when somebody waits for a request, and by the CPU time that
//! callers charge. Requests that were queued before are served in the background of that time, so
//! reading ahead pays exactly as it would.
//!
//! - [`spinning`]: a 7200 rpm disk: seek curve, rotation, zones, track skew, on-drive read-ahead,
//!   and requests requests chosen by shortest positioning time;
//! - [`flash`]: SSDs: latency, parallel units, one bus;
//! - any drive model with slow regions ([`Model::slow_in`]): sectors that are about to fail;
//! - [`disk`]: the event loop that serves the queue in virtual time.
//!
//! Parameters and their sources: docs/internals/simulated-disks.md. Times are integers of
//! nanoseconds, and only times determine choices, so two runs give equal figures. Requests pass
//! through the same plug and the same counters as on real devices.
//!
//! What it leaves out: write caches (a write is done when the medium has it; a flush only waits), retries, heat.
//!
//! Clamps: times and costs of a simulated disk; no bytes depend on them.

pub(crate) mod disk;
pub(crate) mod flash;
pub(crate) mod spinning;

use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use buttress_device::{Backend, Device, VirtualClock};

use disk::SimulatedDisk;
pub use flash::{FlashParameters, FlashTimes};
pub use spinning::SpinningParameters;

/// Makes a simulated device: its bytes are the backend's, its time the model's, on `clock`. Devices of one pool share a
/// clock. The model's queue depth applies; everything runs on the calling thread.
#[must_use]
pub fn simulated(backend: Arc<dyn Backend>, model: &Model, clock: &VirtualClock) -> Device {
    let disk = SimulatedDisk::new(clock.clone(), model);
    Device::with_schedule(backend, clock, Box::new(disk))
}

/// Makes a simulated device with the content of `device`, as if it were on such a drive. Its clock
/// and its statistics are its own.
#[must_use]
pub fn as_if_on(device: &Device, model: &Model, clock: &VirtualClock) -> Device {
    simulated(Arc::clone(device.backend()), model, clock)
}

/// Which drive a simulated device behaves like.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Model {
    /// A spinning disk.
    Spinning(SpinningParameters),
    /// A solid-state drive.
    Flash(FlashParameters),
    /// A drive that takes no time.
    Null,
    /// Another drive, which is slow in places: it tries again and again there before it gives the bytes.
    WithSlowRegions {
        /// The drive.
        drive: Box<Self>,
        /// Where, in bytes, and how much longer each request takes that touches it.
        regions: Vec<(Range<u64>, Duration)>,
    },
}

impl Model {
    /// The 7200 rpm disk of docs/internals/simulated-disks.md.
    #[must_use]
    pub fn spinning_7200() -> Self {
        Self::Spinning(SpinningParameters::disk_7200())
    }

    /// The SATA SSD of docs/internals/simulated-disks.md.
    #[must_use]
    pub fn sata_ssd() -> Self {
        Self::Flash(FlashParameters::sata_ssd())
    }

    /// The NVMe SSD of docs/internals/simulated-disks.md.
    #[must_use]
    pub fn nvme_ssd() -> Self {
        Self::Flash(FlashParameters::nvme_ssd())
    }

    /// The same drive, slow in a region of so many bytes.
    #[must_use]
    pub fn slow_in(self, region: Range<u64>, longer: Duration) -> Self {
        match self {
            Self::WithSlowRegions { drive, mut regions } => {
                regions.push((region, longer));
                Self::WithSlowRegions { drive, regions }
            }
            other => Self::WithSlowRegions {
                drive: Box::new(other),
                regions: vec![(region, longer)],
            },
        }
    }

    fn drive(&self) -> Box<dyn Drive> {
        match self {
            Self::Spinning(parameters) => Box::new(spinning::SpinningDrive::new(parameters.clone())),
            Self::Flash(parameters) => Box::new(flash::FlashDrive::new(parameters.clone())),
            Self::Null => Box::new(NullDrive),
            Self::WithSlowRegions { drive, regions } => Box::new(SlowDrive {
                drive: drive.drive(),
                regions: regions.clone(),
            }),
        }
    }
}

/// Which way bytes go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Direction {
    Read,
    Write,
}

/// A request as a drive sees it. Times in nanoseconds of virtual time.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Command {
    pub(crate) direction: Direction,
    pub(crate) offset_bytes: u64,
    pub(crate) length_bytes: u64,
    /// When the drive got it.
    pub(crate) arrived: u64,
}

/// When a request that was begun is done, and when the drive can begin another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Served {
    pub(crate) done: u64,
    pub(crate) next_start: u64,
}

/// A drive's mechanics.
pub(crate) trait Drive: Send + fmt::Debug {
    /// How many requests it takes in at once and may choose among.
    fn queue_depth(&self) -> usize;

    /// The index of the request it begins at the time `now`. Invariant: `queue` is not empty.
    fn choose(&self, queue: &[Command], now: u64) -> usize;

    /// Begins a request at the time `start`.
    fn serve(&mut self, command: &Command, start: u64) -> Served;
}

/// A drive with regions in which requests take longer. The slow drive begins no other request
/// during that time.
#[derive(Debug)]
struct SlowDrive {
    drive: Box<dyn Drive>,
    regions: Vec<(Range<u64>, Duration)>,
}

impl Drive for SlowDrive {
    fn queue_depth(&self) -> usize {
        self.drive.queue_depth()
    }

    fn choose(&self, queue: &[Command], now: u64) -> usize {
        self.drive.choose(queue, now)
    }

    fn serve(&mut self, command: &Command, start: u64) -> Served {
        let end = command.offset_bytes.saturating_add(command.length_bytes);
        let touched = self
            .regions
            .iter()
            .filter(|(region, _)| region.start < end && command.offset_bytes < region.end);
        let longer = touched.fold(0_u64, |sum, (_, longer)| {
            sum.saturating_add(u64::try_from(longer.as_nanos()).unwrap_or(u64::MAX))
        });
        let served = self.drive.serve(command, start);
        if longer == 0 {
            return served;
        }
        let done = served.done.saturating_add(longer);
        Served {
            done,
            next_start: done,
        }
    }
}

/// A drive that takes no time and serves in order.
#[derive(Debug)]
struct NullDrive;

impl Drive for NullDrive {
    fn queue_depth(&self) -> usize {
        1
    }

    fn choose(&self, _queue: &[Command], _now: u64) -> usize {
        0
    }

    fn serve(&mut self, _command: &Command, start: u64) -> Served {
        Served {
            done: start,
            next_start: start,
        }
    }
}
