//! All trees of one volume: one node cache, one budget, one set of checking threads.
//!
//! A [`Forest`] does not know which trees there are; whoever has a root pointer asks for its [`Tree`]. Readers
//! on any number of threads share it.

use crate::cache::{CacheStatistics, Loan, NodeCache, ReadAheadPool, Reservation};
use crate::error::{Error, Failure, Result};
use crate::non_blocking::{NonBlocking, would_block};
use crate::pointer::{BlockPointer, LEVELS_MAX, RootPointer};
use crate::read_ahead::batch::Batch;
use crate::reader::BlockReader;
use crate::tree::Tree;
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
    /// What the cache has lent.
    lent: Arc<ReadAheadPool>,
    workers: Workers,
    budget: ByteCount,
}

/// A part of a forest's budget that a job takes for memory of its own ([`Forest::hold_unread`]).
#[derive(Debug)]
pub struct HeldMemory {
    /// None where somebody was reading ahead at that very moment.
    _reservation: Option<Reservation>,
}

impl Forest {
    /// A forest over `volume` that keeps at most `cache_budget` bytes of blocks, those read ahead included, which may take
    /// a quarter. With a budget of zero everything is read each time.
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

    /// The volume underneath.
    #[must_use]
    pub fn volume(&self) -> &Arc<Volume> {
        self.reader.volume()
    }

    /// Size of blocks, checksum type and what else the checks of blocks need.
    #[must_use]
    pub fn block_format(&self) -> &BlockFormat {
        self.reader.format()
    }

    /// The tree that begins at `root`. Nothing is read yet.
    #[must_use]
    pub fn tree(self: &Arc<Self>, root: RootPointer) -> Tree {
        Tree::new(Arc::clone(self), root)
    }

    /// The block at `pointer`, from the cache or from the volume.
    ///
    /// # Errors
    /// When no copy of it can be read, or none is what the pointer promises; while the thread holds a [`NonBlocking`],
    /// when it is not in the cache.
    pub fn read_block(&self, pointer: &BlockPointer) -> Result<TreeBlock> {
        if pointer.level >= LEVELS_MAX {
            return Err(Error::damaged(pointer, Failure::RootLevel));
        }
        if NonBlocking::is_held() {
            return self.cache.get(pointer).map_or_else(|| would_block(pointer), Ok);
        }
        self.cache.get_or_read(pointer, || self.reader.read(pointer))
    }

    /// Takes what nobody reads ahead out of the budget for as long as it is held: for jobs that look at single blocks, and take
    /// about as much memory of their own.
    #[must_use]
    pub fn hold_unread(&self) -> HeldMemory {
        // Clamp: readers take and give back meanwhile.
        let unused = self
            .ahead
            .capacity()
            .get()
            .saturating_sub(self.ahead.used().get());
        HeldMemory {
            _reservation: self.ahead.reserve(unused),
        }
    }

    /// Reads blocks that are not in the cache into it, those that lie side by side in one request, and gives them: a small
    /// cache may not keep them. One that cannot be read is not among them; whoever asks for it is told why.
    ///
    /// They are going to be used soon, which the cache is told: of blocks that came in once, and that nobody asked for, it keeps
    /// next to none beside those that are in use.
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

    /// The block at `pointer` with everything that is wrong with it, for jobs that look at damage: the first
    /// copy that is in order, else the first that can be read.
    ///
    /// # Errors
    /// When no copy can be read at all.
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

    /// Hits, misses and what the cache holds now.
    #[must_use]
    pub fn cache_statistics(&self) -> CacheStatistics {
        CacheStatistics {
            ahead_bytes: self.ahead.used().exact_add(self.lent.used()),
            budget_bytes: self.budget,
            ..self.cache.statistics()
        }
    }

    /// Says how many bytes a writer may hold until they are committed: dirty blocks, file content, what it notes about both.
    /// The cache has that much less of its budget, down to a twelfth.
    pub fn hold_outside(&self, bytes: ByteCount) {
        self.cache.hold_outside(bytes.get());
    }

    /// Forgets blocks that their tree left, and whose addresses others may get in the same transaction.
    pub fn forget_blocks(&self, pointers: &[BlockPointer]) {
        for pointer in pointers {
            self.cache.forget(pointer);
        }
    }

    pub(crate) const fn reader(&self) -> &Arc<BlockReader> {
        &self.reader
    }

    /// A part of the cache's budget, unless somebody else has it.
    pub(crate) fn borrow_cache(&self) -> Option<Loan> {
        Loan::new(&self.cache, &self.lent)
    }

    pub(crate) fn cache(&self) -> &NodeCache {
        &self.cache
    }

    pub(crate) const fn ahead(&self) -> &Arc<ReadAheadPool> {
        &self.ahead
    }

    /// Has blocks that are on their way checked by another thread, where there is one to spare.
    pub(crate) fn offer_check(&self, batch: Arc<Batch>) {
        if !self.reader.is_simulated() {
            let reader = Arc::clone(&self.reader);
            self.workers.offer(Box::new(move || batch.check(&reader)));
        }
    }
}
