//! Resynchronisation: brings devices that missed commits up to date, while other threads may write.
//!
//! [`Resync::run`] handles one device after another. From the start of its turn, a device receives
//! every write to the volume ([`buttress_writer::Return`]). The job then visits the chunks on the
//! device, as a replacement does, and writes the missed data: extents newer than the device's
//! superblock, and data without checksums that differs. In a resync, whole rows of RAID5 and RAID6
//! are visited. The device's superblock comes last, so until then the device alone still has its
//! old state.
//!
//! An interrupted run leaves the device stale. The next run finds the bytes that the interrupted
//! run wrote, and continues.
//!
//! | event | result for the device |
//! |---|---|
//! | the progress is cancelled | it stays stale |
//! | it fails a write, or a part of the extent tree cannot be read | it stays stale, with the error |
//! | no copy gives some bytes that it missed | it stays stale, with their number |
//! | its history diverged from the volume's | it is refused, and nothing is written to it |

use crate::Shape;
use crate::copying::Copying;
use crate::error::Error;
use crate::filling_target::Replacing;
use crate::options::Options;
use crate::scrub::Scrub;
use buttress_exact::Exact as _;
use buttress_format::{ByteCount, DeviceId, Generation, Physical};
use buttress_fs::Progress;
use buttress_volume::{DeviceSlot, Volume};
use buttress_writer::{Return, WritableFilesystem};
use std::sync::Arc;

/// Options of a resynchronisation.
#[derive(Clone, Copy, Debug, Default)]
pub struct ResyncOptions {
    /// The size of groups, and how they are read.
    pub shape: Shape,
    /// The most bytes per second of each device.
    pub limit: Option<ByteCount>,
    /// The most bytes of missed extents; a device that missed more stays stale.
    pub at_most: Option<ByteCount>,
}

/// A device that was brought up to date.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResyncedDevice {
    /// The device's id.
    pub device: DeviceId,
    /// The device's name.
    pub name: Arc<str>,
    /// The generation of the device before the resync.
    pub since: Generation,
    /// The bytes of extents that the device had missed.
    pub missed: ByteCount,
    /// The bytes written to the device.
    pub written: ByteCount,
}

/// The result of one run of the resync.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Resynced {
    /// The devices that missed commits and are now resynchronized.
    pub devices: Vec<ResyncedDevice>,
    /// Devices that missed more than the options allow.
    pub left: Vec<Arc<str>>,
}

/// A job that updates all devices that missed commits.
#[derive(Debug)]
pub struct Resync {
    writable: WritableFilesystem,
    options: ResyncOptions,
    progress: Progress,
}

/// Returns the devices that missed commits and can be written.
#[must_use]
pub fn devices_behind(volume: &Volume) -> Vec<Arc<DeviceSlot>> {
    let mut slots = volume.devices();
    slots.retain(|slot| slot.behind().is_some());
    slots
}

impl Resync {
    /// Returns the resynchronisation of a volume that is open for writing.
    #[must_use]
    pub const fn new(writable: WritableFilesystem, options: ResyncOptions, progress: Progress) -> Self {
        Self {
            writable,
            options,
            progress,
        }
    }

    /// Brings all devices that missed commits up to date.
    ///
    /// # Errors
    /// Fails as [`Resync::run_as_far_as_possible`] does.
    pub fn run(&self) -> Result<Resynced, Error> {
        let (resynced, ended) = self.run_as_far_as_possible();
        ended.map(|()| resynced)
    }

    /// Brings all devices that missed commits up to date. If one device stays stale, the resync
    /// still updates the other devices.
    ///
    /// # Errors
    /// Fails with the error of the first device that stays stale, which the module's documentation
    /// and [`begin_return`](buttress_writer::MemberDevices::begin_return) list. The run fails also
    /// with [`buttress_fs::Error::Cancelled`].
    pub fn run_as_far_as_possible(&self) -> (Resynced, Result<(), Error>) {
        let volume = Arc::clone(self.writable.committed_view().volume());
        let mut resynced = Resynced::default();
        let mut ended = Ok(());
        for slot in devices_behind(&volume) {
            match self.run_device(&slot) {
                Ok(Some(device)) => resynced.devices.push(device),
                Ok(None) => resynced.left.push(Arc::clone(slot.name())),
                Err(error) => {
                    ended = ended.and(Err(error));
                    if self.progress.is_cancelled() {
                        break;
                    }
                }
            }
        }
        (resynced, ended)
    }

    fn run_device(&self, slot: &Arc<DeviceSlot>) -> Result<Option<ResyncedDevice>, Error> {
        self.progress.check()?;
        let returning = self
            .writable
            .devices()
            .begin_return(slot.uuid(), &self.progress)?;
        let missed = returning.missed();
        if self.options.at_most.is_some_and(|most| missed > most) {
            return Ok(None);
        }
        let since = returning
            .replacement()
            .returning()
            .map(|returning| returning.since);
        let written = self.fill(slot, &returning)?;
        self.writable.devices().end_return(returning)?;
        Ok(Some(ResyncedDevice {
            device: slot.id(),
            name: Arc::clone(slot.name()),
            // Clamp: the missed generation is only displayed.
            since: since.unwrap_or(Generation::MIN),
            missed,
            written: ByteCount::new(written),
        }))
    }

    /// Writes what the device missed. Returns the number of bytes.
    fn fill(&self, slot: &Arc<DeviceSlot>, returning: &Return) -> Result<u64, Error> {
        let options = Options {
            read_only: true,
            limit: self.options.limit,
            shape: self.options.shape,
            ..Options::default()
        };
        let replaces = Replacing {
            copying: Copying {
                replacement: Arc::clone(returning.replacement()),
                avoids_source: false,
            },
            cursor: Physical::MIN,
        };
        let before = self.progress.snapshot().expected;
        let views = || self.writable.committed_view();
        let job = Scrub::make(&views(), options, self.progress.clone(), Some(replaces))?.beside(&views);
        // The progress counts the bytes of all devices together.
        let own = self.progress.snapshot().expected;
        self.progress.expect(before.exact_add(own));
        let ended = job.run();
        let filled = job.filled();
        let device = || slot.name().to_string();
        if let Some(failure) = filled.failure {
            let device = device();
            return Err(Error::ReturnFailed { device, failure });
        }
        ended?;
        let parts = job.report().unwalked;
        if !parts.is_empty() {
            let device = device();
            return Err(Error::ReturnNotWalked { device, parts });
        }
        if !filled.lost.is_empty() {
            let lengths = filled.lost.iter().map(|lost| lost.length.get());
            let (device, bytes) = (device(), lengths.fold(0, u64::exact_add));
            return Err(Error::ReturnLacks { device, bytes });
        }
        Ok(filled.written)
    }
}
