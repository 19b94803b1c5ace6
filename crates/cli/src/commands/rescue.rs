//! `buttress rescue …`, with the commands of `btrfs rescue`, and a scan of whole devices.

pub mod chunk_recover;
pub mod clearing;
pub mod fix_data_checksum;
pub mod fix_device_size;
pub mod scan;
pub mod super_recover;
pub mod zero_log;

use crate::table::{Row, leaf};

/// Rows of the group in the command table.
pub const ROWS: &[Row] = &[
    leaf::<chunk_recover::ChunkRecover>(),
    leaf::<clearing::ClearInoCache>(),
    leaf::<clearing::ClearSpaceCache>(),
    leaf::<clearing::ClearUuidTree>(),
    leaf::<fix_data_checksum::FixDataChecksum>(),
    leaf::<fix_device_size::FixDeviceSize>(),
    leaf::<scan::Scan>(),
    leaf::<super_recover::SuperRecover>(),
    leaf::<zero_log::ZeroLog>(),
];
