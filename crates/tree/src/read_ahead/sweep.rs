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
//! address. Where they lie scattered over the disk, each window crosses it once. On a disk that turns that costs
//! seconds a time, so there a sweep goes over to a [`Pass`] when a window was slow. A job that needs no order of
//! keys walks with [`Tree::blocks_by_address`](crate::Tree::blocks_by_address).
//!
//! # Memory
//!
//! Everything in the queues is reserved from the forest's budget; when that is used up, the stages hold one
//! block. Nodes go through the cache. Leaves are taken from it when they are there, and put into it only as
//! long as it has room: a sweep never pushes out what others use.

use crate::cache::Reservation;
use crate::edit::Node;
use crate::error::Result;
use crate::forest::Forest;
use crate::path::Step;
use crate::pointer::BlockPointer;
use crate::read_ahead::pass::Pass;
use crate::read_ahead::queue::{Queue, Taken};
use crate::read_ahead::{SWEEP_WINDOW, Toward, next_window};
use crate::scope::Scope;
use buttress_exact::Exact as _;
use buttress_format::ByteCount;
use buttress_format::node::TreeBlock;
use core::time::Duration;
use std::sync::Arc;

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

/// A window of at least this size shows how fast the disk is.
const PASS_AFTER_BYTES: u64 = 512 << 10;

/// What comes more slowly than this lies scattered: half of what a spinning disk gives at its inner edge.
const SLOW_BYTES_PER_SECOND: u64 = 40_000_000;

/// On a disk that turns, the usual window grows to three quarters of what may be read ahead: each window crosses the
/// disk once, wherever its leaves lie, so fewer of them move the head less. Where nothing moves, that gains nothing.
/// (One of this many parts is left to others.)
const ROTATIONAL_LEAVES: u64 = 4;

/// The window of nodes of level 1 for a pass.
const PASS_NODES_BYTES: u64 = 4 << 20;

/// The state of one sweep.
#[derive(Debug)]
pub(crate) struct Sweep {
    /// The window that was asked for.
    given_window_bytes: u64,
    /// The largest window: more than that on a disk that turns.
    window_bytes_max: u64,
    /// The window now.
    window_bytes: u64,
    floor: u8,
    scope: Scope,
    /// Leaves do not go to the cache.
    passes_leaves: bool,
    /// Whether the sweep may yet become a pass over a spinning disk.
    may_pass: bool,
    /// How long the walk has waited for blocks of the last window.
    waited: Duration,
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
    /// What comes after the queue, once the sweep is a pass over a spinning disk. Only on the lowest level.
    pass: Option<Box<Pass>>,
}

impl Stage {
    /// How many blocks of this level are planned.
    fn blocks(&self) -> u64 {
        let pass = self.pass.as_ref().map_or(0, |pass| pass.leaves());
        self.queue.blocks().exact_add(pass)
    }

    /// How many blocks of higher levels lie between them.
    fn passed(&self) -> u64 {
        let pass = self.pass.as_ref().map_or(0, |pass| pass.passed());
        self.queue.passed().exact_add(pass)
    }

    /// Room in the budget for one more block; a pass has its own, and as many entries as a window of it may have.
    fn has_room(&self, forest: &Forest) -> Option<Option<Reservation>> {
        if self.pass.is_some() {
            Some(None)
        } else {
            self.queue.room(forest)
        }
    }

    /// Plans a block: it will be the last.
    fn plan(&mut self, pointer: BlockPointer, node: Option<Arc<Node>>, reservation: Option<Reservation>) {
        match &mut self.pass {
            Some(pass) => pass.plan(pointer),
            None => self.queue.plan(pointer, node, reservation),
        }
    }

    fn pass_on(&mut self, taken: Taken) {
        match &mut self.pass {
            Some(pass) => pass.pass_on(taken),
            None => self.queue.pass_on(taken),
        }
    }

    fn take(&mut self, forest: &Forest) -> Option<Taken> {
        let taken = self.queue.take(forest);
        taken.or_else(|| self.pass.as_mut()?.take(forest))
    }

    fn skip_to(&mut self, pointer: &BlockPointer) -> bool {
        if self.queue.skip_to(pointer) {
            return true;
        }
        let found = self.pass.as_mut().is_some_and(|pass| pass.skip_to(pointer));
        if found {
            self.queue = Queue::default();
        }
        found
    }
}

impl Sweep {
    /// A sweep whose lowest blocks have level `floor`, over the blocks of `scope`.
    pub(crate) fn new(window: ByteCount, floor: u8, scope: Scope) -> Self {
        let given_window_bytes = window.get();
        let window_bytes = given_window_bytes.min(FIRST_WINDOW_BYTES);
        Self {
            given_window_bytes,
            window_bytes_max: given_window_bytes,
            window_bytes,
            floor,
            scope,
            passes_leaves: false,
            may_pass: false,
            waited: Duration::ZERO,
            stages: Vec::new(),
        }
    }

    /// Leaves are not to go to the cache. Called before the first is fetched.
    pub(crate) const fn pass_leaves(&mut self) {
        self.passes_leaves = true;
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
            .is_some_and(|stage| stage.skip_to(pointer))
        {
            if pointer.level != self.floor {
                // Wait with starting until the walk has come down: only then is it known where it begins.
                return forest.read_block(pointer);
            }
            self.stop();
            self.start(forest, steps);
        }
        let before = self.may_pass.then(|| forest.reader().now());
        let taken = self.take(forest, 0);
        if let Some(before) = before {
            // Clamp: a time; clocks stand still at worst.
            let waited = forest.reader().now().saturating_sub(before);
            self.waited = self.waited.saturating_add(waited);
        }
        match taken {
            Some(taken) => taken.result,
            None => forest.read_block(pointer),
        }
    }

    /// Forgets where it was; what is on its way is let go.
    fn stop(&mut self) {
        self.stages.clear();
        self.may_pass = false;
        self.window_bytes = self.given_window_bytes.min(FIRST_WINDOW_BYTES);
    }

    /// Starts at the child in the last step's slot.
    fn start(&mut self, forest: &Forest, steps: &[Step]) {
        let turns = forest.reader().is_rotational();
        self.may_pass = self.floor == 0 && turns;
        self.window_bytes_max = self.given_window_bytes;
        if turns && self.given_window_bytes >= SWEEP_WINDOW.get() {
            let capacity = forest.ahead().capacity().get();
            let share = capacity.exact_sub(capacity.quotient(ROTATIONAL_LEAVES));
            self.window_bytes_max = self.given_window_bytes.max(share);
        }
        self.waited = Duration::ZERO;
        let parents = steps.iter().rev().enumerate().map(|(distance, step)| {
            let mut parent = step.clone();
            // Above the last step, the child in the slot is already on the path.
            parent.slot = parent.slot.exact_add(usize::from(distance > 0));
            Stage {
                parent: Some(parent),
                ..Stage::default()
            }
        });
        self.stages = parents.collect();
        if let Some(leaves) = self.stages.first_mut().filter(|_| self.passes_leaves) {
            leaves.queue = Queue::passing_leaves();
        }
    }

    /// Takes the front of a stage's queue, waiting for it.
    fn take(&mut self, forest: &Forest, index: usize) -> Option<Taken> {
        self.refill(forest, index);
        self.stages.get_mut(index)?.take(forest)
    }

    /// Fills a stage's queue up to its window when it has little left.
    fn refill(&mut self, forest: &Forest, index: usize) {
        let window_blocks = self.window_blocks(forest, index);
        let low_blocks = window_blocks.quotient(REFILL_PARTS);
        match self.stages.get(index) {
            Some(stage) if stage.blocks() <= low_blocks => {}
            _ => return,
        }
        if index == 0 && self.may_pass && self.is_slow() {
            self.begin_pass(forest);
        }
        let window_blocks = self.window_blocks(forest, index);
        let mut planned = false;
        while let Some(stage) = self.stages.get(index)
            && stage.blocks() < window_blocks
            && let Some(reservation) = stage.has_room(forest)
            && let Some((pointer, node)) = self.next_pointer(forest, index)
            && let Some(stage) = self.stages.get_mut(index)
        {
            stage.plan(pointer, node, reservation);
            planned = true;
        }
        if planned && let Some(stage) = self.stages.get_mut(index) {
            stage.queue.ask(forest);
            if index == 0 {
                let cached = stage.queue.is_cached();
                self.window_bytes = next_window(self.window_bytes, self.window_bytes_max, cached);
                self.waited = Duration::ZERO;
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

    /// Whether the last window came so slowly that the disk must have gone to and fro for it.
    fn is_slow(&self) -> bool {
        // The window was doubled when it had been asked for.
        let bytes = self.window_bytes.quotient(2);
        let ample = bytes.exact_mul(1_000_000_000) / SLOW_BYTES_PER_SECOND;
        bytes >= PASS_AFTER_BYTES && self.waited > Duration::from_nanos(ample)
    }

    /// Goes on as a pass over the disk, where memory can be had for it.
    fn begin_pass(&mut self, forest: &Forest) {
        self.may_pass = false;
        if let Some(stage) = self.stages.first_mut() {
            stage.pass = Pass::new(forest, self.given_window_bytes).map(Box::new);
        }
    }

    fn pass(&self) -> Option<&Pass> {
        self.stages.first()?.pass.as_deref()
    }

    fn window_blocks(&self, forest: &Forest, index: usize) -> u64 {
        let node_bytes = u64::from(forest.reader().node_bytes());
        match self.pass() {
            Some(pass) if index == 0 => return pass.leaves_max(),
            // A pass wants all nodes of level 1 before it begins.
            Some(_) if index == 1 => return PASS_NODES_BYTES.quotient(node_bytes).max(1),
            _ => {}
        }
        let blocks = self.window_bytes.quotient(node_bytes).max(1);
        (0..index).fold(blocks, |blocks, _| {
            blocks.quotient(NODES_TO_LEAVES).max(NODES_AHEAD_MIN)
        })
    }

    /// How many blocks of higher levels a stage may hold.
    fn above_max(&self, forest: &Forest) -> u64 {
        let held = forest.ahead().capacity().get().quotient(2);
        let node_bytes = u64::from(forest.reader().node_bytes());
        match self.pass() {
            Some(_) => held.quotient(node_bytes).max(ABOVE_MAX),
            None => ABOVE_MAX,
        }
    }

    /// The next block of a stage's level, taking nodes from the stage above as needed. A block in memory is not
    /// fetched: on the lowest level it is left out, since the walk asks nobody for it; on those above it stands in
    /// its place, for what is below it.
    fn next_pointer(&mut self, forest: &Forest, index: usize) -> Option<(BlockPointer, Option<Arc<Node>>)> {
        let above_max = self.above_max(forest);
        loop {
            let stage = self.stages.get_mut(index)?;
            if let Some(parent) = &mut stage.parent {
                while let Some(child) = parent.child(parent.slot) {
                    if self.scope.ends_before(&child) {
                        return None;
                    }
                    let link = parent.link(parent.slot).cloned();
                    parent.slot = parent.slot.exact_add(1);
                    if self.scope.admits(&child) && (link.is_none() || index > 0) {
                        return Some((child, link));
                    }
                }
                stage.parent = None;
            }
            if stage.passed() >= above_max {
                return None;
            }
            let taken = self.take(forest, index.checked_add(1)?)?;
            let level = usize::from(self.floor).exact_add(index).exact_add(1);
            let stage = self.stages.get_mut(index)?;
            if let (true, Ok(block)) = (usize::from(taken.pointer.level) == level, &taken.result) {
                stage.parent = Some(Step {
                    pointer: taken.pointer,
                    block: block.clone(),
                    node: taken.node.clone(),
                    slot: 0,
                });
            }
            if taken.node.is_none() {
                stage.pass_on(taken);
            }
        }
    }
}
