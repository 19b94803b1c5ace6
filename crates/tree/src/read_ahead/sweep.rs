//! Read-ahead for a walk that will see every block of its range.
//!
//! A node of level 1 names hundreds of leaves, so where a walk will go is known far ahead. A sweep walks the same
//! way as its cursor, some megabytes in front of it, on a path of its own:
//!
//! 1. Each level has a [`Stage`]: the blocks of that level that are here or on their way, in order of keys,
//!    and the node above whose children come next.
//! 2. When a stage has less than half a window in front of the cursor, it is refilled to a whole one. The new
//!    blocks are asked for in one plug, so that each device gets them in order of address, neighbours merged.
//! 3. They are checked in batches by the forest's threads as they arrive (on simulated devices: by the walk,
//!    when it gets there).
//! 4. The cursor asks for blocks in the order of the stages' queues and takes them from the front. When it asks
//!    for another one, it has jumped: the sweep starts again from the cursor's path.
//!
//! A sweep starts small and doubles its window with each refill, so that one over a few leaves reads few. Each
//! stage above has a window of its own, small because its nodes are few, and is refilled before the stage below
//! needs its next node. Nothing that lies past the end of the cursor's range is read.
//!
//! # Order of address
//!
//! Where neighbours in the tree are neighbours on disk, the window's size does not matter. Where they lie
//! scattered, a device that moves goes through the window's addresses in order, and so makes one pass over the
//! scattered area for each refill: the larger the window, the fewer passes. So the window is doubled, up to
//! [`SWEEP_GROWTH_MAX`] times the given size, while the runs that a refill merges to are short on average, and
//! shrinks again when they are long.
//!
//! # Memory
//!
//! Everything in the queues is reserved from the forest's budget; when that is used up, the stages hold one
//! block. Nodes go through the cache. Leaves are taken from it when they are there, and put into it only as
//! long as it has room: a sweep never pushes out what others use.

use crate::cache::Reservation;
use crate::error::Result;
use crate::forest::Forest;
use crate::path::Step;
use crate::pointer::BlockPointer;
use crate::read_ahead::batch::{Arriving, BATCH_BLOCKS_MAX, Batch};
use crate::read_ahead::{SWEEP_GROWTH_MAX, Toward};
use buttress_format::node::TreeBlock;
use buttress_format::{ByteCount, Key};
use std::collections::VecDeque;
use std::sync::Arc;

/// Runs shorter than this, on average, are scattered: a disk moves for longer than it transfers.
const SCATTERED_RUN_BYTES: u64 = 1 << 20;

/// The window of a sweep's first refill.
const FIRST_WINDOW_BYTES: u64 = 128 << 10;

/// The window of a stage above is this many times smaller than that of the one below.
const NODES_TO_LEAVES: u64 = 64;

/// Each stage above the lowest has at least this many blocks ahead.
const NODES_AHEAD_MIN: u64 = 4;

/// A queue holds at most this many blocks of higher levels: each holds memory, and a hostile tree could have
/// any number of nodes without children that can be read.
const ABOVE_MAX: u64 = 64;

/// The state of one sweep.
#[derive(Debug)]
pub(crate) struct Sweep {
    /// The window where blocks lie in runs.
    given_window_bytes: u64,
    /// The window now.
    window_bytes: u64,
    floor: u8,
    end: Option<Key>,
    /// How many more leaves go to the cache before it is asked again whether it has room.
    room_blocks: u64,
    /// The lowest level first. Empty until the sweep starts.
    stages: Vec<Stage>,
}

/// One level of a sweep.
#[derive(Debug, Default)]
struct Stage {
    /// The node above whose children come next, and the first of them that has not been asked for.
    parent: Option<Step>,
    /// Blocks in the order in which the walk asks for them, parents before children.
    queue: VecDeque<Entry>,
    /// How many blocks of this level are in the queue.
    blocks: u64,
}

/// A block that the walk will ask for.
#[derive(Debug)]
struct Entry {
    pointer: BlockPointer,
    content: Content,
    reservation: Option<Reservation>,
}

#[derive(Debug)]
enum Content {
    /// A block of the stage's level that is not yet asked for; only while a refill is under way.
    Planned,
    /// A block of the stage's level.
    Arriving(Arriving),
    /// A block of a higher level, passed on.
    Above(Result<TreeBlock>),
}

/// What came off the front of a queue.
#[derive(Debug)]
struct Taken {
    pointer: BlockPointer,
    result: Result<TreeBlock>,
    reservation: Option<Reservation>,
}

impl Stage {
    /// How many blocks of higher levels are in the queue.
    fn above(&self) -> u64 {
        u64::try_from(self.queue.len())
            .unwrap_or(u64::MAX)
            .saturating_sub(self.blocks)
    }
}

impl Sweep {
    /// A sweep whose lowest blocks have level `floor`, over keys before `end`.
    pub(crate) fn new(window: ByteCount, floor: u8, end: Option<Key>) -> Self {
        let given_window_bytes = window.get();
        let window_bytes = given_window_bytes.min(FIRST_WINDOW_BYTES);
        Self {
            given_window_bytes,
            window_bytes,
            floor,
            end,
            room_blocks: 0,
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
        if !self.advance_to(forest, pointer) {
            if pointer.level != self.floor {
                // Wait with starting until the walk has come down: only then is it known where it begins.
                return forest.read_block(pointer);
            }
            self.stop();
            self.start(steps);
        }
        match self.pop(forest, 0) {
            Some(taken) => taken.result,
            None => forest.read_block(pointer),
        }
    }

    /// Brings `pointer`'s block to the front of the lowest stage's queue. False when it is not in it.
    fn advance_to(&mut self, forest: &Forest, pointer: &BlockPointer) -> bool {
        self.refill(forest, 0);
        let Some(stage) = self.stages.first_mut() else {
            return false;
        };
        let Some(position) = stage.queue.iter().position(|entry| entry.pointer == *pointer) else {
            return false;
        };
        // What the walk jumped over is let go.
        for entry in stage.queue.drain(..position) {
            if matches!(entry.content, Content::Arriving(_)) {
                stage.blocks = stage.blocks.saturating_sub(1);
            }
        }
        true
    }

    /// Forgets where it was; what is on its way is let go.
    fn stop(&mut self) {
        for entry in self.stages.drain(..).flat_map(|stage| stage.queue) {
            if let Content::Arriving(Arriving::InBatch(batch, _)) = entry.content {
                batch.give_up();
            }
        }
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
    fn pop(&mut self, forest: &Forest, index: usize) -> Option<Taken> {
        self.refill(forest, index);
        let stage = self.stages.get_mut(index)?;
        let Entry {
            pointer,
            content,
            reservation,
        } = stage.queue.pop_front()?;
        let result = match content {
            Content::Above(result) => result,
            Content::Planned => forest.read_block(&pointer),
            Content::Arriving(arriving) => {
                stage.blocks = stage.blocks.saturating_sub(1);
                let read = matches!(arriving, Arriving::InBatch(..));
                let result = arriving.wait(forest.reader(), &pointer);
                if let (true, Ok(block)) = (read, &result) {
                    self.keep(forest, &pointer, block);
                }
                result
            }
        };
        Some(Taken {
            pointer,
            result,
            reservation,
        })
    }

    /// Puts a block into the cache: a node always, a leaf while that pushes nothing out.
    fn keep(&mut self, forest: &Forest, pointer: &BlockPointer, block: &TreeBlock) {
        if pointer.level == 0 {
            let Some(room_blocks) = self.room_blocks.checked_sub(1) else {
                return;
            };
            self.room_blocks = room_blocks;
        }
        forest.cache().insert(pointer, block.clone());
    }

    /// Fills a stage's queue up to its window when it has less than half of it.
    fn refill(&mut self, forest: &Forest, index: usize) {
        let node_bytes = u64::from(forest.reader().node_bytes()).max(1);
        let window_blocks = self.window_blocks(index, node_bytes);
        let Some(stage) = self.stages.get(index) else {
            return;
        };
        let low_blocks = window_blocks.checked_div(2).unwrap_or(0);
        if stage.blocks > low_blocks {
            return;
        }
        let first_new = stage.queue.len();
        while let Some((pointer, reservation)) = self.plan(forest, index, window_blocks) {
            let Some(stage) = self.stages.get_mut(index) else {
                return;
            };
            stage.blocks = stage.blocks.saturating_add(1);
            stage.queue.push_back(Entry {
                pointer,
                content: Content::Planned,
                reservation,
            });
        }
        let run_bytes = self.ask(forest, index, first_new);
        if index == 0
            && self
                .stages
                .first()
                .is_some_and(|stage| stage.queue.len() > first_new)
        {
            self.adapt(forest, run_bytes);
            self.room_blocks = forest
                .cache()
                .room()
                .get()
                .checked_div(node_bytes.saturating_mul(2))
                .unwrap_or(0);
        }
        // The stage above goes on in time, so that its next node is here when this stage's is used up.
        if let Some(above) = index
            .checked_add(1)
            .filter(|_| self.window_bytes > FIRST_WINDOW_BYTES)
        {
            self.refill(forest, above);
        }
    }

    fn window_blocks(&self, index: usize, node_bytes: u64) -> u64 {
        let blocks = self.window_bytes.checked_div(node_bytes).unwrap_or(1).max(1);
        (0..index).fold(blocks, |blocks, _| {
            blocks
                .checked_div(NODES_TO_LEAVES)
                .unwrap_or(1)
                .max(NODES_AHEAD_MIN)
        })
    }

    /// The next block of a stage's level, if the window and the budget have room for it.
    fn plan(
        &mut self,
        forest: &Forest,
        index: usize,
        window_blocks: u64,
    ) -> Option<(BlockPointer, Option<Reservation>)> {
        let blocks = self.stages.get(index)?.blocks;
        if blocks >= window_blocks {
            return None;
        }
        let reservation = forest.ahead().reserve(forest.reader().node_bytes());
        // The block that the walk needs now is read in any case, as without read-ahead.
        if reservation.is_none() && blocks > 0 {
            return None;
        }
        Some((self.next_pointer(forest, index)?, reservation))
    }

    /// The pointer to the next block of a stage's level, taking nodes from the stage above as needed.
    fn next_pointer(&mut self, forest: &Forest, index: usize) -> Option<BlockPointer> {
        loop {
            let stage = self.stages.get_mut(index)?;
            if let Some(parent) = &mut stage.parent {
                if let Some(child) = parent.pointer.child(&parent.block, parent.slot) {
                    if self
                        .end
                        .is_some_and(|end| child.first_key.is_some_and(|first| first >= end))
                    {
                        return None;
                    }
                    parent.slot = parent.slot.saturating_add(1);
                    return Some(child);
                }
                stage.parent = None;
            }
            if stage.above() >= ABOVE_MAX {
                return None;
            }
            let taken = self.pop(forest, index.checked_add(1)?)?;
            let level = usize::from(self.floor).saturating_add(index).saturating_add(1);
            let stage = self.stages.get_mut(index)?;
            if let (true, Ok(block)) = (usize::from(taken.pointer.level) == level, &taken.result) {
                stage.parent = Some(Step {
                    pointer: taken.pointer,
                    block: block.clone(),
                    slot: 0,
                });
            }
            let Taken {
                pointer,
                result,
                reservation,
            } = taken;
            stage.queue.push_back(Entry {
                pointer,
                content: Content::Above(result),
                reservation,
            });
        }
    }

    /// Asks for all planned blocks of a stage from queue position `first` on, in one plug, and says how long
    /// the runs of neighbouring blocks are on average.
    fn ask(&mut self, forest: &Forest, index: usize, first: usize) -> Option<u64> {
        let stage = self.stages.get_mut(index)?;
        let mut wanted = Vec::new();
        for entry in stage.queue.iter_mut().skip(first) {
            if matches!(entry.content, Content::Planned) {
                match forest.cache().get(&entry.pointer) {
                    Some(block) => entry.content = Content::Arriving(Arriving::Here(block)),
                    None => wanted.push(entry),
                }
            }
        }
        if wanted.is_empty() {
            return None;
        }
        let run_bytes = mean_run_bytes(&wanted, u64::from(forest.reader().node_bytes()));
        let mut reads = forest
            .reader()
            .start(wanted.iter().map(|entry| &entry.pointer))
            .into_iter();
        for entries in wanted.chunks_mut(BATCH_BLOCKS_MAX) {
            let pairs = entries
                .iter()
                .map(|entry| entry.pointer)
                .zip(reads.by_ref())
                .collect();
            let batch = Arc::new(Batch::new(pairs));
            for (position, entry) in entries.iter_mut().enumerate() {
                forest.cache().count_miss();
                entry.content = Content::Arriving(Arriving::InBatch(Arc::clone(&batch), position));
            }
            forest.offer_check(batch);
        }
        Some(run_bytes)
    }

    /// Sets the next window from how the last blocks lay.
    fn adapt(&mut self, forest: &Forest, run_bytes: Option<u64>) {
        let doubled = self.window_bytes.saturating_mul(2);
        if self.window_bytes < self.given_window_bytes {
            self.window_bytes = doubled.min(self.given_window_bytes);
            return;
        }
        let Some(run_bytes) = run_bytes else { return };
        let most = self
            .given_window_bytes
            .saturating_mul(SWEEP_GROWTH_MAX)
            .min(forest.ahead().capacity().get());
        self.window_bytes = if run_bytes < SCATTERED_RUN_BYTES {
            doubled.min(most).max(self.given_window_bytes)
        } else {
            self.window_bytes
                .checked_div(2)
                .unwrap_or(0)
                .max(self.given_window_bytes)
        };
    }
}

impl Drop for Sweep {
    fn drop(&mut self) {
        self.stop();
    }
}

/// The mean length of the runs of blocks that are neighbours by address.
fn mean_run_bytes(entries: &[&mut Entry], node_bytes: u64) -> u64 {
    let mut addresses: Vec<u64> = entries.iter().map(|entry| entry.pointer.logical.get()).collect();
    addresses.sort_unstable();
    let breaks = addresses
        .windows(2)
        .filter(|pair| matches!(pair, [low, high] if low.checked_add(node_bytes) != Some(*high)))
        .count();
    let runs = u64::try_from(breaks).unwrap_or(u64::MAX).saturating_add(1);
    let blocks = u64::try_from(addresses.len()).unwrap_or(u64::MAX);
    blocks.saturating_mul(node_bytes).checked_div(runs).unwrap_or(0)
}
