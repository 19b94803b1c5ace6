//! Resets the error statistics of devices.
//!
//! The engine counts the errors of devices ([`buttress_engine::device_errors`]).

use crate::WritableFilesystem;
use buttress_engine::reservation::Need;
use buttress_format::{DeviceId, DeviceStatistics, TreeId};
use buttress_fs::error::Result;

impl WritableFilesystem {
    /// Resets the statistics of a device, as `btrfs device stats -z` does.
    ///
    /// # Errors
    /// Fails if the device tree cannot be read, or has no space.
    pub fn reset_device_statistics(&self, device: DeviceId) -> Result<()> {
        let key = DeviceStatistics::key(device);
        self.operate(Need::places(1), |operation| {
            operation.reach(TreeId::DEVICE, &[key])?;
            let Some(item) = operation.get(TreeId::DEVICE, &key)? else {
                return Ok(());
            };
            // Bytes that a later format version may append also hold counters, so they are zeroed
            // too.
            let zeros = vec![0; item.data().len()];
            operation.edit().put(TreeId::DEVICE, &key, &zeros)
        })
    }
}
