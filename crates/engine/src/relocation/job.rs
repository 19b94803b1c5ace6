//! The job of a relocation: it empties block groups in batches, and commits from time to time.
//!
//! A commit flushes the devices twice, so a job does not commit each batch. It commits if one of
//! these holds:
//!
//! - Its batches have written [`COMMIT_BYTES`] since its last commit.
//! - Dirty state takes as much memory as edits may use.
//! - A batch finds no space. The old places of earlier batches become free by a commit, so the
//!   batch runs again after it. A batch makes no chunk while such places exist.
//! - The job ends, at the end of a block group or early.
//!
//! While a batch runs, other threads read the tree blocks of the next one into the cache.
//!
//! Invariants: an extent that a job reports as moved is durable at the end of the job. The copies
//! that a job writes between two commits are bounded.

use super::copying::Copies;
use super::emptying::Emptying;
use super::extents::pointer_by_item;
use super::options::{RelocationOptions, RelocationSummary};
use super::pace::Pace;
use super::renaming::Renaming;
use super::siblings;
use crate::areas::Relocations;
use crate::engine::Engine;
use crate::need::{Need, NewChunks};
use buttress_exact::{Exact as _, u64_of};
use buttress_format::{ByteCount, ExtentItem, Logical, TreeBlock};
use buttress_fs::error::{Defect, Error, Result};
use buttress_fs::executor::Task;
use core::time::Duration;
use std::time::Instant;

/// The maximum content of a relocation batch, in bytes. An extent that is longer than this is a
/// batch of its own.
const BATCH_BYTES: u64 = 32 << 20;

/// The number of extents in the first batch of a relocation.
pub(super) const BATCH_EXTENTS: usize = 256;

/// The maximum number of extents in one batch.
const BATCH_EXTENTS_MAX: usize = 1024;

/// The maximum number of extents in one batch while no other thread edits.
const BATCH_EXTENTS_MAX_ALONE: usize = 2048;

/// The number of tree blocks that a batch of several extents may change. A larger change holds the
/// edit lock for longer.
const CHANGE_BLOCKS: usize = 1024;

/// The tree blocks, in bytes, that such a batch may change while no other thread edits. Memory is
/// the limit.
const CHANGE_BYTES_ALONE: u64 = 64 << 20;

/// The number of extents in one window, whose extents move in the order of [`siblings`].
const WINDOW_EXTENTS: usize = 1 << 15;

/// The content with which a window ends early, in bytes. Writers may free extents of a window before
/// the extents move, and the places of freed extents may be trimmed.
const WINDOW_DATA_BYTES: u64 = 2 * BATCH_BYTES;

/// The number of references with which a window ends early.
const WINDOW_REFERENCES: usize = 1 << 18;

/// The number of extents that are listed under one hold of the edit lock.
const PIECE_EXTENTS: usize = 1024;

/// The bytes that batches write between two commits of the job: tree blocks, and a part of the
/// content.
const COMMIT_BYTES: u64 = 64 << 20;

/// The part of the content that counts. Content dirties few tree blocks, and a crash before the
/// commit costs only the time of its copy.
const DATA_PART: u64 = 4;

/// The part of the cache's budget that the tree blocks of the next batch may take.
const AHEAD_PART: u64 = 16;

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

/// The longest hold that does not make batches smaller if no other thread edits.
const HOLD_MAX_ALONE: Duration = Duration::from_millis(32);

/// A shorter hold of the edit lock makes batches larger.
const HOLD_SHORT: Duration = Duration::from_millis(2);

/// The hold that makes batches larger if no other thread edits.
const HOLD_SHORT_ALONE: Duration = Duration::from_millis(12);

/// A relocation in progress.
pub(super) struct Job<'a> {
    pub(super) engine: &'a Engine,
    options: &'a RelocationOptions,
    pub(super) summary: RelocationSummary,
    pace: Pace,
    /// The extents of the next batch.
    batch_extents: usize,
    /// The bytes that batches wrote since the last commit of the job, as [`COMMIT_BYTES`] counts
    /// them.
    uncommitted_bytes: u64,
    /// The places that the last batch edited.
    batch_places: u64,
    /// The number of other threads' edits, as the last batch found it.
    foreign_edits: u64,
    /// No other thread edited during the last batch.
    is_alone: bool,
    /// The reads of the next batch's tree blocks.
    ahead: Vec<Task<Vec<TreeBlock>>>,
}

impl<'a> Job<'a> {
    pub(super) fn new(engine: &'a Engine, options: &'a RelocationOptions) -> Self {
        Self {
            engine,
            options,
            summary: RelocationSummary::default(),
            pace: Pace::new(options.bytes_per_second, Instant::now()),
            batch_extents: BATCH_EXTENTS,
            uncommitted_bytes: 0,
            batch_places: 0,
            foreign_edits: engine.shared.running.lock().holders.changes(),
            is_alone: true,
            ahead: Vec::new(),
        }
    }

    /// Empties all block groups. After an error, extents that the job moved stay moved.
    pub(super) fn empty_all(&mut self, emptying: &Emptying<'_>) -> Result<()> {
        let groups = emptying.groups.iter();
        let emptied = groups.copied().try_for_each(|group| self.empty(emptying, group));
        self.end_reads();
        if emptied.is_err() && self.engine.require_writing().is_ok() {
            self.commit_moved()?;
        }
        emptied
    }

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
            self.uncommitted_bytes = 0;
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

    /// Moves all extents of a block group that the extent tree lists, in windows by address.
    fn pass(&mut self, group: Logical) -> Result<()> {
        let Some(end) = self.engine.relocations().end_of_group(group) else {
            return Ok(());
        };
        let mut from = group.get();
        loop {
            let mut window = self.list_window(from, end)?;
            let Some(last) = window.last() else {
                return Ok(());
            };
            from = after(last);
            siblings::sort(&mut window);
            self.move_window(group, &window)?;
        }
    }

    /// Returns the first extents that begin in `[from, end)`, in order. Lists them in pieces, so that
    /// holds of the edit lock stay short.
    fn list_window(&self, mut from: u64, end: u64) -> Result<Vec<ExtentItem>> {
        let mut window = Vec::new();
        let (mut references, mut data_bytes) = (0_usize, 0_u64);
        while window.len() < WINDOW_EXTENTS && references < WINDOW_REFERENCES {
            let start = self.engine.start_reading();
            let (handle, piece) = self
                .engine
                .retry(start, |handle| handle.core.extents_from(from, end, PIECE_EXTENTS))?;
            drop(handle);
            let Some(last) = piece.last() else {
                break;
            };
            from = after(last);
            for extent in piece {
                if data_bytes >= WINDOW_DATA_BYTES {
                    return Ok(window);
                }
                if extent.is_data() {
                    data_bytes = data_bytes.exact_add(extent.length.get());
                }
                references = references.exact_add(extent.inline_references.len());
                window.push(extent);
            }
        }
        Ok(window)
    }

    /// Moves the extents of a window in batches. Extents that no longer exist are skipped.
    fn move_window(&mut self, group: Logical, window: &[ExtentItem]) -> Result<()> {
        let mut rest = window;
        while !rest.is_empty() {
            let (extents, later) = divide_batches(rest, self.batch_extents);
            self.options.progress.check()?;
            self.end_reads();
            self.read_ahead(divide_batches(later, self.batch_extents).0);
            self.move_batch(group, extents)?;
            rest = later;
        }
        Ok(())
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
        let mut copies = self.copy(group, &data)?;
        let moved = copies.moved().to_vec();
        self.change(&mut copies, &moved, &shareable)?;
        drop(copies);
        self.commit_if_due()?;
        let bytes = extents
            .iter()
            .fold(0_u64, |sum, extent| sum.exact_add(extent.length.get()));
        self.summary.batches = self.summary.batches.exact_add(1);
        self.summary.tree_blocks = self.summary.tree_blocks.exact_add(u64_of(blocks.len()));
        self.options
            .progress
            .advance(u64_of(extents.len()), ByteCount::new(bytes));
        self.wait_for_pace(bytes)
    }

    /// Waits until the rate limit allows a batch of this many bytes.
    pub(super) fn wait_for_pace(&mut self, bytes: u64) -> Result<()> {
        self.pace.wait(bytes, &self.options.progress)
    }

    /// Copies the content of data extents. Commits first if the copies find no space otherwise.
    fn copy(&mut self, group: Logical, data: &[ExtentItem]) -> Result<Copies<'a>> {
        match self.engine.relocations().copy_extents(group, data) {
            Err(Error::NoSpace { .. }) if self.commit_moved()? => {
                self.engine.relocations().copy_extents(group, data)
            }
            copied => copied,
        }
    }

    /// Counts what a change of the job wrote.
    pub(super) fn note_written(&mut self, tree_blocks: u64, data_bytes: u64) {
        let node_bytes = u64::from(self.engine.forest().block_format().node_bytes);
        let written = [tree_blocks.exact_mul(node_bytes), data_bytes / DATA_PART];
        self.uncommitted_bytes = written.into_iter().fold(self.uncommitted_bytes, u64::exact_add);
    }

    /// Returns whether old places of the job's batches become free by a commit.
    pub(super) fn has_uncommitted(&self) -> bool {
        self.uncommitted_bytes > 0
    }

    /// Commits if batches wrote something since the last commit of the job. Returns whether the job
    /// committed.
    pub(super) fn commit_moved(&mut self) -> Result<bool> {
        if !self.has_uncommitted() {
            return Ok(false);
        }
        self.commit()?;
        Ok(true)
    }

    /// Commits, so that old places become free: those of the job's batches, and those of other edits.
    pub(super) fn commit(&mut self) -> Result<()> {
        if !buttress_faults::on("relocation-old-places-kept") {
            self.engine.commit_metadata()?;
        }
        self.uncommitted_bytes = 0;
        Ok(())
    }

    /// Commits if batches wrote much, or if another batch would lack memory or space.
    fn commit_if_due(&mut self) -> Result<()> {
        let is_much =
            self.uncommitted_bytes >= COMMIT_BYTES || buttress_faults::on("relocation-commits-each-batch");
        if self.has_uncommitted() && (is_much || self.lacks_space()?) {
            self.commit_moved()?;
        }
        Ok(())
    }

    /// Returns whether dirty memory is at its limit, or whether block groups lack space for a batch
    /// like the last one.
    fn lacks_space(&self) -> Result<bool> {
        let need = Need::freeing(self.batch_places);
        let start = self.engine.start_unchecked();
        let (handle, fits) = self
            .engine
            .retry(start, |handle| handle.reserve(need, NewChunks::Never))?;
        Ok(!fits || self.engine.is_over_limit(&handle))
    }

    /// Lets batches grow or shrink. A batch holds the edit lock, and other threads may wait for it.
    /// A batch with too many blocks is divided, which computes its blocks several times.
    pub(super) fn note_hold(&mut self, hold: Duration, renaming: &Renaming) {
        self.summary.longest_hold = self.summary.longest_hold.max(hold);
        self.batch_places = renaming.places();
        let is_small = renaming.is_small(self.blocks_max());
        let foreign_edits = self.engine.shared.running.lock().holders.changes();
        self.is_alone = self.foreign_edits == foreign_edits;
        self.foreign_edits = foreign_edits;
        let has_no_company = self.is_alone && !self.engine.has_company();
        let (short, most) = match self.is_alone {
            true => (HOLD_SHORT_ALONE, HOLD_MAX_ALONE),
            false => (HOLD_SHORT, HOLD_MAX),
        };
        let extents = self.batch_extents;
        self.batch_extents = match hold {
            // Without other threads, the sizes of batches do not depend on the clock.
            _ if has_no_company && is_small => extents.exact_mul(2).min(BATCH_EXTENTS_MAX_ALONE),
            _ if has_no_company => extents,
            hold if hold > most => (extents / 2).max(EXTENTS_MIN),
            hold if hold < short && is_small => extents.exact_mul(2).min(BATCH_EXTENTS_MAX),
            _ => extents,
        };
    }

    /// Returns the number of tree blocks that a batch of several extents may change.
    pub(super) fn blocks_max(&self) -> usize {
        if !self.is_alone || self.engine.has_company() {
            return CHANGE_BLOCKS;
        }
        let node_bytes = u64::from(self.engine.forest().block_format().node_bytes);
        CHANGE_BYTES_ALONE.quotient(node_bytes).narrow()
    }

    /// Makes the next batches smaller, because this one has too many blocks.
    pub(super) fn note_too_large(&mut self) {
        self.batch_extents = (self.batch_extents / 2).max(EXTENTS_MIN);
    }

    /// Has other threads read the tree blocks of the next batch into the cache.
    fn read_ahead(&mut self, next: &[ExtentItem]) {
        let forest = self.engine.forest();
        if !self.engine.executor().is_parallel() {
            return;
        }
        let node_bytes = u64::from(forest.block_format().node_bytes);
        let budget = forest.cache_statistics().budget_bytes.get();
        let most = budget.quotient(node_bytes.exact_mul(AHEAD_PART));
        let blocks = next.iter().filter(|extent| !extent.is_data());
        let pointers = blocks.filter_map(pointer_by_item).take(most.narrow()).collect();
        self.ahead = self.engine.start_fault_in(pointers);
    }

    /// Waits for reads of the next batch. A block that cannot be read is read again by the batch.
    fn end_reads(&mut self) {
        for read in core::mem::take(&mut self.ahead) {
            drop(read.take());
        }
    }
}

/// Returns the first address after an extent.
fn after(extent: &ExtentItem) -> u64 {
    // Clamp: the check of an extent bounds its end.
    extent.end().get().max(extent.start.get().saturating_add(1))
}

/// Divides extents into the first batch, which has at least one extent and at most `count`, and the
/// rest.
fn divide_batches(extents: &[ExtentItem], count: usize) -> (&[ExtentItem], &[ExtentItem]) {
    let mut bytes = 0_u64;
    let first = extents
        .iter()
        .take(count)
        .take_while(|extent| {
            let is_first = bytes == 0;
            bytes = bytes.exact_add(extent.length.get());
            is_first || bytes <= BATCH_BYTES
        })
        .count();
    extents.split_at(first)
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
