//! Starting an edit: the lock, and the promise that a commit will find the room it needs.
//!
//! Dirty nodes take no space until the commit, so the promise is arithmetic: what the nodes that have no address yet, the
//! references that wait, and this edit at its worst could take, must fit into what is free or can be made a chunk of,
//! with a reserve kept for edits that free space. When it does not fit, what other commits have freed may help: the
//! transaction is committed, twice at most, before the answer is `NoSpace`.

use super::WritableFilesystem;
use super::block_groups::Purpose;
use super::running::Running;
use crate::error::{Error, Result};
use buttress_format::{ByteCount, Generation, Timestamp};
use core::ops::{Deref, DerefMut};
use parking_lot::MutexGuard;

/// What an edit may take at its worst.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Need {
    /// Items that it inserts, changes or removes, all trees together.
    pub(crate) items: u64,
    /// Whether it gives back more than it takes: then it may use the reserve.
    pub(crate) frees: bool,
}

impl Need {
    /// An edit that adds or changes so many items.
    pub(crate) const fn items(items: u64) -> Self {
        Self { items, frees: false }
    }

    /// An edit of so many items that frees space in the end.
    pub(crate) const fn freeing(items: u64) -> Self {
        Self { items, frees: true }
    }
}

/// An edit of the running transaction: holds the edit lock until it is dropped.
///
/// Everything done through one handle is in the same commit. Nothing that waits for a device may be done while one is
/// held: paths are read in before.
#[derive(Debug)]
pub(crate) struct Handle<'a> {
    running: MutexGuard<'a, Running>,
    filesystem: &'a WritableFilesystem,
}

impl Deref for Handle<'_> {
    type Target = Running;

    fn deref(&self) -> &Running {
        &self.running
    }
}

impl DerefMut for Handle<'_> {
    fn deref_mut(&mut self) -> &mut Running {
        &mut self.running
    }
}

impl Handle<'_> {
    /// The generation of the transaction that this edit belongs to.
    pub(crate) fn generation(&self) -> Generation {
        self.running.core.generation
    }

    /// The time, by the clock that was given when the volume was opened.
    pub(crate) fn now(&self) -> Timestamp {
        self.filesystem.now()
    }

    pub(crate) const fn filesystem(&self) -> &WritableFilesystem {
        self.filesystem
    }
}

impl WritableFilesystem {
    /// Starts an edit.
    ///
    /// # Errors
    /// [`Error::NoSpace`] when its worst case does not fit, and that writing has stopped.
    pub(crate) fn start(&self, need: Need) -> Result<Handle<'_>> {
        for attempt in 0..3 {
            self.require_writing()?;
            {
                let mut running = self.shared.running.lock();
                self.shared.forget_view();
                running.release_pins(&self.shared.readers);
                let crowded = running.dirty_bytes() > self.shared.dirty_limit.get();
                let fits = running.fits(need);
                if fits && (!crowded || attempt > 0) {
                    return Ok(Handle {
                        running,
                        filesystem: self,
                    });
                }
                if !fits && attempt == 2 {
                    return Err(Error::NoSpace {
                        what: "metadata",
                        wanted: ByteCount::new(running.worst_bytes(need)),
                        pinned_by_readers: running.pinned_by_readers(),
                    });
                }
            }
            self.commit()?;
        }
        // The third attempt returned.
        Err(Error::NoSpace {
            what: "metadata",
            wanted: ByteCount::ZERO,
            pinned_by_readers: ByteCount::ZERO,
        })
    }

    /// Takes the edit lock without asking for room: for edits inside a commit, and for looking.
    pub(crate) fn start_unchecked(&self) -> Handle<'_> {
        let running = self.shared.running.lock();
        self.shared.forget_view();
        Handle {
            running,
            filesystem: self,
        }
    }
}

impl Running {
    fn unassigned_nodes(&self) -> u64 {
        self.trees
            .values()
            .fold(self.core.extent.tree.unassigned_nodes(), |sum, open| {
                sum.saturating_add(open.tree.unassigned_nodes())
            })
    }

    /// Memory of nodes that wait for the commit.
    pub(crate) fn dirty_bytes(&self) -> u64 {
        let waiting = ByteCount::of(self.core.references.len()).get();
        self.unassigned_nodes()
            .saturating_mul(self.core.node_bytes().get())
            .saturating_add(waiting.saturating_mul(160))
    }

    /// Nodes that a commit would allocate now: those that have no address, and those that recording them takes.
    fn nodes_at_commit(&self, more_nodes: u64) -> u64 {
        let nodes = self.unassigned_nodes().saturating_add(more_nodes);
        let used = self
            .core
            .groups
            .room(Purpose::Metadata)
            .used_bytes
            .checked_div(self.core.node_bytes().get())
            .unwrap_or(0);
        let changes = ByteCount::of(self.core.references.len())
            .get()
            .saturating_add(nodes);
        // Each change may copy a leaf of the extent tree of its own, but never more than there are, plus splits; the
        // same for free space. Their parents are few.
        let copies = changes.min(used);
        let grown = changes.div_ceil(50);
        nodes
            .saturating_add(copies)
            .saturating_add(copies.div_ceil(16))
            .saturating_add(grown.saturating_mul(2))
            .saturating_add(16)
    }

    /// What an edit could take at its worst: for each item a path of its own, split at the two lowest levels.
    pub(crate) fn worst_bytes(&self, need: Need) -> u64 {
        let nodes = need.items.saturating_mul(3).saturating_add(8);
        nodes.saturating_mul(self.core.node_bytes().get())
    }

    /// The room kept for edits that free space.
    fn reserve_bytes(&self) -> u64 {
        let total = self.core.groups.room(Purpose::Metadata).total_bytes;
        let least = self.core.node_bytes().get().saturating_mul(64);
        (total >> 4).clamp(least, 512 << 20)
    }

    fn fits(&self, need: Need) -> bool {
        let node_bytes = self.core.node_bytes().get();
        let worst = self.worst_bytes(need);
        let more_nodes = worst.checked_div(node_bytes).unwrap_or(0);
        let wanted = self.nodes_at_commit(more_nodes).saturating_mul(node_bytes);
        let room = self.core.groups.room(Purpose::Metadata);
        let reserve = if need.frees { 0 } else { self.reserve_bytes() };
        let wanted = wanted.saturating_add(reserve);
        wanted <= room.free_bytes
            || wanted
                <= room
                    .free_bytes
                    .saturating_add(self.unallocated_bytes(Purpose::Metadata))
    }
}
