//! The node cache: checked blocks by address and generation.
//!
//! The module `shares` divides the cache's budget. The budget does not count blocks that callers
//! hold: an evicted block stays in memory while a cursor or an item refers to it.
//!
//! The key of a cached block is address *and* generation. An address is reused after its block was
//! freed, and the generation distinguishes the new block from the old one. Blocks in the cache are
//! clean and immutable, so a hit needs no check of its bytes. In a hostile tree, two pointers with
//! different expectations can lead to the same block. On a hit, the cache therefore compares the
//! block with the pointer of the request. A hit that does not match counts as a miss, and reading
//! the block again yields the exact error.
//!
//! The cache evicts by quick_cache's S3-FIFO. This policy evicts blocks touched once first, so a
//! walk over a large tree does not evict the blocks in constant use. If two readers miss the same
//! block, one of them reads it for both. Hashes have fixed keys, so a run on a simulated device can
//! be repeated.

mod pools;
mod shares;

pub(crate) use pools::{Loan, ReadAheadPool, Reservation};

use crate::error::Result;
use crate::pointer::BlockPointer;
use buttress_exact::Exact as _;
use buttress_format::node::TreeBlock;
use buttress_format::{ByteCount, Generation, Logical};
use buttress_locks::{Mutex, Rank, lock_class};
use quick_cache::sync::{Cache, DefaultLifecycle, GuardResult};
use quick_cache::{OptionsBuilder, Weighter};
use shares::{BLOCK_OVERHEAD_BYTES, SHARDS_MAX, Shares};
use std::collections::hash_map::DefaultHasher;
use std::hash::BuildHasherDefault;
use std::sync::atomic::{AtomicU64, Ordering};

lock_class!(SharesLock, "shares", Rank::LEAF);

/// The minimum size of a cache shard. The minimum size keeps a small budget from being split into
/// useless shards.
const SHARD_BYTES_MIN: u64 = 4 << 20;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct BlockId {
    logical: Logical,
    generation: Generation,
}

impl BlockId {
    const fn of(pointer: &BlockPointer) -> Self {
        Self {
            logical: pointer.logical,
            generation: pointer.generation,
        }
    }
}

#[derive(Clone, Copy, Debug)]
struct BlockWeight;

impl Weighter<BlockId, TreeBlock> for BlockWeight {
    fn weight(&self, _: &BlockId, block: &TreeBlock) -> u64 {
        weight_bytes(block.bytes().len())
    }
}

fn weight_bytes(block_bytes: usize) -> u64 {
    ByteCount::of(block_bytes).get().exact_add(BLOCK_OVERHEAD_BYTES)
}

type Blocks = Cache<BlockId, TreeBlock, BlockWeight, BuildHasherDefault<DefaultHasher>>;

/// The cache of checked blocks within a byte budget.
#[derive(Debug)]
pub(crate) struct NodeCache {
    blocks: Blocks,
    shares: Mutex<Shares, SharesLock>,
    /// The cache accepts blocks that no reader requested only up to this number of bytes.
    uninvited_bytes: u64,
    hits: AtomicU64,
    misses: AtomicU64,
}

/// Statistics of the cache since the forest was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CacheStatistics {
    /// Requested blocks that the cache held.
    pub hits: u64,
    /// Requested blocks that had to be read, including read-ahead.
    pub misses: u64,
    /// Blocks in the cache now.
    pub blocks: usize,
    /// The bytes of the cached blocks.
    pub block_bytes: ByteCount,
    /// Bytes read ahead and not yet requested.
    pub ahead_bytes: ByteCount,
    /// The limit on the bytes of cached blocks and read-ahead together.
    pub budget_bytes: ByteCount,
}

impl NodeCache {
    /// Makes a cache of at most `capacity` bytes for blocks of `node_bytes`.
    pub(crate) fn new(capacity: ByteCount, node_bytes: u32) -> Self {
        let node_weight = u64::from(node_bytes).exact_add(BLOCK_OVERHEAD_BYTES);
        let items = capacity.get().quotient(node_weight).max(1);
        let shards = capacity.get().quotient(SHARD_BYTES_MIN).clamp(1, SHARDS_MAX);
        // The largest power of two that does not exceed the number of shards.
        let shards = shards.exact_add(1).div_ceil(2).next_power_of_two();
        let mut builder = OptionsBuilder::new();
        builder
            .estimated_items_capacity(items.narrow::<usize>())
            .weight_capacity(capacity.get())
            .shards(shards.narrow());
        let blocks = match builder.build() {
            Ok(options) => Cache::with_options(
                options,
                BlockWeight,
                BuildHasherDefault::default(),
                DefaultLifecycle::default(),
            ),
            // Building the cache cannot fail, because both capacities are given. The fallback is
            // the same block cache without shards.
            Err(_) => Cache::with(
                items.narrow::<usize>(),
                capacity.get(),
                BlockWeight,
                BuildHasherDefault::default(),
                DefaultLifecycle::default(),
            ),
        };
        Self {
            shares: Mutex::new(Shares::of(blocks.capacity())),
            uninvited_bytes: blocks.capacity() >> 3,
            blocks,
            hits: AtomicU64::new(0),
            misses: AtomicU64::new(0),
        }
    }

    /// Returns the block if the cache holds it and it matches `pointer`. Counts a hit, but no miss.
    pub(crate) fn get(&self, pointer: &BlockPointer) -> Option<TreeBlock> {
        let block = self
            .blocks
            .get(&BlockId::of(pointer))
            .filter(|block| fits(pointer, block))?;
        self.hits.fetch_add(1, Ordering::Relaxed);
        Some(block)
    }

    /// Marks the block as used, if the cache holds it.
    pub(crate) fn count_use(&self, pointer: &BlockPointer) {
        drop(self.blocks.get(&BlockId::of(pointer)));
    }

    /// Returns true if the cache holds the block. This query counts no hit and does not mark the
    /// block as used.
    pub(crate) fn contains(&self, pointer: &BlockPointer) -> bool {
        self.blocks.contains_key(&BlockId::of(pointer))
    }

    /// Returns the cached block, or the block from `read`. For each block, only one thread calls
    /// `read` at a time.
    pub(crate) fn get_or_read(
        &self,
        pointer: &BlockPointer,
        read: impl FnOnce() -> Result<TreeBlock>,
    ) -> Result<TreeBlock> {
        match self.blocks.get_value_or_guard(&BlockId::of(pointer), None) {
            GuardResult::Value(block) if fits(pointer, &block) => {
                self.hits.fetch_add(1, Ordering::Relaxed);
                Ok(block)
            }
            GuardResult::Value(_) | GuardResult::Timeout => {
                self.count_miss();
                read()
            }
            GuardResult::Guard(guard) => {
                self.count_miss();
                let block = read()?;
                // If the entry was removed during the read, the cache refuses the block. The block
                // that the cache refuses is still valid.
                let _ = guard.insert(block.clone());
                Ok(block)
            }
        }
    }

    /// Inserts a block that was read outside the cache.
    pub(crate) fn insert(&self, pointer: &BlockPointer, block: TreeBlock) {
        self.blocks.insert(BlockId::of(pointer), block);
    }

    /// Returns the bytes that the cache can accept before it must evict.
    pub(crate) fn room(&self) -> ByteCount {
        // Clamp: other threads insert and remove blocks concurrently.
        ByteCount::new(self.blocks.capacity().saturating_sub(self.blocks.weight()))
    }

    /// Returns true if the cache accepts a block that no reader has requested. Blocks that no
    /// reader has requested may fill an eighth of the cache's budget. The remaining budget is for
    /// requested blocks.
    pub(crate) fn has_space_for(&self, block_bytes: usize) -> bool {
        let filled = self.blocks.weight().exact_add(weight_bytes(block_bytes));
        filled <= self.blocks.capacity().min(self.uninvited_bytes)
    }

    /// Removes a block that its tree no longer refers to. Readers of an earlier state read the
    /// forgotten block from the device again.
    pub(crate) fn forget(&self, pointer: &BlockPointer) {
        self.blocks.remove(&BlockId::of(pointer));
    }

    /// Sets the number of bytes that a writer may hold outside the cache. The cache's budget
    /// shrinks by the number of bytes that the writer holds.
    pub(crate) fn hold_outside(&self, bytes: u64) {
        self.change_shares(|shares| shares.held_bytes = bytes);
    }

    /// Changes the shares of the budget. The cache evicts the bytes that exceed its new share of
    /// the budget.
    fn change_shares(&self, change: impl FnOnce(&mut Shares)) {
        let mut shares = self.shares.lock();
        change(&mut shares);
        self.blocks.set_capacity(shares.capacity_bytes());
    }

    pub(crate) fn count_miss(&self) {
        self.misses.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn statistics(&self) -> CacheStatistics {
        CacheStatistics {
            hits: self.hits.load(Ordering::Relaxed),
            misses: self.misses.load(Ordering::Relaxed),
            blocks: self.blocks.len(),
            block_bytes: ByteCount::new(self.blocks.weight()),
            ..CacheStatistics::default()
        }
    }
}

/// Returns true if a checked block matches a pointer. The block's address and generation match
/// already, because both are the cache's key.
fn fits(pointer: &BlockPointer, block: &TreeBlock) -> bool {
    block.matches(&pointer.expectation()).is_ok() && pointer.key_past_end(block).is_none()
}
