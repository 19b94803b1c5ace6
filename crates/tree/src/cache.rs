//! The node cache: checked blocks by address and generation, and the budget of everything held ahead.
//!
//! One budget is split in two: three quarters hold checked blocks (`NodeCache`), one quarter bounds what all
//! cursors together have read ahead and not yet looked at (`ReadAheadPool`). A sweep that holds back blocks on a
//! spinning disk may borrow two thirds of the cache's part for as long as it does (`Loan`), and a writer takes out of it
//! what it may hold until it is committed (`NodeCache::hold_outside`). What is not counted is what callers hold on to: a block
//! that was evicted stays in memory while a cursor or an item refers to it.
//!
//! The key is address *and* generation: an address is used again after its block was freed, and the generation
//! tells the new block from the old one. Blocks in the cache are clean and immutable, so a hit needs no check
//! of its bytes; but the same block can be reached through another pointer, which promises something else (a
//! hostile tree can do that), so a hit is compared with its pointer, and one that does not fit counts as a miss:
//! reading it again gives the exact error.
//!
//! Eviction is quick_cache's S3-FIFO: blocks touched once leave first, so a walk over a large tree does not push
//! out the blocks that are in constant use. Two readers that miss the same block read it once. Hashes have fixed
//! keys, so that a run on a simulated device can be repeated.

use crate::error::Result;
use crate::pointer::BlockPointer;
use buttress_format::node::TreeBlock;
use buttress_format::{ByteCount, Generation, Logical};
use buttress_locks::{Mutex, Rank, lock_class};
use quick_cache::sync::{Cache, DefaultLifecycle, GuardResult};
use quick_cache::{OptionsBuilder, Weighter};
use std::collections::hash_map::DefaultHasher;
use std::hash::BuildHasherDefault;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

lock_class!(SharesLock, "shares", Rank::LEAF);

/// What a cached block takes beside its bytes: header, reference counts, the cache's own records.
const BLOCK_OVERHEAD_BYTES: u64 = 320;

/// Each shard of the cache holds at least this much, so that a small budget is not split into useless parts.
const SHARD_BYTES_MIN: u64 = 4 << 20;

/// More shards than this gain nothing: a hit holds its shard's lock for some tens of nanoseconds.
const SHARDS_MAX: u64 = 32;

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
    ByteCount::of(block_bytes)
        .get()
        .saturating_add(BLOCK_OVERHEAD_BYTES)
}

type Blocks = Cache<BlockId, TreeBlock, BlockWeight, BuildHasherDefault<DefaultHasher>>;

/// Checked blocks within a byte budget.
#[derive(Debug)]
pub(crate) struct NodeCache {
    blocks: Blocks,
    shares: Mutex<Shares, SharesLock>,
    /// Up to here blocks are taken in that nobody asked for.
    uninvited_bytes: u64,
    hits: AtomicU64,
    misses: AtomicU64,
}

/// The cache keeps this part of its budget, whatever a writer holds.
const KEPT_OF: u64 = 12;

/// Who has the cache's budget.
#[derive(Clone, Copy, Debug)]
struct Shares {
    whole_bytes: u64,
    /// Lent for reading ahead.
    lent_bytes: u64,
    /// Held outside of the cache by a writer.
    held_bytes: u64,
}

impl Shares {
    /// What the cache may hold.
    fn capacity_bytes(&self) -> u64 {
        let kept = self.whole_bytes.checked_div(KEPT_OF).unwrap_or(0);
        let bytes = self
            .whole_bytes
            .saturating_sub(self.held_bytes)
            .max(kept)
            .saturating_sub(self.lent_bytes);
        // Shards get equal parts, which are rounded up.
        bytes.saturating_sub(bytes.checked_rem(SHARDS_MAX).unwrap_or(0))
    }
}

/// What the cache did since the forest was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CacheStatistics {
    /// Blocks that were asked for and found.
    pub hits: u64,
    /// Blocks that were asked for and had to be read, read-ahead included.
    pub misses: u64,
    /// Blocks in the cache now.
    pub blocks: usize,
    /// Bytes that they take.
    pub block_bytes: ByteCount,
    /// Bytes read ahead and not yet asked for.
    pub ahead_bytes: ByteCount,
    /// The most that the two together may take.
    pub budget_bytes: ByteCount,
}

impl NodeCache {
    /// A cache of at most `capacity` bytes for blocks of `node_bytes`.
    pub(crate) fn new(capacity: ByteCount, node_bytes: u32) -> Self {
        let node_weight = u64::from(node_bytes).saturating_add(BLOCK_OVERHEAD_BYTES);
        let items = capacity.get().checked_div(node_weight).unwrap_or(0).max(1);
        let shards = capacity
            .get()
            .checked_div(SHARD_BYTES_MIN)
            .unwrap_or(0)
            .clamp(1, SHARDS_MAX);
        let shards = if shards.is_power_of_two() {
            shards
        } else {
            shards
                .checked_next_power_of_two()
                .unwrap_or(2)
                .checked_div(2)
                .unwrap_or(1)
        };
        let mut builder = OptionsBuilder::new();
        builder
            .estimated_items_capacity(usize::try_from(items).unwrap_or(usize::MAX))
            .weight_capacity(capacity.get())
            .shards(usize::try_from(shards).unwrap_or(1));
        let blocks = match builder.build() {
            Ok(options) => Cache::with_options(
                options,
                BlockWeight,
                BuildHasherDefault::default(),
                DefaultLifecycle::default(),
            ),
            // Both capacities are given, so the builder has what it wants; this is the same without shards.
            Err(_) => Cache::with(
                usize::try_from(items).unwrap_or(usize::MAX),
                capacity.get(),
                BlockWeight,
                BuildHasherDefault::default(),
                DefaultLifecycle::default(),
            ),
        };
        Self {
            shares: Mutex::new(Shares {
                whole_bytes: blocks.capacity(),
                lent_bytes: 0,
                held_bytes: 0,
            }),
            uninvited_bytes: blocks.capacity() >> 3,
            blocks,
            hits: AtomicU64::new(0),
            misses: AtomicU64::new(0),
        }
    }

    /// The block, if it is here and is what `pointer` promises. Counts a hit, but no miss.
    pub(crate) fn get(&self, pointer: &BlockPointer) -> Option<TreeBlock> {
        let block = self
            .blocks
            .get(&BlockId::of(pointer))
            .filter(|block| fits(pointer, block))?;
        self.hits.fetch_add(1, Ordering::Relaxed);
        Some(block)
    }

    /// Whether the block is here. Neither counts nor makes the block look used.
    pub(crate) fn contains(&self, pointer: &BlockPointer) -> bool {
        self.blocks.contains_key(&BlockId::of(pointer))
    }

    /// The block from here, or from `read`, which is called by one thread at a time for one block.
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
                // Refused when the entry was removed meanwhile; the block is as good without it.
                let _ = guard.insert(block.clone());
                Ok(block)
            }
        }
    }

    /// Puts a block in that was read on another way.
    pub(crate) fn insert(&self, pointer: &BlockPointer, block: TreeBlock) {
        self.blocks.insert(BlockId::of(pointer), block);
    }

    /// How much can be put in before something must go.
    pub(crate) fn room(&self) -> ByteCount {
        ByteCount::new(self.blocks.capacity().saturating_sub(self.blocks.weight()))
    }

    /// Whether the cache holds so little that a block goes in that nobody has asked for: within an eighth of the budget.
    /// The rest is for those that somebody did ask for.
    pub(crate) fn has_space_for(&self, block_bytes: usize) -> bool {
        let filled = self.blocks.weight().saturating_add(weight_bytes(block_bytes));
        filled <= self.blocks.capacity().min(self.uninvited_bytes)
    }

    /// Forgets a block that its tree left. Readers of an earlier state read it again.
    pub(crate) fn forget(&self, pointer: &BlockPointer) {
        self.blocks.remove(&BlockId::of(pointer));
    }

    /// Says how many bytes a writer may hold outside of the cache, which has that much less from now on.
    pub(crate) fn hold_outside(&self, bytes: u64) {
        let mut shares = self.shares.lock();
        shares.held_bytes = bytes;
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

/// Whether a checked block is what a pointer promises. Address and generation are those it was found by.
fn fits(pointer: &BlockPointer, block: &TreeBlock) -> bool {
    block.matches(&pointer.expectation()).is_ok() && pointer.key_past_end(block).is_none()
}

/// How much all cursors of a forest together may hold that was read ahead.
#[derive(Debug)]
pub(crate) struct ReadAheadPool {
    capacity_bytes: AtomicU64,
    used_bytes: AtomicU64,
}

/// A part of the pool, given back when dropped.
#[derive(Debug)]
pub(crate) struct Reservation {
    pool: Arc<ReadAheadPool>,
    bytes: u64,
}

impl ReadAheadPool {
    pub(crate) fn new(capacity: ByteCount) -> Arc<Self> {
        Arc::new(Self {
            capacity_bytes: AtomicU64::new(capacity.get()),
            used_bytes: AtomicU64::new(0),
        })
    }

    /// Room for a block of `block_bytes`, or `None` when the pool is used up.
    pub(crate) fn reserve_block(self: &Arc<Self>, block_bytes: u32) -> Option<Reservation> {
        self.reserve(u64::from(block_bytes).saturating_add(BLOCK_OVERHEAD_BYTES))
    }

    /// Room for `bytes`, or `None` when the pool has less left.
    pub(crate) fn reserve(self: &Arc<Self>, bytes: u64) -> Option<Reservation> {
        self.take(bytes).then(|| Reservation {
            pool: Arc::clone(self),
            bytes,
        })
    }

    /// Takes `bytes` from the pool, if it has them.
    fn take(&self, bytes: u64) -> bool {
        let capacity_bytes = self.capacity_bytes.load(Ordering::Relaxed);
        let taken = self
            .used_bytes
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |used| {
                used.checked_add(bytes).filter(|used| *used <= capacity_bytes)
            });
        taken.is_ok()
    }

    pub(crate) fn capacity(&self) -> ByteCount {
        ByteCount::new(self.capacity_bytes.load(Ordering::Relaxed))
    }

    pub(crate) fn used(&self) -> ByteCount {
        ByteCount::new(self.used_bytes.load(Ordering::Relaxed))
    }
}

impl Reservation {
    /// Takes `bytes` more from the pool, if it has them.
    pub(crate) fn grow(&mut self, bytes: u64) -> bool {
        let grown = self.pool.take(bytes);
        if grown {
            self.bytes = self.bytes.saturating_add(bytes);
        }
        grown
    }

    /// Gives `bytes` back, at most all.
    pub(crate) fn shrink(&mut self, bytes: u64) {
        let bytes = bytes.min(self.bytes);
        self.bytes = self.bytes.saturating_sub(bytes);
        self.pool.used_bytes.fetch_sub(bytes, Ordering::Relaxed);
    }

    /// How much is reserved.
    pub(crate) const fn bytes(&self) -> u64 {
        self.bytes
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.pool.used_bytes.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

/// The parts of the cache's budget that are lent; the rest stays.
const LENT_PARTS: u64 = 2;
const LENT_OF: u64 = 3;

/// A part of the cache's budget, for one borrower at a time. When dropped, the cache has it again.
///
/// What the borrower reserved must have been given back by then.
#[derive(Debug)]
pub(crate) struct Loan {
    cache: Arc<NodeCache>,
    pool: Arc<ReadAheadPool>,
}

impl Loan {
    /// Takes a part of the cache's budget, unless it is lent already. `pool` stands for what is lent; it is empty
    /// while nothing is.
    pub(crate) fn new(cache: &Arc<NodeCache>, pool: &Arc<ReadAheadPool>) -> Option<Self> {
        let mut shares = cache.shares.lock();
        if shares.lent_bytes > 0 {
            return None;
        }
        let capacity = cache.blocks.capacity();
        shares.lent_bytes = capacity
            .checked_div(LENT_OF)
            .unwrap_or(0)
            .saturating_mul(LENT_PARTS);
        cache.blocks.set_capacity(shares.capacity_bytes());
        drop(shares);
        // What the cache gave up, which is a little more where parts are rounded.
        let bytes = capacity.saturating_sub(cache.blocks.capacity());
        pool.capacity_bytes.store(bytes, Ordering::Relaxed);
        Some(Self {
            cache: Arc::clone(cache),
            pool: Arc::clone(pool),
        })
    }

    /// What was lent, to reserve from.
    pub(crate) const fn pool(&self) -> &Arc<ReadAheadPool> {
        &self.pool
    }
}

impl Drop for Loan {
    fn drop(&mut self) {
        self.pool.capacity_bytes.store(0, Ordering::Relaxed);
        let mut shares = self.cache.shares.lock();
        shares.lent_bytes = 0;
        self.cache.blocks.set_capacity(shares.capacity_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pool_gives_no_more_than_it_has_and_takes_back() {
        let pool = ReadAheadPool::new(ByteCount::new(40_000));
        let first = pool.reserve_block(16_384);
        let second = pool.reserve_block(16_384);
        assert!(first.is_some() && second.is_some());
        assert!(pool.reserve_block(16_384).is_none());
        assert_eq!(pool.used().get(), 2 * (16_384 + BLOCK_OVERHEAD_BYTES));
        drop(first);
        assert!(pool.reserve_block(16_384).is_some());
        let mut second = second.unwrap();
        assert!(!second.grow(40_000) && second.grow(100));
        assert_eq!(second.bytes(), 16_384 + BLOCK_OVERHEAD_BYTES + 100);
        second.shrink(1_000_000);
        assert_eq!((second.bytes(), pool.used()), (0, ByteCount::ZERO));
        drop(second);
        assert_eq!(pool.used(), ByteCount::ZERO);
        assert!(ReadAheadPool::new(ByteCount::ZERO).reserve_block(4096).is_none());
    }

    #[test]
    fn a_loan_comes_out_of_the_cache_and_goes_back() {
        let cache = Arc::new(NodeCache::new(ByteCount::new(96 << 20), 16_384));
        let pool = ReadAheadPool::new(ByteCount::ZERO);
        let whole = cache.blocks.capacity();
        let loan = Loan::new(&cache, &pool).unwrap();
        assert!(Loan::new(&cache, &pool).is_none());
        assert_eq!(pool.capacity().get() + cache.blocks.capacity(), whole);
        assert!(pool.capacity().get() > whole / 2);
        assert!(loan.pool().reserve(1 << 20).is_some());
        drop(loan);
        assert_eq!(pool.capacity().get(), 0);
        assert!(whole - cache.blocks.capacity() < SHARDS_MAX);
        assert!(Loan::new(&cache, &pool).is_some());
    }

    #[test]
    fn what_a_writer_holds_comes_out_of_the_cache() {
        let cache = Arc::new(NodeCache::new(ByteCount::new(96 << 20), 16_384));
        let pool = ReadAheadPool::new(ByteCount::ZERO);
        let whole = cache.blocks.capacity();
        cache.hold_outside(40 << 20);
        assert!(cache.blocks.capacity() <= whole - (40 << 20));
        let loan = Loan::new(&cache, &pool).unwrap();
        assert!(pool.capacity().get() + cache.blocks.capacity() + (40 << 20) <= whole);
        drop(loan);
        // However much is held, what is in constant use stays.
        cache.hold_outside(200 << 20);
        assert!(cache.blocks.capacity() > 0);
        cache.hold_outside(0);
        assert!(whole - cache.blocks.capacity() < SHARDS_MAX);
    }
}
