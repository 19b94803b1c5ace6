//! `buttress device …`: the devices of a volume, with the commands of btrfs-progs.

mod resync;
mod stats;
mod usage;

use crate::table::{Row, leaf};

/// Rows of the group in the command table.
pub const ROWS: &[Row] = &[
    leaf::<resync::Resync>(),
    leaf::<stats::Stats>(),
    leaf::<usage::Usage>(),
];
