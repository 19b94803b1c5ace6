//! `buttress rescue …`, with the commands of `btrfs rescue`, and a scan of whole devices.

pub mod scan;
pub mod zero_log;

use crate::table::{Row, leaf};

/// Rows of the group in the command table.
pub const ROWS: &[Row] = &[leaf::<scan::Scan>(), leaf::<zero_log::ZeroLog>()];
