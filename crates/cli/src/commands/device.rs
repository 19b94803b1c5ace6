//! `buttress device …`: the devices of a volume, in the words of btrfs-progs.

mod resync;
mod stats;
mod usage;

use crate::table::{Row, leaf};

/// The group's rows of the command table.
pub const ROWS: &[Row] = &[
    leaf::<resync::Resync>(),
    leaf::<stats::Stats>(),
    leaf::<usage::Usage>(),
];
