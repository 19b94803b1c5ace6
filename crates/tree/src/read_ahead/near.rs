//! The kernel's read-ahead: a few neighbours of the block that is asked for.
//!
//! Limits are the kernel's: it goes on until *more* than so many bytes were asked for, so the last block goes beyond. What
//! is started for one block goes to the device in one plug together with that block; the kernel asks for each block by
//! itself, the one that is wanted last, and leaves it to the block layer which of them it merges.
//!
//! Facts from the commit "btrfs: improve btree readahead for full send operations" and its description of what
//! was there before it.

use crate::cache::Reservation;
use crate::error::Result;
use crate::forest::Forest;
use crate::non_blocking::NonBlocking;
use crate::path::Step;
use crate::pointer::BlockPointer;
use crate::scope::Scope;
use buttress_exact::Exact as _;
use buttress_format::node::TreeBlock;
use buttress_volume::PendingExtent;
use std::collections::VecDeque;

/// Leaves further away than this are not near.
const NEAR_BYTES: u64 = 64 << 10;

/// Once this much is passed, no more is fetched for one leaf that is not in memory.
pub(crate) const NEAR_BYTES_MAX: u64 = 64 << 10;

/// Once this much is passed, no more is fetched ahead of a leaf, wherever leaves lie.
pub(crate) const ALWAYS_BYTES_MAX: u64 = 128 << 10;

/// How many neighbours are looked at: 32, and the one with which that is passed.
const SLOTS_MAX: usize = 33;

/// What was fetched for places that the cursor has left is given up beyond this.
const PENDING_BYTES_MAX: u64 = 512 << 10;

/// Which neighbours are fetched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reach {
    Backward,
    Forward,
    ForwardOnMiss,
    ForwardAlways,
}

impl Reach {
    /// Whether neighbours are fetched wherever they lie, and nodes too.
    const fn is_far(self) -> bool {
        matches!(self, Self::ForwardOnMiss | Self::ForwardAlways)
    }
}

/// Blocks that were fetched ahead, oldest first.
#[derive(Debug)]
pub(crate) struct Near {
    reach: Reach,
    scope: Scope,
    pending: VecDeque<Pending>,
}

#[derive(Debug)]
struct Pending {
    pointer: BlockPointer,
    read: PendingExtent,
    _reservation: Reservation,
}

impl Near {
    pub(crate) const fn new(reach: Reach, scope: Scope) -> Self {
        Self {
            reach,
            scope,
            pending: VecDeque::new(),
        }
    }

    /// The block at `pointer`, which is the child in `parent`'s slot.
    pub(crate) fn fetch(
        &mut self,
        forest: &Forest,
        parent: &Step,
        pointer: &BlockPointer,
    ) -> Result<TreeBlock> {
        if NonBlocking::is_held() {
            return forest.read_block(pointer);
        }
        let position = self.position(pointer);
        let in_memory = position.is_some() || forest.cache().contains(pointer);
        let neighbours = if in_memory && self.reach != Reach::ForwardAlways {
            Vec::new()
        } else {
            self.neighbours(forest, parent, pointer)
        };
        if in_memory {
            let ours = position.and_then(|position| self.pending.remove(position));
            self.start(forest, None, neighbours);
            return match ours {
                Some(ours) => forest
                    .cache()
                    .get_or_read(pointer, || forest.reader().finish(ours.read, pointer)),
                None => forest.read_block(pointer),
            };
        }
        forest
            .cache()
            .get_or_read(pointer, || match self.start(forest, Some(pointer), neighbours) {
                Some(read) => forest.reader().finish(read, pointer),
                None => forest.reader().read(pointer),
            })
    }

    fn position(&self, pointer: &BlockPointer) -> Option<usize> {
        self.pending
            .iter()
            .position(|pending| pending.pointer.same_block(pointer))
    }

    /// What is worth fetching together with `pointer`, and is not on its way.
    fn neighbours(&self, forest: &Forest, parent: &Step, pointer: &BlockPointer) -> Vec<BlockPointer> {
        let node_bytes = u64::from(forest.reader().node_bytes());
        let bytes_max = match (self.reach, pointer.level) {
            (Reach::ForwardOnMiss | Reach::ForwardAlways, 0) => ALWAYS_BYTES_MAX,
            (Reach::ForwardOnMiss | Reach::ForwardAlways, _) => node_bytes,
            (Reach::Forward | Reach::Backward, 0) => NEAR_BYTES_MAX,
            (Reach::Forward | Reach::Backward, _) => return Vec::new(),
        };
        let mut bytes: u64 = 0;
        let mut slot = parent.slot;
        let mut found = Vec::new();
        for _ in 0..SLOTS_MAX {
            let next = match self.reach {
                Reach::Backward => slot.checked_sub(1),
                Reach::Forward | Reach::ForwardOnMiss | Reach::ForwardAlways => slot.checked_add(1),
            };
            let Some(child) = next.and_then(|next| {
                slot = next;
                parent.child(next)
            }) else {
                break;
            };
            if parent.link(slot).is_some() {
                continue;
            }
            if self.reach == Reach::Backward && !same_object(&child, pointer) {
                break;
            }
            if !self.scope.admits(&child) {
                continue;
            }
            let distance = child.logical.get().abs_diff(pointer.logical.get());
            if self.reach.is_far() || distance <= NEAR_BYTES {
                if self.position(&child).is_none() && !forest.cache().contains(&child) {
                    found.push(child);
                }
                bytes = bytes.exact_add(node_bytes);
                if bytes > bytes_max {
                    break;
                }
            }
        }
        found
    }

    /// Asks for `target` and as many of `neighbours` as the budget has room for, in one plug; gives back
    /// `target`'s read.
    fn start(
        &mut self,
        forest: &Forest,
        target: Option<&BlockPointer>,
        neighbours: Vec<BlockPointer>,
    ) -> Option<PendingExtent> {
        let node_bytes = forest.reader().node_bytes();
        let ahead: Vec<(BlockPointer, Reservation)> = neighbours
            .into_iter()
            .map_while(|pointer| Some((pointer, forest.ahead().reserve_block(node_bytes)?)))
            .collect();
        if target.is_none() && ahead.is_empty() {
            return None;
        }
        let pointers = target.into_iter().chain(ahead.iter().map(|(pointer, _)| pointer));
        let mut reads = forest.reader().start(pointers).into_iter();
        let target_read = target.and_then(|_| reads.next());
        self.pending.extend(
            ahead
                .into_iter()
                .zip(reads)
                .map(|((pointer, reservation), read)| {
                    forest.cache().count_miss();
                    Pending {
                        pointer,
                        read,
                        _reservation: reservation,
                    }
                }),
        );
        self.give_up_oldest(forest);
        target_read
    }

    /// Blocks that nobody came for: those that have arrived go to the cache, the others are let go.
    fn give_up_oldest(&mut self, forest: &Forest) {
        let node_bytes = u64::from(forest.reader().node_bytes());
        let most = PENDING_BYTES_MAX.quotient(node_bytes).max(1);
        while self.pending.len() > most.narrow::<usize>() {
            let Some(Pending { pointer, read, .. }) = self.pending.pop_front() else {
                break;
            };
            if read.is_ready()
                && let Ok(block) = forest.reader().finish(read, &pointer)
            {
                // An error is found again by whoever asks for the block.
                forest.cache().insert(&pointer, block);
            }
        }
    }
}

fn same_object(one: &BlockPointer, other: &BlockPointer) -> bool {
    match (one.first_key, other.first_key) {
        (Some(one), Some(other)) => one.objectid == other.objectid,
        _ => false,
    }
}
