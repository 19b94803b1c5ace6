//! Relocation: moves all content of a set of block groups to other places, and removes the groups.
//!
//! A move of tree blocks is a *renaming of addresses*. Each extent gets a copy at a new address.
//! Each tree block that points to it gets a copy as well, and so on up to the roots. The extent
//! items move along, with all references. A reference by tree stays as it is. A reference by
//! address gets the new address. Each block is copied once, however many snapshots share it, and no
//! count changes. Blocks of the volume's own trees belong to one tree: an edit without a change
//! moves them.
//!
//! | step | module | holds |
//! |---|---|---|
//! | 1. the groups take no more extents; other groups have space for theirs | `emptying` | the edit lock |
//! | 2. content is read, verified and written to new places | `copying` | no lock |
//! | 3. the blocks that have to change are found | `changing`, `closure`, `extents` | the lock of commits and the edit lock |
//! | 4. they are copied, and pointers, references and checksums change | `block_copies`, `renaming` | the same |
//! | 5. a commit frees the old places of some batches | `job` | |
//! | 6. once a group is empty, a commit removes it | `emptying` | |
//! | 7. groups that readers need longer are removed after the job | `left` | |
//!
//! # Invariants
//!
//! - A batch of a relocation is part of one transaction: a crash leaves all of the batch or
//!   nothing.
//! - A group that a relocation is emptying gets no new extent, and nothing in it is overwritten in
//!   place.
//! - The job visits the groups of its list alone, and none that it made.
//! - A tree looks up a copy before it changes the copy, if the tree shares it or if it has full
//!   back references. The tree's root item names this transaction as the last snapshot.
//! - Copies keep the form of their references. They get no flag of a relocation, which implies full
//!   back references.
//!
//! Left out: an extent is never divided. A job fails without a free range as long as its longest extent.

mod block_copies;
mod changing;
mod closure;
mod copying;
mod emptying;
mod extents;
mod job;
mod left;
mod linux_tree;
mod merging;
mod options;
mod own_trees;
mod pace;
mod renaming;
mod siblings;
mod swapping;
mod together;
mod users;

use crate::areas::Relocations;
use buttress_exact::u64_of;
use buttress_format::{ByteCount, DeviceId, Logical, Physical};
use buttress_fs::error::Result;
use core::ops::Range;
use emptying::Emptying;
use job::Job;

pub use crate::block_groups::TargetProfiles;
pub use left::Removal;
pub use linux_tree::RelocationTree;
pub use options::{RelocationOptions, RelocationSummary};

impl Relocations<'_> {
    /// Sets the profiles of all chunks and extents from now on, including those of other writers,
    /// until the next call. Balances with a conversion set the target profiles before their first
    /// group and reset them at their end.
    pub fn set_target_profiles(&self, targets: TargetProfiles) {
        self.engine.shared.running.lock().core.groups.set_targets(targets);
    }

    /// Moves all content out of these block groups, and removes the groups. A block group that no
    /// longer exists is skipped. Readers may delay the removal ([`Removal`]).
    ///
    /// A job that ends early leaves a sound volume. Extents that it moved stay moved, and the
    /// groups take new extents again.
    ///
    /// # Errors
    /// [`Error::Cancelled`]. [`Error::NoSpace`] with the missing bytes, before any change if the
    /// lack is known by then. [`Error::NotMoved`] for an extent without an intact copy. Errors of
    /// devices and trees.
    ///
    /// [`Error::Cancelled`]: buttress_fs::error::Error::Cancelled
    /// [`Error::NoSpace`]: buttress_fs::error::Error::NoSpace
    /// [`Error::NotMoved`]: buttress_fs::error::Error::NotMoved
    pub fn relocate(&self, groups: &[Logical], options: &RelocationOptions) -> Result<RelocationSummary> {
        let _way = self.engine.shared.reclaim.give_way();
        self.relocate_now(groups, options)
    }

    /// Relocates as [`relocate`](Self::relocate) does, without precedence over an automatic reclaim.
    pub(crate) fn relocate_now(
        &self,
        groups: &[Logical],
        options: &RelocationOptions,
    ) -> Result<RelocationSummary> {
        let _one_at_a_time = self.engine.shared.relocating.lock();
        self.engine.require_writing()?;
        options.progress.check()?;
        self.refuse_with_trees()?;
        self.empty_all(Emptying::begin(self.engine, groups)?, options)
    }

    /// Moves all content as [`relocate`](Self::relocate) does, out of block groups that the caller
    /// closed and into the space that open groups have. Makes no chunk.
    pub(crate) fn relocate_closed(
        &self,
        groups: &[Logical],
        options: &RelocationOptions,
    ) -> Result<RelocationSummary> {
        let _one_at_a_time = self.engine.shared.relocating.lock();
        self.engine.require_writing()?;
        options.progress.check()?;
        self.refuse_with_trees()?;
        self.empty_all(Emptying::of_closed(self.engine, groups)?, options)
    }

    fn empty_all(
        &self,
        mut emptying: Emptying<'_>,
        options: &RelocationOptions,
    ) -> Result<RelocationSummary> {
        // A caller with more block groups than these has stated the length of its whole job.
        if options.progress.snapshot().expected == ByteCount::ZERO {
            options.progress.expect(ByteCount::new(emptying.used_bytes()));
        }
        let mut job = Job::new(self.engine, options);
        job.empty_all(&emptying)?;
        let mut summary = job.summary;
        summary.groups = u64_of(emptying.groups.len());
        summary.left_groups = u64_of(emptying.remove(&options.progress, options.removal)?);
        Ok(summary)
    }

    /// Returns the block groups that have a stripe in this range of a device, by address.
    #[must_use]
    pub fn groups_on(&self, device: DeviceId, range: &Range<Physical>) -> Vec<Logical> {
        let map = self.engine.forest().volume().chunk_map();
        let overlaps = |start: Physical, length: ByteCount| {
            // Clamp: an address from disk; no device is that long.
            start < range.end && range.start < start.saturating_add(length)
        };
        map.chunks()
            .iter()
            .filter(|chunk| {
                let length = chunk.layout().device_extent_bytes();
                let mut stripes = chunk.chunk().stripes.iter();
                stripes.any(|stripe| stripe.device == device && overlaps(stripe.physical, length))
            })
            .map(|chunk| chunk.start())
            .collect()
    }
}
