//! Who has which part of the budget for blocks in memory.
//!
//! A quarter bounds what all cursors together have read ahead and not yet looked at ([`ReadAheadPool`]), the rest is the
//! cache's. Parts change hands:
//!
//! - What nobody reads ahead is the cache's for as long. It goes there and back in steps ([`CLAIM_STEPS`]), as the cache
//!   lets go of blocks when it gets smaller; blocks of both lie in the same slabs, so no memory is lost between them.
//! - A writer takes what it may hold until it is committed ([`NodeCache::hold_outside`]), down to a part that the cache keeps.
//! - A sweep that holds back blocks on a spinning disk may borrow two thirds of the cache's own part for as long as it does
//!   ([`Loan`]).
//!
//! Invariant: what the cache may hold, what is claimed of the quarter, what is lent and what a writer may hold are together no
//! more than the budget, but for the part that the cache always keeps. Only while somebody is about to claim a step may the
//! quarter's use be ahead of it.

use super::{BLOCK_OVERHEAD_BYTES, NodeCache, SHARDS_MAX};
use buttress_exact::Exact as _;
use buttress_format::ByteCount;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// The cache keeps this part of its budget, whatever a writer holds.
const KEPT_OF: u64 = 12;

/// Who has the cache's budget.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Shares {
    /// The cache's own part.
    whole_bytes: u64,
    /// Lent for a sweep.
    lent_bytes: u64,
    /// Held outside of the cache by a writer.
    pub(super) held_bytes: u64,
    /// Of the part for reading ahead: what is not claimed.
    unclaimed_bytes: u64,
}

impl Shares {
    /// All of it is the cache's.
    pub(super) fn of(whole_bytes: u64) -> Self {
        Self {
            whole_bytes,
            ..Self::default()
        }
    }

    /// The cache's own part without what a writer may hold.
    fn own_bytes(&self) -> u64 {
        let kept = self.whole_bytes.quotient(KEPT_OF);
        // Clamp: a writer may hold more than there is.
        self.whole_bytes.saturating_sub(self.held_bytes).max(kept)
    }

    /// What the cache may hold.
    pub(super) fn capacity_bytes(&self) -> u64 {
        // Clamp: a writer may hold what was lent before.
        let bytes = self
            .own_bytes()
            .saturating_sub(self.lent_bytes)
            .exact_add(self.unclaimed_bytes);
        // Shards get equal parts, which are rounded up.
        bytes.exact_sub(bytes.remainder(SHARDS_MAX))
    }
}

/// How much all cursors of a forest together may hold that was read ahead.
#[derive(Debug)]
pub(crate) struct ReadAheadPool {
    capacity_bytes: AtomicU64,
    used_bytes: AtomicU64,
    /// The cache that has what is not claimed.
    cache: Option<Arc<NodeCache>>,
    /// At least as much as is used. Changed under the lock of the cache's shares.
    claimed_bytes: AtomicU64,
}

/// The pool and the cache exchange what is not used in so many parts.
const CLAIM_STEPS: u64 = 8;

/// A part of the pool, given back when dropped.
#[derive(Debug)]
pub(crate) struct Reservation {
    pool: Arc<ReadAheadPool>,
    bytes: u64,
}

impl ReadAheadPool {
    /// A pool that has its bytes to itself.
    pub(crate) fn new(capacity: ByteCount) -> Arc<Self> {
        Arc::new(Self {
            capacity_bytes: AtomicU64::new(capacity.get()),
            used_bytes: AtomicU64::new(0),
            cache: None,
            claimed_bytes: AtomicU64::new(0),
        })
    }

    /// A pool whose unused bytes are the cache's.
    pub(crate) fn shared_with(cache: &Arc<NodeCache>, capacity: ByteCount) -> Arc<Self> {
        cache.change_shares(|shares| shares.unclaimed_bytes = capacity.get());
        Arc::new(Self {
            capacity_bytes: AtomicU64::new(capacity.get()),
            used_bytes: AtomicU64::new(0),
            cache: Some(Arc::clone(cache)),
            claimed_bytes: AtomicU64::new(0),
        })
    }

    /// Room for a block of `block_bytes`, or `None` when the pool is used up.
    pub(crate) fn reserve_block(self: &Arc<Self>, block_bytes: u32) -> Option<Reservation> {
        self.reserve(u64::from(block_bytes).exact_add(BLOCK_OVERHEAD_BYTES))
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
        if let Ok(before) = taken
            && before.exact_add(bytes) > self.claimed_bytes.load(Ordering::Relaxed)
        {
            self.claim();
        }
        taken.is_ok()
    }

    /// Gives `bytes` back to the pool.
    fn give_back(&self, bytes: u64) {
        let used_bytes = self
            .used_bytes
            .fetch_sub(bytes, Ordering::Relaxed)
            .exact_sub(bytes);
        let claimed_bytes = self.claimed_bytes.load(Ordering::Relaxed);
        // Two steps, so that little more and little less do not change hands each time.
        // Clamp: others take and claim meanwhile.
        if claimed_bytes.saturating_sub(used_bytes) > self.step_bytes().exact_mul(2) {
            self.claim();
        }
    }

    fn step_bytes(&self) -> u64 {
        self.capacity_bytes
            .load(Ordering::Relaxed)
            .div_ceil(CLAIM_STEPS)
            .max(1)
    }

    /// Claims what is used, in whole steps; the cache has the rest.
    fn claim(&self) {
        let Some(cache) = &self.cache else {
            return;
        };
        cache.change_shares(|shares| {
            let capacity_bytes = self.capacity_bytes.load(Ordering::Relaxed);
            let used_bytes = self.used_bytes.load(Ordering::Relaxed);
            let steps = used_bytes.checked_next_multiple_of(self.step_bytes());
            // Clamp: all of it.
            let claimed_bytes = steps.unwrap_or(capacity_bytes).min(capacity_bytes);
            self.claimed_bytes.store(claimed_bytes, Ordering::Relaxed);
            shares.unclaimed_bytes = capacity_bytes.exact_sub(claimed_bytes);
        });
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
            self.bytes = self.bytes.exact_add(bytes);
        }
        grown
    }

    /// Gives `bytes` back, at most all.
    pub(crate) fn shrink(&mut self, bytes: u64) {
        let bytes = bytes.min(self.bytes);
        self.bytes = self.bytes.exact_sub(bytes);
        self.pool.give_back(bytes);
    }

    /// How much is reserved.
    pub(crate) const fn bytes(&self) -> u64 {
        self.bytes
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.pool.give_back(self.bytes);
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
        let own_bytes = shares.own_bytes();
        let lent_bytes = own_bytes.quotient(LENT_OF).exact_mul(LENT_PARTS);
        shares.lent_bytes = lent_bytes;
        cache.blocks.set_capacity(shares.capacity_bytes());
        drop(shares);
        pool.capacity_bytes.store(lent_bytes, Ordering::Relaxed);
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
        self.cache.change_shares(|shares| shares.lent_bytes = 0);
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
        let both = pool.capacity().get() + cache.blocks.capacity();
        assert!(both <= whole && whole - both < SHARDS_MAX);
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
    /// In whole steps, so that the cache is not made smaller and larger with every block.
    #[test]
    fn what_nobody_reads_ahead_is_the_caches() {
        let cache = Arc::new(NodeCache::new(ByteCount::new(96 << 20), 16_384));
        let own = cache.blocks.capacity();
        let pool = ReadAheadPool::shared_with(&cache, ByteCount::new(32 << 20));
        let has = |extra_mib: u64| {
            let expected = own + (extra_mib << 20);
            assert!(expected - cache.blocks.capacity() < SHARDS_MAX, "{extra_mib}");
        };
        has(32);
        let first = pool.reserve(1);
        has(28);
        let second = pool.reserve(4 << 20);
        has(24);
        let third = pool.reserve(24 << 20).unwrap();
        has(0);
        assert!(pool.reserve(4 << 20).is_none());
        // A writer's part comes out of the cache's own.
        cache.hold_outside(40 << 20);
        assert!(own - cache.blocks.capacity() >= 40 << 20);
        cache.hold_outside(0);
        drop((first, second));
        has(0);
        drop(third);
        has(32);
    }
}
