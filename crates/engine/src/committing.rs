//! The commit, which makes the running transaction the volume's durable state.
//!
//! 1. Before it acquires a lock, the commit writes dirty data back.
//! 2. Under the edit lock, inodes that changed in memory become items, and readers get a view of
//!    that state. The commit removes empty block groups, converges, and freezes the dirty nodes. The
//!    next transaction begins here. If a tree block is missing, the commit releases the lock, reads
//!    the block, and retries the step, including edits made meanwhile.
//! 3. After releasing the lock, the commit computes checksums on all cores, and writes the nodes in
//!    large requests by address. After writing the nodes, the commit flushes all devices, writes
//!    the primary superblocks, flushes, writes their copies, and flushes.
//! 4. The commit acquires the edit lock again. Space that its transaction freed becomes free,
//!    unless a reader needs it.
//!
//! Commits never run at the same time. From the end of convergence until it is durable, a commit
//! holds the superblock lock, which log writers acquire too. Before the end of convergence, syncs
//! run beside the commit and log against the previous commit.
//!
//! If step 2 or 3 of a commit fails, writing stops for good. After such a failure, the volume stays
//! readable and keeps the cause.

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

/// The bytes that one thread seals at once, into one buffer.
const SEALED_BYTES: usize = 1 << 20;

/// The largest number of blocks that this thread seals one by one. A rewritten log has at most this
/// number of blocks; starting another thread would take as long as sealing them.
const FEW_BLOCKS: usize = 24;

/// The number of buffers that go to the devices at once, so that sealing the next buffers overlaps
/// with writing.
const BATCH_BUFFERS: usize = 8;

/// The number of inodes that one part of the commit writes back.
const INODES_AT_ONCE: usize = 256;

/// The number of slices after which a commit no longer pauses. The commit then ends without another
/// pause, however many edits run at the same time.
const SLICES_MAX: usize = 4096;

/// A frozen state, and the locks and counts of the moment at which it was frozen.
struct Moment<'a, T> {
    /// The superblock lock: no log is written while this guard exists.
    no_logs: MutexGuard<'a, (), SuperblocksLock>,
    /// The frozen state to be written; `None` if nothing changed.
    prepared: Option<Box<Prepared>>,
    /// The result of the caller's function at the moment of the freeze.
    answer: T,
    /// The last durable generation at the moment of the freeze.
    durable: Generation,
    /// The number of changes that the frozen state contains.
    changes: Counted,
}

impl Engine {
    /// Commits the running transaction, if anything changed. Returns the generation of the last
    /// commit.
    ///
    /// When this call returns, every change from before the call is durable.
    ///
    /// # Errors
    /// Fails if writing has stopped, or if this commit stops it. Fails with
    /// [`Error::OutOfHostSpace`] if content found no space on the host. After this error, all other
    /// changes are durable, and that content stays dirty.
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

    /// Commits, and calls `then` at the moment at which the committed state is frozen. `then`
    /// receives the state that this commit writes, if any. Edits in `then` belong to the next
    /// transaction, and no other edit precedes them.
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

    /// Writes back dirty data before a commit. Write-back precedes the commit lock, because it
    /// starts edits, and an edit without space may commit.
    fn write_back_for_commit(&self) -> Result<()> {
        if buttress_faults::on("commit-leaves-content") {
            return Ok(());
        }
        let _early = buttress_faults::on("lock-commit-before-files").then(|| self.shared.committing.lock());
        self.stages().write_back(self)
    }

    /// Commits as [`commit_then`](Self::commit_then) does, for a snapshot. The snapshot's commit
    /// contains a content change of several steps as a whole or not at all. A snapshot's commit
    /// blocks calls of several steps only while it freezes the state.
    pub fn commit_for_snapshot<T>(
        &self,
        then: impl FnOnce(Handle<'_>, Option<&Prepared>) -> T,
    ) -> Result<(Generation, T)> {
        // Write back most of the dirty data before any other caller has to wait.
        self.stages().write_back(self)?;
        // The lock of multi-step calls precedes the commit lock, because such a call may commit for
        // lack of space.
        let no_steps = self.data().several_steps.write();
        self.commit_then(move |handle, prepared| {
            let answer = then(handle, prepared);
            drop(no_steps);
            answer
        })
    }

    /// Commits without writing back dirty data, for edits that lack space. Without the write-back,
    /// files keep the sizes that their extents reach.
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
            // The guard keeps log writers out until this commit is durable, so the next log follows
            // this commit.
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
            self.trims().discard_freed(&freed);
        }
        Ok((generation, answer))
    }

    /// Freezes the running transaction: step 2 of the commit.
    fn freeze_then<T>(&self, then: impl FnOnce(Handle<'_>, Option<&Prepared>) -> T) -> Result<Moment<'_, T>> {
        let mut reads = FaultIn::default();
        let mut convergence = Convergence::default();
        let mut allowance = CommitAllowance::default();
        let mut slices = 0_usize;
        let has_company = self.has_company();
        // While other threads run, acquire the superblock lock only after convergence, so that
        // syncs do not block earlier.
        let mut no_logs = (!has_company).then(|| self.superblocks().lock());
        loop {
            slices = slices.saturating_add(1);
            let slice = match has_company && slices < SLICES_MAX {
                true => Slice::begin(),
                false => Slice::endless(),
            };
            // No write in place may be in progress on extents that a snapshot of the frozen state
            // will share.
            let is_late = buttress_faults::on("lock-in-place-after-edit");
            let in_place = (!is_late).then(|| self.data().in_place.write());
            let mut handle = self.start_unchecked();
            let in_place = in_place.unwrap_or_else(|| self.data().in_place.write());
            let durable = handle.core.durable;
            let may_freeze = no_logs.is_some();
            allowance.slice_starts(&handle);
            let prepared = self.prepare(&mut handle, &reads, &mut convergence, &slice, may_freeze);
            allowance.slice_ends(&handle);
            // The view contains delayed references that the trees now partly contain, so it no
            // longer matches the trees.
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

    /// Converges and freezes the running transaction, as far as possible without reading and within
    /// the slice. Without `may_freeze`, the transaction only converges, and is not frozen.
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
            handle.inode_items().write_back_some(INODES_AT_ONCE)?;
            if slice.is_over() {
                return Ok(Preparation::Paused);
            }
        }
        // No state that a reader observes changes from here on until the edit lock is released.
        drop(self.shared.give_view(handle));
        match handle.freezing().settle(reads, convergence, slice, may_freeze)? {
            None => handle.freezing().freeze(self.forest().volume()),
            Some(preparation) => Ok(preparation),
        }
    }

    /// Returns whether other threads may run beside the commit's thread, and may wait for it.
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

    /// Writes all frozen blocks in order of address. Optionally adds blocks that are likely to be
    /// read again to the cache.
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
        // Other threads seal the next batch while this thread writes the current one.
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

    /// Seals one block and adds the block to the cache. The cache and the devices share the bytes
    /// of the block.
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

    /// Starts jobs that seal blocks side by side in buffers that devices write without a copy.
    /// Sealing also puts blocks that are likely to be read again into the cache. Other blocks go
    /// into the cache only if the cache need not evict a block for them.
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
                        // All tree blocks have the volume's node size, so the buffer divides evenly
                        // into blocks.
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

    /// Returns an error if writing has stopped.
    pub fn require_writing(&self) -> Result<()> {
        match self.forest().volume().stopped() {
            None => Ok(()),
            Some(cause) => Err(Error::WritingStopped { cause }),
        }
    }
}

/// Returns one write for each run of blocks with consecutive addresses. `bytes` holds the blocks
/// side by side.
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
    /// Releases space that the commit freed: step 4. Returns the ranges that become free with this
    /// step.
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
        running.core.release_pins(&self.readers)
    }
}
