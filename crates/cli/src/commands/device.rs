//! `buttress device …`: the devices of a volume, with the commands of btrfs-progs.

mod add;
mod members;
mod remove;
mod resync;
mod stats;
mod usage;

use crate::table::{Row, leaf};

/// Rows of the group in the command table.
pub const ROWS: &[Row] = &[
    leaf::<add::Add>(),
    leaf::<remove::Remove>(),
    leaf::<remove::Delete>(),
    leaf::<resync::Resync>(),
    leaf::<stats::Stats>(),
    leaf::<usage::Usage>(),
];
