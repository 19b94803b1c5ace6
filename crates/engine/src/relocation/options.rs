//! The options of a relocation, and its result.

use super::left::Removal;
use buttress_fs::progress::Progress;
use core::time::Duration;

/// The options of a relocation.
#[derive(Clone, Debug, Default)]
pub struct RelocationOptions {
    /// Reports moved bytes and extents, and cancels the job after its current batch.
    pub progress: Progress,
    /// The most bytes that the job moves in a second.
    pub bytes_per_second: Option<u64>,
    /// Whether the job waits for readers of the moved extents.
    pub removal: Removal,
}

/// The work of a relocation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RelocationSummary {
    /// The number of block groups that the relocation emptied and removed.
    pub groups: u64,
    /// The number of these block groups that still exist, because readers need their old content.
    pub left_groups: u64,
    /// The number of data extents that the relocation moved.
    pub data_extents: u64,
    /// The length of the moved data extents on disk, in bytes.
    pub data_bytes: u64,
    /// The number of moved tree blocks of the groups. Copies of the tree blocks above the moved
    /// blocks do not count.
    pub tree_blocks: u64,
    /// The number of tree blocks that got a copy, including those above moved extents.
    pub copied_blocks: u64,
    /// The number of batches of the relocation, each of which is part of one transaction.
    pub batches: u64,
    /// The longest hold of the edit lock for a change.
    pub longest_hold: Duration,
}
