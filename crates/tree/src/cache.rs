//! The node cache: checked blocks by address and generation.
//!
//! Who has which part of the budget is in `shares`. What is not counted is what callers hold on to: a block
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

mod shares;

pub(crate) use shares::{Loan, ReadAheadPool, Reservation};

use crate::error::Result;
use crate::pointer::BlockPointer;
use buttress_exact::Exact as _;
use buttress_format::node::TreeBlock;
use buttress_format::{ByteCount, Generation, Logical};
use buttress_locks::{Mutex, Rank, lock_class};
use quick_cache::sync::{Cache, DefaultLifecycle, GuardResult};
use quick_cache::{OptionsBuilder, Weighter};
use shares::Shares;
use std::collections::hash_map::DefaultHasher;
use std::hash::BuildHasherDefault;
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
    ByteCount::of(block_bytes).get().exact_add(BLOCK_OVERHEAD_BYTES)
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
        let node_weight = u64::from(node_bytes).exact_add(BLOCK_OVERHEAD_BYTES);
        let items = capacity.get().quotient(node_weight).max(1);
        let shards = capacity.get().quotient(SHARD_BYTES_MIN).clamp(1, SHARDS_MAX);
        // The largest power of two that is not larger.
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
            // Both capacities are given, so the builder has what it wants; this is the same without shards.
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

    /// The block, if it is here and is what `pointer` promises. Counts a hit, but no miss.
    pub(crate) fn get(&self, pointer: &BlockPointer) -> Option<TreeBlock> {
        let block = self
            .blocks
            .get(&BlockId::of(pointer))
            .filter(|block| fits(pointer, block))?;
        self.hits.fetch_add(1, Ordering::Relaxed);
        Some(block)
    }

    /// Has the block look used, if it is here.
    pub(crate) fn count_use(&self, pointer: &BlockPointer) {
        drop(self.blocks.get(&BlockId::of(pointer)));
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
        // Clamp: blocks come and go meanwhile.
        ByteCount::new(self.blocks.capacity().saturating_sub(self.blocks.weight()))
    }

    /// Whether the cache holds so little that a block goes in that nobody has asked for: within an eighth of the budget.
    /// The rest is for those that somebody did ask for.
    pub(crate) fn has_space_for(&self, block_bytes: usize) -> bool {
        let filled = self.blocks.weight().exact_add(weight_bytes(block_bytes));
        filled <= self.blocks.capacity().min(self.uninvited_bytes)
    }

    /// Forgets a block that its tree left. Readers of an earlier state read it again.
    pub(crate) fn forget(&self, pointer: &BlockPointer) {
        self.blocks.remove(&BlockId::of(pointer));
    }

    /// Says how many bytes a writer may hold outside of the cache, which has that much less from now on.
    pub(crate) fn hold_outside(&self, bytes: u64) {
        self.change_shares(|shares| shares.held_bytes = bytes);
    }

    /// Changes who has which part of the budget. What the cache may no longer hold leaves it.
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

/// Whether a checked block is what a pointer promises. Address and generation are those it was found by.
fn fits(pointer: &BlockPointer, block: &TreeBlock) -> bool {
    block.matches(&pointer.expectation()).is_ok() && pointer.key_past_end(block).is_none()
}
