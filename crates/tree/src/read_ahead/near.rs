//! The kernel's read-ahead: a few neighbours of the requested block.
//!
//! The limits are the kernel's. The kernel fetches until the requested bytes *exceed* the limit, so
//! the last block goes beyond the limit. The read-ahead fetches all these neighbours and the wanted
//! block in one plug. Linux requests each of these blocks separately, the wanted block last, and
//! the block layer decides which requests to merge.
//!
//! The facts come from the commit "btrfs: improve btree readahead for full send operations" and its
//! description of the read-ahead before it.

use crate::cache::Reservation;
use crate::error::Result;
use crate::forest::Forest;
use crate::non_blocking::NonBlocking;
use crate::pointer::BlockPointer;
use crate::scope::Scope;
use crate::step::Step;
use buttress_exact::Exact as _;
use buttress_format::node::TreeBlock;
use buttress_volume::PendingExtent;
use std::collections::VecDeque;

/// The distance in bytes up to which leaves count as near.
const NEAR_BYTES: u64 = 64 << 10;

/// The limit of bytes fetched for one missing leaf. Fetching of neighbours stops once the limit is
/// exceeded.
pub(crate) const NEAR_BYTES_MAX: u64 = 64 << 10;

/// The limit of bytes fetched ahead of a leaf at any distance. The read-ahead stops once this limit
/// is exceeded.
pub(crate) const ALWAYS_BYTES_MAX: u64 = 128 << 10;

/// The maximum number of neighbours to consider: 32, and the neighbour that exceeds the limit.
const SLOTS_MAX: usize = 33;

/// The limit of bytes fetched for places that the cursor has left. Older blocks beyond the limit
/// are dropped.
const PENDING_BYTES_MAX: u64 = 512 << 10;

/// The choice of a block's neighbours to fetch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reach {
    Backward,
    Forward,
    ForwardOnMiss,
    ForwardAlways,
}

impl Reach {
    /// Returns true if the mode fetches neighbours at any distance, and nodes too.
    const fn is_far(self) -> bool {
        matches!(self, Self::ForwardOnMiss | Self::ForwardAlways)
    }
}

/// The near read-ahead: blocks that it fetched, oldest first.
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

    /// Returns the block at `pointer`, which is the child in `parent`'s slot.
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

    /// Returns the neighbours to fetch together with `pointer`, except those in flight.
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

    /// Starts reads of `target` and as many of `neighbours` as the budget allows, in one plug.
    /// Returns the started read of `target`.
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

    /// Drops the oldest read-ahead blocks that no reader requested. Read-ahead blocks that have
    /// arrived go into the cache.
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
                // If the read of the block failed, a later reader finds the error again.
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
