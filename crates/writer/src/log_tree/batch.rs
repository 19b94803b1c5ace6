//! The items that a sync puts into a log.

use super::gathered::Gathered;
use super::inode_batch::InodeBatches;
use buttress_format::{Generation, InodeNumber, Logical};

/// What is logged at once.
#[derive(Debug)]
pub(super) struct Batch {
    pub(super) generation: Generation,
    pub(super) inodes: InodeBatches,
    /// Checksums of new data.
    pub(super) sums: Vec<(Logical, Vec<u8>)>,
    /// Inodes that were logged and are gone.
    pub(super) removed: Vec<InodeNumber>,
    /// How many of the names that went it takes into account.
    pub(super) names_seen: usize,
    /// Memory for what the next sync reads.
    pub(super) gathered: Gathered,
}
