//! Changes of a whole volume that only its superblock holds.

use super::WritableVolume;
use crate::error::Result;
use buttress_format::{Incompat, Uuid};
use buttress_fs::error::Error;
use buttress_mkfs::Feature;

/// Each change is durable after the next [`sync`](WritableVolume::sync). Close the volume after
/// such a change: the open volume still works with its earlier features.
impl WritableVolume {
    /// Adds a feature that needs nothing except its flag: [`Feature::ExtendedReferences`],
    /// [`Feature::SkinnyMetadata`] or [`Feature::NoHoles`].
    ///
    /// # Errors
    /// Fails for every other feature.
    pub fn add_feature(&self, feature: Feature) -> Result<()> {
        let flag = match feature {
            Feature::ExtendedReferences => Incompat::EXTENDED_IREF,
            Feature::SkinnyMetadata => Incompat::SKINNY_METADATA,
            Feature::NoHoles => Incompat::NO_HOLES,
            _ => {
                let what = "a volume gains only extref, skinny-metadata and no-holes by a flag";
                return Err(Error::Invalid { what }.into());
            }
        };
        Ok(self.writer.tune(|tuning, _| tuning.add_features(flag))?)
    }

    /// Changes the volume's uuid. Tree blocks keep the old uuid as the metadata uuid.
    ///
    /// ```
    /// # let volume = buttress::Volume::create().on_devices(vec![buttress::Device::memory(vec![0; 256 << 20])])?;
    /// let fsid = buttress::Uuid::from_u128(7);
    /// volume.set_fsid(fsid)?;
    /// volume.sync()?;
    /// # Ok::<(), buttress::Error>(())
    /// ```
    ///
    /// # Errors
    /// A nil uuid; a volume on several devices.
    pub fn set_fsid(&self, fsid: Uuid) -> Result<()> {
        Ok(self
            .writer
            .tune(|tuning, devices| tuning.change_fsid(fsid, devices))?)
    }

    /// Changes the volume's uuid to a new one from the environment, and returns it.
    ///
    /// # Errors
    /// Fails for a volume on several devices.
    pub fn set_new_fsid(&self) -> Result<Uuid> {
        let fsid = self.writer.new_uuid();
        self.set_fsid(fsid)?;
        Ok(fsid)
    }

    /// Makes the volume a seed: it cannot be written to after this handle is closed, and Linux can add devices to it.
    ///
    /// # Errors
    /// Fails if writing to the volume has stopped.
    pub fn make_seed(&self) -> Result<()> {
        let seed = |tuning: &mut buttress_writer::Tuning, _| {
            tuning.make_seed();
            Ok(())
        };
        Ok(self.writer.tune(seed)?)
    }
}
