//! The snapshot dropper: frees the trees of deleted subvolumes, block by block, over several
//! transactions.
//!
//! A deleted subvolume has an orphan item and a root item without references. The dropper walks its
//! tree from left to right. If a block has no other references, the dropper frees the block and
//! drops the references that it holds. A block that a snapshot shares loses only the reference of
//! the dropped tree. Between transactions the root item records the first remaining child (*drop
//! progress*), so that the drop continues after a crash, here or in the kernel.
//!
//! A shared block that the deleted tree made holds keyed references to its children in this tree's
//! name. Before the tree is freed, such blocks are converted to full back references
//! (`full_back_references`), children before parents. The conversion to full back references too
//! can stop after any block.
//!
//! Source: on-disk format documentation, section "Root item" (`drop_progress`, `drop_level`).

mod dead_roots;
mod full_back_references;
mod relocation_trees;

use crate::areas::Subvolumes;
use buttress_accounts::delayed_references::{ExtentKind, Reference};
use buttress_engine::cow::Form;
use buttress_engine::extent_state::ExtentState;
use buttress_engine::reservation::{Handle, Need};
use buttress_engine::running::Running;
use buttress_format::{
    ErrorKind, Generation, HeaderFlags, ItemType, Key, Logical, ObjectId, RootFlags, SubvolumeId, TreeBlock,
    TreeId,
};
use buttress_fs::error::{Error, Result};
use buttress_fs::progress::Progress;
use buttress_tree::{BlockPointer, NonBlocking, ReadAhead, RootPointer};
use dead_roots::{DeadTree, reach_dead_root, remove_dead_root};
use std::collections::{BTreeSet, HashMap, VecDeque};

/// The number of delayed references after which the dropper lets the transaction end.
const REFERENCES_AT_ONCE: usize = 1 << 16;

/// The places of a drop step besides the dropped references: the root item, the orphan item, and
/// the drop progress.
const STEP_PLACES: u64 = 8;

/// The number of a node's children that are read at once.
const CHILDREN_AHEAD: usize = 256;

/// The reason why dropping a tree stopped.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Stop {
    /// The drop of the whole tree is complete.
    Gone,
    /// The step did enough work, and now lets other threads acquire the lock.
    Enough,
    /// A block is not in memory.
    Missing(Box<BlockPointer>),
}

/// The result of one step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Advance {
    /// The step is complete.
    Done,
    /// No block of the tree is left.
    AtEnd,
    /// The step stopped half-way so that other threads get the lock, and must be repeated.
    Interrupted,
}

/// A node on the path: the children in `slot` and after it are still to be dropped.
#[derive(Debug)]
struct Step {
    pointer: BlockPointer,
    block: TreeBlock,
    slot: usize,
    full_backref: bool,
    /// The form of the parent's reference to this block.
    reference: Reference,
}

/// The number of recently missing blocks that the drop remembers.
const MISSING_KNOWN: usize = 16;

/// State of one tree that is kept between two holds of the lock.
#[derive(Debug, Default)]
struct Memory {
    /// The blocks that were most recently missing and that the drop then read.
    missing: VecDeque<Logical>,
    /// Nodes whose subtrees hold full back references for everything that this tree made.
    turned: BTreeSet<Logical>,
    /// Blocks that the drop read ahead. The drop needs each of these blocks once and soon, so the
    /// cache need not keep them.
    ahead: HashMap<Logical, TreeBlock>,
}

impl Memory {
    /// Returns whether a block was missing recently, and remembers the block.
    fn is_known(&mut self, pointer: &BlockPointer) -> bool {
        if self.missing.contains(&pointer.logical) {
            return true;
        }
        self.missing.truncate(MISSING_KNOWN);
        self.missing.push_front(pointer.logical);
        false
    }

    /// Returns a block that was read ahead, or reads the block now.
    fn block(&mut self, running: &Running, pointer: &BlockPointer) -> Result<TreeBlock> {
        match self.ahead.remove(&pointer.logical) {
            Some(block) if block.header().generation == pointer.generation => Ok(block),
            _ => Ok(running.core.forest.read_block(pointer)?),
        }
    }
}

/// The dropper's path through one tree.
#[derive(Debug)]
struct SnapshotDropper<'m> {
    tree: TreeId,
    last_snapshot: Generation,
    /// The transaction in which a snapshot made this tree, from the root item's key: older blocks
    /// are not the tree's own. For blocks of exactly this generation, the owner in their header
    /// decides. With the kernel's keys, blocks of this generation belong to the snapshot's source.
    /// The snapshot's keys that name its own transaction may be older than blocks that the snapshot
    /// changed in this transaction.
    origin: Generation,
    steps: Vec<Step>,
    /// Blocks to be read together with the missing block.
    ahead: Vec<BlockPointer>,
    memory: &'m mut Memory,
}

impl Subvolumes<'_> {
    /// Returns the deleted subvolumes that are not completely dropped.
    ///
    /// # Errors
    /// Fails if the root tree cannot be read.
    pub fn deleted(&self) -> Result<Vec<SubvolumeId>> {
        let mut found = self.without_references()?;
        let trees = self.filesystem.live_trees();
        found.retain(|id| !trees.get(id.tree()).is_some_and(|tree| tree.is_unfinished()));
        Ok(found)
    }

    /// Returns deleted subvolumes, and subvolumes whose deletion or creation has not finished.
    fn without_references(&self) -> Result<Vec<SubvolumeId>> {
        let view = self.filesystem.view();
        let from = Key::new(ObjectId::ORPHAN, ItemType::ORPHAN_ITEM, 0);
        let to = Key::new(ObjectId::ORPHAN, ItemType::ORPHAN_ITEM, u64::MAX);
        let mut found = Vec::new();
        for item in view.root_tree().range(from..=to, ReadAhead::None) {
            let id = TreeId::new(item?.key().offset);
            if let Some(subvolume) = id.as_subvolume()
                && view.root_item(id).is_ok_and(|item| item.references == 0)
            {
                found.push(subvolume);
            }
        }
        Ok(found)
    }

    /// Drops all deleted subvolumes completely. A cancelled call keeps its progress. If a subvolume
    /// is damaged or unreadable, the call still drops the others.
    ///
    /// # Errors
    /// Fails with [`Error::Cancelled`], with [`Error::NotDropped`] and the subvolumes that could
    /// not be dropped, or with the error that stopped writing.
    pub fn drop_deleted(&self, progress: &Progress) -> Result<()> {
        let deleted = self.deleted()?;
        let (mut failures, mut dropped) = (Vec::new(), Vec::new());
        for id in deleted {
            match self.drop_tree(DeadTree::subvolume(id), progress) {
                Ok(()) => dropped.push(id),
                Err(error) if self.is_of_one_tree(&error) => failures.push((id, error)),
                Err(error) => return Err(error),
            }
        }
        self.filesystem.quotas().forget_groups_of(&dropped)?;
        if failures.is_empty() {
            return Ok(());
        }
        Err(Error::NotDropped { failures })
    }

    /// Drops unfinished subvolumes of an earlier session when the volume is opened for writing.
    /// Only deleted subvolumes have the flag that distinguishes them from unfinished ones. A
    /// damaged subvolume remains for the next opening, which tries again.
    pub(crate) fn sweep_unfinished(&self) -> Result<()> {
        let mut dropped = Vec::new();
        for id in self.without_references()? {
            let item = self
                .filesystem
                .read_under_lock(|operation| operation.lookups().root_item(id.tree()).cloned())?;
            if item.flags.contains(RootFlags::DEAD) {
                continue;
            }
            match self.drop_tree(DeadTree::subvolume(id), &Progress::new()) {
                Ok(()) => dropped.push(id),
                Err(error) if self.is_of_one_tree(&error) => {}
                Err(error) => return Err(error),
            }
        }
        self.filesystem.quotas().forget_groups_of(&dropped)
    }

    /// Returns whether an error concerns only the tree being dropped, so that other trees can still
    /// be dropped.
    fn is_of_one_tree(&self, error: &Error) -> bool {
        let is_in_tree = match error {
            Error::Defect(_) | Error::WritingStopped { .. } => false,
            error => matches!(error.kind(), ErrorKind::Corrupt | ErrorKind::Io),
        };
        is_in_tree && self.filesystem.require_writing().is_ok()
    }

    fn drop_tree(&self, dead: DeadTree, progress: &Progress) -> Result<()> {
        let mut memory = Memory::default();
        while self.drop_some(dead, progress, &mut memory)? != Stop::Gone {
            if progress.is_cancelled() {
                return Err(Error::Cancelled);
            }
        }
        Ok(())
    }

    /// Continues to drop one tree until the time slice ends. If the job is cancelled, it still
    /// drops about one block, so that each call progresses.
    fn drop_some(&self, dead: DeadTree, progress: &Progress, memory: &mut Memory) -> Result<Stop> {
        let tree = dead.tree;
        // The dropper needs the committed tree, without newer changes and without blocks that a
        // commit is about to write.
        let is_newer = |handle: &mut Handle<'_>| {
            dead.open(handle)?;
            let tree = &handle.open_tree(tree)?.tree;
            Ok(match buttress_faults::on("drop-reads-unwritten") {
                true => tree.is_dirty(),
                false => tree.is_in_memory(),
            })
        };
        let (mut handle, mut waits) = self
            .filesystem
            .retry(self.filesystem.start(Need::freeing(STEP_PLACES))?, is_newer)?;
        while waits {
            drop(handle);
            self.filesystem.commit()?;
            (handle, waits) = self
                .filesystem
                .retry(self.filesystem.start(Need::freeing(STEP_PLACES))?, is_newer)?;
        }
        let (mut stop, ahead) = {
            let _resident_only = NonBlocking::hold();
            drop_below(&mut handle, tree, progress, memory)?
        };
        if let Stop::Missing(pointer) = &stop
            && memory.is_known(pointer)
        {
            // An earlier step read the missing block, but the cache did not keep it.
            (stop, _) = drop_below(&mut handle, tree, progress, memory)?;
        }
        match &stop {
            Stop::Gone => remove_dead_root(&mut handle, tree).inspect_err(|error| {
                // The references are already dropped, so the transaction must not be committed with
                // blocks that lead there.
                self.filesystem.forest().volume().stop_writing(error);
            })?,
            Stop::Enough => {}
            Stop::Missing(pointer) => {
                drop(handle);
                let blocks = self.filesystem.fault_in(ahead).into_iter();
                memory.ahead = blocks.map(|block| (block.logical(), block)).collect();
                self.filesystem.forest().read_block(pointer)?;
            }
        }
        Ok(stop)
    }
}

/// Continues the drop at its recorded progress, and records the new progress. Also returns the
/// blocks to read ahead.
fn drop_below(
    running: &mut Running,
    tree: TreeId,
    progress: &Progress,
    memory: &mut Memory,
) -> Result<(Stop, Vec<BlockPointer>)> {
    let missing = |error: Error| match error.missing_block() {
        Some(pointer) => Ok(Stop::Missing(Box::new(pointer))),
        None => Err(error),
    };
    if let Err(error) = reach_dead_root(running, tree) {
        return Ok((missing(error)?, Vec::new()));
    }
    let mut way = match SnapshotDropper::resume(running, tree, memory) {
        Ok(Some(way)) => way,
        Ok(None) => return Ok((Stop::Enough, Vec::new())),
        Err(error) => return Ok((missing(error)?, Vec::new())),
    };
    let limit = running.core.references.len().saturating_add(REFERENCES_AT_ONCE);
    let stop = loop {
        match way.advance(running) {
            Ok(Advance::Done) => {}
            Ok(Advance::AtEnd) => return Ok((Stop::Gone, Vec::new())),
            Ok(Advance::Interrupted) => break Stop::Enough,
            Err(error) => match missing(error) {
                Ok(stop) => break stop,
                Err(error) => {
                    // Dropped references stay dropped, so the drop progress must be recorded.
                    way.remember(running)?;
                    return Err(error);
                }
            },
        }
        let stops = running.core.references.len() >= limit || progress.is_cancelled();
        if stops && way.can_stop() {
            break Stop::Enough;
        }
    };
    way.remember(running)?;
    Ok((stop, way.blocks_ahead()))
}

impl<'m> SnapshotDropper<'m> {
    /// Finds where the drop continues: at the recorded drop progress, or at the root. Returns
    /// `None` if the drop should first release the lock for other threads.
    fn resume(running: &mut Running, tree: TreeId, memory: &'m mut Memory) -> Result<Option<Self>> {
        let open = running.open_tree(tree)?;
        let offset = open.item_offset;
        let item = open.item.clone().ok_or(Error::TreeNotFound { tree })?;
        let is_relocation = tree == TreeId::TREE_RELOCATION;
        let mut drop = Self {
            tree,
            last_snapshot: item.last_snapshot,
            origin: match is_relocation {
                // A relocation tree refers to everything by address.
                true => Generation::MAX,
                false => Generation::new(offset),
            },
            steps: Vec::new(),
            ahead: Vec::new(),
            memory,
        };
        let root = BlockPointer::root(&RootPointer {
            tree,
            logical: item.logical,
            generation: item.generation,
            level: item.level,
        });
        let resumed = item.drop_progress.objectid != ObjectId::MIN;
        let reference = match is_relocation {
            true => Reference::SharedBlock { parent: root.logical },
            false => Reference::TreeBlock { root: tree },
        };
        if !drop.enter(running, root, reference)? {
            return Ok(None);
        }
        while resumed && let Some(step) = drop.steps.last_mut() {
            let key = &item.drop_progress;
            let slot = match step.block.search(key) {
                Ok(slot) => slot,
                Err(slot) => slot.saturating_sub(1),
            };
            step.slot = slot;
            if step.pointer.level <= item.drop_level.max(1) {
                break;
            }
            let Some((child, reference)) = step.child(tree) else {
                break;
            };
            // The child is on the path itself, so this level continues after the child.
            step.slot = slot.saturating_add(1);
            let depth = drop.steps.len();
            if !drop.enter(running, child, reference)? {
                return Ok(None);
            }
            if drop.steps.len() == depth {
                break;
            }
        }
        Ok(Some(drop))
    }

    /// Returns whether the path ends at a node with remaining children: only the position in such a
    /// node can be recorded.
    fn can_stop(&self) -> bool {
        self.steps
            .last()
            .is_some_and(|step| step.pointer.level > 0 && step.slot < step.block.item_count())
    }

    /// Returns the blocks to read together with the missing block: the next children that this tree
    /// made.
    fn blocks_ahead(self) -> Vec<BlockPointer> {
        if !self.ahead.is_empty() {
            return self.ahead;
        }
        let Some(step) = self.steps.last() else {
            return Vec::new();
        };
        (step.slot..step.block.item_count())
            .filter_map(|slot| step.pointer.child(&step.block, slot))
            .filter(|child| child.generation > self.last_snapshot)
            .take(CHILDREN_AHEAD)
            .collect()
    }

    /// Records the drop progress in the root item.
    fn remember(&self, running: &mut Running) -> Result<()> {
        let place = self
            .steps
            .last()
            .and_then(|step| Some((step.block.key(step.slot)?, step.pointer.level)));
        if let Some((key, level)) = place
            && !buttress_faults::on("drop-progress-unkept")
        {
            let item = running.root_item_mut(self.tree)?;
            item.drop_progress = key;
            item.drop_level = level;
        }
        Ok(())
    }

    /// Returns the state of the references to a block. The drop looks up the references only of a
    /// block that may be shared.
    fn state(
        &self,
        running: &Running,
        pointer: &BlockPointer,
        block: Option<&TreeBlock>,
    ) -> Result<ExtentState> {
        let relocated = self.tree == TreeId::TREE_RELOCATION
            || block.is_none_or(|block| block.header().flags.contains(HeaderFlags::RELOC));
        if pointer.generation > self.last_snapshot && !relocated {
            return Ok(ExtentState {
                references: 1,
                full_backref: false,
            });
        }
        let kind = ExtentKind::TreeBlock { level: pointer.level };
        running
            .core
            .extent_state(pointer.logical, kind, running.core.node_bytes())
    }

    /// Visits a block of the dropped tree: drops this tree's reference to a shared block, or adds
    /// another block to the path. Returns false if it did neither, because the time slice ended and
    /// other threads wait for the lock.
    fn enter(&mut self, running: &mut Running, pointer: BlockPointer, reference: Reference) -> Result<bool> {
        let own = pointer.generation > self.last_snapshot;
        if !own {
            let state = self.state(running, &pointer, None)?;
            if state.references > 1 {
                if pointer.generation >= self.origin && !self.set_full_back_references(running, &pointer)? {
                    return Ok(false);
                }
                // Another tree keeps a shared block, so the owner of its references does not
                // matter.
                Self::let_go(running, &pointer, reference, self.tree);
                return Ok(true);
            }
        }
        let block = self.memory.block(running, &pointer)?;
        let state = self.state(running, &pointer, Some(&block))?;
        if state.references > 1 {
            if !self.set_full_back_references(running, &pointer)? {
                return Ok(false);
            }
            Self::let_go(running, &pointer, reference, block.header().owner);
            return Ok(true);
        }
        self.steps.push(Step {
            pointer,
            block,
            slot: 0,
            full_backref: state.full_backref,
            reference,
        });
        Ok(true)
    }

    /// Drops this tree's reference to a block.
    fn let_go(running: &mut Running, pointer: &BlockPointer, reference: Reference, owner: TreeId) {
        let node_bytes = running.core.node_bytes();
        running
            .core
            .references
            .let_go(pointer.logical, node_bytes, pointer.level, reference, owner);
    }

    /// Does one step of the drop: drops a leaf, or moves down or up.
    fn advance(&mut self, running: &mut Running) -> Result<Advance> {
        let tree = self.tree;
        let Some(step) = self.steps.last_mut() else {
            return Ok(Advance::AtEnd);
        };
        if step.pointer.level > 0
            && let Some((child, reference)) = step.child(tree)
        {
            let slot = step.slot;
            step.slot = slot.saturating_add(1);
            let depth = self.steps.len();
            let entered = self.enter(running, child, reference);
            // The child block was not visited, so the drop continues at this child.
            let is_entered = entered.as_ref().is_ok_and(|is_done| *is_done);
            if !is_entered && let Some(step) = self.steps.get_mut(depth.saturating_sub(1)) {
                step.slot = slot;
            }
            return entered.map(|is_done| match is_done {
                true => Advance::Done,
                false => Advance::Interrupted,
            });
        }
        let Some(step) = self.steps.pop() else {
            return Ok(Advance::AtEnd);
        };
        if step.pointer.level == 0 && !buttress_faults::on("drop-keeps-data") {
            let form = step.form(tree);
            running
                .core
                .refer_below(&step.block, form, -1)
                .inspect_err(|error| {
                    // After this error, some references are dropped, and no record shows which.
                    running.core.forest.volume().stop_writing(error);
                })?;
        }
        let owner = step.block.header().owner;
        Self::let_go(running, &step.pointer, step.reference, owner);
        Ok(if self.steps.is_empty() {
            Advance::AtEnd
        } else {
            Advance::Done
        })
    }
}

impl Step {
    const fn form(&self, tree: TreeId) -> Form {
        if self.full_backref {
            Form::FullBackReference(self.pointer.logical)
        } else {
            Form::Keyed(tree)
        }
    }

    /// Returns the child in the current slot, and the form of this block's reference to the child.
    fn child(&self, tree: TreeId) -> Option<(BlockPointer, Reference)> {
        let child = self.pointer.child(&self.block, self.slot)?;
        let reference = match self.form(tree) {
            Form::FullBackReference(parent) => Reference::SharedBlock { parent },
            Form::Keyed(root) => Reference::TreeBlock { root },
        };
        Some((child, reference))
    }
}
