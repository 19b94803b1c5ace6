//! Superblocks of single devices, without opening a volume.

use crate::Volume;
use crate::error::Result;
use buttress_device::Device;
use buttress_format::Generation;
use buttress_volume::superblock_recovery::DeviceSuperblocks;

/// Writes a superblock copy over the primary superblock of its device, as `btrfs-select-super` does.
/// `copy` is 1 or 2; with 0, the primary stays as it is. Returns the generation of the superblock.
///
/// The volume then has the state of that copy. If the copy is older than the volume's last commit,
/// blocks of its state may be gone.
///
/// # Errors
/// Fails if the device holds no valid superblock at the place of the copy, or cannot be written.
pub fn select_superblock(device: &Device, copy: usize) -> Result<Generation> {
    let written = buttress_volume::superblocks::copy_to_primary(device, copy);
    Ok(written.map_err(buttress_fs::Error::from)?.generation)
}

/// Inspects all superblocks of each device. Writes nothing.
///
/// ```
/// # use buttress::{Device, Volume, survey_superblocks};
/// let device = Device::memory(vec![0; 256 << 20]);
/// Volume::create().on_devices(vec![device.clone()])?.close()?;
/// device.write(65536, &[0; 4096])?;
/// let survey = survey_superblocks(&[device.clone()])?;
/// assert_eq!(survey[0].bad.len(), 1);
/// buttress::recover_superblocks(&[device.clone()], &survey)?;
/// assert!(survey_superblocks(&[device])?[0].bad.is_empty());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// Fails if a device has no valid superblock, or if it is zoned.
pub fn survey_superblocks(devices: &[Device]) -> Result<Vec<DeviceSuperblocks>> {
    let surveyed = devices.iter().map(DeviceSuperblocks::survey);
    let surveyed: core::result::Result<_, _> = surveyed.collect();
    Ok(surveyed.map_err(buttress_fs::Error::from)?)
}

/// Writes the good superblock of each device over its bad copies. Before, tries the result in memory.
///
/// # Errors
/// Fails, and writes nothing, if the volume does not open with these superblocks. Also fails with an
/// error of a device.
pub fn recover_superblocks(devices: &[Device], survey: &[DeviceSuperblocks]) -> Result<()> {
    let trial: Vec<Device> = devices.iter().map(Device::with_changes_in_memory).collect();
    for (surveyed, device) in survey.iter().zip(&trial) {
        surveyed.recover(device).map_err(buttress_fs::Error::from)?;
    }
    Volume::options().degraded(true).open_devices(trial)?;
    for (surveyed, device) in survey.iter().zip(devices) {
        surveyed.recover(device).map_err(buttress_fs::Error::from)?;
    }
    Ok(())
}
