//! Jobs that read and repair every copy of a volume.

use super::{Access, Volume, WritableVolume};
use crate::error::Result;
use buttress_fs::Progress;
use buttress_scrub::{
    Healed, Healer, Options as ScrubOptions, Report as ScrubReport, Resync, ResyncOptions, Resynced, Scrub,
};
use buttress_writer::WritableFilesystem;
use std::sync::Arc;

impl Volume {
    /// Returns the same volume with a thread that repairs bad copies that reads pass over.
    pub(crate) fn healed_by(mut self, healer: Option<Healer>) -> Self {
        self.healer = healer.map(Arc::new);
        self
    }

    /// Returns a scrub that has not begun, for callers that watch its progress.
    /// [`Scrub::run`](crate::scrub::Scrub::run) runs the scrub; its report and position can be read
    /// during the run. The scrub reads the state of this handle, and does not expect concurrent
    /// writes.
    /// # Errors
    /// Fails if a feature of the volume cannot be scrubbed.
    pub fn scrub_job(&self, options: ScrubOptions, progress: &Progress) -> Result<Scrub<'static>> {
        let state = match &self.access {
            Access::Reading(shown) => shown.on_disk.clone(),
            Access::Writing(writer) => writer.committed_view(),
        };
        Ok(Scrub::new(&state, options, progress.clone())?)
    }

    /// Reads and compares every copy and all parity, and reports bad ones. This call repairs
    /// nothing.
    ///
    /// # Errors
    /// Fails if a feature of the volume cannot be scrubbed, or the job is cancelled. Damage is no
    /// error of the call but part of the report.
    pub fn scrub(&self, options: ScrubOptions, progress: &Progress) -> Result<ScrubReport> {
        let options = ScrubOptions {
            read_only: true,
            ..options
        };
        match &self.access {
            Access::Reading(_) => scrub(self.scrub_job(options, progress)?),
            Access::Writing(writer) => scrub_beside(writer, options, progress),
        }
    }
}

impl WritableVolume {
    /// Reads and compares every copy and all parity, and repairs bad copies from good ones. Other
    /// threads may read and write the volume meanwhile.
    ///
    /// ```
    /// use buttress::{Device, Profile, Progress, ScrubOptions, Volume};
    ///
    /// # fn main() -> buttress::Result<()> {
    /// let devices: Vec<Device> = (0..2).map(|_| Device::memory(vec![0; 256 << 20])).collect();
    /// let volume = Volume::create().profiles(Profile::Raid1, Profile::Raid1).on_devices(devices)?;
    /// volume.root().write("ledger", vec![7; 1 << 20])?;
    /// volume.sync()?;
    ///
    /// let report = volume.scrub(ScrubOptions::default(), &Progress::new())?;
    /// assert_eq!(report.totals().errors(), 0);
    /// assert!(!report.has_uncorrectable());
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// Fails before the scrub if a device that missed commits cannot be brought up to date. Fails
    /// also if a feature of the volume cannot be scrubbed, or if the job is cancelled. Damage is no
    /// error but part of the report.
    pub fn scrub(&self, options: ScrubOptions, progress: &Progress) -> Result<ScrubReport> {
        if !options.read_only {
            let resync = ResyncOptions::default();
            Resync::new(self.writer().clone(), resync, progress.clone()).run()?;
        }
        scrub_beside(self.writer(), options, progress)
    }

    /// Brings devices that missed commits up to date, until one fails. The report lists the
    /// completed devices.
    pub fn resync(&self, options: ResyncOptions, progress: &Progress) -> (Resynced, Result<()>) {
        let job = Resync::new(self.writer().clone(), options, progress.clone());
        let (resynced, ended) = job.run_as_far_as_possible();
        (resynced, ended.map_err(Into::into))
    }

    /// Returns counts of bad copies that reads passed over, and of their repairs, since the volume
    /// was opened for writing. Waits for repairs in progress.
    ///
    /// ```
    /// # let volume = buttress::Volume::create().on_devices(vec![buttress::Device::memory(vec![0; 256 << 20])])?;
    /// # volume.root().write("ledger", "paid")?;
    /// volume.root().read("ledger")?;
    /// assert_eq!(volume.healed().corrected, 0);
    /// # Ok::<(), buttress::Error>(())
    /// ```
    #[must_use]
    pub fn healed(&self) -> Healed {
        let Some(healer) = &self.healer else {
            return Healed::default();
        };
        healer.wait();
        healer.healed()
    }
}

/// Scrubs a volume that other threads may write meanwhile.
fn scrub_beside(
    writer: &WritableFilesystem,
    options: ScrubOptions,
    progress: &Progress,
) -> Result<ScrubReport> {
    let views = || writer.committed_view();
    scrub(Scrub::new(&views(), options, progress.clone())?.beside(&views))
}

fn scrub(scrub: Scrub<'_>) -> Result<ScrubReport> {
    scrub.run()?;
    Ok(scrub.report())
}
