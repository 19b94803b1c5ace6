//! Blocks on their way, in the order in which they will be taken.
//!
//! The owner plans blocks (each with its part of the forest's budget), asks for all that are planned in one plug,
//! and takes them from the front. Between the two they are read by the devices and checked in batches by the
//! forest's threads; on simulated devices they are checked when they are taken.

use crate::cache::Reservation;
use crate::edit::Node;
use crate::error::Result;
use crate::forest::Forest;
use crate::pointer::BlockPointer;
use crate::read_ahead::batch::{Arriving, BATCH_BLOCKS_MAX, Batch};
use buttress_exact::{Exact as _, u64_of};
use buttress_format::node::TreeBlock;
use std::collections::VecDeque;
use std::sync::Arc;

/// Blocks in the order in which they will be taken.
#[derive(Debug, Default)]
pub(crate) struct Queue {
    entries: VecDeque<Entry>,
    /// How many of the entries are not [`Content::Passed`].
    blocks: u64,
    /// How many of the last entries are [`Content::Planned`] or were passed on since.
    unasked: usize,
    /// How many more leaves go to the cache before it is asked again whether it has room.
    room_blocks: u64,
    /// Leaves do not go to the cache.
    passes_leaves: bool,
    /// What was asked for last seemed to be in the page cache.
    cached: bool,
}

#[derive(Debug)]
struct Entry {
    pointer: BlockPointer,
    content: Content,
    reservation: Option<Reservation>,
}

#[derive(Debug)]
enum Content {
    /// Not yet asked for.
    Planned,
    /// Here or on its way.
    Arriving(Arriving),
    /// In memory because a transaction changed it: nothing is to be fetched.
    Linked(Arc<Node>),
    /// Taken from another queue.
    Passed(Result<TreeBlock>),
}

/// What came off the front of a queue.
#[derive(Debug)]
pub(crate) struct Taken {
    pub(crate) pointer: BlockPointer,
    pub(crate) result: Result<TreeBlock>,
    /// The block's links, where it is in memory because a transaction changed it.
    pub(crate) node: Option<Arc<Node>>,
    pub(crate) reservation: Option<Reservation>,
}

impl Queue {
    /// A queue for a walk that will not come back to its leaves, or over more than the cache will hold: keeping the
    /// first of them would only cost memory, and the time in which it is touched.
    pub(crate) fn passing_leaves() -> Self {
        Self {
            entries: VecDeque::new(),
            blocks: 0,
            unasked: 0,
            room_blocks: 0,
            passes_leaves: true,
            cached: false,
        }
    }

    /// Whether what was asked for last seemed to be in the page cache.
    pub(crate) const fn is_cached(&self) -> bool {
        self.cached
    }

    /// How many blocks are in the queue, without those that were passed on to it.
    pub(crate) const fn blocks(&self) -> u64 {
        self.blocks
    }

    /// How many blocks were passed on to the queue and are still in it.
    pub(crate) fn passed(&self) -> u64 {
        u64_of(self.entries.len()).exact_sub(self.blocks)
    }

    /// Room in the budget for one more block; `None` when there is none. An empty queue always has room, without
    /// a reservation if need be: the block that is needed next is read in any case, as without read-ahead.
    pub(crate) fn room(&self, forest: &Forest) -> Option<Option<Reservation>> {
        let reservation = forest.ahead().reserve_block(forest.reader().node_bytes());
        (reservation.is_some() || self.blocks == 0).then_some(reservation)
    }

    /// Plans a block: it will be the last. One that is in memory, as `node` says, is not fetched.
    pub(crate) fn plan(
        &mut self,
        pointer: BlockPointer,
        node: Option<Arc<Node>>,
        reservation: Option<Reservation>,
    ) {
        self.entries.push_back(Entry {
            pointer,
            content: node.map_or(Content::Planned, Content::Linked),
            reservation,
        });
        self.blocks = self.blocks.exact_add(1);
        self.unasked = self.unasked.exact_add(1);
    }

    /// Passes on what was taken from another queue: it will be the last.
    pub(crate) fn pass_on(&mut self, taken: Taken) {
        let Taken {
            pointer,
            result,
            reservation,
            ..
        } = taken;
        self.entries.push_back(Entry {
            pointer,
            content: Content::Passed(result),
            reservation,
        });
        self.unasked = self.unasked.exact_add(1);
    }

    /// Asks for all planned blocks that are not in the cache, in one plug.
    pub(crate) fn ask(&mut self, forest: &Forest) {
        let first = self.entries.len().exact_sub(core::mem::take(&mut self.unasked));
        let mut wanted = Vec::new();
        for entry in self.entries.iter_mut().skip(first) {
            if matches!(entry.content, Content::Planned) {
                match forest.cache().get(&entry.pointer) {
                    Some(block) => entry.content = Content::Arriving(Arriving::Here(block)),
                    None => wanted.push(entry),
                }
            }
        }
        if wanted.is_empty() {
            return;
        }
        let reader = forest.reader();
        let cached = reader.seem_cached(wanted.iter().map(|entry| &entry.pointer));
        self.cached = cached;
        let mut reads = if cached {
            Vec::new().into_iter()
        } else {
            reader
                .start(wanted.iter().map(|entry| &entry.pointer))
                .into_iter()
        };
        for entries in wanted.chunks_mut(BATCH_BLOCKS_MAX) {
            let pointers = entries.iter().map(|entry| entry.pointer);
            let batch = Arc::new(if cached {
                Batch::cached(pointers.collect())
            } else {
                Batch::new(pointers.zip(reads.by_ref()).collect())
            });
            for (position, entry) in entries.iter_mut().enumerate() {
                forest.cache().count_miss();
                entry.content = Content::Arriving(Arriving::InBatch(Arc::clone(&batch), position));
            }
            forest.offer_check(batch);
        }
        let node_bytes = u64::from(forest.reader().node_bytes());
        let room = forest.cache().room().get();
        // Half of the room: its shards are not filled evenly.
        self.room_blocks = room.quotient(node_bytes.exact_mul(2));
    }

    /// Takes the block at the front, waiting for it.
    pub(crate) fn take(&mut self, forest: &Forest) -> Option<Taken> {
        let Entry {
            pointer,
            content,
            reservation,
        } = self.entries.pop_front()?;
        self.unasked = self.unasked.min(self.entries.len());
        if let Content::Passed(result) = content {
            return Some(Taken {
                pointer,
                result,
                node: None,
                reservation,
            });
        }
        self.blocks = self.blocks.exact_sub(1);
        let mut node = None;
        let result = match content {
            Content::Linked(linked) => {
                let block = linked.block.clone();
                node = Some(linked);
                Ok(block)
            }
            Content::Arriving(Arriving::Here(block)) => Ok(block),
            Content::Arriving(arriving) => {
                let result = arriving.wait(forest.reader(), &pointer);
                if let Ok(block) = &result {
                    self.keep(forest, &pointer, block);
                }
                result
            }
            Content::Planned | Content::Passed(_) => forest.read_block(&pointer),
        };
        Some(Taken {
            pointer,
            result,
            node,
            reservation,
        })
    }

    /// Puts a block into the cache: a node always, a leaf while that pushes nothing out.
    fn keep(&mut self, forest: &Forest, pointer: &BlockPointer, block: &TreeBlock) {
        if pointer.level == 0 {
            if self.passes_leaves {
                return;
            }
            let Some(room_blocks) = self.room_blocks.checked_sub(1) else {
                return;
            };
            self.room_blocks = room_blocks;
        }
        forest.cache().insert(pointer, block.clone());
    }

    /// Lets go of everything before `pointer`'s block. False, and nothing changes, when it is not in the queue.
    pub(crate) fn skip_to(&mut self, pointer: &BlockPointer) -> bool {
        let Some(position) = self.entries.iter().position(|entry| entry.pointer == *pointer) else {
            return false;
        };
        for entry in self.entries.drain(..position) {
            if !matches!(entry.content, Content::Passed(_)) {
                self.blocks = self.blocks.exact_sub(1);
            }
        }
        true
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        for entry in self.entries.drain(..) {
            if let Content::Arriving(Arriving::InBatch(batch, _)) = entry.content {
                batch.give_up();
            }
        }
    }
}
