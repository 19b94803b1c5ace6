//! Repair of recorded sizes: device items that exceed their devices or whole sectors, and a total in
//! the superblock that is not their sum.
//!
//! Linux refuses such volumes. The device items are set to what the devices have; each commit
//! computes the total again.
//!
//! Invariants:
//! - A device item never gets a size below the end of its last device extent.
//! - A refusal precedes every write: opening with
//!   [`fixes_sizes`](crate::opening::WriteOptions::fixes_sizes) refuses before it replays a log.
//!
//! Left out: content past the end of a device, which needs the device's former size to be read.

use super::{require_no_chunk_past, whole_sectors};
use crate::areas::MemberDevices;
use crate::conversions::OTHER_PLACES;
use crate::exclusive::Change;
use crate::need::Need;
use buttress_format::{ByteCount, DeviceId};
use buttress_fs::error::{Error, Result};
use buttress_volume::Volume;

/// A recorded size that was repaired.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SizeFix {
    /// The device, or `None` for the total in the superblock.
    pub device: Option<DeviceId>,
    /// The recorded size before the repair.
    pub old: ByteCount,
    /// The recorded size after the repair.
    pub new: ByteCount,
}

/// Returns the repairs of device items.
///
/// # Errors
/// Fails with [`Error::Invalid`] if a device is missing. Fails if a device has device extents past
/// its end.
pub(crate) fn fixes_of_devices(volume: &Volume, sector_bytes: u32) -> Result<Vec<SizeFix>> {
    let mut fixes = Vec::new();
    for slot in volume.devices() {
        let (Some(device), Some(recorded)) = (slot.device(), slot.expected_bytes()) else {
            let what = "fixing device size needs all device(s) to be present and writeable";
            return Err(Error::Invalid { what });
        };
        let most = recorded.get().min(device.size_bytes());
        let size = whole_sectors(most, sector_bytes);
        if size != recorded {
            require_no_chunk_past(volume, &slot, size)?;
            fixes.push(SizeFix {
                device: Some(slot.id()),
                old: recorded,
                new: size,
            });
        }
    }
    Ok(fixes)
}

impl MemberDevices<'_> {
    /// Repairs the recorded sizes of all devices and their total, and commits. Returns the repairs.
    ///
    /// # Errors
    /// Fails with [`Error::Invalid`] if a device is missing. Fails before any change if a device has
    /// device extents past its end. Also fails with an error of the commit.
    pub fn fix_sizes(&self) -> Result<Vec<SizeFix>> {
        let _alone = self.engine.begin_change(Change::Resize)?;
        let volume = self.engine.forest().volume();
        let sector_bytes = self.engine.forest().block_format().sector_bytes;
        let total = volume.superblock().total_bytes;
        let mut fixes = fixes_of_devices(volume, sector_bytes)?;
        for fix in &fixes {
            if let Some(device) = fix.device {
                self.set_bytes(device, fix.new)?;
            }
        }
        let sum = ByteCount::new(self.engine.start_reading().core.devices.total_bytes());
        if sum != total {
            fixes.push(SizeFix {
                device: None,
                old: total,
                new: sum,
            });
        }
        if !fixes.is_empty() {
            // The commit writes the total even if no item changes.
            self.engine.edit_alone(Need::places(OTHER_PLACES), |_| Ok(()))?;
            self.engine.commit_metadata()?;
        }
        Ok(fixes)
    }
}
