//! `buttress filesystem …`, with the commands and formats of `btrfs filesystem`.

pub mod defragment;
pub mod df;
pub mod du;
pub mod label;
pub mod resize;
pub mod show;
pub mod shrink;
pub mod sync;
pub mod trim;
pub mod usage;

use anyhow::Result;
use buttress::{BlockGroupFlags, Space, Volume};

use crate::context::Context;
use crate::table::{Row, leaf};

/// Rows of the group in the command table.
pub const ROWS: &[Row] = &[
    leaf::<show::Show>(),
    leaf::<df::Df>(),
    leaf::<usage::Usage>(),
    leaf::<du::Du>(),
    leaf::<label::Label>(),
    leaf::<resize::Resize>(),
    leaf::<shrink::Shrink>(),
    leaf::<sync::Sync>(),
    leaf::<defragment::Defragment>(),
    leaf::<trim::Trim>(),
];

/// Returns the space use of a volume. Unreadable block groups are reported and count as empty.
pub(crate) fn space_of(filesystem: &Volume, context: &Context) -> Result<Space> {
    let space = filesystem.space()?;
    for failure in &space.failures {
        context.lost(&anyhow::Error::new(failure.clone()).context("a block group counts as empty"));
    }
    Ok(space)
}

/// Returns the profile's name: `single`, `DUP`, `RAID1`, …
pub(crate) fn profile_name(flags: BlockGroupFlags) -> &'static str {
    flags.profile().map_or("unknown", buttress::Profile::name)
}
