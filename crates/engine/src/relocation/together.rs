//! Moves of single extents to consecutive places, for a defragmentation that keeps sharing.
//!
//! Such an extent is in a block group that stays in use. Its content can change during the copy
//! only if a write overwrites it in place, which needs content without checksums. An extent without
//! checksums for all of its sectors therefore does not move.
//!
//! All extents of a call move, or none, except extents that changed after the copy began.

use super::job::Job;
use super::options::{RelocationOptions, RelocationSummary};
use crate::areas::Relocations;
use crate::data_extents::DataRange;
use buttress_exact::u64_of;
use buttress_format::{ExtentItem, Logical};
use buttress_fs::error::{Error, Result};

impl Relocations<'_> {
    /// Moves extents to consecutive places, in this order, for all of their users. Moves nothing,
    /// and returns an empty summary, if an extent no longer exists, lacks checksums, or is being
    /// moved away, or if no free range is long enough. A commit makes the move durable.
    ///
    /// # Errors
    /// Fails as [`relocate`](Self::relocate) does.
    pub fn move_together(
        &self,
        extents: &[DataRange],
        options: &RelocationOptions,
    ) -> Result<RelocationSummary> {
        let _way = self.engine.shared.reclaim.give_way();
        let _one_at_a_time = self.engine.shared.relocating.lock();
        self.engine.require_writing()?;
        options.progress.check()?;
        self.refuse_with_trees()?;
        let mut job = Job::new(self.engine, options);
        let Some((group, items)) = self.movable(extents)? else {
            return Ok(job.summary);
        };
        let mut copies = match self.copy_extents_together(group, &items) {
            Ok(Some(copies)) => copies,
            Ok(None) | Err(Error::NoSpace { .. }) => return Ok(job.summary),
            Err(error) => return Err(error),
        };
        let moved = copies.moved().to_vec();
        job.change(&mut copies, &moved, &[])?;
        drop(copies);
        self.engine.commit_metadata()?;
        job.summary.batches = 1;
        job.wait_for_pace(job.summary.data_bytes)?;
        Ok(job.summary)
    }

    /// Returns the items of these extents, and the block group of the first; `None` if one of the
    /// extents cannot move.
    fn movable(&self, extents: &[DataRange]) -> Result<Option<(Logical, Vec<ExtentItem>)>> {
        let start = self.engine.start_reading();
        let (handle, items) = self.engine.retry(start, |handle| {
            let mut items = Vec::with_capacity(extents.len());
            for extent in extents {
                let found = handle.core.extent_with_references(extent.logical)?;
                let is_there = |item: &ExtentItem| item.is_data() && item.length == extent.length;
                items.extend(found.map(|found| found.item).filter(is_there));
            }
            Ok(items)
        })?;
        let groups = &handle.core.groups;
        let is_leaving = |item: &ExtentItem| groups.is_read_only(item.start.get());
        let first = items.first().and_then(|item| groups.holding(item.start.get()));
        let group = first.map(|group| Logical::new(group.start));
        let is_movable = u64_of(items.len()) == u64_of(extents.len()) && !items.iter().any(is_leaving);
        Ok(group.filter(|_| is_movable).map(|group| (group, items)))
    }
}
