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
//! | 3. the blocks that have to change are found | `closure`, `extents` | the lock of commits and the edit lock |
//! | 4. they are copied, and pointers, references and checksums change | `renaming` | the same |
//! | 5. a commit frees the old places | | |
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

mod closure;
mod copying;
mod emptying;
mod extents;
mod left;
mod merging;
mod own_trees;
mod pace;
mod renaming;
mod swapping;
mod together;
mod users;

use crate::areas::Relocations;
use crate::engine::Engine;
use crate::fault_in::FaultIn;
use crate::need::Need;
use crate::reservation::Handle;
use crate::running_parts::RelocationStep;
use buttress_exact::{Exact as _, u64_of};
use buttress_format::{ByteCount, DeviceId, ExtentItem, Logical, Physical, TreeBlock, TreeId};
use buttress_fs::error::{Defect, Error, Result};
use buttress_fs::progress::Progress;
use buttress_locks::Excused;
use buttress_volume::ExtentWrite;
use closure::{Closure, Computed, Moved};
use copying::Copies;
use core::ops::Range;
use core::time::Duration;
use emptying::Emptying;
use pace::Pace;
use renaming::Renaming;
use std::time::Instant;

pub use crate::block_groups::TargetProfiles;
pub use left::Removal;
pub use merging::RelocationTree;

/// The maximum content of a relocation batch, in bytes. An extent that is longer than this is a
/// batch of its own.
const BATCH_BYTES: u64 = 32 << 20;

/// The maximum number of extents in one batch of a relocation.
const BATCH_EXTENTS: usize = 256;

/// The maximum number of passes over a group: writers may still insert extents that they allocated
/// before the first pass.
const PASSES_MAX: usize = 64;

/// The first wait for writers that hold space in a block group; later waits double.
const WRITERS_WAIT: Duration = Duration::from_millis(1);

/// The longest wait for writers between two passes.
const WRITERS_WAIT_MAX: Duration = Duration::from_millis(250);

/// The fewest extents of a batch that holds the lock for long.
const EXTENTS_MIN: usize = 8;

/// The longest hold of the edit lock that does not make batches smaller.
const HOLD_MAX: Duration = Duration::from_millis(8);

/// A shorter hold of the edit lock makes batches larger.
const HOLD_SHORT: Duration = Duration::from_millis(2);

/// How often others may edit a part of a batch. After that, the job holds the lock until the batch is done.
const CHANGES_MAX: usize = 3;

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

/// A relocation in progress.
struct Job<'a> {
    engine: &'a Engine,
    options: &'a RelocationOptions,
    summary: RelocationSummary,
    pace: Pace,
    /// The extents of the next batch.
    batch_extents: usize,
}

impl<'e> Relocations<'e> {
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
        let mut job = Job {
            engine: self.engine,
            options,
            summary: RelocationSummary::default(),
            pace: Pace::new(options.bytes_per_second, Instant::now()),
            batch_extents: BATCH_EXTENTS,
        };
        for group in &emptying.groups {
            job.empty(&emptying, *group)?;
        }
        job.summary.groups = u64_of(emptying.groups.len());
        job.summary.left_groups = u64_of(emptying.remove(&options.progress, options.removal)?);
        Ok(job.summary)
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

    /// Acquires the edit lock at a moment without delayed references. The caller holds the commit
    /// lock.
    fn start_without_references(&self, reads: &mut FaultIn) -> Result<Handle<'e>> {
        loop {
            let mut handle = self
                .engine
                .start_with_few_references(BATCH_EXTENTS, BATCH_EXTENTS)?;
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
                    .extent_tree()
                    .run_references(waiting)
                    .inspect_err(|error| self.engine.forest().volume().stop_writing(error))?;
            };
            drop(handle);
            reads.read(self.engine, missing);
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
    /// Others edited a part of it meanwhile.
    Changed,
}

impl Job<'_> {
    /// Empties one of the block groups.
    fn empty(&mut self, emptying: &Emptying<'_>, group: Logical) -> Result<()> {
        let mut pass = 0;
        let mut pause = WRITERS_WAIT;
        while pass < PASSES_MAX {
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
            if pass > 0 && emptying.bytes_left(group)[1] > 0 {
                // A writer without a lock, such as a defragmentation, is still writing there.
                self.options.progress.check()?;
                std::thread::sleep(pause);
                pause = pause
                    .checked_mul(2)
                    .map_or(WRITERS_WAIT_MAX, |longer| longer.min(WRITERS_WAIT_MAX));
                continue;
            }
            pass = pass.exact_add(1);
        }
        let [used, allocated] = emptying.bytes_left(group);
        Err(Defect::new("a block group does not become empty")
            .with("block group", group.get())
            .with("passes", u64_of(PASSES_MAX))
            .with("used bytes", used)
            .with("allocated bytes", allocated)
            .into())
    }

    /// Moves all extents of a block group that the extent tree lists, in order of address.
    fn pass(&mut self, group: Logical) -> Result<()> {
        let Some(end) = self.engine.relocations().end_of_group(group) else {
            return Ok(());
        };
        let mut from = group.get();
        loop {
            let count = self.batch_extents;
            let start = self.engine.start_to_look();
            let (handle, extents) = self
                .engine
                .retry(start, |handle| handle.core.extents_from(from, end, count))?;
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
        let (own, shareable) = self.engine.relocations().divide_blocks(&blocks)?;
        self.engine.relocations().move_own_blocks(&own)?;
        let mut copies = self.engine.relocations().copy_extents(group, &data)?;
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

    /// Writes a batch of moved extents into the trees, in parts if the batch is too large for one
    /// edit.
    fn change(&mut self, copies: &mut Copies<'_>, moved: &[Moved], blocks: &[Logical]) -> Result<()> {
        if moved.is_empty() && blocks.is_empty() {
            return Ok(());
        }
        let mut reads = FaultIn::default();
        let mut changes = 0_usize;
        let is_single = moved.len().exact_add(blocks.len()) <= 1;
        loop {
            match self.attempt(&mut reads, copies, (moved, blocks), changes >= CHANGES_MAX)? {
                Attempt::Done(copied) => {
                    self.summary.copied_blocks = self.summary.copied_blocks.exact_add(copied);
                    return Ok(());
                }
                Attempt::Missing(missing) => reads.read(self.engine, missing),
                Attempt::Changed => changes = changes.exact_add(1),
                Attempt::NoSpace(error) if is_single => return Err(error),
                Attempt::TooLarge | Attempt::NoSpace(_) => break,
            }
        }
        self.engine.commit_metadata()?;
        let [first, second] = parts(moved, blocks);
        self.change(copies, first.0, first.1)?;
        self.change(copies, second.0, second.1)
    }

    /// Attempts the change once. The change is prepared under the edit lock, and the copies are
    /// written without it. If nothing was edited meanwhile, everything changes under the lock.
    /// `alone` holds the lock all the time.
    fn attempt(
        &mut self,
        reads: &mut FaultIn,
        copies: &mut Copies<'_>,
        (moved, blocks): (&[Moved], &[Logical]),
        alone: bool,
    ) -> Result<Attempt> {
        // No commit may run here: blocks in memory have no address yet, and all other blocks are
        // written.
        let _no_commit = self.engine.shared.committing.lock();
        self.engine.require_writing()?;
        let mut handle = self.engine.relocations().start_without_references(reads)?;
        let begin = Instant::now();
        let renaming = {
            let _look = reads.look();
            match handle.relocation_step().plan(moved, blocks) {
                Ok(Planned::Renaming(renaming)) => *renaming,
                Ok(Planned::Other(other)) => return Ok(other),
                Err(error) => return missing_or(error),
            }
        };
        let prepared = begin.elapsed();
        let mut held = alone.then_some(handle);
        let written = self.write_blocks(&renaming, alone);
        let begin = Instant::now();
        let mut handle = held.take().unwrap_or_else(|| self.engine.start_unchecked());
        let is_unchanged = match alone {
            true => Ok(true),
            false => {
                let _look = reads.look();
                handle
                    .renamer()
                    .is_unchanged(&renaming)
                    .and_then(|is_unchanged| Ok(is_unchanged && handle.renamer().reserve_for(&renaming)?))
            }
        };
        let (written, is_unchanged) = match (written, is_unchanged) {
            (Ok(written), Ok(is_unchanged)) => (written, is_unchanged),
            (Err(error), _) | (_, Err(error)) => {
                handle.renamer().give_up_renaming(&renaming);
                return missing_or(error);
            }
        };
        if !is_unchanged {
            handle.renamer().give_up_renaming(&renaming);
            return Ok(Attempt::Changed);
        }
        let copied = u64_of(written.len());
        handle.renamer().rename_all(&renaming, written)?;
        drop(handle);
        self.note_hold(prepared.max(begin.elapsed()));
        let used = renaming.moved();
        copies.keep(|moved| used.contains(&moved.from));
        self.summary.data_extents = self.summary.data_extents.exact_add(u64_of(used.len()));
        self.summary.data_bytes = self.summary.data_bytes.exact_add(renaming.moved_bytes());
        Ok(Attempt::Done(copied))
    }

    fn write_blocks(&self, renaming: &Renaming, alone: bool) -> Result<Vec<(TreeId, TreeBlock)>> {
        let _excused = alone.then(Excused::from_device_rule);
        let forest = self.engine.forest();
        let copies = renaming.copies(forest.block_format())?;
        let writes: Vec<ExtentWrite> = copies
            .iter()
            .map(|(_, copy)| ExtentWrite {
                logical: copy.logical(),
                bytes: copy.bytes().clone(),
            })
            .collect();
        forest.volume().write(&writes)?;
        Ok(copies)
    }

    /// Has batches grow or shrink with the time that the lock was held, where others may have waited for it.
    fn note_hold(&mut self, hold: Duration) {
        self.summary.longest_hold = self.summary.longest_hold.max(hold);
        if !self.engine.has_company() {
            return;
        }
        let extents = self.batch_extents;
        self.batch_extents = match hold {
            hold if hold > HOLD_MAX => (extents / 2).max(EXTENTS_MIN),
            hold if hold < HOLD_SHORT => extents.exact_mul(2).min(BATCH_EXTENTS),
            _ => extents,
        };
    }
}

/// The outcome of planning a change.
enum Planned {
    Renaming(Box<Renaming>),
    Other(Attempt),
}

impl RelocationStep<'_> {
    /// Plans the change of a batch. Nothing changed after an error.
    fn plan(&mut self, moved: &[Moved], blocks: &[Logical]) -> Result<Planned> {
        let blocks = self.still_shareable(blocks)?;
        let closure = match Closure::compute(self.running, moved, &blocks)? {
            Computed::Closure(closure) => *closure,
            Computed::Missing(missing) => return Ok(Planned::Other(Attempt::Missing(missing))),
            Computed::TooLarge => return Ok(Planned::Other(Attempt::TooLarge)),
        };
        Ok(match self.running.renamer().prepare_renaming(closure)? {
            Some(renaming) => Planned::Renaming(Box::new(renaming)),
            None => {
                let error = self.running.block_reserve().no_metadata_space(Need::freeing(1));
                Planned::Other(Attempt::NoSpace(error))
            }
        })
    }
}

fn missing_or(error: Error) -> Result<Attempt> {
    match error.missing_block() {
        Some(pointer) => Ok(Attempt::Missing(vec![pointer])),
        None => Err(error),
    }
}

/// Divides a batch of at least two extents into two smaller ones, data before tree blocks.
fn parts<'a, D, B>(data: &'a [D], blocks: &'a [B]) -> [(&'a [D], &'a [B]); 2] {
    match (data.len(), blocks.len()) {
        (0, count) => {
            let (first, second) = blocks.split_at(count / 2);
            [(data, first), (data, second)]
        }
        (count, 0) => {
            let (first, second) = data.split_at(count / 2);
            [(first, blocks), (second, blocks)]
        }
        _ => [(data, &[]), (&[], blocks)],
    }
}

/// The first extents of a list that make up a batch: at least one.
fn first_batch(extents: &[ExtentItem]) -> &[ExtentItem] {
    let mut bytes = 0_u64;
    let count = extents
        .iter()
        .take_while(|extent| {
            let is_first = bytes == 0;
            bytes = bytes.exact_add(extent.length.get());
            is_first || bytes <= BATCH_BYTES
        })
        .count();
    // Clamp: this code just counted `count` extents.
    extents.get(..count).unwrap_or_default()
}

impl Relocations<'_> {
    fn end_of_group(&self, group: Logical) -> Option<u64> {
        let running = self.engine.shared.running.lock();
        let found = running.core.groups.holding(group.get());
        found
            .filter(|found| found.start == group.get() && found.read_only)
            .map(|found| found.end())
    }
}
