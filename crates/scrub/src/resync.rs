//! Resynchronisation: devices that missed commits are brought up to date, while others may write.
//!
//! [`Resync::run`] takes one device after another. From the begin of its turn a device gets whatever is written to the volume
//! ([`buttress_writer::Return`]). Then the job goes over the chunks on it, as replacing does, and writes what it missed: extents
//! that are newer than its superblock, and data without checksums that differs. Rows of RAID5 and RAID6 are gone over whole.
//! The device's superblock comes last, so that until then the device alone is read as before.
//!
//! A run that is interrupted leaves the device behind. The next run finds in place what the first wrote, and goes on.
//!
//! | what happens | what becomes of the device |
//! |---|---|
//! | the progress is cancelled | it stays behind |
//! | it fails a write, or a part of the extent tree cannot be read | it stays behind, with the error |
//! | no copy gives some bytes that it missed | it stays behind, with their number |
//! | it was written apart from the volume | it is refused, nothing is written to it |

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

/// How to resynchronise.
#[derive(Clone, Copy, Debug, Default)]
pub struct ResyncOptions {
    /// How groups are read.
    pub shape: Shape,
    /// So many bytes in a second of each device at the most.
    pub limit: Option<ByteCount>,
    /// A device that missed more bytes of extents stays behind.
    pub at_most: Option<ByteCount>,
}

/// A device that was brought up to date.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResyncedDevice {
    /// Its id.
    pub device: DeviceId,
    /// Its name.
    pub name: Arc<str>,
    /// The generation that it was at.
    pub since: Generation,
    /// How many bytes of extents it had missed.
    pub missed: ByteCount,
    /// How many bytes were written to it.
    pub written: ByteCount,
}

/// What a run did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Resynced {
    /// The devices that are up to date now.
    pub devices: Vec<ResyncedDevice>,
    /// Those that missed more than the options allow.
    pub left: Vec<Arc<str>>,
}

/// A resynchronisation of all devices that missed commits.
#[derive(Debug)]
pub struct Resync {
    writable: WritableFilesystem,
    options: ResyncOptions,
    progress: Progress,
}

/// The devices that missed commits and can be written.
#[must_use]
pub fn devices_behind(volume: &Volume) -> Vec<Arc<DeviceSlot>> {
    let mut slots = volume.devices();
    slots.retain(|slot| slot.behind().is_some());
    slots
}

impl Resync {
    /// Of a volume that is open for writing.
    #[must_use]
    pub const fn new(writable: WritableFilesystem, options: ResyncOptions, progress: Progress) -> Self {
        Self {
            writable,
            options,
            progress,
        }
    }

    /// Brings all devices up to date that missed commits.
    ///
    /// # Errors
    /// As for [`Resync::run_as_far_as_possible`].
    pub fn run(&self) -> Result<Resynced, Error> {
        let (resynced, ended) = self.run_as_far_as_possible();
        ended.map(|()| resynced)
    }

    /// Brings all devices up to date that missed commits. A device that stays behind does not keep the others from being
    /// brought up to date.
    ///
    /// # Errors
    /// The first device's that stays behind: see the module, and [`Engine::begin_return`](buttress_writer::Engine::begin_return);
    /// [`buttress_fs::Error::Cancelled`].
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
        let returning = self.writable.begin_return(slot.uuid(), &self.progress)?;
        let missed = returning.missed();
        if self.options.at_most.is_some_and(|most| missed > most) {
            return Ok(None);
        }
        let since = returning
            .replacement()
            .returning()
            .map(|returning| returning.since);
        let written = self.fill(slot, &returning)?;
        self.writable.end_return(returning)?;
        Ok(Some(ResyncedDevice {
            device: slot.id(),
            name: Arc::clone(slot.name()),
            // Clamp: a number that is shown.
            since: since.unwrap_or(Generation::MIN),
            missed,
            written: ByteCount::new(written),
        }))
    }

    /// Writes what the device missed; how many bytes.
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
        // The bytes of all devices are counted together.
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
