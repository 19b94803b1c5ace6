//! Shrinks of a volume to the smallest size that holds it.

use super::{Access, Volume, WritableVolume};
use crate::error::Result;
use buttress_format::ByteCount;
use buttress_fs::Progress;
use buttress_writer::{ShrinkSummary, plan_shrink};

impl Volume {
    /// Returns the sizes that [`WritableVolume::shrink`] would reach. Nothing is changed.
    ///
    /// # Errors
    /// Fails if the block groups or extents cannot be read.
    pub fn plan_shrink(&self, slack: ByteCount) -> Result<ShrinkSummary> {
        Ok(match &self.access {
            Access::Reading(shown) => plan_shrink(&shown.on_disk, slack)?,
            Access::Writing(writer) => plan_shrink(&writer.view(), slack)?,
        })
    }
}

impl WritableVolume {
    /// Packs the content of the volume, and cuts its devices after it: the smallest devices that
    /// hold the volume, with `slack` free bytes on each. Image files are cut too. Nothing changes
    /// if no device would get smaller.
    ///
    /// Extents move as they are, so sharing, compression and preallocation stay. Image files may
    /// grow meanwhile. No other thread may use the volume.
    ///
    /// ```
    /// # use buttress::{Device, Progress, Volume};
    /// # fn main() -> buttress::Result<()> {
    /// # let volume = Volume::create().on_devices(vec![Device::memory(vec![0; 256 << 20])])?;
    /// use buttress::ByteCount;
    ///
    /// let summary = volume.shrink(ByteCount::ZERO, &Progress::new())?;
    /// assert!(summary.gains());
    /// assert!(volume.info().size.get() < 32 << 20);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// - A device is missing, belongs to a seed, or fails.
    /// - A device cannot grow and has too little unallocated space.
    /// - An extent has no intact copy.
    /// - The job was cancelled, which leaves a whole volume.
    pub fn shrink(&self, slack: ByteCount, progress: &Progress) -> Result<ShrinkSummary> {
        Ok(self.writer().shrinking().shrink(slack, progress)?)
    }
}
