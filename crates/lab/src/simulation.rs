//! Simulated disks: real bytes, virtual time.
//!
//! A simulated device takes its bytes from any backend (memory, a file, faults over either). The
//! model of a drive gives the time of reads and writes. No thread runs beside the caller: the clock
//! ([`VirtualClock`]) advances only when a caller waits for a request, and by the CPU time that
//! callers charge. While the caller waits or charges CPU time, the drive serves requests that were
//! queued earlier. Reading ahead therefore gains exactly as much as on a real drive.
//!
//! - [`spinning`]: a 7200 rpm disk: seek curve, rotation, zones, track skew, on-drive read-ahead,
//!   and requests chosen by shortest positioning time;
//! - [`flash`]: SSDs: latency, parallel units, one bus;
//! - each model with slow regions ([`Model::slow_in`]): sectors that will fail soon;
//! - [`disk`]: the event loop that serves the queue in virtual time.
//!
//! Parameters and their sources: docs/internals/simulated-disks.md. Times are integers of
//! nanoseconds, and every choice depends on them alone, so two runs give equal figures. Requests
//! pass through the same plug and the same counters as on real devices.
//!
//! Left out: write caches (a write completes when the medium has it, and a flush only waits),
//! retries, and heat.
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

/// Makes a simulated device with the backend's bytes and the model's times, on `clock`. Devices of
/// a pool share a clock. The model's queue depth applies; everything runs on the calling thread.
#[must_use]
pub fn simulated(backend: Arc<dyn Backend>, model: &Model, clock: &VirtualClock) -> Device {
    let disk = SimulatedDisk::new(clock.clone(), model);
    Device::with_schedule(backend, clock, Box::new(disk))
}

/// Makes a simulated device with the content of `device`, as if that content were on such a drive.
/// The simulated device has its own clock and statistics.
#[must_use]
pub fn as_if_on(device: &Device, model: &Model, clock: &VirtualClock) -> Device {
    simulated(Arc::clone(device.backend()), model, clock)
}

/// The drive that a simulated device models.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Model {
    /// A spinning disk.
    Spinning(SpinningParameters),
    /// A solid-state drive.
    Flash(FlashParameters),
    /// A drive that takes no time.
    Null,
    /// Another drive with slow regions, in which the drive retries many times before it returns the
    /// bytes.
    WithSlowRegions {
        /// The drive without slow regions.
        drive: Box<Self>,
        /// The regions in bytes, each with the additional time of a request that touches it.
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

    /// Returns the same drive with a slow region.
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

/// The direction of a transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Direction {
    Read,
    Write,
}

/// A request in a drive's queue. Times are nanoseconds of virtual time.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Command {
    pub(crate) direction: Direction,
    pub(crate) offset_bytes: u64,
    pub(crate) length_bytes: u64,
    /// The time at which the drive got the request.
    pub(crate) arrived: u64,
}

/// The end of a request that has begun, and the earliest time of the drive's next request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Served {
    pub(crate) done: u64,
    pub(crate) next_start: u64,
}

/// A drive's mechanics.
pub(crate) trait Drive: Send + fmt::Debug {
    /// Returns the number of requests that the drive accepts at once and chooses among.
    fn queue_depth(&self) -> usize;

    /// Returns the index of the request that the drive begins at the time `now`. `queue` is not
    /// empty.
    fn choose(&self, queue: &[Command], now: u64) -> usize;

    /// Begins a request at the time `start`.
    fn serve(&mut self, command: &Command, start: u64) -> Served;
}

/// A drive with regions in which requests take longer. During a request in a slow region the drive
/// begins no other request.
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
