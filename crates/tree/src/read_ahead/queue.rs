//! Queues: blocks in flight, in the order in which they will be taken.
//!
//! The owner of the queue plans blocks, each with a reservation of the forest's budget. The owner
//! starts the reads of all planned blocks in one plug, and takes blocks from the front. Between
//! request and use, the devices read the blocks, and the forest's threads check them in batches. On
//! simulated devices, a block is checked when it is taken.

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
    /// The number of entries without [`Content::Passed`].
    blocks: u64,
    /// The number of last entries that are [`Content::Planned`], or became [`Content::Passed`]
    /// since.
    unasked: usize,
    /// The number of leaves that may go into the cache before its space is checked again.
    room_blocks: u64,
    /// True if leaves bypass the cache.
    passes_leaves: bool,
    /// True if the last fetched blocks seemed to be in the page cache.
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
    /// The read has not started.
    Planned,
    /// The block is available or in flight.
    Arriving(Arriving),
    /// The block is in memory because a transaction changed it, so no read is needed.
    Linked(Arc<Node>),
    /// The block was taken from the queue of another stage.
    Passed(Result<TreeBlock>),
}

/// A block taken from the front of a queue.
#[derive(Debug)]
pub(crate) struct Taken {
    pub(crate) pointer: BlockPointer,
    pub(crate) result: Result<TreeBlock>,
    /// The block's links, if it is in memory because a transaction changed it.
    pub(crate) node: Option<Arc<Node>>,
    pub(crate) reservation: Option<Reservation>,
}

impl Queue {
    /// Makes a queue whose leaves bypass the cache. Such a queue serves walks that visit each leaf
    /// once, or that exceed the cache. Caching the first leaves of such a walk would only cost
    /// memory and time.
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

    /// Returns true if the last fetched blocks seemed to be in the page cache.
    pub(crate) const fn is_cached(&self) -> bool {
        self.cached
    }

    /// Returns the number of blocks in the queue, except blocks that another queue passed on to it.
    pub(crate) const fn blocks(&self) -> u64 {
        self.blocks
    }

    /// Returns the number of blocks in the queue that were passed on to it.
    pub(crate) fn passed(&self) -> u64 {
        u64_of(self.entries.len()).exact_sub(self.blocks)
    }

    /// Reserves budget for one more block of read-ahead; returns `None` if the budget is used up.
    /// An empty queue always accepts a block, without a reservation if necessary, because the next
    /// block is read in any case.
    pub(crate) fn room(&self, forest: &Forest) -> Option<Option<Reservation>> {
        let reservation = forest.ahead().reserve_block(forest.reader().node_bytes());
        (reservation.is_some() || self.blocks == 0).then_some(reservation)
    }

    /// Plans a block as the last entry. If `node` is given, the block is in memory and is not
    /// fetched.
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

    /// Appends a block from another queue as the last entry.
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

    /// Starts the reads of all planned blocks that are not in the cache, in one plug.
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
        // The read-ahead queue uses half of the cache's free space, because the cache's shards fill
        // unevenly.
        self.room_blocks = room.quotient(node_bytes.exact_mul(2));
    }

    /// Waits for the block at the front of the queue, and removes it from the queue.
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

    /// Puts a block into the cache: every node, and leaves while the cache evicts nothing for them.
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

    /// Drops all entries before `pointer`'s block. Returns false, and changes nothing, if the queue
    /// does not hold the block.
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
