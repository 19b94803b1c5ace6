//! The rows of differing blocks, one row for each level.
//!
//! A [`Stage`] merges the pointers that two trees hold to blocks of one level. A row's pointers
//! come from the differing blocks one level up, and from a tree's root at this level. Equal
//! pointers of one volume are dropped. The stage plans all other blocks in order of their first
//! keys. If both trees have the same first key, the old tree's block comes first. The stage fetches
//! blocks in windows, and passes them to the stage below in this order.
//!
//! Blocks of one tree and level have disjoint ranges of keys, and a checked block has no key
//! outside its range. If the next block of a tree precedes all available children, the tree's
//! previous block has no children left and is released.

use crate::edit::Node;
use crate::error::{Error, Result};
use crate::forest::Forest;
use crate::pointer::BlockPointer;
use crate::read_ahead::queue::Queue;
use crate::read_ahead::sweep::{FIRST_WINDOW_BYTES, NODES_AHEAD_MIN, NODES_TO_LEAVES};
use crate::read_ahead::{ReadAhead, near, next_window};
use crate::step::Step;
use crate::tree::Tree;
use buttress_exact::Exact as _;
use buttress_format::Key;
use std::collections::VecDeque;
use std::sync::Arc;

/// The fraction of its window below which a level is refilled.
const REFILL_BLOCKS_PARTS: usize = 4;

/// The next block to plan.
#[derive(Clone, Debug)]
struct Next {
    pointer: BlockPointer,
    /// The block, if it is in memory because a transaction changed it.
    node: Option<Arc<Node>>,
}

/// One of the two trees.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Side {
    Old,
    New,
}

impl Side {
    pub(super) const fn of<T>(self, [old, new]: &[T; 2]) -> &T {
        match self {
            Self::Old => old,
            Self::New => new,
        }
    }

    pub(super) const fn of_mut<T>(self, [old, new]: &mut [T; 2]) -> &mut T {
        match self {
            Self::Old => old,
            Self::New => new,
        }
    }
}

/// The stages of all levels, the leaves first.
#[derive(Debug)]
pub(super) struct Stages {
    forests: [Arc<Forest>; 2],
    one_volume: bool,
    one_forest: bool,
    /// The current window of leaves, in bytes.
    window_bytes: u64,
    window_bytes_max: u64,
    /// True if a window may exceed this limit once.
    sweeps: bool,
    /// The predicate for wanted subtrees, called with the first key and the exclusive end of a
    /// subtree.
    wanted: fn(&Key, Option<&Key>) -> bool,
    levels: Vec<Stage>,
}

/// The stage of one level.
#[derive(Debug, Default)]
struct Stage {
    /// The roots of this level whose reads are not planned yet.
    roots: [Option<Next>; 2],
    /// The nodes one level above this stage. The slot of a parent's step is the first child that is
    /// not planned yet.
    parents: [Option<Step>; 2],
    /// The next block, if no memory was available to plan it.
    postponed: Option<(Side, Next)>,
    /// The planned blocks, each with its tree and its first key.
    order: VecDeque<(Side, Key)>,
    /// The planned blocks in flight, one queue for each forest. If both trees belong to one forest,
    /// the first queue holds all planned blocks.
    queues: [Queue; 2],
    /// The unreadable block one level up, with its first key and its error. No block after the
    /// unreadable block is planned.
    failure: Option<(Key, Error)>,
}

impl Stages {
    pub(super) fn new(
        forests: [Arc<Forest>; 2],
        read_ahead: ReadAhead,
        wanted: fn(&Key, Option<&Key>) -> bool,
    ) -> Self {
        let window_bytes_max = match read_ahead {
            ReadAhead::None => 0,
            ReadAhead::Backward | ReadAhead::Forward => near::NEAR_BYTES_MAX,
            ReadAhead::ForwardOnMiss | ReadAhead::ForwardAlways => near::ALWAYS_BYTES_MAX,
            ReadAhead::Sweep { window_bytes } => window_bytes.get(),
        };
        let [old, new] = &forests;
        Self {
            one_volume: is_one_volume(old, new),
            one_forest: Arc::ptr_eq(old, new),
            forests,
            window_bytes: window_bytes_max.min(FIRST_WINDOW_BYTES),
            window_bytes_max,
            sweeps: matches!(read_ahead, ReadAhead::Sweep { .. }),
            wanted,
            levels: Vec::new(),
        }
    }

    /// Sets and reads the roots of the trees, because only the root itself holds its first key.
    /// Does not read a root that both compared trees share.
    pub(super) fn set_roots(&mut self, trees: [&Tree; 2]) -> Result<()> {
        let roots = trees.map(|tree| BlockPointer::root(tree.root()));
        let [old, new] = &roots;
        if self.one_volume && old.level == new.level && old.same_block(new) {
            return Ok(());
        }
        let highest = usize::from(old.level.max(new.level));
        self.levels.resize_with(highest.exact_add(1), Stage::default);
        if let Some(leaves) = self.levels.first_mut() {
            // The walk visits each leaf once.
            leaves.queues = [Queue::passing_leaves(), Queue::passing_leaves()];
        }
        for (side, tree) in [Side::Old, Side::New].into_iter().zip(trees) {
            let step = tree.root_step()?;
            let root = step.pointer;
            if let (Some(first_key), Some(stage)) =
                (step.block.key(0), self.levels.get_mut(usize::from(root.level)))
            {
                let pointer = BlockPointer {
                    first_key: Some(first_key),
                    ..root
                };
                let node = step.node;
                *side.of_mut(&mut stage.roots) = Some(Next { pointer, node });
            }
        }
        Ok(())
    }

    /// Returns the first key of the next block of a level. Plans reads of blocks as far as the
    /// window reaches.
    pub(super) fn front(&mut self, level: usize) -> Option<Key> {
        self.refill(level);
        let stage = self.levels.get(level)?;
        match (stage.order.front(), &stage.failure) {
            (Some((_, key)), _) | (None, Some((key, _))) => Some(*key),
            (None, None) => None,
        }
    }

    /// Waits for the next block of a tree level and returns it. Returns `None` after the last block
    /// of the level.
    pub(super) fn pull(&mut self, level: usize) -> Option<Result<(Side, Step)>> {
        self.refill(level);
        let stage = self.levels.get_mut(level)?;
        let Some((side, _)) = stage.order.pop_front() else {
            return stage.failure.as_ref().map(|(_, error)| Err(error.clone()));
        };
        let forest = side.of(&self.forests);
        let queue = if self.one_forest { Side::Old } else { side }.of_mut(&mut stage.queues);
        let taken = queue.take(forest)?;
        Some(taken.result.map(|block| {
            let pointer = taken.pointer;
            (
                side,
                Step {
                    pointer,
                    block,
                    node: taken.node,
                    slot: 0,
                },
            )
        }))
    }

    /// Starts reads of up to `ahead_bytes` of leaves, in this call only. Reads fewer leaves if
    /// memory is short, and no more than usual if they are in the page cache.
    pub(super) fn look_ahead(&mut self, ahead_bytes: u64) {
        let cached = self.levels.first().is_some_and(Stage::is_cached);
        if !self.sweeps || cached || ahead_bytes <= self.window_bytes {
            return;
        }
        let usual_bytes = std::mem::replace(&mut self.window_bytes, ahead_bytes);
        self.refill(0);
        self.window_bytes = usual_bytes;
    }

    /// If few blocks of a level are in flight, plans further blocks and starts their reads.
    fn refill(&mut self, level: usize) {
        let window_blocks = self.window_blocks(level);
        let low_blocks = window_blocks.quotient(REFILL_BLOCKS_PARTS);
        match self.levels.get(level) {
            Some(stage) if stage.order.len() <= low_blocks => {}
            _ => return,
        }
        let mut planned = false;
        while let Some(stage) = self.levels.get(level)
            && stage.order.len() < window_blocks
            && let Some((side, next)) = self.next_block(level)
        {
            if !self.plan(level, side, next) {
                break;
            }
            planned = true;
        }
        let Some(stage) = self.levels.get_mut(level).filter(|_| planned) else {
            return;
        };
        for (queue, forest) in stage.queues.iter_mut().zip(&self.forests) {
            queue.ask(forest);
        }
        if level == 0 {
            let cached = stage.is_cached();
            self.window_bytes = next_window(self.window_bytes, self.window_bytes_max, cached);
        }
        // The stage refills the level above early, so that its next nodes are available in time.
        if let Some(above) = level
            .checked_add(1)
            .filter(|_| self.window_bytes > FIRST_WINDOW_BYTES)
        {
            self.refill(above);
        }
    }

    /// Plans the read of a block. Postpones the block and returns false if no memory is available.
    fn plan(&mut self, level: usize, side: Side, next: Next) -> bool {
        let Some(stage) = self.levels.get_mut(level) else {
            return false;
        };
        let queue = if self.one_forest { Side::Old } else { side }.of_mut(&mut stage.queues);
        let forest: &Arc<Forest> = side.of(&self.forests);
        let Some(reservation) = queue.room(forest) else {
            stage.postponed = Some((side, next));
            return false;
        };
        let first_key = next.pointer.first_key.unwrap_or(Key::MIN); // Clamp: a root begins left of everything.
        queue.plan(next.pointer, next.node, reservation);
        stage.order.push_back((side, first_key));
        true
    }

    fn window_blocks(&self, level: usize) -> usize {
        if self.window_bytes_max == 0 {
            return 1;
        }
        let node_bytes = u64::from(Side::Old.of(&self.forests).reader().node_bytes());
        let blocks = self.window_bytes.quotient(node_bytes).max(1);
        let blocks = (0..level).fold(blocks, |blocks, _| {
            let fewer = blocks.quotient(NODES_TO_LEAVES);
            fewer.max(NODES_AHEAD_MIN)
        });
        blocks.narrow::<usize>()
    }

    /// Returns the next differing block of a level. Reads nodes of the next higher level as needed.
    fn next_block(&mut self, level: usize) -> Option<(Side, Next)> {
        let above = level.checked_add(1)?;
        loop {
            let stage = self.levels.get_mut(level)?;
            if let Some(postponed) = stage.postponed.take() {
                return Some(postponed);
            }
            if stage.failure.is_some() {
                return None;
            }
            let heads = [stage.head(Side::Old), stage.head(Side::New)];
            let [old_key, new_key] = heads
                .each_ref()
                .map(|head| head.as_ref().and_then(|head| head.pointer.first_key));
            let next = smallest(old_key, new_key);
            if let Some(front) = self.front(above)
                && next.is_none_or(|next| front <= next)
            {
                let pulled = self.pull(above)?;
                let stage = self.levels.get_mut(level)?;
                match pulled {
                    Ok((side, node)) => *side.of_mut(&mut stage.parents) = Some(node),
                    Err(error) => stage.failure = Some((front, error)),
                }
                continue;
            }
            let stage = self.levels.get_mut(level)?;
            let side = match &heads {
                [Some(old), Some(new)]
                    if old_key == new_key && self.one_volume && old.pointer.same_block(&new.pointer) =>
                {
                    stage.advance(Side::Old);
                    stage.advance(Side::New);
                    continue;
                }
                [Some(_), _] if old_key == next => Side::Old,
                _ => Side::New,
            };
            stage.advance(side);
            let [old, new] = heads;
            let next = if side == Side::Old { old } else { new };
            let next = next?;
            let first_key = next.pointer.first_key.unwrap_or(Key::MIN); // Clamp: a root begins left of everything.
            if (self.wanted)(&first_key, next.pointer.end_key.as_ref()) {
                return Some((side, next));
            }
        }
    }
}

impl Stage {
    /// Returns true if the last fetched blocks seemed to be in the page cache.
    fn is_cached(&self) -> bool {
        self.queues.iter().any(Queue::is_cached)
    }

    /// Returns the first unplanned block of one tree among the children of available nodes.
    fn head(&self, side: Side) -> Option<Next> {
        let parent = side.of(&self.parents).as_ref();
        let child = parent.and_then(|step| {
            Some(Next {
                pointer: step.child(step.slot)?,
                node: step.link(step.slot).cloned(),
            })
        });
        child.or_else(|| side.of(&self.roots).clone())
    }

    /// Advances to the block after the head.
    fn advance(&mut self, side: Side) {
        if let Some(step) = side.of_mut(&mut self.parents) {
            step.slot = step.slot.exact_add(1);
        }
        *side.of_mut(&mut self.roots) = None;
    }
}

/// Returns the smaller of two optional keys.
pub(super) fn smallest(one: Option<Key>, other: Option<Key>) -> Option<Key> {
    match (one, other) {
        (Some(one), Some(other)) => Some(one.min(other)),
        (one, other) => one.or(other),
    }
}

/// Returns true if equal addresses and generations in both forests mean equal blocks.
fn is_one_volume(old: &Forest, new: &Forest) -> bool {
    Arc::ptr_eq(old.volume(), new.volume())
}
