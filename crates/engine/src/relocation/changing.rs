//! The change of a batch, in attempts. An attempt plans the change under the edit lock and writes
//! the copies without the lock. If no other thread edited the batch meanwhile, the attempt renames
//! under the lock.
//!
//! A batch that is too large for one change is divided into halves, down to a single extent.
//!
//! Invariants: no commit runs between the plan and the renaming, because blocks in memory have no
//! address yet. A change makes no chunk if a commit of the job can free space instead.

use super::closure::{Closure, Computed, Moved};
use super::copying::Copies;
use super::job::{BATCH_EXTENTS, Job};
use super::renaming::Renaming;
use crate::areas::Relocations;
use crate::fault_in::FaultIn;
use crate::need::{Need, NewChunks};
use crate::reservation::Handle;
use crate::running_parts::RelocationStep;
use buttress_exact::{Exact as _, u64_of};
use buttress_format::{Logical, TreeBlock, TreeId};
use buttress_fs::error::{Error, Result};
use buttress_locks::Excused;
use buttress_volume::ExtentWrite;
use std::time::Instant;

/// How often others may edit a part of a batch. After that, the job holds the lock until the batch is done.
const CHANGES_MAX: usize = 3;

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
    /// Writes a batch of moved extents into the trees, in parts if the batch is too large for one
    /// edit.
    pub(super) fn change(
        &mut self,
        copies: &mut Copies<'_>,
        moved: &[Moved],
        blocks: &[Logical],
    ) -> Result<()> {
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
                Attempt::NoSpace(_) if self.commit_moved()? => {}
                Attempt::NoSpace(error) if is_single => return Err(error),
                Attempt::NoSpace(_) => {
                    self.commit()?;
                    break;
                }
                Attempt::TooLarge => {
                    self.note_too_large();
                    break;
                }
            }
        }
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
        let new_chunks = match self.has_uncommitted() {
            true => NewChunks::Never,
            false => NewChunks::Always,
        };
        self.engine.require_writing()?;
        let mut handle = self.engine.relocations().start_without_references(reads)?;
        let begin = Instant::now();
        let renaming = {
            let _rule = reads.guard();
            match handle
                .relocation_step()
                .plan((moved, blocks), self.blocks_max(), new_chunks)
            {
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
                let _rule = reads.guard();
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
        self.note_hold(prepared.max(begin.elapsed()), &renaming);
        let used = renaming.moved();
        copies.keep(|moved| used.contains(&moved.from));
        let data_bytes = renaming.moved_bytes();
        self.summary.data_extents = self.summary.data_extents.exact_add(u64_of(used.len()));
        self.summary.data_bytes = self.summary.data_bytes.exact_add(data_bytes);
        self.note_written(copied, data_bytes);
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
}

/// The outcome of planning a change.
enum Planned {
    Renaming(Box<Renaming>),
    Other(Attempt),
}

impl RelocationStep<'_> {
    /// Plans the change of a batch. Nothing changed after an error.
    fn plan(
        &mut self,
        (moved, blocks): (&[Moved], &[Logical]),
        blocks_max: usize,
        new_chunks: NewChunks,
    ) -> Result<Planned> {
        let blocks = self.still_shareable(blocks)?;
        let closure = match Closure::compute(self.running, moved, &blocks, blocks_max)? {
            Computed::Closure(closure) => *closure,
            Computed::Missing(missing) => return Ok(Planned::Other(Attempt::Missing(missing))),
            Computed::TooLarge => return Ok(Planned::Other(Attempt::TooLarge)),
        };
        Ok(
            match self.running.renamer().prepare_renaming(closure, new_chunks)? {
                Some(renaming) => Planned::Renaming(Box::new(renaming)),
                None => {
                    let error = self.running.block_reserve().no_metadata_space(Need::freeing(1));
                    Planned::Other(Attempt::NoSpace(error))
                }
            },
        )
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

impl<'e> Relocations<'e> {
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
