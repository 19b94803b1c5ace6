//! Edits of single items, for repairs.
//!
//! An operation keeps the items of a volume consistent. A repair begins with items that contradict
//! each other, so it changes the items themselves.
//!
//! Invariants:
//! - Repairs edit a volume whose block groups, extents and free space are consistent. Otherwise,
//!   the allocator could overwrite blocks in use.
//! - No other thread uses the volume, and no inode is in memory: an edit that bypasses the table of
//!   live inodes would contradict it.

use crate::areas::ItemEdits;
use crate::engine::Engine;
use crate::need::Need;
use crate::running::Running;
use buttress_exact::Exact as _;
use buttress_fs::error::{Defect, Result};
use buttress_volume::excluded_ranges;

impl<'e> ItemEdits<'e> {
    /// Returns the calls that edit single items of a volume.
    #[must_use]
    pub const fn of(engine: &'e Engine) -> Self {
        Self { engine }
    }

    /// Excludes tree blocks from allocation: an earlier state needs the blocks at these addresses.
    /// The caller excludes blocks before the first edit.
    ///
    /// # Errors
    /// Fails with a [`Defect`] if the free ranges of a block group are already loaded.
    pub fn keep_blocks(&self, blocks: &[u64]) -> Result<()> {
        let mut blocks = blocks.to_vec();
        blocks.sort_unstable();
        let mut running = self.engine.shared.running.lock();
        let node_bytes = u64::from(running.core.format.node_bytes);
        for group in running.core.groups.iter_mut() {
            let from = blocks.partition_point(|block| *block < group.start);
            let to = blocks.partition_point(|block| *block < group.end());
            // Clamp: `from` and `to` are in order.
            let own = blocks.get(from..to).unwrap_or_default();
            if own.is_empty() {
                continue;
            }
            if group.free.is_some() {
                return Err(Defect::new("blocks are kept after an allocation")
                    .with("block group", group.start)
                    .into());
            }
            let own = own.iter().map(|block| *block..block.exact_add(node_bytes));
            let all = group.excluded_ranges.iter().cloned().chain(own).collect();
            group.excluded_ranges = excluded_ranges::merged(all, group.end());
        }
        Ok(())
    }

    /// Runs an edit that changes at most `places` tree places: runs of adjacent items that fit into
    /// one leaf. An error of the edit stops writing.
    ///
    /// # Errors
    /// Fails with [`Error::NoSpace`](buttress_fs::Error::NoSpace) if the worst case of the edit does
    /// not fit, or with the error of the edit.
    pub fn edit<T>(&self, places: u64, edit: impl FnOnce(&mut Running) -> Result<T>) -> Result<T> {
        self.engine.edit_alone(Need::places(places), edit)
    }
}
