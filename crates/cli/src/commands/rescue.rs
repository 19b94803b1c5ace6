//! `buttress rescue …`, with the commands of `btrfs rescue`.

pub mod zero_log;

use crate::table::{Row, leaf};

/// Rows of the group in the command table.
pub const ROWS: &[Row] = &[leaf::<zero_log::ZeroLog>()];
