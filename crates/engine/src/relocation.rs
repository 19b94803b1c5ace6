//! Relocation: moves all content of a set of block groups to other places, and removes the groups.
//!
//! A move is a *renaming of addresses*. Each extent gets a copy at a new address. Each tree block
//! that points to a moved extent gets a copy as well, and so do its ancestors. The extent items
//! move along, with all references: a reference by tree stays as it is, and a reference by address
//! gets the new address. A relocation therefore copies each block once, however many snapshots
//! share it, and changes no reference count. Blocks of the volume's own trees belong to one tree:
//! an edit without a change moves them.
//!
//! | step | module | holds |
//! |---|---|---|
//! | 1. the groups take no more extents; other groups have space for theirs | `emptying` | the edit lock |
//! | 2. content is read, verified and written to new places | `copying` | no lock |
//! | 3. the blocks that have to change are found | `closure`, `extents` | the lock of commits and the edit lock |
//! | 4. they are copied, and pointers, references and checksums change | `renaming` | the same |
//! | 5. a commit frees the old places | | |
//! | 6. once a group is empty, a commit removes it | `emptying` | |
//!
//! # Invariants
//!
//! - A batch is part of one transaction: a crash leaves all of it or nothing.
//! - A group that is being emptied gets no new extent, and nothing in it is overwritten in place.
//! - The job never visits a group that is not in its list, so it does not visit groups that it made.
//! - A tree that shares a copied block records this: its root item names this transaction as the
//!   last snapshot. Copies keep the form of their references, so they get no flag of a relocation,
//!   which the format has for full back references alone.
//!
//! Left out: an extent is never divided, so a job fails for want of one free range that is as long as the extent.

mod closure;
mod copying;
mod emptying;
mod extents;
mod own_trees;
mod pace;
mod renaming;

use crate::engine::Engine;
use crate::fault_in::FaultIn;
use crate::reservation::Handle;
use buttress_exact::{Exact as _, u64_of};
use buttress_format::{ByteCount, DeviceId, ExtentItem, Logical, Physical};
use buttress_fs::error::{Defect, Error, Result};
use buttress_fs::progress::Progress;
use closure::{Closure, Computed, Moved};
use copying::Copies;
use core::ops::Range;
use emptying::Emptying;
use pace::Pace;

pub use crate::block_groups::TargetProfiles;

/// The content of a batch, in bytes. An extent that is longer than this is a batch of its own.
const BATCH_BYTES: u64 = 32 << 20;

/// The extents of a batch.
const BATCH_EXTENTS: usize = 256;

/// The passes over a group: writers may still bring in extents that they had allocated before the first one.
const PASSES_MAX: usize = 64;

/// How a relocation goes about it.
#[derive(Clone, Debug, Default)]
pub struct RelocationOptions {
    /// Reports moved bytes and extents, and cancels the job after its current batch.
    pub progress: Progress,
    /// The most bytes that the job moves in a second.
    pub bytes_per_second: Option<u64>,
}

/// The work of a relocation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RelocationSummary {
    /// The number of block groups that the relocation emptied and removed.
    pub groups: u64,
    /// The number of data extents that the relocation moved.
    pub data_extents: u64,
    /// The length of the moved data extents on disk, in bytes.
    pub data_bytes: u64,
    /// Moved tree blocks of the groups. Copies of the tree blocks above the moved blocks do not
    /// count.
    pub tree_blocks: u64,
    /// The number of tree blocks that got a copy, including those above moved extents.
    pub copied_blocks: u64,
    /// The number of batches of the relocation, each of which is part of one transaction.
    pub batches: u64,
}

/// A job under way.
struct Job<'a> {
    engine: &'a Engine,
    options: &'a RelocationOptions,
    summary: RelocationSummary,
    pace: Pace,
}

impl Engine {
    /// Sets the profiles of all chunks and extents from now on, those of other writers included, until the next call. Balances
    /// with a conversion set them before their first group and reset them at their end.
    pub fn set_target_profiles(&self, targets: TargetProfiles) {
        self.shared.running.lock().core.groups.set_targets(targets);
    }

    /// Moves all content out of these block groups, and removes the groups. A group that does not
    /// exist any more is passed over.
    ///
    /// A job that ends early leaves a sound volume: extents that it moved stay moved, and the groups take new extents again.
    ///
    /// # Errors
    /// Fails with [`Error::Cancelled`], with [`Error::NoSpace`] and the missing bytes, with
    /// [`Error::NotMoved`] for a damaged extent, or with another error.
    pub fn relocate(&self, groups: &[Logical], options: &RelocationOptions) -> Result<RelocationSummary> {
        let _one_at_a_time = self.shared.relocating.lock();
        self.require_writing()?;
        options.progress.check()?;
        let emptying = Emptying::begin(self, groups)?;
        // A caller with more groups than these has stated the length of its whole job.
        if options.progress.snapshot().expected == ByteCount::ZERO {
            options.progress.expect(ByteCount::new(emptying.used_bytes()));
        }
        let mut job = Job {
            engine: self,
            options,
            summary: RelocationSummary::default(),
            pace: Pace::new(options.bytes_per_second),
        };
        for group in &emptying.groups {
            job.empty(&emptying, *group)?;
        }
        emptying.wait_for_removal(&options.progress)?;
        job.summary.groups = u64_of(emptying.groups.len());
        Ok(job.summary)
    }

    /// Returns the block groups that have a stripe in this range of a device, by address.
    #[must_use]
    pub fn groups_on(&self, device: DeviceId, range: &Range<Physical>) -> Vec<Logical> {
        let map = self.forest().volume().chunk_map();
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

    /// Acquires the edit lock at a moment without delayed references. The caller holds the commit
    /// lock.
    fn start_without_references(&self, reads: &mut FaultIn) -> Result<Handle<'_>> {
        loop {
            let mut handle = self.start_with_few_references(BATCH_EXTENTS, BATCH_EXTENTS)?;
            let missing = loop {
                let waiting = handle.core.references.len();
                if waiting == 0 {
                    return Ok(handle);
                }
                let missing = reads.missing_for(|| handle.missing_for_references(waiting))?;
                if !missing.is_empty() {
                    break missing;
                }
                handle
                    .run_some_references(waiting)
                    .inspect_err(|error| self.forest().volume().stop_writing(error))?;
            };
            drop(handle);
            reads.read(self, missing);
        }
    }
}

/// The outcome of one attempt to change a batch.
enum Attempt {
    /// The number of tree blocks that got a copy.
    Done(u64),
    Missing(Vec<buttress_tree::BlockPointer>),
    TooLarge,
    NoSpace(Error),
}

impl Job<'_> {
    /// Empties one of the block groups.
    fn empty(&mut self, emptying: &Emptying<'_>, group: Logical) -> Result<()> {
        for pass in 0..PASSES_MAX {
            if emptying.is_empty(group) {
                return Ok(());
            }
            self.pass(group)?;
            // After a commit with all content, the trees contain all extents that writers allocated
            // in these groups earlier.
            match pass {
                0 => self.engine.commit_metadata()?,
                _ => self.engine.commit()?,
            };
        }
        Err(Defect::new("a block group does not become empty")
            .with("block group", group.get())
            .with("passes", u64_of(PASSES_MAX))
            .into())
    }

    /// Moves everything that the extent tree has of a group, in order of address.
    fn pass(&mut self, group: Logical) -> Result<()> {
        let Some(end) = self.engine.end_of_group(group) else {
            return Ok(());
        };
        let mut from = group.get();
        loop {
            let start = self.engine.start_to_look();
            let (handle, extents) = self
                .engine
                .retry(start, |handle| handle.core.extents_from(from, end, BATCH_EXTENTS))?;
            drop(handle);
            let extents = first_batch(&extents);
            let Some(last) = extents.last() else {
                return Ok(());
            };
            self.options.progress.check()?;
            self.move_batch(group, extents)?;
            // Clamp: `end` is the end of an extent, whose check bounds it.
            from = last.end().get().max(from.saturating_add(1));
        }
    }

    fn move_batch(&mut self, group: Logical, extents: &[ExtentItem]) -> Result<()> {
        let data: Vec<ExtentItem> = extents
            .iter()
            .filter(|extent| extent.is_data())
            .cloned()
            .collect();
        let blocks: Vec<Logical> = extents
            .iter()
            .filter(|extent| !extent.is_data())
            .map(|extent| extent.start)
            .collect();
        let (own, shareable) = self.engine.divide_blocks(&blocks)?;
        self.engine.move_own_blocks(&own)?;
        let mut copies = self.engine.copy_extents(group, &data)?;
        let moved = copies.moved().to_vec();
        self.change(&mut copies, &moved, &shareable)?;
        drop(copies);
        self.engine.commit_metadata()?;
        let bytes = extents
            .iter()
            .fold(0_u64, |sum, extent| sum.exact_add(extent.length.get()));
        self.summary.batches = self.summary.batches.exact_add(1);
        self.summary.tree_blocks = self.summary.tree_blocks.exact_add(u64_of(blocks.len()));
        self.options
            .progress
            .advance(u64_of(extents.len()), ByteCount::new(bytes));
        self.pace.wait(bytes, &self.options.progress)
    }

    /// Changes a batch in the trees, in parts if it is too large for one.
    fn change(&mut self, copies: &mut Copies<'_>, moved: &[Moved], blocks: &[Logical]) -> Result<()> {
        if moved.is_empty() && blocks.is_empty() {
            return Ok(());
        }
        let mut reads = FaultIn::default();
        loop {
            match self.attempt(&mut reads, copies, moved, blocks)? {
                Attempt::Done(copied) => {
                    self.summary.copied_blocks = self.summary.copied_blocks.exact_add(copied);
                    return Ok(());
                }
                Attempt::Missing(missing) => reads.read(self.engine, missing),
                Attempt::NoSpace(error) if moved.len().saturating_add(blocks.len()) <= 1 => {
                    return Err(error);
                }
                Attempt::TooLarge | Attempt::NoSpace(_) => break,
            }
        }
        self.engine.commit_metadata()?;
        let (moved, blocks) = (halves(moved), halves(blocks));
        self.change(copies, moved.0, blocks.0)?;
        self.change(copies, moved.1, blocks.1)
    }

    fn attempt(
        &mut self,
        reads: &mut FaultIn,
        copies: &mut Copies<'_>,
        moved: &[Moved],
        blocks: &[Logical],
    ) -> Result<Attempt> {
        // No commit: what is in memory has no address yet, and everything else is written.
        let _no_commit = self.engine.shared.committing.lock();
        self.engine.require_writing()?;
        let mut handle = self.engine.start_without_references(reads)?;
        let renaming = {
            let _look = reads.look();
            let blocks: Vec<Logical> = handle.still_shareable(blocks)?;
            let closure = match Closure::compute(&mut handle, moved, &blocks) {
                Ok(Computed::Closure(closure)) => *closure,
                Ok(Computed::Missing(missing)) => return Ok(Attempt::Missing(missing)),
                Ok(Computed::TooLarge) => return Ok(Attempt::TooLarge),
                Err(error) => return missing_or(error),
            };
            match handle.prepare_renaming(closure) {
                Ok(Some(renaming)) => renaming,
                Ok(None) => {
                    let need = crate::need::Need::freeing(1);
                    return Ok(Attempt::NoSpace(handle.no_metadata_space(need)));
                }
                Err(error) => return missing_or(error),
            }
        };
        let used = renaming.moved();
        let (extents, bytes) = (u64_of(used.len()), renaming.moved_bytes());
        let copied = u64_of(renaming.block_count());
        handle.rename_all(renaming)?;
        drop(handle);
        copies.keep(|moved| used.contains(&moved.from));
        self.summary.data_extents = self.summary.data_extents.exact_add(extents);
        self.summary.data_bytes = self.summary.data_bytes.exact_add(bytes);
        Ok(Attempt::Done(copied))
    }
}

fn missing_or(error: Error) -> Result<Attempt> {
    match error.missing_block() {
        Some(pointer) => Ok(Attempt::Missing(vec![pointer])),
        None => Err(error),
    }
}

fn halves<T>(whole: &[T]) -> (&[T], &[T]) {
    whole.split_at(whole.len() / 2)
}

/// The first extents of a list that make up a batch: at least one.
fn first_batch(extents: &[ExtentItem]) -> &[ExtentItem] {
    let mut bytes = 0_u64;
    let count = extents
        .iter()
        .take_while(|extent| {
            let is_first = bytes == 0;
            bytes = bytes.saturating_add(extent.length.get());
            is_first || bytes <= BATCH_BYTES
        })
        .count();
    // Clamp: as many were just counted.
    extents.get(..count).unwrap_or_default()
}

impl Engine {
    fn end_of_group(&self, group: Logical) -> Option<u64> {
        let running = self.shared.running.lock();
        let found = running.core.groups.holding(group.get());
        found
            .filter(|found| found.start == group.get())
            .map(|found| found.end())
    }
}
