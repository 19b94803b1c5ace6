//! Every copy of a volume, read and repaired.

use super::{Access, Volume};
use crate::error::Result;
use buttress_fs::Progress;
use buttress_scrub::{
    Healed, Healer, Options as ScrubOptions, Report as ScrubReport, Resync, ResyncOptions, Scrub,
};
use std::sync::Arc;

impl Volume {
    /// The same volume, with a thread that repairs what readers pass over.
    pub(crate) fn healed_by(mut self, healer: Option<Healer>) -> Self {
        self.healer = healer.map(Arc::new);
        self
    }

    /// Reads and compares every copy and all parity, and repairs bad copies from good ones. Others may read and write the volume
    /// meanwhile. A volume that is open for reading is not repaired.
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
    /// Reports a device that missed commits and cannot be brought up to date. If the volume is open for writing, this
    /// comes before the scrub. Reports a feature whose volumes are not scrubbed, and [`buttress_fs::Error::Cancelled`].
    /// The report has the damage of the volume.
    pub fn scrub(&self, options: ScrubOptions, progress: &Progress) -> Result<ScrubReport> {
        let progress = progress.clone();
        match &self.access {
            Access::Reading(shown) => {
                let options = ScrubOptions {
                    read_only: true,
                    ..options
                };
                let scrub = Scrub::new(&shown.on_disk, options, progress)?;
                scrub.run()?;
                Ok(scrub.report())
            }
            Access::Writing(filesystem) => {
                if !options.read_only {
                    Resync::new(filesystem.clone(), ResyncOptions::default(), progress.clone()).run()?;
                }
                let views = || filesystem.committed_view();
                let scrub = Scrub::new(&views(), options, progress)?.beside(&views);
                scrub.run()?;
                Ok(scrub.report())
            }
        }
    }

    /// Returns counts of bad copies that readers passed over, and of their repairs, since the volume was opened for writing.
    /// Waits for repairs under way.
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
