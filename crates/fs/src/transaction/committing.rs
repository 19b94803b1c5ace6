//! Committing: makes the running transaction the volume's state.
//!
//! 1. Data that waits in memory is written back, without any lock.
//! 2. Under the edit lock: inodes that changed in memory become items, empty block groups go, everything is settled, and
//!    the dirty nodes are frozen. The next transaction begins here.
//! 3. Without the lock: nodes get their checksums on all cores and are written in large requests in order of address;
//!    all devices are flushed; superblocks; flush; their copies; flush.
//! 4. Under the lock again: what this transaction freed may be used, as far as no reader needs it.
//!
//! One commit runs at a time. A failure in step 2 or 3 stops writing for good: the volume stays readable and says why.

use super::freezing::Prepared;
use super::starting::Handle;
use super::{WritableFilesystem, Writer};
use crate::error::{Error, Result};
use crate::executor::Task;
use buttress_format::{Generation, TreeId};
use buttress_tree::FrozenBlock;
use buttress_volume::{ExtentWrite, Volume};
use std::sync::Arc;

/// Nodes are handed to the devices in batches of about this size, so that sealing the next ones overlaps with writing.
const BATCH_BYTES: usize = 8 << 20;

/// How many blocks one thread takes at once.
const SEALED_AT_ONCE: usize = 64;

impl WritableFilesystem {
    /// Commits the running transaction, if there is anything to commit. Returns the generation of the last commit.
    ///
    /// When this returns, everything that was done before the call is durable.
    ///
    /// # Errors
    /// When writing has stopped, or stops now.
    pub fn commit(&self) -> Result<Generation> {
        self.commit_then(|_, _| ()).map(|(generation, ())| generation)
    }

    /// Commits, and does something at the very moment at which the committed state is frozen: what `then` edits belongs
    /// to the next transaction, and nobody's edit comes between. It is given what is being committed, if anything is.
    pub(crate) fn commit_then<T>(
        &self,
        then: impl FnOnce(Handle<'_>, Option<&Prepared>) -> T,
    ) -> Result<(Generation, T)> {
        // Before the lock: writing back starts edits, and those may commit for want of room.
        self.write_back()?;
        self.commit_state(then)
    }

    /// Commits without writing back content that waits: what edits do when they find no room. Files keep the sizes that
    /// their extents reach to.
    pub(crate) fn commit_metadata(&self) -> Result<Generation> {
        self.commit_state(|_, _| ()).map(|(generation, ())| generation)
    }

    fn commit_state<T>(
        &self,
        then: impl FnOnce(Handle<'_>, Option<&Prepared>) -> T,
    ) -> Result<(Generation, T)> {
        let _one_at_a_time = self.shared.committing.lock();
        self.require_writing()?;
        let (prepared, answer, durable) = {
            // Nothing is being overwritten in place that a snapshot of this state will share.
            let _in_place = self.data().in_place.write();
            let mut handle = self.start_unchecked();
            let durable = handle.core.durable;
            let result = handle
                .write_back_inodes()
                .and_then(|()| handle.prepare_commit(self.forest().volume()));
            match result {
                Ok(prepared) => {
                    let answer = then(handle, prepared.as_ref());
                    (prepared, answer, durable)
                }
                Err(error) => {
                    self.forest().volume().stop_writing(&error);
                    return Err(error);
                }
            }
        };
        let Some(prepared) = prepared else {
            return Ok((durable, answer));
        };
        let generation = prepared.superblock.generation;
        if let Err(error) = self.write_out(&prepared) {
            self.forest().volume().stop_writing(&error);
            return Err(error);
        }
        self.shared.finish_commit(prepared);
        Ok((generation, answer))
    }

    fn write_out(&self, prepared: &Prepared) -> Result<()> {
        let volume = self.forest().volume();
        self.write_nodes(prepared, volume)?;
        volume.flush()?;
        volume.write_superblocks(&prepared.superblock, &prepared.device_items)?;
        Ok(())
    }

    fn write_nodes(&self, prepared: &Prepared, volume: &Volume) -> Result<()> {
        let mut blocks: Vec<(TreeId, FrozenBlock)> = prepared
            .frozen
            .iter()
            .flat_map(|frozen| {
                let tree = frozen.tree();
                frozen.blocks().into_iter().map(move |block| (tree, block))
            })
            .collect();
        blocks.sort_unstable_by_key(|(_, block)| block.logical());
        let node_bytes = usize::try_from(volume.block_format().node_bytes)
            .unwrap_or(1 << 14)
            .max(1);
        let batch = BATCH_BYTES.checked_div(node_bytes).unwrap_or(1).max(1);
        // The next batch is sealed by other threads while this one is written.
        let mut batches = blocks.chunks(batch);
        let mut sealing = batches.next().map(|batch| self.start_sealing(batch));
        while let Some(sealed) = sealing.take() {
            sealing = batches.next().map(|batch| self.start_sealing(batch));
            let ready: Vec<ExtentWrite> = sealed.into_iter().filter_map(Task::take).flatten().collect();
            volume.write(&ready)?;
        }
        Ok(())
    }

    /// Has blocks given their checksums; each goes into the cache of blocks too.
    fn start_sealing(&self, blocks: &[(TreeId, FrozenBlock)]) -> Vec<Task<Vec<ExtentWrite>>> {
        let checksum_type = self.forest().block_format().checksum_type;
        blocks
            .chunks(SEALED_AT_ONCE)
            .map(|part| {
                let (part, forest) = (part.to_vec(), Arc::clone(self.forest()));
                let seal = move || {
                    let sealed = part.into_iter().map(|(tree, block)| {
                        let sealed = block.seal(checksum_type);
                        let write = ExtentWrite {
                            logical: block.logical(),
                            bytes: sealed.bytes().clone(),
                        };
                        forest.keep_written(tree, sealed);
                        write
                    });
                    sealed.collect()
                };
                self.executor().spawn(seal)
            })
            .collect()
    }

    /// Refuses when writing has stopped.
    pub(crate) fn require_writing(&self) -> Result<()> {
        match self.forest().volume().stopped() {
            None => Ok(()),
            Some(cause) => Err(Error::WritingStopped { cause }),
        }
    }
}

impl Writer {
    fn finish_commit(&self, prepared: Prepared) {
        let mut running = self.running.lock();
        for frozen in &prepared.frozen {
            let open = match frozen.tree() {
                TreeId::EXTENT => Some(&mut running.core.extent),
                id => running.trees.get_mut(&id),
            };
            if let Some(open) = open {
                open.tree.forget_written(frozen);
            }
        }
        let core = &mut running.core;
        core.durable = prepared.superblock.generation;
        for (start, used) in &prepared.groups {
            if let Some(group) = core.groups.get_mut(*start) {
                group.durable_used = *used;
            }
        }
        core.devices.release(&prepared.freed_device_extents);
        running.release_pins(&self.readers);
    }
}
