//! Superblocks of single devices, without opening a volume.

use crate::error::Result;
use buttress_device::Device;
use buttress_format::Generation;

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
