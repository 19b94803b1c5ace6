//! Superblocks that change without a commit.

use buttress_format::{DeviceItem, Superblock};
use buttress_fs::error::{Error, Result};
use buttress_fs::filesystem::Filesystem;
use buttress_volume::DeviceSlot;
use std::sync::Arc;

/// Writes the changed superblock to all devices, in its own generation. The caller opens the volume
/// again afterwards. Fails if a device failed and was left out, since it keeps the former superblock.
/// Missing devices keep theirs, too; the caller decides whether devices may be missing.
pub(super) fn write_superblocks(filesystem: &Filesystem, change: impl FnOnce(&mut Superblock)) -> Result<()> {
    let volume = filesystem.volume();
    let mut superblock = (*volume.superblock()).clone();
    change(&mut superblock);
    // While the fsid changes, the chunk tree may have the new fsid in some of its device items. The
    // superblocks keep the former one, which blocks may still have.
    let former = superblock.device_item.fsid;
    let items = volume.devices().into_iter().filter_map(|slot| slot.item());
    let items: Vec<DeviceItem> = items.map(|item| DeviceItem { fsid: former, ..item }).collect();
    volume.flush()?;
    volume.write_superblocks(&superblock, &items)?;
    require_no_failure(filesystem)
}

/// Refuses to continue after a device failed. A rewrite in place leaves equal generations on all
/// devices, so the next opening would trust the failed device again.
pub(super) fn require_no_failure(filesystem: &Filesystem) -> Result<()> {
    let slots = filesystem.volume().devices();
    let has_failed = |slot: &Arc<DeviceSlot>| slot.device().is_some() && !slot.is_written();
    if slots.iter().any(has_failed) {
        let what = "a device failed, and keeps its former superblock (repair the device, then run the same command again; to finish without the device, leave it out and give --degraded)";
        return Err(Error::Invalid { what });
    }
    Ok(())
}
