//! `buttress rescue …`, in the words of `btrfs rescue`.

pub mod zero_log;

use crate::table::{Row, leaf};

/// The group's rows of the command table.
pub const ROWS: &[Row] = &[leaf::<zero_log::ZeroLog>()];
