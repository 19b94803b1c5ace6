//! The older states of a volume.

use super::Volume;
use crate::error::Result;
use buttress_device::Device;
use buttress_format::{Key, Logical, SubvolumeId};
use buttress_fs::{Location, Progress};
use buttress_salvage::{BlockIndex, Judge, State, View, states, survey};

impl Volume {
    /// Returns the states whose roots are known, the newest first: those that superblocks name, and
    /// with an index of a scan those that the scan found. Blocks of an older state may be overwritten
    /// already. [`VolumeOptions::generation`](crate::VolumeOptions::generation) opens a state.
    ///
    /// ```
    /// # let device = buttress::Device::memory(vec![0; 256 << 20]);
    /// # let volume = buttress::Volume::create().on_devices(vec![device])?;
    /// volume.root().write("file", "content")?;
    /// volume.sync()?;
    /// let states = volume.states(None)?;
    /// assert!(states.windows(2).all(|pair| pair[0].generation() >= pair[1].generation()));
    /// # Ok::<(), buttress::Error>(())
    /// ```
    ///
    /// # Errors
    /// Fails if the index cannot be read.
    pub fn states(&self, index: Option<&BlockIndex>) -> Result<Vec<State>> {
        Ok(states(&devices_of(self), self.view().superblock().fsid, index)?)
    }
}

/// Returns the devices of a volume, without those that are missing. Use them to open an older state of an
/// open volume.
#[must_use]
pub fn devices_of(volume: &Volume) -> Vec<Device> {
    let slots = volume.view().volume().devices();
    slots.iter().filter_map(|slot| slot.device().cloned()).collect()
}

/// Returns a state that was opened, as a volume.
#[must_use]
pub fn volume_of(view: View) -> Volume {
    Volume::over(view.filesystem)
}

/// Returns a judge, which tells how far content that was read from a volume can be trusted.
#[must_use]
pub fn judge_of(volume: &Volume) -> Judge {
    Judge::new(&volume.view())
}

/// Returns whether all blocks of the root tree and the root block of each subvolume can be read.
///
/// # Errors
/// Fails if `progress` was cancelled.
pub fn is_usable(volume: &Volume, progress: &Progress) -> Result<bool> {
    Ok(survey::is_usable(&volume.view(), progress)?)
}

/// Returns the keys of all root items with the address and level of each root, as far as the root
/// tree can be read.
///
/// # Errors
/// Fails if `progress` was cancelled.
pub fn tree_roots(volume: &Volume, progress: &Progress) -> Result<Vec<(Key, Logical, u8)>> {
    let roots = survey::tree_roots(&volume.view(), progress)?.into_iter();
    Ok(roots.map(|(key, item)| (key, item.logical, item.level)).collect())
}

/// Returns the first directory with entries in the tree of a subvolume, if one can be read. This
/// finds files even if the root directory is lost.
///
/// # Errors
/// Fails if the subvolume's tree cannot be found.
pub fn first_directory(volume: &Volume, id: SubvolumeId) -> Result<Option<Location>> {
    let found = survey::first_directory(&volume.view(), id)?;
    Ok(found.map(|inode| Location::new(id, inode)))
}
