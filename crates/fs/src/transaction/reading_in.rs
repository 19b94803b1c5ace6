//! Reading in: tree blocks that the running transaction is going to need come into the cache before the edit lock is held
//! for long.
//!
//! A commit puts inodes back into their leaves and applies the references that wait; an edit that finds very many
//! references applies some. Both know beforehand where they are going to work. So the lock is taken for a look without
//! reading, which gives the blocks that are not in memory; those are read side by side without the lock; and again, a level
//! deeper, until none is missing.
//!
//! The free space of a block group that is going to be used for the first time is read in, too.
//!
//! It leaves out what a commit finds only as it goes: where in the extent tree the addresses of new blocks and the old
//! places of blocks that it copies itself lie. Where more is missing than the rounds read, or the cache holds, the rest is
//! read under the lock, as what cannot be read is: there the error has its place.

use super::WritableFilesystem;
use super::block_groups::Purpose;
use super::checksums::checksum_key;
use super::delayed_references::ExtentKind;
use super::extent_tree::extent_key;
use super::running::{Core, OpenTree, Running};
use super::starting::Handle;
use crate::error::{Error, Result};
use buttress_format::{Incompat, Key, TreeId};
use buttress_tree::{BlockPointer, ResidentOnly};
use smallvec::SmallVec;
use std::sync::Arc;

/// A tree has at most eight levels, and each round goes at least one deeper in each.
const ROUNDS_MAX: usize = 8;

/// How many blocks are read at most between two looks: few enough for a small cache to hold them.
const BLOCKS_AT_ONCE: usize = 256;

/// How many blocks one job reads, one after another.
const BLOCKS_A_JOB: usize = 16;

/// A look along keys of one tree in ascending order.
struct Look<'a> {
    core: &'a Core,
    id: TreeId,
    open: &'a OpenTree,
    /// Up to here all is known: the end of the last leaf, or of the block that is missing.
    known_to: Option<Key>,
    /// Whether the last leaf was reached, or is missing.
    is_at_end: bool,
}

impl<'a> Look<'a> {
    const fn along(core: &'a Core, id: TreeId, open: &'a OpenTree) -> Self {
        Self {
            core,
            id,
            open,
            known_to: None,
            is_at_end: false,
        }
    }

    /// Goes on to `key`; gives the block that is missing on the way, unless it was given for the key before.
    fn missing_at(&mut self, key: &Key) -> Result<Option<BlockPointer>> {
        if self.is_at_end || self.known_to.is_some_and(|end| *key < end) {
            return Ok(None);
        }
        let (end, missing) = match self.core.reach(self.id, self.open, key) {
            Ok(end) => (end, None),
            Err(error) => match error.block_to_read() {
                Some(pointer) if pointer.tree == self.id => (pointer.end_key, Some(pointer)),
                // Of the extent tree: nothing is known of this one.
                Some(pointer) => return Ok(Some(pointer)),
                None => return Err(error),
            },
        };
        self.is_at_end = end.is_none();
        self.known_to = end;
        Ok(missing)
    }
}

impl Core {
    /// Goes to where `key` is or would be, and to the extent items that copying old blocks of the way looks at. Gives the
    /// first key past the leaf; `None` for the last leaf.
    fn reach(&self, id: TreeId, open: &OpenTree, key: &Key) -> Result<Option<Key>> {
        let skinny = self.has(Incompat::SKINNY_METADATA);
        let maybe_shared = id.holds_files().then(|| open.last_snapshot());
        let mut extents: SmallVec<[Key; 8]> = SmallVec::new();
        let end = open.tree.reach(key, |old| {
            if maybe_shared.is_some_and(|last_snapshot| old.generation <= last_snapshot) {
                let kind = ExtentKind::TreeBlock { level: old.level };
                extents.push(extent_key(old.logical, kind, self.node_bytes(), skinny));
            }
        })?;
        for extent in extents {
            self.extent.tree.reach(&extent, |_| ())?;
        }
        Ok(end)
    }
}

impl Running {
    /// Goes to where `key` is or would be in a tree, so that an edit there finds what it needs in memory.
    pub(crate) fn reach(&mut self, id: TreeId, key: &Key) -> Result<()> {
        match self.open_tree(id) {
            // Not every volume has every tree.
            Err(Error::TreeNotFound { .. }) => return Ok(()),
            opened => drop(opened?),
        }
        let open = match id {
            TreeId::EXTENT => Some(&self.core.extent),
            _ => self.trees.get(&id),
        };
        open.map_or(Ok(None), |open| self.core.reach(id, open, key))
            .map(drop)
    }

    /// Blocks that are missing for applying the first `count` references that wait.
    fn missing_for_references(&self, count: usize) -> Result<Vec<BlockPointer>> {
        let core = &self.core;
        let skinny = core.has(Incompat::SKINNY_METADATA);
        let mut extents = Look::along(core, TreeId::EXTENT, &core.extent);
        let sums = self.trees.get(&TreeId::CHECKSUM);
        let mut sums = sums.map(|open| Look::along(core, TreeId::CHECKSUM, open));
        let mut missing = Vec::new();
        for (logical, pending) in core.references.iter().take(count) {
            let key = extent_key(*logical, pending.kind, pending.length, skinny);
            missing.extend(extents.missing_at(&key)?);
            let may_go = pending.kind == ExtentKind::Data && pending.sum() < 0;
            if let Some(sums) = sums.as_mut().filter(|_| may_go) {
                missing.extend(sums.missing_at(&checksum_key(logical.get()))?);
            }
            if missing.len() >= BLOCKS_AT_ONCE {
                break;
            }
        }
        Ok(missing)
    }

    /// Blocks that are missing for writing inodes back.
    fn missing_for_inodes(&self) -> Result<Vec<BlockPointer>> {
        let mut missing = Vec::new();
        let mut look: Option<(TreeId, Look<'_>)> = None;
        for (tree, key) in self.inodes.changed_keys() {
            if look.as_ref().is_none_or(|(of, _)| *of != tree) {
                let open = self.trees.get(&tree);
                look = open.map(|open| (tree, Look::along(&self.core, tree, open)));
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

impl WritableFilesystem {
    /// Reads in what the next allocation asks for, if it is a group whose free space was not needed before.
    pub(crate) fn read_in_free_space(&self, purpose: Purpose, wanted: u64) -> Result<()> {
        let record = self.shared.running.lock().free_space_to_load(purpose, wanted)?;
        if let Some(record) = record {
            record.read_in();
        }
        Ok(())
    }

    /// Reads in what the next commit is known to need.
    pub(super) fn read_in_for_commit(&self) -> Result<()> {
        let node_bytes = u64::from(self.forest().block_format().node_bytes);
        for purpose in [Purpose::System, Purpose::Metadata] {
            self.read_in_free_space(purpose, node_bytes)?;
        }
        for _ in 0..ROUNDS_MAX {
            let missing = {
                let running = self.shared.running.lock();
                let _resident_only = ResidentOnly::hold();
                let mut missing = running.missing_for_inodes()?;
                missing.extend(running.missing_for_references(usize::MAX)?);
                missing
            };
            if missing.is_empty() {
                break;
            }
            self.read_in(missing);
        }
        Ok(())
    }

    /// Takes the edit lock when what applying the first `count` references needs is in memory, if more than `most` wait.
    pub(super) fn start_with_references_read(&self, most: usize, count: usize) -> Result<Handle<'_>> {
        for _ in 0..ROUNDS_MAX {
            let handle = self.start_unchecked();
            if handle.core.references.len() <= most {
                return Ok(handle);
            }
            let missing = {
                let _resident_only = ResidentOnly::hold();
                handle.missing_for_references(count)?
            };
            if missing.is_empty() {
                return Ok(handle);
            }
            drop(handle);
            self.read_in(missing);
        }
        Ok(self.start_unchecked())
    }

    /// Reads blocks into the cache, several at once. Whoever needs one that cannot be read is told then.
    pub(crate) fn read_in(&self, mut blocks: Vec<BlockPointer>) {
        blocks.sort_unstable_by_key(|pointer| pointer.logical);
        let jobs: Vec<_> = blocks
            .chunks(BLOCKS_A_JOB)
            .map(|part| {
                let (part, forest) = (part.to_vec(), Arc::clone(self.forest()));
                self.shared.base.loaders().spawn(move || {
                    for pointer in part {
                        drop(forest.read_block(&pointer));
                    }
                })
            })
            .collect();
        for job in jobs {
            job.take();
        }
    }
}
