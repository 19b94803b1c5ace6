//! Changes of a whole volume that nothing else uses.

use crate::error::Result;
use crate::options::VolumeOptions;
use buttress_device::Device;
use buttress_format::{ChecksumType, Generation, Uuid};
use buttress_fs::Progress;
use buttress_writer::BlockGroupPlace;
use std::path::Path;

impl VolumeOptions {
    /// Opens all devices of a volume for changes of the whole volume. No other program may use the
    /// volume.
    ///
    /// # Errors
    /// Fails if a device cannot be opened for writing.
    pub fn open_whole(mut self, path: impl AsRef<Path>) -> Result<WholeVolume> {
        self.device_options.write = true;
        let devices = self.devices(path.as_ref())?;
        Ok(self.open_whole_devices(devices))
    }

    /// Takes all devices of a volume, which are open for writing, for changes of the whole volume.
    ///
    /// With [`degraded`](Self::degraded), an interrupted change is finished without its missing
    /// devices, if every profile tolerates the loss. No change begins without a device. A missing
    /// device can no longer return to the volume.
    #[must_use]
    pub fn open_whole_devices(self, devices: Vec<Device>) -> WholeVolume {
        let whole = buttress_writer::WholeVolume::new(devices, self.writing.options);
        let whole = whole.degraded(self.degraded);
        WholeVolume {
            inner: match self.cache {
                Some(cache) => whole.cache(cache),
                None => whole,
            },
        }
    }
}

/// All devices of a volume that nothing else uses. Made by
/// [`VolumeOptions::open_whole`](crate::VolumeOptions::open_whole).
///
/// Each call finishes the same change if it was interrupted, by this library or by btrfstune. While
/// a change is unfinished, neither Linux nor other calls use the volume.
///
/// ```
/// # fn main() -> buttress::Result<()> {
/// use buttress::{ChecksumType, Device, Progress, Uuid, Volume};
///
/// let device = Device::memory(vec![0; 256 << 20]);
/// Volume::create().on_devices(vec![device.clone()])?.close()?;
/// let whole = Volume::options().open_whole_devices(vec![device.clone()]);
/// whole.rewrite_fsid(Some(Uuid::from_u128(7)), &Progress::new())?;
/// whole.change_checksums(ChecksumType::Xxhash64, &Progress::new())?;
/// let volume = Volume::options().open_devices(vec![device])?;
/// assert_eq!(volume.info().fsid, Uuid::from_u128(7));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct WholeVolume {
    inner: buttress_writer::WholeVolume,
}

/// The identity of a volume before a change of the whole volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WholeVolumeInfo {
    /// The volume's uuid.
    pub fsid: Uuid,
    /// The last commit.
    pub generation: Generation,
    /// The type of the checksums.
    pub checksum_type: ChecksumType,
    /// Whether a change of the whole volume was interrupted.
    pub is_unfinished: bool,
}

impl WholeVolume {
    /// Returns the identity of the volume, as the superblocks state it.
    ///
    /// # Errors
    /// Fails if the devices have no usable superblocks, or do not belong together.
    pub fn info(&self) -> Result<WholeVolumeInfo> {
        let superblock = self.inner.superblock()?;
        Ok(WholeVolumeInfo {
            fsid: superblock.fsid,
            generation: superblock.generation,
            checksum_type: superblock.checksum_type,
            is_unfinished: superblock.flags.unfinished().is_some(),
        })
    }

    /// Changes the volume's uuid, and returns it. `None` chooses a random uuid. Tree blocks keep
    /// the old uuid as the metadata uuid.
    ///
    /// # Errors
    /// Fails for a nil uuid, a seed, and a missing or outdated device.
    pub fn set_fsid(&self, fsid: Option<Uuid>) -> Result<Uuid> {
        Ok(self.inner.set_fsid(fsid)?)
    }

    /// Gives all tree blocks and devices a new uuid, and returns it. `None` chooses a random uuid,
    /// or the uuid of an interrupted change.
    ///
    /// # Errors
    /// Fails for a nil uuid, a volume with a metadata uuid or seed devices, and a missing or
    /// outdated device. Fails before any change if a tree block has no intact copy.
    pub fn rewrite_fsid(&self, fsid: Option<Uuid>, progress: &Progress) -> Result<Uuid> {
        Ok(self.inner.rewrite_fsid(fsid, progress)?)
    }

    /// Clears the seed flag. Volumes that are based on the seed may become unusable.
    ///
    /// # Errors
    /// Fails if the volume is no seed, has a metadata uuid, or has a missing or outdated device.
    pub fn clear_seed(&self) -> Result<()> {
        Ok(self.inner.clear_seed()?)
    }

    /// Replaces all checksums of data and tree blocks. Each new checksum of data comes from a
    /// sector that matches its old checksum.
    ///
    /// # Errors
    /// Fails if the volume has this type already, or if data has no intact copy; the volume then
    /// keeps its checksums. Fails for seed devices, and for a missing or outdated device.
    pub fn change_checksums(&self, to: ChecksumType, progress: &Progress) -> Result<()> {
        Ok(self.inner.change_checksums(to, progress)?)
    }

    /// Moves all block group items to a tree of their own, which speeds up mounting.
    ///
    /// # Errors
    /// Fails if the volume has a block group tree, or no free-space tree.
    pub fn make_block_group_tree(&self) -> Result<()> {
        Ok(self.inner.move_block_group_items(BlockGroupPlace::OwnTree)?)
    }

    /// Moves all block group items back to the extent tree.
    ///
    /// # Errors
    /// Fails if the volume has no block group tree.
    pub fn remove_block_group_tree(&self) -> Result<()> {
        Ok(self.inner.move_block_group_items(BlockGroupPlace::ExtentTree)?)
    }
}
