//! The forest: all trees of one volume, with one node cache, one budget, and one set of checking
//! threads.
//!
//! A [`Forest`] does not know which trees exist. A caller with a root pointer requests its
//! [`Tree`](crate::Tree). Readers on any number of threads share one forest.

use crate::cache::{CacheStatistics, Loan, NodeCache, ReadAheadPool, Reservation};
use crate::error::{Error, Failure, Result};
use crate::non_blocking::{NonBlocking, would_block};
use crate::pointer::{BlockPointer, LEVELS_MAX};
use crate::read_ahead::batch::Batch;
use crate::reader::BlockReader;
use crate::workers::Workers;
use buttress_exact::Exact as _;
use buttress_format::ByteCount;
use buttress_format::node::{BlockFormat, DamagedBlock, TreeBlock};
use buttress_volume::Volume;
use bytes::Bytes;
use std::sync::Arc;

pub use crate::reader::CHECK_COST_PER_4_KIB;

/// Reads tree blocks of one volume through a cache.
#[derive(Debug)]
pub struct Forest {
    reader: Arc<BlockReader>,
    cache: Arc<NodeCache>,
    ahead: Arc<ReadAheadPool>,
    /// The parts of the cache's budget that are lent to readers.
    lent: Arc<ReadAheadPool>,
    workers: Workers,
    budget: ByteCount,
}

/// The part of a forest's budget that a job takes for memory of its own ([`Forest::hold_unread`]).
#[derive(Debug)]
pub struct HeldMemory {
    /// The reservation. The budget that is reserved for the held memory; `None` if another reader
    /// was reading ahead.
    _reservation: Option<Reservation>,
}

impl Forest {
    /// Makes a forest over `volume` that keeps at most `cache_budget` bytes of blocks. Read-ahead
    /// may take a quarter of the budget. With a budget of zero, nothing is cached.
    #[must_use]
    pub fn new(volume: Arc<Volume>, cache_budget: ByteCount) -> Arc<Self> {
        let reader = Arc::new(BlockReader::new(volume));
        let ahead = ByteCount::new(cache_budget.get().quotient(4));
        let cached = ByteCount::new(cache_budget.get().exact_sub(ahead.get()));
        let cache = Arc::new(NodeCache::new(cached, reader.node_bytes()));
        Arc::new(Self {
            ahead: ReadAheadPool::shared_with(&cache, ahead),
            cache,
            lent: ReadAheadPool::new(ByteCount::ZERO),
            workers: Workers::default(),
            budget: cache_budget,
            reader,
        })
    }

    /// Returns the volume.
    #[must_use]
    pub fn volume(&self) -> &Arc<Volume> {
        self.reader.volume()
    }

    /// Returns the block format: the node size, checksum type and other fields that the checks of
    /// blocks need.
    #[must_use]
    pub fn block_format(&self) -> &BlockFormat {
        self.reader.format()
    }

    /// Returns the block at `pointer`, from the cache or from the volume.
    ///
    /// # Errors
    /// Fails if no copy of the block can be read, or if none matches the pointer. While the thread
    /// holds a [`NonBlocking`], also fails if the block is not in the cache.
    pub fn read_block(&self, pointer: &BlockPointer) -> Result<TreeBlock> {
        if pointer.level >= LEVELS_MAX {
            return Err(Error::damaged(pointer, Failure::RootLevel));
        }
        if NonBlocking::is_held() {
            return self.cache.get(pointer).map_or_else(|| would_block(pointer), Ok);
        }
        self.cache.get_or_read(pointer, || self.reader.read(pointer))
    }

    /// Takes the unused read-ahead budget until the result is dropped. The held memory serves jobs
    /// that read single blocks and use about as much memory of their own.
    #[must_use]
    pub fn hold_unread(&self) -> HeldMemory {
        // Clamp: readers take and return parts concurrently.
        let unused = self
            .ahead
            .capacity()
            .get()
            .saturating_sub(self.ahead.used().get());
        HeldMemory {
            _reservation: self.ahead.reserve(unused),
        }
    }

    /// Reads blocks that are not in the cache into the cache, with one request for adjacent blocks.
    /// Returns these blocks, because a small cache may not keep them. If a block is unreadable, the
    /// call skips it, and a later read returns the error.
    ///
    /// The cache counts the faulted-in blocks as used, because the caller will use them soon. A
    /// block with a single request would otherwise be among the first that the cache evicts.
    pub fn fault_in(&self, pointers: &[BlockPointer]) -> Vec<TreeBlock> {
        let missing = pointers.iter().filter(|pointer| !self.cache.contains(pointer));
        let missing: Vec<&BlockPointer> = missing.collect();
        let reads = self.reader.start(missing.iter().copied());
        missing
            .into_iter()
            .zip(reads)
            .filter_map(|(pointer, read)| {
                let read = || self.reader.finish(read, pointer);
                let block = self.cache.get_or_read(pointer, read).ok()?;
                self.cache.count_use(pointer);
                Some(block)
            })
            .collect()
    }

    /// Returns the block at `pointer` with all its failures, for jobs that inspect damage. The
    /// inspected block is the first valid copy, or else the first readable copy.
    ///
    /// # Errors
    /// Fails if no copy can be read.
    pub fn inspect_block(&self, pointer: &BlockPointer) -> Result<DamagedBlock> {
        let volume = self.reader.volume();
        let copies = volume
            .copies(pointer.logical)
            .map_err(|error| Error::unreadable(pointer, error))?;
        let mut damaged: Option<DamagedBlock> = None;
        let mut unreadable = None;
        for copy in 1..=copies {
            match volume.read_copy(self.reader.extent(pointer), copy) {
                Ok(buffer) => {
                    let bytes: Bytes = buffer.into_bytes();
                    let block = TreeBlock::inspect(bytes, self.reader.format(), &pointer.expectation());
                    if block.is_sound() {
                        return Ok(block);
                    }
                    damaged.get_or_insert(block);
                }
                Err(error) => unreadable = Some(error),
            }
        }
        match (damaged, unreadable) {
            (Some(block), _) => Ok(block),
            (None, Some(error)) => Err(Error::unreadable(pointer, error)),
            (None, None) => self.read_block(pointer).map(|block| DamagedBlock {
                failures: Vec::new(),
                block,
            }),
        }
    }

    /// Returns the cache's hits, misses and current content.
    #[must_use]
    pub fn cache_statistics(&self) -> CacheStatistics {
        CacheStatistics {
            ahead_bytes: self.ahead.used().exact_add(self.lent.used()),
            budget_bytes: self.budget,
            ..self.cache.statistics()
        }
    }

    /// Sets the number of bytes that a writer may hold until they are committed: dirty blocks, file
    /// content, and its notes on both. The cache's budget shrinks by the number of held bytes, but
    /// not below a twelfth.
    pub fn hold_outside(&self, bytes: ByteCount) {
        self.cache.hold_outside(bytes.get());
    }

    /// Removes blocks from the cache that their tree no longer refers to. A transaction may reuse
    /// the addresses of these blocks at once.
    pub fn forget_blocks(&self, pointers: &[BlockPointer]) {
        for pointer in pointers {
            self.cache.forget(pointer);
        }
    }

    pub(crate) const fn reader(&self) -> &Arc<BlockReader> {
        &self.reader
    }

    /// Borrows a part of the cache's budget, unless it is already lent.
    pub(crate) fn borrow_cache(&self) -> Option<Loan> {
        Loan::new(&self.cache, &self.lent)
    }

    pub(crate) fn cache(&self) -> &NodeCache {
        &self.cache
    }

    pub(crate) const fn ahead(&self) -> &Arc<ReadAheadPool> {
        &self.ahead
    }

    /// Offers a batch of blocks in flight to an idle thread, which checks them.
    pub(crate) fn offer_check(&self, batch: Arc<Batch>) {
        if !self.reader.is_simulated() {
            let reader = Arc::clone(&self.reader);
            self.workers.offer(Box::new(move || batch.check(&reader)));
        }
    }
}
