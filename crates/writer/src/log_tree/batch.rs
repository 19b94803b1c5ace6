//! The items that one sync adds to a log.

use super::gathered::Gathered;
use super::inode_batch::InodeBatches;
use buttress_format::{Generation, InodeNumber, Logical};

/// The items that one sync logs together.
#[derive(Debug)]
pub(super) struct Batch {
    pub(super) generation: Generation,
    pub(super) inodes: InodeBatches,
    /// Checksums of new data.
    pub(super) sums: Vec<(Logical, Vec<u8>)>,
    /// Inodes that an earlier batch logged and that are deleted now.
    pub(super) removed: Vec<InodeNumber>,
    /// The number of the subvolume's removed names that this batch takes into account.
    pub(super) names_seen: usize,
    /// Reusable memory for the reads of the next sync.
    pub(super) gathered: Gathered,
}
