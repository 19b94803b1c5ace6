//! Sweeps: read-ahead for a walk that will visit every block of its range.
//!
//! A node of level 1 names hundreds of leaves, so a sweep knows the next reads far ahead. A sweep
//! follows the same order as its cursor, some megabytes ahead of it, on a path of its own:
//!
//! 1. Each level has a [`Stage`]. Each stage of the sweep holds its level's blocks that are
//!    available or in flight, in key order. The stage also holds the node on the level above, whose
//!    children come next.
//! 2. When a stage has less than a quarter of a window ahead of the cursor, the sweep refills it to
//!    a whole window. The reads of the new blocks start in one plug, so each device receives them
//!    in address order, with neighbours merged.
//! 3. The forest's threads check the blocks in batches as they arrive. On simulated devices, the
//!    walk checks them.
//! 4. The cursor requests blocks in the order of the stages' queues, and takes each from the front
//!    of its queue. If the cursor requests a block further back in the queue, it has skipped the
//!    blocks before that block. If the queue does not hold the requested block, the sweep restarts
//!    from the cursor's path.
//!
//! A sweep starts with a small window and doubles the window with each refill, so a walk over a few
//! leaves reads few blocks ahead. Each higher stage has a smaller window, because its level has
//! fewer nodes. The sweep refills a higher stage before the stage below needs its next node. The
//! sweep reads nothing outside the walk's [`Scope`].
//!
//! # Order of address
//!
//! A sweep delivers blocks in key order, so it can read only one window at a time in address order.
//! If neighbours in the tree are neighbours on disk, a sweep is as good as reading all blocks in
//! address order. If blocks are scattered over the disk, each window crosses it once. A crossing of
//! the disk costs seconds on a spinning disk, so the sweep switches to a [`Pass`] after a slow
//! window. A job that needs no key order walks with
//! [`Tree::blocks_by_address`](crate::Tree::blocks_by_address).
//!
//! # Memory
//!
//! The queues of a sweep reserve their blocks from the forest's budget. When the read-ahead budget
//! is used up, each stage of the sweep holds one block. Nodes go through the cache. A sweep takes
//! leaves from the cache if possible, and adds leaves only while the cache has space. A sweep never
//! evicts blocks that other readers use.

use crate::cache::Reservation;
use crate::edit::Node;
use crate::error::Result;
use crate::forest::Forest;
use crate::pointer::BlockPointer;
use crate::read_ahead::pass::Pass;
use crate::read_ahead::queue::{Queue, Taken};
use crate::read_ahead::{SWEEP_WINDOW, Toward, next_window};
use crate::scope::Scope;
use crate::step::Step;
use buttress_exact::Exact as _;
use buttress_format::ByteCount;
use buttress_format::node::TreeBlock;
use core::time::Duration;
use std::sync::Arc;

/// The window of a sweep's first refill.
pub(crate) const FIRST_WINDOW_BYTES: u64 = 128 << 10;

/// The fraction of its window below which a stage is refilled. This part is large enough to keep
/// the devices busy, and small enough that a refill is a long ascending run of requests.
const REFILL_PARTS: u64 = 4;

/// The ratio of a stage's window to the window of the stage above it.
pub(crate) const NODES_TO_LEAVES: u64 = 64;

/// The minimum number of blocks ahead of each stage above the lowest.
pub(crate) const NODES_AHEAD_MIN: u64 = 4;

/// The maximum number of blocks of higher levels in a queue. Each such block takes memory, and a
/// hostile tree could have any number of nodes without readable children.
const ABOVE_MAX: u64 = 64;

/// The minimum size of a window from which the sweep measures the speed of the disk.
const PASS_AFTER_BYTES: u64 = 512 << 10;

/// The speed below which leaves count as scattered: half of a spinning disk's speed at its inner
/// edge.
const SLOW_BYTES_PER_SECOND: u64 = 40_000_000;

/// The part of the read-ahead budget that a default window leaves to other readers on a spinning
/// disk. For the walk itself, the window grows to the remaining three quarters. Each read-ahead
/// window crosses the disk once, so fewer windows mean fewer seeks. Other devices gain nothing from
/// a larger window.
const ROTATIONAL_LEAVES: u64 = 4;

/// The window, in bytes, of the nodes of level 1 that a pass reads.
const PASS_NODES_BYTES: u64 = 4 << 20;

/// The state of one sweep.
#[derive(Debug)]
pub(crate) struct Sweep {
    /// The requested window of the sweep in bytes.
    given_window_bytes: u64,
    /// The maximum window in bytes, which exceeds the requested window on a spinning disk.
    window_bytes_max: u64,
    /// The current window in bytes.
    window_bytes: u64,
    floor: u8,
    scope: Scope,
    /// True if the leaves of the walk bypass the cache.
    passes_leaves: bool,
    /// True if the sweep may still become a pass over a spinning disk.
    may_pass: bool,
    /// The time that the walk has waited for blocks of the sweep's last window.
    waited: Duration,
    /// The stages of the sweep, the lowest level first. The list of stages is empty until the sweep
    /// starts.
    stages: Vec<Stage>,
}

/// A level of a sweep.
#[derive(Debug, Default)]
struct Stage {
    /// The node above the stage whose children come next, with the slot of its first child that is
    /// not fetched.
    parent: Option<Step>,
    /// The queue of this stage: blocks of its level, and between them blocks of higher levels,
    /// parents before children. The queue has the order in which the walk requests its blocks.
    queue: Queue,
    /// The pass that follows the queue, if the sweep has become a pass over a spinning disk. The
    /// pass exists only on the lowest level.
    pass: Option<Box<Pass>>,
}

impl Stage {
    /// Returns the number of planned blocks of this stage's level.
    fn blocks(&self) -> u64 {
        let pass = self.pass.as_ref().map_or(0, |pass| pass.leaves());
        self.queue.blocks().exact_add(pass)
    }

    /// Returns the number of higher-level blocks between the planned blocks of this stage's level.
    fn passed(&self) -> u64 {
        let pass = self.pass.as_ref().map_or(0, |pass| pass.passed());
        self.queue.passed().exact_add(pass)
    }

    /// Reserves budget for one more block. A read-ahead pass has its own memory budget and a
    /// maximum number of entries.
    fn has_room(&self, forest: &Forest) -> Option<Option<Reservation>> {
        if self.pass.is_some() {
            Some(None)
        } else {
            self.queue.room(forest)
        }
    }

    /// Plans a block as the last entry of this stage.
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
    /// Makes a sweep over the blocks of `scope`, whose lowest blocks have level `floor`.
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

    /// Makes the leaves that the sweep reads bypass the cache. The caller must call this before the
    /// first fetch.
    pub(crate) const fn pass_leaves(&mut self) {
        self.passes_leaves = true;
    }

    /// Returns the block at `pointer`, which is the child in the last step's slot.
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
                // The sweep starts only after the walk has descended, because then its first leaf
                // is known.
                return forest.read_block(pointer);
            }
            self.stop();
            self.start(forest, steps);
        }
        let before = self.may_pass.then(|| forest.reader().now());
        let taken = self.take(forest, 0);
        if let Some(before) = before {
            // Clamp: the difference is a duration; at worst the clock stands still.
            let waited = forest.reader().now().saturating_sub(before);
            self.waited = self.waited.saturating_add(waited);
        }
        match taken {
            Some(taken) => taken.result,
            None => forest.read_block(pointer),
        }
    }

    /// Stops the sweep, and drops the blocks in flight.
    fn stop(&mut self) {
        self.stages.clear();
        self.may_pass = false;
        self.window_bytes = self.given_window_bytes.min(FIRST_WINDOW_BYTES);
    }

    /// Starts the sweep at the child in the last step's slot.
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
            // In steps above the last step, the child in the slot is already on the path.
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

    /// Waits for the block at the front of a stage's queue and takes it.
    fn take(&mut self, forest: &Forest, index: usize) -> Option<Taken> {
        self.refill(forest, index);
        self.stages.get_mut(index)?.take(forest)
    }

    /// Fills a stage up to its window when few planned blocks remain in it.
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
        // The sweep refills the stage above early, so that its next node is available in time for
        // this stage.
        if let Some(above) = index
            .checked_add(1)
            .filter(|_| self.window_bytes > FIRST_WINDOW_BYTES)
        {
            self.refill(forest, above);
        }
    }

    /// Returns true if the last window was so slow that the disk must have moved its head back and
    /// forth.
    fn is_slow(&self) -> bool {
        // The window was doubled after its reads had started.
        let bytes = self.window_bytes.quotient(2);
        let ample = bytes.exact_mul(1_000_000_000) / SLOW_BYTES_PER_SECOND;
        bytes >= PASS_AFTER_BYTES && self.waited > Duration::from_nanos(ample)
    }

    /// Turns the sweep into a pass in disk order, if memory is available.
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
            // A pass plans all nodes of level 1 before it begins.
            Some(_) if index == 1 => return PASS_NODES_BYTES.quotient(node_bytes).max(1),
            _ => {}
        }
        let blocks = self.window_bytes.quotient(node_bytes).max(1);
        (0..index).fold(blocks, |blocks, _| {
            blocks.quotient(NODES_TO_LEAVES).max(NODES_AHEAD_MIN)
        })
    }

    /// Returns the maximum number of blocks of higher levels in a stage.
    fn above_max(&self, forest: &Forest) -> u64 {
        let held = forest.ahead().capacity().get().quotient(2);
        let node_bytes = u64::from(forest.reader().node_bytes());
        match self.pass() {
            Some(_) => held.quotient(node_bytes).max(ABOVE_MAX),
            None => ABOVE_MAX,
        }
    }

    /// Returns the next block of a stage's level. Takes nodes from the stage above as needed. The
    /// sweep does not fetch a block that is in memory. On the lowest level, the sweep skips such a
    /// block, because the walk does not request it. On higher levels, the block stays for the
    /// blocks below it.
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
