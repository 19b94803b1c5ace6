//! Faulting in: reads tree blocks that the running transaction will need into the cache before it
//! holds the edit lock for long.
//!
//! A commit puts inodes back into their leaves and converges (`converging`). If an edit finds very
//! many delayed references, it applies some of them first. Before each step, the commit and the
//! edit know which places they will edit. A non-blocking lookup of these places returns the blocks
//! that are not in memory. The thread then releases the lock, reads the blocks side by side, and
//! repeats the lookup, one tree level deeper each time, until no block is missing.
//!
//! Some blocks are read under the lock: blocks that the cache is too small to keep, and blocks that
//! cannot be read. For these missing blocks, the edit returns the read error itself.

use super::block_groups::Purpose;
use crate::checksums::checksum_key;
use crate::core_state::Core;
use crate::engine::Engine;
use crate::extent_state::{extent_key, keys_of};
use crate::reservation::Handle;
use crate::retry::{Attempted, Retry};
use crate::running::Running;
use crate::trees::{BLOCKS_AT_ONCE, OpenTree};
use buttress_accounts::delayed_references::{ExtentKind, Pending};
use buttress_format::{Generation, HeaderFlags, Incompat, Key, Logical, TreeBlock, TreeId};
use buttress_fs::error::{Error, Result};
use buttress_fs::executor::Task;
use buttress_locks::Excused;
use buttress_tree::{BlockPointer, NonBlocking};
use smallvec::SmallVec;
use std::sync::Arc;

/// The number of blocks that one job reads in order of address, so that neighbours form one
/// request.
const BLOCKS_A_JOB: usize = 64;

/// The number of reads of missing blocks after which the call reads all further blocks under the
/// lock.
const READS_MAX: usize = 1024;

/// The blocks that were read for one piece of work, and whether more reads help.
#[derive(Debug, Default)]
pub struct FaultIn {
    /// The addresses of the blocks in the last read, in order.
    last: Vec<Logical>,
    count: usize,
    are_futile: bool,
}

/// While this guard exists, it decides how lookups treat blocks that are not in memory.
#[derive(Debug)]
pub enum MissingBlocks {
    /// A lookup in this state ends at a missing block.
    End(NonBlocking),
    /// A lookup reads a missing block under any lock, because faulting it in earlier did not help.
    Read(Excused),
}

impl FaultIn {
    /// Returns a guard for a lookup: missing blocks end the lookup, unless faulting them in did not
    /// help.
    pub fn guard(&self) -> MissingBlocks {
        match self.are_futile {
            true => MissingBlocks::Read(Excused::from_device_rule()),
            false => MissingBlocks::End(NonBlocking::hold()),
        }
    }

    /// Returns the blocks that a lookup misses, including the block that a missing-block error
    /// names.
    pub fn missing_for(&self, look: impl FnOnce() -> Result<Vec<BlockPointer>>) -> Result<Vec<BlockPointer>> {
        let _rule = self.guard();
        or_missing(look())
    }

    /// Faults in missing blocks. The caller must hold no lock.
    pub fn read(&mut self, filesystem: &Engine, missing: Vec<BlockPointer>) {
        let mut places: Vec<Logical> = missing.iter().map(|pointer| pointer.logical).collect();
        places.sort_unstable();
        self.count = self.count.saturating_add(1);
        // If a block is missing again, the cache did not keep it, or the block cannot be read.
        let again = |place: &Logical| self.last.binary_search(place).is_ok();
        self.are_futile = self.count > READS_MAX || places.iter().any(again);
        self.last = places;
        if !self.are_futile {
            drop(filesystem.fault_in(missing));
        }
    }
}

/// Returns the missing blocks of a lookup that ended with this result. Errors other than a missing
/// block stay errors.
pub fn or_missing(attempted: Result<Vec<BlockPointer>>) -> Result<Vec<BlockPointer>> {
    attempted.or_else(|error| error.missing_block().map(|pointer| vec![pointer]).ok_or(error))
}

/// A lookup of one tree's keys in ascending order.
struct PathLookup<'a> {
    core: &'a Core,
    id: TreeId,
    open: &'a OpenTree,
    /// The end of the keys that the last lookup covered: the end of the last leaf, or of the
    /// missing block.
    known_to: Option<Key>,
    /// Whether the lookup reached the last leaf, or found that leaf missing.
    is_at_end: bool,
}

impl<'a> PathLookup<'a> {
    const fn along(core: &'a Core, id: TreeId, open: &'a OpenTree) -> Self {
        Self {
            core,
            id,
            open,
            known_to: None,
            is_at_end: false,
        }
    }

    /// Moves the lookup to `key`, and returns the missing block on its path, unless the lookup
    /// returned it earlier.
    fn missing_at(&mut self, key: &Key) -> Result<Option<BlockPointer>> {
        if self.is_at_end || self.known_to.is_some_and(|end| *key < end) {
            return Ok(None);
        }
        let last_snapshot = self.open.last_snapshot();
        let (end, missing) = match self.core.reach(self.id, self.open, key, last_snapshot) {
            Ok(end) => (end, None),
            Err(error) => match error.missing_block() {
                Some(pointer) if pointer.tree == self.id => (pointer.end_key, Some(pointer)),
                // The missing block belongs to the extent tree, so the lookup knows nothing of this
                // leaf.
                Some(pointer) => return Ok(Some(pointer)),
                None => return Err(error),
            },
        };
        self.is_at_end = end.is_none();
        self.known_to = end;
        Ok(missing)
    }

    /// Collects the missing blocks on the paths to all keys of a range, as
    /// [`PathLookup::missing_at`] does for one key.
    fn missing_between(&mut self, from: &Key, to: &Key, missing: &mut Vec<BlockPointer>) -> Result<()> {
        let mut at = *from;
        loop {
            missing.extend(self.missing_at(&at)?);
            match self.known_to {
                Some(end) if !self.is_at_end && end > at && end <= *to && missing.len() < BLOCKS_AT_ONCE => {
                    at = end;
                }
                _ => return Ok(()),
            }
        }
    }
}

impl Core {
    /// Loads the path to `key`, and the extent items of its blocks that another tree may share:
    /// blocks not newer than `last_snapshot`, and blocks that Linux relocated. Returns the first key
    /// past the leaf; `None` for the last leaf.
    fn reach(
        &self,
        id: TreeId,
        open: &OpenTree,
        key: &Key,
        last_snapshot: Generation,
    ) -> Result<Option<Key>> {
        let skinny = self.has(Incompat::SKINNY_METADATA);
        let maybe_shared = id.holds_files().then_some(last_snapshot);
        let mut extents: SmallVec<[Key; 8]> = SmallVec::new();
        let end = open.tree.reach(key, |old, header| {
            let is_relocated = header.flags.contains(HeaderFlags::RELOC);
            if maybe_shared.is_some_and(|last_snapshot| old.generation <= last_snapshot || is_relocated) {
                let kind = ExtentKind::TreeBlock { level: old.level };
                extents.push(extent_key(old.logical, kind, self.node_bytes(), skinny));
            }
        })?;
        for extent in extents {
            self.extent.tree.reach(&extent, |_, _| ())?;
        }
        Ok(end)
    }
}

impl Running {
    /// Loads the path to `key` in a tree, so that an edit of that place finds its blocks in memory.
    pub fn reach(&mut self, id: TreeId, key: &Key) -> Result<()> {
        match self.opened(id)? {
            None => Ok(()),
            Some((core, open)) => core.reach(id, open, key, open.last_snapshot()).map(drop),
        }
    }

    /// Loads the path to `key` as [`Running::reach`] does, for an edit that will run after a
    /// snapshot.
    pub fn reach_after_snapshot(&mut self, id: TreeId, key: &Key) -> Result<()> {
        match self.opened(id)? {
            None => Ok(()),
            Some((core, open)) => core.reach(id, open, key, core.generation).map(drop),
        }
    }

    /// Returns a tree, and opens it if necessary. Returns `None` for a tree that the volume does
    /// not have.
    fn opened(&mut self, id: TreeId) -> Result<Option<(&Core, &OpenTree)>> {
        match self.open_tree(id) {
            Err(Error::TreeNotFound { .. }) => return Ok(None),
            opened => drop(opened?),
        }
        let open = match id {
            TreeId::EXTENT => Some(&self.core.extent),
            _ => self.trees.get(id),
        };
        Ok(open.map(|open| (&self.core, open)))
    }

    /// Returns the missing blocks for edits of these ranges of keys of a tree, which are in
    /// ascending order.
    pub fn missing_along(
        &mut self,
        id: TreeId,
        places: impl IntoIterator<Item = (Key, Key)>,
    ) -> Result<Vec<BlockPointer>> {
        let mut missing = Vec::new();
        let Some((core, open)) = self.opened(id)? else {
            return Ok(missing);
        };
        let mut look = PathLookup::along(core, id, open);
        for (from, to) in places {
            look.missing_between(&from, &to, &mut missing)?;
            if missing.len() >= BLOCKS_AT_ONCE {
                break;
            }
        }
        Ok(missing)
    }

    /// Returns the missing blocks for applying the first `count` delayed references.
    pub fn missing_for_references(&mut self, count: usize) -> Result<Vec<BlockPointer>> {
        // Applying a delayed reference drops the extent's checksums if its last reference goes, or
        // if data never got a reference.
        let loses_sums = |pending: &Pending| {
            let sum = pending.sum();
            pending.kind == ExtentKind::Data && (sum < 0 || (sum == 0 && pending.created.is_some()))
        };
        let core = &self.core;
        if core
            .references
            .iter()
            .take(count)
            .any(|(_, pending)| loses_sums(pending))
        {
            self.opened(TreeId::CHECKSUM)?;
        }
        let core = &self.core;
        let skinny = core.has(Incompat::SKINNY_METADATA);
        let mut extents = PathLookup::along(core, TreeId::EXTENT, &core.extent);
        let sums = self.trees.get(TreeId::CHECKSUM);
        let mut sums = sums.map(|open| PathLookup::along(core, TreeId::CHECKSUM, open));
        let mut missing = Vec::new();
        for (logical, pending) in core.references.iter().take(count) {
            for key in keys_of(*logical, pending, skinny) {
                missing.extend(extents.missing_at(&key)?);
            }
            if let Some(sums) = sums.as_mut().filter(|_| loses_sums(pending)) {
                let end = logical.get().saturating_add(pending.length.get());
                sums.missing_between(&checksum_key(logical.get()), &checksum_key(end), &mut missing)?;
            }
            if missing.len() >= BLOCKS_AT_ONCE {
                break;
            }
        }
        Ok(missing)
    }

    /// Returns the missing blocks for writing all changed inodes back.
    pub fn missing_for_inodes(&self) -> Result<Vec<BlockPointer>> {
        self.missing_for_some_inodes(usize::MAX)
    }

    /// Returns the missing blocks for writing the first `count` changed inodes back.
    pub fn missing_for_some_inodes(&self, count: usize) -> Result<Vec<BlockPointer>> {
        let mut missing = Vec::new();
        let mut look: Option<(TreeId, PathLookup<'_>)> = None;
        for (tree, key) in self.inodes.changed_keys().take(count) {
            if look.as_ref().is_none_or(|(of, _)| *of != tree) {
                let open = self.trees.get(tree);
                look = open.map(|open| (tree, PathLookup::along(&self.core, tree, open)));
            }
            if let Some((_, look)) = &mut look {
                missing.extend(look.missing_at(&key)?);
            }
            if missing.len() >= BLOCKS_AT_ONCE {
                break;
            }
        }
        Ok(missing)
    }
}

impl Engine {
    /// Faults in the free space of the next group that an allocation tries, if the group is not
    /// loaded yet.
    pub fn fault_in_free_space(&self, purpose: Purpose, wanted: u64) -> Result<()> {
        // If the free-space tree is not open yet, this lookup also searches the root tree.
        let handle = self.start_reading();
        let (handle, record) = self.retry(handle, |handle| handle.free_space_to_load(purpose, wanted))?;
        if !buttress_faults::on("lock-edit-held-over-free-space") {
            drop(handle);
        }
        if let Some(record) = record {
            record.fault_in();
        }
        Ok(())
    }

    /// Faults in the blocks that edits of these ranges of keys will need. The ranges of keys must
    /// be in order.
    pub fn fault_in_places(&self, id: TreeId, places: &[(Key, Key)]) -> Result<()> {
        let mut reads = FaultIn::default();
        loop {
            let missing = {
                let mut handle = self.start_reading();
                reads.missing_for(|| handle.missing_along(id, places.iter().copied()))?
            };
            if missing.is_empty() {
                return Ok(());
            }
            reads.read(self, missing);
        }
    }

    /// Applies `at_once` delayed references at a time while more than `most` are pending. Returns
    /// the acquired edit lock.
    pub fn start_with_few_references(&self, most: usize, at_once: usize) -> Result<Handle<'_>> {
        let mut reads = FaultIn::default();
        loop {
            let mut handle = self.start_unchecked();
            if handle.core.references.len() <= most {
                return Ok(handle);
            }
            let missing = reads.missing_for(|| handle.missing_for_references(at_once))?;
            if missing.is_empty() {
                if let Err(error) = handle.extent_tree().run_references(at_once) {
                    self.forest().volume().stop_writing(&error);
                    return Err(error);
                }
            } else {
                drop(handle);
                reads.read(self, missing);
            }
        }
    }

    /// Runs a function under the edit lock. If the function misses a block and fails, it must have
    /// changed nothing before. This call then releases the lock, reads the block, and retries.
    pub fn retry<'a, T>(
        &'a self,
        handle: Handle<'a>,
        mut body: impl FnMut(&mut Handle<'a>) -> Result<T>,
    ) -> Result<(Handle<'a>, T)> {
        let mut handle = handle;
        let mut retry = Retry::default();
        loop {
            let done = {
                let _resident_only = NonBlocking::hold();
                body(&mut handle)
            };
            if done.as_ref().err().and_then(Error::missing_block).is_none() {
                return done.map(|done| (handle, done));
            }
            drop(handle);
            let attempted = retry.after(self.forest(), done);
            handle = self.start_unchecked();
            match attempted {
                Attempted::Done(done) => return done.map(|done| (handle, done)),
                Attempted::Again => {}
                Attempted::Futile => break,
            }
        }
        // The cache does not keep these missing blocks, or they cannot be read.
        let _excused = Excused::from_device_rule();
        let done = body(&mut handle)?;
        Ok((handle, done))
    }

    /// Faults in several blocks at once, and returns those that could be read. If a block is
    /// unreadable, a later lookup returns the error.
    pub fn fault_in(&self, blocks: Vec<BlockPointer>) -> Vec<TreeBlock> {
        self.start_fault_in(blocks)
            .into_iter()
            .filter_map(|job| job.take().ok())
            .flatten()
            .collect()
    }

    /// Starts jobs that fault in several blocks, as [`fault_in`](Self::fault_in) does. Dropping a
    /// job cancels it if it has not begun.
    pub(crate) fn start_fault_in(&self, mut blocks: Vec<BlockPointer>) -> Vec<Task<Vec<TreeBlock>>> {
        blocks.sort_unstable_by_key(|pointer| pointer.logical);
        blocks
            .chunks(BLOCKS_A_JOB)
            .map(|part| {
                let (part, forest) = (part.to_vec(), Arc::clone(self.forest()));
                self.shared.base.loaders().spawn(move || forest.fault_in(&part))
            })
            .collect()
    }
}
