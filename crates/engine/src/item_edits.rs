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
use buttress_fs::error::Result;

impl<'e> ItemEdits<'e> {
    /// Returns the calls that edit single items of a volume.
    #[must_use]
    pub const fn of(engine: &'e Engine) -> Self {
        Self { engine }
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
