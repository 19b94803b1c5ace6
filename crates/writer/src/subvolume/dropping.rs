//! Dropping what deleted subvolumes leave: their trees, block by block, over as many transactions as it takes.
//!
//! A deleted subvolume has a root item without references and an orphan item. Its tree is walked from left to right; a
//! block that nothing else refers to is freed with all it refers to, a block that a snapshot shares only loses this
//! tree's reference. Between transactions the root item remembers the first child that is still there (*drop progress*),
//! so that dropping goes on after a crash, here or in the kernel.
//!
//! A shared block that this tree made counts what is below it for this tree, by name. Before the tree goes, such blocks
//! turn to references by address (`turning`), those below before those above, so that this too can stop after any block.
//!
//! Source: on-disk format documentation, section "Root item" (`drop_progress`, `drop_level`).

mod full_back_references;

use crate::WritableFilesystem;
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
use std::collections::{BTreeSet, HashMap, VecDeque};

/// How many references may wait before a transaction is given a chance to end.
const REFERENCES_AT_ONCE: usize = 1 << 16;

/// Places of a step beside the references that it gives up: the root item, the orphan item, and how far it got.
const STEP_PLACES: u64 = 8;

/// How many children of a node are read in at once.
const CHILDREN_AHEAD: usize = 256;

/// Why dropping a tree stopped.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Stop {
    /// Nothing is left.
    Gone,
    /// So much was done that others shall have the lock.
    Enough,
    /// A block is not in memory.
    Missing(Box<BlockPointer>),
}

/// What one step came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Advance {
    /// It was done.
    Done,
    /// Nothing is left.
    AtEnd,
    /// It stopped half-way, so that others get the lock, and is to be done again.
    Interrupted,
}

/// A node on the way down: what is in `slot` and after it is still to be dropped.
#[derive(Debug)]
struct Step {
    pointer: BlockPointer,
    block: TreeBlock,
    slot: usize,
    full_backref: bool,
    /// How this block is referred to from above.
    reference: Reference,
}

/// How many of the blocks that were missing last are known.
const MISSING_KNOWN: usize = 16;

/// What is known of one tree between two holds of the lock.
#[derive(Debug, Default)]
struct Memory {
    /// The blocks that were missing last, and were read.
    missing: VecDeque<Logical>,
    /// Nodes below which all that counts for this tree refers by address.
    turned: BTreeSet<Logical>,
    /// Blocks that were read ahead: each is needed once, and soon, so that the cache need not keep them.
    ahead: HashMap<Logical, TreeBlock>,
}

impl Memory {
    /// Whether a block was missing not long ago; from now on it was.
    fn is_known(&mut self, pointer: &BlockPointer) -> bool {
        if self.missing.contains(&pointer.logical) {
            return true;
        }
        self.missing.truncate(MISSING_KNOWN);
        self.missing.push_front(pointer.logical);
        false
    }

    /// A block that was read ahead, or is read now.
    fn block(&mut self, running: &Running, pointer: &BlockPointer) -> Result<TreeBlock> {
        match self.ahead.remove(&pointer.logical) {
            Some(block) if block.header().generation == pointer.generation => Ok(block),
            _ => Ok(running.core.forest.read_block(pointer)?),
        }
    }
}

/// The way through one tree.
#[derive(Debug)]
struct SnapshotDropper<'m> {
    tree: TreeId,
    last_snapshot: Generation,
    /// What the root item's key says of the transaction that made this tree out of another one: older blocks are not its
    /// own. Of blocks as old as that their owner decides: with a key of the kernel's they are the source's, and keys that
    /// name the transaction itself may stand beside blocks that the snapshot changed in it.
    origin: Generation,
    steps: Vec<Step>,
    /// Blocks that are worth reading with the one that was missing.
    ahead: Vec<BlockPointer>,
    memory: &'m mut Memory,
}

impl WritableFilesystem {
    /// The deleted subvolumes that are not yet gone.
    ///
    /// # Errors
    /// When the root tree cannot be read.
    pub fn deleted_subvolumes(&self) -> Result<Vec<SubvolumeId>> {
        let mut found = self.subvolumes_without_references()?;
        let trees = self.live_trees();
        found.retain(|id| !trees.get(id.tree()).is_some_and(|tree| tree.is_unfinished()));
        Ok(found)
    }

    /// Subvolumes that were deleted, and those that are, or once were, being made.
    fn subvolumes_without_references(&self) -> Result<Vec<SubvolumeId>> {
        let view = self.view();
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

    /// Drops what deleted subvolumes left, to the end. Work done so far is kept when it is cancelled. One that is damaged, or
    /// cannot be read, keeps none of the others from being dropped.
    ///
    /// # Errors
    /// [`Error::Cancelled`]; [`Error::NotDropped`], with all that could not be dropped; that writing has stopped.
    pub fn drop_deleted_subvolumes(&self, progress: &Progress) -> Result<()> {
        let deleted = self.deleted_subvolumes()?;
        let mut failures = Vec::new();
        for id in deleted {
            match self.drop_tree(id, progress) {
                Err(error) if self.is_of_one_tree(&error) => failures.push((id, error)),
                dropped => dropped?,
            }
        }
        if failures.is_empty() {
            return Ok(());
        }
        Err(Error::NotDropped { failures })
    }

    /// Drops what was left of subvolumes that were being made when the volume was last open: what is done when it is opened
    /// for writing. They are told from deleted ones by the flag that those have. A damaged one stays, for the next opening.
    pub(crate) fn sweep_unfinished(&self) -> Result<()> {
        for id in self.subvolumes_without_references()? {
            let item = self.look(|operation| operation.look().root_item(id.tree()).cloned())?;
            if item.flags.contains(RootFlags::DEAD) {
                continue;
            }
            match self.drop_tree(id, &Progress::new()) {
                Err(error) if self.is_of_one_tree(&error) => {}
                dropped => dropped?,
            }
        }
        Ok(())
    }

    /// Whether dropping one tree failed for something that is in that tree, so that it is no reason to leave others.
    fn is_of_one_tree(&self, error: &Error) -> bool {
        let is_in_tree = match error {
            Error::Defect(_) | Error::WritingStopped { .. } => false,
            error => matches!(error.kind(), ErrorKind::Corrupt | ErrorKind::Io),
        };
        is_in_tree && self.require_writing().is_ok()
    }

    fn drop_tree(&self, id: SubvolumeId, progress: &Progress) -> Result<()> {
        let mut memory = Memory::default();
        while self.drop_some(id.tree(), progress, &mut memory)? != Stop::Gone {
            if progress.is_cancelled() {
                return Err(Error::Cancelled);
            }
        }
        Ok(())
    }

    /// Goes on dropping one tree for a while; a block or so of it where the job was cancelled, so that even then it gets
    /// on.
    fn drop_some(&self, tree: TreeId, progress: &Progress, memory: &mut Memory) -> Result<Stop> {
        // What is dropped is what lies on disk, not what changed since, or what a commit is about to write.
        let is_newer = |handle: &mut Handle<'_>| {
            let tree = &handle.open_tree(tree)?.tree;
            Ok(match buttress_faults::on("drop-reads-unwritten") {
                true => tree.is_dirty(),
                false => tree.is_in_memory(),
            })
        };
        let (mut handle, mut waits) = self.retry(self.start(Need::freeing(STEP_PLACES))?, is_newer)?;
        while waits {
            drop(handle);
            self.commit()?;
            (handle, waits) = self.retry(self.start(Need::freeing(STEP_PLACES))?, is_newer)?;
        }
        let (mut stop, ahead) = {
            let _resident_only = NonBlocking::hold();
            drop_below(&mut handle, tree, progress, memory)?
        };
        if let Stop::Missing(pointer) = &stop
            && memory.is_known(pointer)
        {
            // It was read, and the cache did not keep it.
            (stop, _) = drop_below(&mut handle, tree, progress, memory)?;
        }
        match &stop {
            Stop::Gone => remove_dead_root(&mut handle, tree).inspect_err(|error| {
                // All that it led to was let go, so that it must not be committed with what leads there.
                self.forest().volume().stop_writing(error);
            })?,
            Stop::Enough => {}
            Stop::Missing(pointer) => {
                drop(handle);
                let blocks = self.fault_in(ahead).into_iter();
                memory.ahead = blocks.map(|block| (block.logical(), block)).collect();
                self.forest().read_block(pointer)?;
            }
        }
        Ok(stop)
    }
}

/// Goes on dropping where dropping stopped, and writes down where it stops now. Gives also what is worth reading in.
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
                    // What was let go stays let go.
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

/// Keys of what is left of a tree at the end: its root item and the orphan item.
fn keys_of_dead_root(running: &mut Running, tree: TreeId) -> Result<[Key; 2]> {
    let offset = running.open_tree(tree)?.item_offset;
    Ok([
        Key::new(tree.object_id(), ItemType::ROOT_ITEM, offset),
        Key::new(ObjectId::ORPHAN, ItemType::ORPHAN_ITEM, tree.get()),
    ])
}

/// Goes to where the last of a tree lies: when nothing else is left it must go at once.
fn reach_dead_root(running: &mut Running, tree: TreeId) -> Result<()> {
    // Its id may be the highest: nobody gets it while the volume is open, since callers may still name what was in it.
    running.next_inode_number(TreeId::ROOT)?;
    let keys = keys_of_dead_root(running, tree)?;
    keys.iter().try_for_each(|key| running.reach(TreeId::ROOT, key))
}

/// Removes the last of a tree.
fn remove_dead_root(running: &mut Running, tree: TreeId) -> Result<()> {
    let keys = keys_of_dead_root(running, tree)?;
    running.trees.remove(tree);
    running.inodes.forget_tree(tree);
    for key in keys {
        running.remove(TreeId::ROOT, &key)?;
    }
    Ok(())
}

impl<'m> SnapshotDropper<'m> {
    /// Finds the place where dropping stopped, or the root. `None` when others shall have the lock first.
    fn resume(running: &mut Running, tree: TreeId, memory: &'m mut Memory) -> Result<Option<Self>> {
        let open = running.open_tree(tree)?;
        let offset = open.item_offset;
        let item = open.item.clone().ok_or(Error::TreeNotFound { tree })?;
        let mut drop = Self {
            tree,
            last_snapshot: item.last_snapshot,
            origin: Generation::new(offset),
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
        if !drop.enter(running, root, Reference::TreeBlock { root: tree })? {
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
            // The child is on the way itself: what comes after it is what this step has left.
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

    /// Whether the way ends at a node that still has children: only such a place can be written down.
    fn can_stop(&self) -> bool {
        self.steps
            .last()
            .is_some_and(|step| step.pointer.level > 0 && step.slot < step.block.item_count())
    }

    /// What is worth reading with the block that was missing: the children that come next, of those that this tree made.
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

    /// Writes down where to go on.
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

    /// References of a block, looked up only where it may be shared.
    fn state(
        &self,
        running: &Running,
        pointer: &BlockPointer,
        block: Option<&TreeBlock>,
    ) -> Result<ExtentState> {
        let relocated = block.is_none_or(|block| block.header().flags.contains(HeaderFlags::RELOC));
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

    /// Comes to a block: one that others share is let go at once, another is put on the way. False when it was neither, so
    /// that others get the lock.
    fn enter(&mut self, running: &mut Running, pointer: BlockPointer, reference: Reference) -> Result<bool> {
        let own = pointer.generation > self.last_snapshot;
        if !own {
            let state = self.state(running, &pointer, None)?;
            if state.references > 1 {
                if pointer.generation >= self.origin && !self.set_full_back_references(running, &pointer)? {
                    return Ok(false);
                }
                // Shared: others keep it, so nobody needs to know for whom it was made.
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

    /// Takes this tree's reference to a block away.
    fn let_go(running: &mut Running, pointer: &BlockPointer, reference: Reference, owner: TreeId) {
        let node_bytes = running.core.node_bytes();
        running
            .core
            .references
            .let_go(pointer.logical, node_bytes, pointer.level, reference, owner);
    }

    /// One step: drops a leaf, or goes down or up.
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
            // It was not entered: dropping goes on here.
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
                    // Some of it was let go, and nobody could tell what.
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

    /// The child in the slot, and how this block refers to it.
    fn child(&self, tree: TreeId) -> Option<(BlockPointer, Reference)> {
        let child = self.pointer.child(&self.block, self.slot)?;
        let reference = match self.form(tree) {
            Form::FullBackReference(parent) => Reference::SharedBlock { parent },
            Form::Keyed(root) => Reference::TreeBlock { root },
        };
        Some((child, reference))
    }
}
