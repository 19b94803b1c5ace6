//! Repairs of single structures, as `btrfs rescue` makes them.

use super::WritableVolume;
use crate::error::Result;
use buttress_format::SubvolumeId;
use buttress_writer::SizeFix;

/// Repairs of single structures of a volume, as `btrfs rescue` makes them.
///
/// Each call commits. Nothing else may use the volume meanwhile.
#[derive(Clone, Copy, Debug)]
pub struct StructureRepairs<'v> {
    volume: &'v WritableVolume,
}

impl<'v> StructureRepairs<'v> {
    /// Returns the repairs of a volume.
    #[must_use]
    pub const fn of(volume: &'v WritableVolume) -> Self {
        Self { volume }
    }

    /// Removes the uuid tree. Linux makes it again at the next mount. Returns false if there was
    /// none.
    ///
    /// # Errors
    /// Fails with an error of the tree or the commit.
    pub fn clear_uuid_tree(&self) -> Result<bool> {
        Ok(self.volume.writer.conversions().clear_uuid_tree()?)
    }

    /// Removes the free-space tree (the space cache v2). Returns false if there was none.
    ///
    /// A volume with a damaged free-space tree is opened by
    /// [`VolumeOptions::clears_free_space_tree`](crate::VolumeOptions::clears_free_space_tree).
    ///
    /// # Errors
    /// Fails for a volume with a block group tree, which needs the free-space tree. Also fails with
    /// an error of the tree or a commit.
    pub fn clear_free_space_tree(&self) -> Result<bool> {
        Ok(self.volume.writer.conversions().clear_free_space_tree()?)
    }

    /// Removes the v1 space cache.
    ///
    /// # Errors
    /// Fails with an error of the root tree or a commit.
    pub fn clear_v1_cache(&self) -> Result<()> {
        Ok(self.volume.writer.conversions().clear_v1_cache()?)
    }

    /// Removes the inode caches that kernels before 5.11 kept in subvolumes. Calls `cleared` for
    /// each subvolume after its commit.
    ///
    /// # Errors
    /// Fails with an error of a tree or a commit. Subvolumes that come later keep their caches.
    pub fn clear_inode_caches(&self, mut cleared: impl FnMut(SubvolumeId)) -> Result<()> {
        let conversions = self.volume.writer.conversions();
        Ok(conversions.clear_inode_caches(&mut |tree| cleared(SubvolumeId::new(tree.get())))?)
    }

    /// Repairs device items that exceed their devices or whole sectors, and the total size in the
    /// superblock. Returns the repairs.
    ///
    /// A volume with a device that is too short is opened by
    /// [`VolumeOptions::fixes_sizes`](crate::VolumeOptions::fixes_sizes).
    ///
    /// # Errors
    /// Fails if a device is missing, or has content past its end. Also fails with an error of the
    /// commit.
    pub fn fix_device_sizes(&self) -> Result<Vec<SizeFix>> {
        Ok(self.volume.writer.devices().fix_sizes()?)
    }
}
