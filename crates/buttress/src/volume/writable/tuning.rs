//! Changes of a whole volume that only its superblock holds, or that need other trees.

use super::WritableVolume;
use crate::error::Result;
use buttress_format::Incompat;
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

    /// Makes the volume a seed: it cannot be written to after this handle is closed, and Linux can
    /// add devices to it.
    ///
    /// # Errors
    /// Fails for a volume with a metadata uuid, whose seed flag no program clears, and if writing to
    /// the volume has stopped.
    pub fn make_seed(&self) -> Result<()> {
        let volume = self.writer.forest().volume();
        if volume.superblock().incompat.contains(Incompat::METADATA_UUID) {
            let what = "the seeding flag cannot be changed on a volume whose fsid was changed with -m or -M";
            return Err(Error::Invalid { what }.into());
        }
        let seed = |tuning: &mut buttress_writer::Tuning, _| {
            tuning.make_seed();
            Ok(())
        };
        Ok(self.writer.tune(seed)?)
    }

    /// Makes the free-space tree of a volume that has none, and removes the v1 cache. Nothing else
    /// may use the volume meanwhile.
    ///
    /// ```
    /// # use buttress::{Device, Volume, mkfs::Feature};
    /// # let options = buttress::mkfs::Options::default();
    /// # let volume = Volume::create().on_devices(vec![Device::memory(vec![0; 256 << 20])])?;
    /// assert!(volume.make_free_space_tree().is_err(), "it has one");
    /// # Ok::<(), buttress::Error>(())
    /// ```
    ///
    /// # Errors
    /// Fails if the volume has a free-space tree, or with an error of a commit.
    pub fn make_free_space_tree(&self) -> Result<()> {
        Ok(self.writer.conversions().make_free_space_tree()?)
    }
}
