//! Emptied block groups that readers of older states still need after the end of their relocation.
//!
//! Such a group keeps its mark, so it takes no extents, and the first commit after the readers end
//! removes it. Commits of other threads do so, and the background thread makes a commit if no other
//! thread does. After a crash or a new opening, the group is an ordinary empty group.
//!
//! Invariant: the list holds only marked groups without extents. A group that is gone leaves the
//! list at the next check.

use crate::areas::Relocations;
use crate::running_parts::RelocationStep;
use buttress_format::Logical;
use buttress_fs::error::Result;
use buttress_fs::progress::Progress;
use core::time::Duration;

/// The first wait for readers; later waits double.
const WAIT: Duration = Duration::from_millis(20);

/// The longest wait between two checks.
const WAIT_MAX: Duration = Duration::from_secs(1);

/// The end of a relocation while readers, such as a long send, need the old places of extents.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Removal {
    /// Waits until the readers end, and removes the block groups.
    #[default]
    Awaited,
    /// Waits shortly. Then leaves the emptied block groups, which take no extents; the first commit
    /// after the readers end removes them.
    Left,
}

impl RelocationStep<'_> {
    /// Returns whether a group exists, is marked, and begins at this address.
    pub(super) fn is_emptied(&self, start: Logical) -> bool {
        let group = self.running.core.groups.holding(start.get());
        group.is_some_and(|group| group.start == start.get() && group.read_only)
    }

    /// Returns whether a commit can remove one of the groups that were left.
    fn can_remove_left(&mut self) -> bool {
        let left = core::mem::take(&mut self.running.core.left_groups);
        let left: Vec<Logical> = left.into_iter().filter(|start| self.is_emptied(*start)).collect();
        let groups = &self.running.core.groups;
        let is_free = |start: &Logical| {
            let group = groups.holding(start.get());
            group.is_some_and(|group| group.used == 0 && !group.is_held())
        };
        let can_remove = left.iter().any(is_free);
        self.running.core.left_groups = left;
        can_remove
    }
}

impl Relocations<'_> {
    /// Returns whether emptied block groups wait for readers.
    pub(super) fn has_left(&self) -> bool {
        !self.engine.shared.running.lock().core.left_groups.is_empty()
    }

    /// Commits if this removes emptied block groups that no reader needs any more.
    ///
    /// # Errors
    /// Fails as a commit does.
    pub(crate) fn remove_left(&self) -> Result<()> {
        if !self.has_left() {
            return Ok(());
        }
        {
            // Acquiring the edit lock releases the pins of readers that ended.
            let mut handle = self.engine.start_unchecked();
            if !handle.relocation_step().can_remove_left() {
                return Ok(());
            }
            handle.core.superblock_changed = true;
        }
        self.engine.commit_metadata().map(drop)
    }

    /// Waits until all emptied block groups are removed. Returns whether there were any.
    ///
    /// # Errors
    /// Fails as a commit does, or if the job is cancelled.
    pub(crate) fn wait_for_left(&self, progress: &Progress) -> Result<bool> {
        if !self.has_left() {
            return Ok(false);
        }
        let mut pause = WAIT;
        loop {
            self.remove_left()?;
            if !self.has_left() {
                // The space can be used again once this commit is durable.
                self.engine.commit_metadata()?;
                return Ok(true);
            }
            progress.check()?;
            std::thread::sleep(pause);
            pause = pause
                .checked_mul(2)
                .map_or(WAIT_MAX, |longer| longer.min(WAIT_MAX));
        }
    }
}
