//! Shares of a cache's budget in the hands of readers: read-ahead and loans.
//!
//! The module `shares` states the rule of the shares.

use super::NodeCache;
use super::shares::BLOCK_OVERHEAD_BYTES;
use buttress_exact::Exact as _;
use buttress_format::ByteCount;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// The limit on the blocks that all cursors of a forest have read ahead.
#[derive(Debug)]
pub(crate) struct ReadAheadPool {
    capacity_bytes: AtomicU64,
    used_bytes: AtomicU64,
    /// The cache that uses the unclaimed bytes.
    cache: Option<Arc<NodeCache>>,
    /// The bytes that claims reserve, at least as many as the used bytes. Changed under the lock of
    /// the cache's shares.
    claimed_bytes: AtomicU64,
}

/// The number of steps in which the pool and the cache exchange unused bytes.
const CLAIM_STEPS: u64 = 8;

/// A part of the cache's memory pool, returned to the pool when dropped.
#[derive(Debug)]
pub(crate) struct Reservation {
    pool: Arc<ReadAheadPool>,
    bytes: u64,
}

impl ReadAheadPool {
    /// Makes a pool that shares its bytes with no cache.
    pub(crate) fn new(capacity: ByteCount) -> Arc<Self> {
        Arc::new(Self {
            capacity_bytes: AtomicU64::new(capacity.get()),
            used_bytes: AtomicU64::new(0),
            cache: None,
            claimed_bytes: AtomicU64::new(0),
        })
    }

    /// Makes a pool whose unused bytes belong to the cache.
    pub(crate) fn shared_with(cache: &Arc<NodeCache>, capacity: ByteCount) -> Arc<Self> {
        cache.change_shares(|shares| shares.unclaimed_bytes = capacity.get());
        Arc::new(Self {
            capacity_bytes: AtomicU64::new(capacity.get()),
            used_bytes: AtomicU64::new(0),
            cache: Some(Arc::clone(cache)),
            claimed_bytes: AtomicU64::new(0),
        })
    }

    /// Reserves space for a block of `block_bytes`. Returns `None` if the pool is used up.
    pub(crate) fn reserve_block(self: &Arc<Self>, block_bytes: u32) -> Option<Reservation> {
        self.reserve(u64::from(block_bytes).exact_add(BLOCK_OVERHEAD_BYTES))
    }

    /// Reserves `bytes`. Returns `None` if the pool has fewer than `bytes` left.
    pub(crate) fn reserve(self: &Arc<Self>, bytes: u64) -> Option<Reservation> {
        self.take(bytes).then(|| Reservation {
            pool: Arc::clone(self),
            bytes,
        })
    }

    /// Takes `bytes` from the pool. Returns false if the pool has fewer bytes left.
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

    /// Returns `bytes` to the pool.
    fn give_back(&self, bytes: u64) {
        let used_bytes = self
            .used_bytes
            .fetch_sub(bytes, Ordering::Relaxed)
            .exact_sub(bytes);
        let claimed_bytes = self.claimed_bytes.load(Ordering::Relaxed);
        // The pool returns bytes only beyond two unused steps, so that small changes do not move
        // shares back and forth.
        // Clamp: other threads take and claim bytes concurrently.
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

    /// Claims the used bytes in whole steps. The cache has the unclaimed part of the read-ahead
    /// share.
    fn claim(&self) {
        let Some(cache) = &self.cache else {
            return;
        };
        cache.change_shares(|shares| {
            let capacity_bytes = self.capacity_bytes.load(Ordering::Relaxed);
            let used_bytes = self.used_bytes.load(Ordering::Relaxed);
            let steps = used_bytes.checked_next_multiple_of(self.step_bytes());
            // Clamp: claims at most the whole pool.
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
    /// Takes `bytes` more from the pool. Returns false if the pool has fewer than `bytes` left.
    pub(crate) fn grow(&mut self, bytes: u64) -> bool {
        let grown = self.pool.take(bytes);
        if grown {
            self.bytes = self.bytes.exact_add(bytes);
        }
        grown
    }

    /// Returns `bytes` of the reservation to the pool, at most all of them.
    pub(crate) fn shrink(&mut self, bytes: u64) {
        let bytes = bytes.min(self.bytes);
        self.bytes = self.bytes.exact_sub(bytes);
        self.pool.give_back(bytes);
    }

    /// Returns the number of reserved bytes.
    pub(crate) const fn bytes(&self) -> u64 {
        self.bytes
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.pool.give_back(self.bytes);
    }
}

/// A loan takes [`LENT_PARTS`] of [`LENT_OF`] equal parts of the cache's own part; the cache keeps
/// the rest.
const LENT_PARTS: u64 = 2;
const LENT_OF: u64 = 3;

/// A loan of a part of the cache's budget, for one borrower at a time. Dropping the loan returns
/// the borrowed part to the cache.
///
/// The borrower must have returned its memory reservations before that drop.
#[derive(Debug)]
pub(crate) struct Loan {
    cache: Arc<NodeCache>,
    pool: Arc<ReadAheadPool>,
}

impl Loan {
    /// Borrows a part of the cache's budget, unless it is already lent. `pool` holds the bytes that
    /// are lent, and is empty without a loan.
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

    /// Returns the pool of lent bytes, from which the borrower reserves.
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
    use super::super::shares::SHARDS_MAX;
    use super::*;

    #[test]
    fn pool_never_lends_more_than_its_capacity() {
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
    fn loan_shrinks_the_cache_until_it_is_dropped() {
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
    fn memory_of_a_writer_shrinks_the_cache() {
        let cache = Arc::new(NodeCache::new(ByteCount::new(96 << 20), 16_384));
        let pool = ReadAheadPool::new(ByteCount::ZERO);
        let whole = cache.blocks.capacity();
        cache.hold_outside(40 << 20);
        assert!(cache.blocks.capacity() <= whole - (40 << 20));
        let loan = Loan::new(&cache, &pool).unwrap();
        assert!(pool.capacity().get() + cache.blocks.capacity() + (40 << 20) <= whole);
        drop(loan);
        // Blocks in constant use stay cached, however much the writer holds.
        cache.hold_outside(200 << 20);
        assert!(cache.blocks.capacity() > 0);
        cache.hold_outside(0);
        assert!(whole - cache.blocks.capacity() < SHARDS_MAX);
    }
    /// The cache's shares move in whole steps, so that its capacity does not change with every
    /// block.
    #[test]
    fn unused_read_ahead_budget_belongs_to_the_cache() {
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
        // A writer's share comes out of the cache's own part.
        cache.hold_outside(40 << 20);
        assert!(own - cache.blocks.capacity() >= 40 << 20);
        cache.hold_outside(0);
        drop((first, second));
        has(0);
        drop(third);
        has(32);
    }
}
