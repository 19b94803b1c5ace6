//! A walk over the blocks of a tree in address order, for jobs that need no key order.
//!
//! On a spinning disk, leaves that were written at different times lie far apart. A walk in key
//! order therefore crosses the spinning disk again and again. Nodes of level 1 name all leaves, so
//! the walk knows the leaves' addresses after it has read less than a hundredth of the tree. The
//! walk by address reads the leaves in one pass over the disk.
//!
//! A walk by address visits nodes first, parents before children. The walk's budget limits the
//! number of known leaves, to about a million for each gigabyte of budget. At the limit, the walk
//! visits the leaves known so far in address order, then more nodes. The walk returns an error for
//! each unreadable block and continues. Its bounds are those of [`crate::blocks`].

use crate::blocks::{BlockOrder, Blocks, Visit};
use crate::cache::Reservation;
use crate::error::Result;
use crate::pointer::BlockPointer;
use crate::read_ahead::queue::{Queue, Taken};
use crate::read_ahead::{ReadAhead, SWEEP_WINDOW};
use crate::tree::Tree;
use buttress_exact::{Exact as _, u64_of};
use buttress_format::ByteCount;
use core::iter::FusedIterator;
use std::collections::VecDeque;
use std::vec;

/// The fraction of the read-ahead budget that holds the addresses of leaves.
const POINTER_PARTS: u64 = 2;

/// The walk refills the queue when it holds less than this part of the window.
const REFILL_PARTS: u64 = 4;

/// Iterator over the blocks of a tree; see the module's documentation.
#[derive(Debug)]
pub struct BlocksByAddress {
    tree: Tree,
    nodes: Blocks,
    /// The pointers to leaves of visited parents, before the walk sorts them.
    known: Vec<BlockPointer>,
    /// Leaves in memory that a transaction changed. The walk visits these leaves before all others.
    linked: VecDeque<Visit>,
    /// Leaves in address order whose reads have not started.
    ordered: vec::IntoIter<BlockPointer>,
    /// Leaves whose reads are in flight.
    queue: Queue,
    /// The reservation of memory for the block pointers.
    reservation: Option<Reservation>,
    known_max: usize,
}

impl Tree {
    /// Returns every node and leaf, with leaves in address order. The walk by address is the
    /// fastest walk for jobs that need no key order.
    #[must_use]
    pub fn blocks_by_address(&self) -> BlocksByAddress {
        BlocksByAddress::new(self.clone())
    }
}

impl BlocksByAddress {
    pub(crate) fn new(tree: Tree) -> Self {
        let nodes = tree.blocks_in(BlockOrder::DepthDownTo(1), ReadAhead::sweep());
        let pool = tree.forest().ahead();
        let bytes = pool.capacity().get().quotient(POINTER_PARTS);
        let reservation = pool.reserve(bytes);
        let pointer_bytes = u64_of(size_of::<BlockPointer>());
        // Without a reservation of memory, the walk visits the leaves of one node at a time.
        let known_max = reservation
            .as_ref()
            .and_then(|_| bytes.checked_div(pointer_bytes));
        Self {
            tree,
            nodes,
            known: Vec::new(),
            linked: VecDeque::new(),
            ordered: Vec::new().into_iter(),
            queue: Queue::default(),
            reservation,
            known_max: known_max.map_or(0, |most| most.narrow()),
        }
    }

    /// Visits the next node and stores its leaves' pointers.
    fn next_node(&mut self) -> Option<Result<Visit>> {
        if !self.known.is_empty() && self.known.len() >= self.known_max {
            return None;
        }
        let visit = self.nodes.next()?;
        if let Ok(Visit { pointer, block }) = &visit
            && pointer.level == 1
        {
            if self.known.is_empty() {
                // The vector of pointers is allocated in one step, because growing it would need
                // old and new memory together. Unused pages of this vector are never touched.
                self.known
                    .reserve_exact(self.known_max.exact_add(block.item_count()));
            }
            for slot in 0..block.item_count() {
                let step = self.nodes.last_step();
                match step.and_then(|step| step.link(slot)) {
                    None => self.known.extend(pointer.child(block, slot)),
                    Some(link) => self.linked.extend(step.and_then(|step| {
                        Some(Visit {
                            pointer: step.child(slot)?,
                            block: link.block.clone(),
                        })
                    })),
                }
            }
        }
        Some(visit)
    }

    /// Returns the next leaf in address order.
    fn next_leaf(&mut self) -> Option<Result<Visit>> {
        let forest = self.tree.forest();
        let node_bytes = u64::from(forest.reader().node_bytes());
        let window_blocks = SWEEP_WINDOW.get().quotient(node_bytes).max(1);
        if self.queue.blocks() <= window_blocks.quotient(REFILL_PARTS) {
            while self.queue.blocks() < window_blocks
                && let Some(reservation) = self.queue.room(forest)
                && let Some(pointer) = self.ordered.next()
            {
                self.queue.plan(pointer, None, reservation);
            }
            self.queue.ask(forest);
        }
        let Taken {
            pointer,
            result,
            reservation,
            ..
        } = self.queue.take(forest)?;
        drop(reservation);
        Some(result.map(|block| Visit { pointer, block }))
    }
}

impl Iterator for BlocksByAddress {
    type Item = Result<Visit>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            if let Some(visit) = self.linked.pop_front() {
                return Some(Ok(visit));
            }
            if let Some(visit) = self.next_leaf().or_else(|| self.next_node()) {
                return Some(visit);
            }
            if self.known.is_empty() {
                self.reservation = None;
                return None;
            }
            let mut leaves = core::mem::take(&mut self.known);
            let bytes = ByteCount::of(leaves.len())
                .get()
                .exact_mul(u64::from(self.tree.forest().reader().node_bytes()));
            if bytes > self.tree.forest().cache().room().get() {
                self.queue = Queue::passing_leaves();
            }
            leaves.sort_unstable_by_key(|pointer| pointer.logical);
            self.ordered = leaves.into_iter();
        }
    }
}

impl FusedIterator for BlocksByAddress {}
