//! Committing: makes the running transaction the volume's state.
//!
//! 1. Dirty data is written back, without any lock.
//! 2. Under the edit lock: inodes that changed in memory become items, readers are given a view of that, empty block groups
//!    go, everything is settled, and the dirty nodes are frozen. The next transaction begins here. Whenever a tree block is
//!    missing for that, the lock is let go, the block is read, and the step is retried, with what was edited meanwhile.
//! 3. Without the lock: nodes get their checksums on all cores and are written in large requests in order of address;
//!    all devices are flushed; superblocks; flush; their copies; flush.
//! 4. Under the lock again: what this transaction freed may be used, as far as no reader needs it.
//!
//! One commit runs at a time. From the moment at which nothing is left to settle until it is durable it holds the lock of
//! superblocks, which those who write logs take, too: until then syncs go on beside it, and are logged on the commit before.
//!
//! A failure in step 2 or 3 stops writing for good: the volume stays readable and says why.

use super::allowance::CommitAllowance;
use super::block_groups::Purpose;
use super::converging::Convergence;
use super::fault_in::FaultIn;
use super::freezing::{Preparation, Prepared};
use super::reservation::Handle;
use super::slice::Slice;
use super::uncommitted::Counted;
use crate::engine::{Engine, Shared, SuperblocksLock};
use buttress_device::Buffer;
use buttress_format::{ByteCount, Generation, TreeBlock, TreeId};
use buttress_fs::error::{Defect, Error, Result};
use buttress_fs::executor::{Task, take_all};
use buttress_locks::MutexGuard;
use buttress_tree::{Frozen, FrozenBlock};
use buttress_volume::{ExtentWrite, Volume};
use bytes::Bytes;
use core::sync::atomic::Ordering;
use std::sync::Arc;

/// What one thread seals at once, into one buffer.
const SEALED_BYTES: usize = 1 << 20;

/// So few blocks, as a log has that was written before, are sealed one by one on this thread: handing that to another would
/// take as long.
const FEW_BLOCKS: usize = 24;

/// How many of those buffers are handed to the devices at once, so that sealing the next ones overlaps with writing.
const BATCH_BUFFERS: usize = 8;

/// How many inodes are written back in one part.
const INODES_AT_ONCE: usize = 256;

/// After so many slices a commit goes on to its end: whatever others change meanwhile, it ends.
const SLICES_MAX: usize = 4096;

/// The moment at which a state was frozen.
struct Moment<'a, T> {
    /// Nobody writes logs from here on.
    no_logs: MutexGuard<'a, (), SuperblocksLock>,
    /// What is to be written, if there is anything.
    prepared: Option<Box<Prepared>>,
    /// What was done at that moment.
    answer: T,
    /// The last durable generation.
    durable: Generation,
    /// The changes that the state has.
    changes: Counted,
}

impl Engine {
    /// Commits the running transaction, if there is anything to commit. Returns the generation of the last commit.
    ///
    /// When this returns, everything that was done before the call is durable.
    ///
    /// # Errors
    /// When writing has stopped, or stops now. [`Error::OutOfHostSpace`] if content found no space on the host:
    /// everything else is then durable, and that content stays dirty.
    pub fn commit(&self) -> Result<Generation> {
        let content = self.shared.account.content();
        let written = match self.write_back_for_commit() {
            Err(error @ Error::OutOfHostSpace(_)) => Err(error),
            written => Ok(written?),
        };
        let (generation, ()) = self.commit_state(|_, _| ())?;
        written?;
        self.shared.account.commit_content(content);
        self.shared.whole_commits.fetch_add(1, Ordering::Relaxed);
        Ok(generation)
    }

    /// Commits, and does something at the very moment at which the committed state is frozen: what `then` edits belongs
    /// to the next transaction, and nobody's edit comes between. It is given what is being committed, if anything is.
    pub fn commit_then<T>(
        &self,
        then: impl FnOnce(Handle<'_>, Option<&Prepared>) -> T,
    ) -> Result<(Generation, T)> {
        let content = self.shared.account.content();
        self.write_back_for_commit()?;
        let committed = self.commit_state(then)?;
        self.shared.account.commit_content(content);
        Ok(committed)
    }

    /// Writes back dirty data before a commit. It runs before the lock of commits: write-back starts edits, and edits
    /// may commit for want of space.
    fn write_back_for_commit(&self) -> Result<()> {
        if buttress_faults::on("commit-leaves-content") {
            return Ok(());
        }
        let _early = buttress_faults::on("lock-commit-before-files").then(|| self.shared.committing.lock());
        self.stages().write_back(self)
    }

    /// As [`commit_then`](Self::commit_then), for a snapshot: calls that change content in several steps are in what is frozen
    /// as a whole, or not at all. They wait while it is being frozen, and no longer.
    pub fn commit_for_snapshot<T>(
        &self,
        then: impl FnOnce(Handle<'_>, Option<&Prepared>) -> T,
    ) -> Result<(Generation, T)> {
        // The most of it, before anybody is kept from anything.
        self.stages().write_back(self)?;
        // Before the lock of commits: a call that is in the middle of its steps may commit for want of room.
        let no_steps = self.data().several_steps.write();
        self.commit_then(move |handle, prepared| {
            let answer = then(handle, prepared);
            drop(no_steps);
            answer
        })
    }

    /// Commits without writing back dirty data: what edits do when they find no space. Files keep the sizes that
    /// their extents reach to.
    pub fn commit_metadata(&self) -> Result<Generation> {
        self.commit_state(|_, _| ()).map(|(generation, ())| generation)
    }

    fn commit_state<T>(
        &self,
        then: impl FnOnce(Handle<'_>, Option<&Prepared>) -> T,
    ) -> Result<(Generation, T)> {
        let _one_at_a_time = self.shared.committing.lock();
        self.require_writing()?;
        let node_bytes = u64::from(self.forest().block_format().node_bytes);
        for purpose in [Purpose::System, Purpose::Metadata] {
            self.fault_in_free_space(purpose, node_bytes)?;
        }
        let Moment {
            prepared,
            answer,
            durable,
            changes,
            // Held until it is durable: the next log goes beside this commit.
            no_logs,
        } = self.freeze_then(then).inspect_err(|error| {
            self.forest().volume().stop_writing(error);
        })?;
        let Some(mut prepared) = prepared else {
            self.shared.account.commit_changes(changes);
            return Ok((durable, answer));
        };
        let generation = prepared.superblock.generation;
        if let Err(error) = self.write_out(&mut prepared) {
            self.forest().volume().stop_writing(&error);
            return Err(error);
        }
        let freed = self.shared.finish_commit(*prepared);
        self.shared.account.commit_changes(changes);
        self.shared.dirty_memory.thaw();
        if self.shared.discards || self.data().lacks_host_space() {
            drop(no_logs);
            self.discard_freed(&freed);
        }
        Ok((generation, answer))
    }

    /// Step 2.
    fn freeze_then<T>(&self, then: impl FnOnce(Handle<'_>, Option<&Prepared>) -> T) -> Result<Moment<'_, T>> {
        let mut reads = FaultIn::default();
        let mut convergence = Convergence::default();
        let mut allowance = CommitAllowance::default();
        let mut slices = 0_usize;
        let has_company = self.has_company();
        // Where others work beside it, syncs are not kept waiting before there is nothing left to settle.
        let mut no_logs = (!has_company).then(|| self.superblocks().lock());
        loop {
            slices = slices.saturating_add(1);
            let slice = match has_company && slices < SLICES_MAX {
                true => Slice::begin(),
                false => Slice::endless(),
            };
            // Nothing is being overwritten in place that a snapshot of this state will share.
            let is_late = buttress_faults::on("lock-in-place-after-edit");
            let in_place = (!is_late).then(|| self.data().in_place.write());
            let mut handle = self.start_unchecked();
            let in_place = in_place.unwrap_or_else(|| self.data().in_place.write());
            let durable = handle.core.durable;
            let may_freeze = no_logs.is_some();
            allowance.slice_starts(&handle);
            let prepared = self.prepare(&mut handle, &reads, &mut convergence, &slice, may_freeze);
            allowance.slice_ends(&handle);
            // Its references were still waiting; now some are in the trees.
            self.shared.forget_view();
            let prepared = match prepared? {
                Preparation::Missing(missing) => {
                    drop(handle);
                    drop(in_place);
                    reads.read(self, missing);
                    continue;
                }
                Preparation::Paused => continue,
                Preparation::NothingToDo | Preparation::Settled => None,
                Preparation::Frozen(prepared) => {
                    allowance.check(&handle);
                    Some(prepared)
                }
            };
            let Some(no_logs) = no_logs.take() else {
                drop(handle);
                drop(in_place);
                no_logs = Some(self.superblocks().lock());
                continue;
            };
            let frozen_bytes = prepared.as_ref().map_or(0, |prepared| prepared.bytes());
            self.shared.dirty_memory.freeze(frozen_bytes);
            self.shared.readers.set_running(handle.core.generation);
            let changes = self.shared.account.changes();
            let answer = then(handle, prepared.as_deref());
            return Ok(Moment {
                no_logs,
                prepared,
                answer,
                durable,
                changes,
            });
        }
    }

    /// Freezes the running transaction, as far as that goes without reading and within the slice; unless it `may_freeze`, it is
    /// settled and no more.
    fn prepare(
        &self,
        handle: &mut Handle<'_>,
        reads: &FaultIn,
        convergence: &mut Convergence,
        slice: &Slice,
        may_freeze: bool,
    ) -> Result<Preparation> {
        self.data()
            .balance(handle.core.reserved_data_bytes, &handle.core.ahead)?;
        while handle.inodes.changed() > 0 {
            let missing = reads.missing_for(|| handle.missing_for_some_inodes(INODES_AT_ONCE))?;
            if !missing.is_empty() {
                return Ok(Preparation::Missing(missing));
            }
            handle.write_back_some_inodes(INODES_AT_ONCE)?;
            if slice.is_over() {
                return Ok(Preparation::Paused);
            }
        }
        // Nothing that a reader sees changes from here on until the lock is let go of.
        drop(self.shared.give_view(handle));
        match handle.settle_transaction(reads, convergence, slice, may_freeze)? {
            None => handle.freeze(self.forest().volume()),
            Some(preparation) => Ok(preparation),
        }
    }

    /// Whether others may be waiting while this thread works, and work beside it.
    pub fn has_company(&self) -> bool {
        self.executor().is_parallel() && self.shared.environment.commit_interval().is_some()
    }

    fn write_out(&self, prepared: &mut Prepared) -> Result<()> {
        if let Some(recount) = prepared.recount.take() {
            recount.check()?;
        }
        let volume = self.forest().volume();
        if buttress_faults::on("flush-before-tree-blocks") {
            volume.flush()?;
            self.write_nodes(prepared.frozen.iter(), volume, true)?;
            return Ok(volume.write_superblocks(&prepared.superblock, &prepared.device_items)?);
        }
        self.write_nodes(prepared.frozen.iter(), volume, true)?;
        if !buttress_faults::on("commit-unflushed-before-superblocks") {
            volume.flush()?;
        }
        if prepared.replaces {
            volume.write_superblocks_and_replace(&prepared.superblock, &prepared.device_items)?;
        } else {
            let Prepared {
                superblock,
                device_items,
                leaving,
                ..
            } = prepared;
            volume.write_superblocks_without(superblock, device_items, leaving)?;
        }
        Ok(())
    }

    /// Writes all blocks that were frozen, in order of address. They go into the cache as far as they are likely to be wanted,
    /// where it is to have them.
    pub fn write_nodes<'a>(
        &self,
        frozen: impl Iterator<Item = &'a Frozen>,
        volume: &Volume,
        caches: bool,
    ) -> Result<()> {
        let mut blocks: Vec<(TreeId, FrozenBlock)> = frozen
            .map(|frozen| {
                let tree = frozen.tree();
                Ok(frozen.blocks()?.into_iter().map(move |block| (tree, block)))
            })
            .collect::<Result<Vec<_>>>()?
            .into_iter()
            .flatten()
            .collect();
        blocks.sort_unstable_by_key(|(_, block)| block.logical());
        let node_bytes = usize::try_from(volume.block_format().node_bytes)
            .unwrap_or(1 << 14)
            .max(1);
        if blocks.len() <= FEW_BLOCKS {
            let sealed = blocks
                .iter()
                .map(|(tree, block)| self.seal_alone(*tree, block, node_bytes, caches))
                .collect::<Result<Vec<_>>>()?;
            return Ok(volume.write(&sealed)?);
        }
        let at_once = SEALED_BYTES.checked_div(node_bytes).unwrap_or(1).max(1);
        // The next batch is sealed by other threads while this one is written.
        let mut batches = blocks.chunks(at_once.saturating_mul(BATCH_BUFFERS));
        let mut seal_next = || Some(self.start_sealing(batches.next()?, at_once, node_bytes, caches));
        let mut sealing = seal_next();
        while let Some(sealed) = sealing.take() {
            sealing = seal_next();
            let ready: Vec<ExtentWrite> = take_all(sealed)?;
            volume.write(&ready)?;
        }
        Ok(())
    }

    /// Gives one block its checksum, and puts it into the cache: cache and devices share its bytes.
    fn seal_alone(
        &self,
        tree: TreeId,
        block: &FrozenBlock,
        node_bytes: usize,
        caches: bool,
    ) -> Result<ExtentWrite> {
        let forest = self.forest();
        let mut buffer = Buffer::from(block.bytes());
        let header = block.seal_copy(&mut buffer, forest.block_format().checksum_type);
        let header = header
            .filter(|_| buffer.len() == node_bytes)
            .ok_or_else(|| Defect::new("a block has not the volume's size"))?;
        let bytes = buffer.into_bytes();
        if caches && (block.is_likely_to_change() || forest.has_room_for_block()) {
            forest.keep_written(tree, TreeBlock::of_sealed(header, bytes.clone()));
        }
        let logical = block.logical();
        Ok(ExtentWrite { logical, bytes })
    }

    /// Has blocks given their checksums, side by side in buffers that the devices take as they are. Blocks that are likely to
    /// be wanted go into the cache, too; others only where nothing has to go for them.
    fn start_sealing(
        &self,
        blocks: &[(TreeId, FrozenBlock)],
        at_once: usize,
        node_bytes: usize,
        caches: bool,
    ) -> Vec<Task<Vec<ExtentWrite>>> {
        let checksum_type = self.forest().block_format().checksum_type;
        blocks
            .chunks(at_once)
            .map(|part| {
                let (part, forest) = (part.to_vec(), Arc::clone(self.forest()));
                let seal = move || {
                    let mut buffer = Buffer::zeroed(part.len().saturating_mul(node_bytes));
                    for ((tree, block), place) in part.iter().zip(buffer.chunks_mut(node_bytes)) {
                        // All blocks have the volume's size.
                        let header = block.seal_into(place, checksum_type);
                        let is_likely = block.is_likely_to_change() || forest.has_room_for_block();
                        if let Some(header) = header.filter(|_| caches && is_likely) {
                            let own = Buffer::from(&*place).into_bytes();
                            forest.keep_written(*tree, TreeBlock::of_sealed(header, own));
                        }
                    }
                    runs_of(&part, &buffer.into_bytes(), node_bytes)
                };
                self.executor().spawn(seal)
            })
            .collect()
    }

    /// Refuses when writing has stopped.
    pub fn require_writing(&self) -> Result<()> {
        match self.forest().volume().stopped() {
            None => Ok(()),
            Some(cause) => Err(Error::WritingStopped { cause }),
        }
    }
}

/// One write for all blocks whose addresses follow each other. `bytes` has the blocks side by side.
fn runs_of(blocks: &[(TreeId, FrozenBlock)], bytes: &Bytes, node_bytes: usize) -> Vec<ExtentWrite> {
    let step = ByteCount::of(node_bytes);
    let mut start = 0_usize;
    blocks
        .chunk_by(|(_, one), (_, next)| one.logical().saturating_add(step) == next.logical())
        .filter_map(|run| {
            let end = start.saturating_add(run.len().saturating_mul(node_bytes));
            let logical = run.first()?.1.logical();
            let bytes = bytes.slice(start..end);
            start = end;
            Some(ExtentWrite { logical, bytes })
        })
        .collect()
}

impl Shared {
    /// Step 4. Gives what may be used again from now on.
    fn finish_commit(&self, prepared: Prepared) -> Vec<(u64, u64)> {
        let mut running = self.running.lock();
        for frozen in &prepared.frozen {
            let open = match frozen.tree() {
                TreeId::EXTENT => Some(&mut running.core.extent),
                id => running.trees.get_mut(id),
            };
            if let Some(open) = open {
                open.tree.edit(|tree| tree.forget_written(frozen));
            }
        }
        let core = &mut running.core;
        core.durable = prepared.superblock.generation;
        self.account.set_committed(core.durable);
        for (start, used) in &prepared.groups {
            if let Some(group) = core.groups.get_mut(*start) {
                group.durable_used = *used;
            }
        }
        core.devices.release(&prepared.freed_device_extents);
        running.release_pins(&self.readers)
    }
}
