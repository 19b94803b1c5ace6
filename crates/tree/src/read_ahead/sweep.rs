//! Read-ahead for a walk that will see every block of its range.
//!
//! A node of level 1 names hundreds of leaves, so where a walk will go is known far ahead. A sweep walks the same
//! way as its cursor, some megabytes in front of it, on a path of its own:
//!
//! 1. Each level has a [`Stage`]: the blocks of that level that are here or on their way, in order of keys,
//!    and the node above whose children come next.
//! 2. When a stage has less than a quarter of a window in front of the cursor, it is refilled to a whole one.
//!    The new blocks are asked for in one plug, so that each device gets them in order of address, neighbours
//!    merged.
//! 3. They are checked in batches by the forest's threads as they arrive (on simulated devices: by the walk,
//!    when it gets there).
//! 4. The cursor asks for blocks in the order of the stages' queues and takes them from the front. When it asks
//!    for one further back, it has jumped over the others; when for one that is not there at all, the sweep
//!    starts again from the cursor's path.
//!
//! A sweep starts small and doubles its window with each refill, so that one over a few leaves reads few. Each
//! stage above has a window of its own, small because its nodes are few, and is refilled before the stage below
//! needs its next node. Nothing outside the
//! walk's [`Scope`] is read.
//!
//! # Order of address
//!
//! Blocks are handed out in order of keys, so what can be read in order of address is one window at a time.
//! Where neighbours in the tree are neighbours on disk that is as good as reading everything in order of
//! address. Where they lie scattered over the disk, each window is a pass over it; then windows larger than the
//! default do not help before they are as large as the scattered part. A job that needs no order of keys walks
//! with [`Tree::blocks_by_address`](crate::Tree::blocks_by_address).
//!
//! # Memory
//!
//! Everything in the queues is reserved from the forest's budget; when that is used up, the stages hold one
//! block. Nodes go through the cache. Leaves are taken from it when they are there, and put into it only as
//! long as it has room: a sweep never pushes out what others use.

use crate::error::Result;
use crate::forest::Forest;
use crate::path::Step;
use crate::pointer::BlockPointer;
use crate::read_ahead::Toward;
use crate::read_ahead::queue::{Queue, Taken};
use crate::scope::Scope;
use buttress_format::ByteCount;
use buttress_format::node::TreeBlock;

/// The window of a sweep's first refill.
pub(crate) const FIRST_WINDOW_BYTES: u64 = 128 << 10;

/// A stage is refilled when its queue holds less than this part of the window: large enough that the devices
/// always have work, small enough that a refill is a long ascending run of requests.
const REFILL_PARTS: u64 = 4;

/// The window of a stage above is this many times smaller than that of the one below.
pub(crate) const NODES_TO_LEAVES: u64 = 64;

/// Each stage above the lowest has at least this many blocks ahead.
pub(crate) const NODES_AHEAD_MIN: u64 = 4;

/// A queue holds at most this many blocks of higher levels: each holds memory, and a hostile tree could have
/// any number of nodes without children that can be read.
const ABOVE_MAX: u64 = 64;

/// The state of one sweep.
#[derive(Debug)]
pub(crate) struct Sweep {
    /// The window that was asked for.
    given_window_bytes: u64,
    /// The window now.
    window_bytes: u64,
    floor: u8,
    scope: Scope,
    /// The lowest level first. Empty until the sweep starts.
    stages: Vec<Stage>,
}

/// One level of a sweep.
#[derive(Debug, Default)]
struct Stage {
    /// The node above whose children come next, and the first of them that has not been asked for.
    parent: Option<Step>,
    /// Blocks of this level, and between them those of higher levels, parents before children: the order in
    /// which the walk asks for them.
    queue: Queue,
}

impl Sweep {
    /// A sweep whose lowest blocks have level `floor`, over the blocks of `scope`.
    pub(crate) fn new(window: ByteCount, floor: u8, scope: Scope) -> Self {
        let given_window_bytes = window.get();
        let window_bytes = given_window_bytes.min(FIRST_WINDOW_BYTES);
        Self {
            given_window_bytes,
            window_bytes,
            floor,
            scope,
            stages: Vec::new(),
        }
    }

    /// The block at `pointer`: the child in the last step's slot.
    pub(crate) fn fetch(
        &mut self,
        forest: &Forest,
        steps: &[Step],
        pointer: &BlockPointer,
        toward: Toward,
    ) -> Result<TreeBlock> {
        if toward == Toward::Lower {
            self.stop();
            return forest.read_block(pointer);
        }
        self.refill(forest, 0);
        if !self
            .stages
            .first_mut()
            .is_some_and(|stage| stage.queue.skip_to(pointer))
        {
            if pointer.level != self.floor {
                // Wait with starting until the walk has come down: only then is it known where it begins.
                return forest.read_block(pointer);
            }
            self.stop();
            self.start(steps);
        }
        match self.take(forest, 0) {
            Some(taken) => taken.result,
            None => forest.read_block(pointer),
        }
    }

    /// Forgets where it was; what is on its way is let go.
    fn stop(&mut self) {
        self.stages.clear();
        self.window_bytes = self.given_window_bytes.min(FIRST_WINDOW_BYTES);
    }

    /// Starts at the child in the last step's slot.
    fn start(&mut self, steps: &[Step]) {
        let parents = steps.iter().rev().enumerate().map(|(distance, step)| {
            let mut parent = step.clone();
            // Above the last step, the child in the slot is already on the path.
            parent.slot = parent.slot.saturating_add(usize::from(distance > 0));
            Stage {
                parent: Some(parent),
                ..Stage::default()
            }
        });
        self.stages = parents.collect();
    }

    /// Takes the front of a stage's queue, waiting for it.
    fn take(&mut self, forest: &Forest, index: usize) -> Option<Taken> {
        self.refill(forest, index);
        self.stages.get_mut(index)?.queue.take(forest)
    }

    /// Fills a stage's queue up to its window when it has little left.
    fn refill(&mut self, forest: &Forest, index: usize) {
        let window_blocks = self.window_blocks(forest, index);
        let low_blocks = window_blocks.checked_div(REFILL_PARTS).unwrap_or(0);
        match self.stages.get(index) {
            Some(stage) if stage.queue.blocks() <= low_blocks => {}
            _ => return,
        }
        let mut planned = false;
        while let Some(stage) = self.stages.get(index)
            && stage.queue.blocks() < window_blocks
            && let Some(reservation) = stage.queue.room(forest)
            && let Some(pointer) = self.next_pointer(forest, index)
            && let Some(stage) = self.stages.get_mut(index)
        {
            stage.queue.plan(pointer, reservation);
            planned = true;
        }
        if planned && let Some(stage) = self.stages.get_mut(index) {
            stage.queue.ask(forest);
            if index == 0 {
                self.window_bytes = self.window_bytes.saturating_mul(2).min(self.given_window_bytes);
            }
        }
        // The stage above goes on in time, so that its next node is here when this stage's is used up.
        if let Some(above) = index
            .checked_add(1)
            .filter(|_| self.window_bytes > FIRST_WINDOW_BYTES)
        {
            self.refill(forest, above);
        }
    }

    fn window_blocks(&self, forest: &Forest, index: usize) -> u64 {
        let node_bytes = u64::from(forest.reader().node_bytes());
        let blocks = self.window_bytes.checked_div(node_bytes).unwrap_or(1).max(1);
        (0..index).fold(blocks, |blocks, _| {
            blocks
                .checked_div(NODES_TO_LEAVES)
                .unwrap_or(1)
                .max(NODES_AHEAD_MIN)
        })
    }

    /// The pointer to the next block of a stage's level, taking nodes from the stage above as needed.
    fn next_pointer(&mut self, forest: &Forest, index: usize) -> Option<BlockPointer> {
        loop {
            let stage = self.stages.get_mut(index)?;
            if let Some(parent) = &mut stage.parent {
                while let Some(child) = parent.pointer.child(&parent.block, parent.slot) {
                    if self.scope.ends_before(&child) {
                        return None;
                    }
                    parent.slot = parent.slot.saturating_add(1);
                    if self.scope.admits(&child) {
                        return Some(child);
                    }
                }
                stage.parent = None;
            }
            if stage.queue.passed() >= ABOVE_MAX {
                return None;
            }
            let taken = self.take(forest, index.checked_add(1)?)?;
            let level = usize::from(self.floor).saturating_add(index).saturating_add(1);
            let stage = self.stages.get_mut(index)?;
            if let (true, Ok(block)) = (usize::from(taken.pointer.level) == level, &taken.result) {
                stage.parent = Some(Step {
                    pointer: taken.pointer,
                    block: block.clone(),
                    slot: 0,
                });
            }
            stage.queue.pass_on(taken);
        }
    }
}
