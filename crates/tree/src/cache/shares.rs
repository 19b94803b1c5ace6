//! The shares of the budget for blocks in memory.
//!
//! A quarter of the budget bounds the blocks that all cursors have read ahead and not yet used
//! ([`ReadAheadPool`]). The other three quarters of the budget belong to the cache. Shares change
//! their owner:
//!
//! - The cache uses the unused part of the read-ahead quarter. The unused part of the read-ahead
//!   quarter moves in steps ([`CLAIM_STEPS`]), because the cache evicts blocks when its share
//!   shrinks. Blocks of the cache and of read-ahead lie in the same slabs, so no memory is lost
//!   between them.
//! - A writer's share is the memory that it may hold until a commit ([`hold_outside`]). The cache
//!   always keeps a minimum part of its budget.
//! - A sweep that holds back blocks on a spinning disk may borrow two thirds of the cache's own
//!   part ([`Loan`]). The sweep returns the loan when it holds no more blocks back.
//!
//! Invariant: four shares together do not exceed the budget, except for the cache's minimum part.
//! The four shares of the budget are the cache's capacity, the quarter's claimed part, the loan,
//! and the writer's memory. The use of the read-ahead quarter may exceed its claimed part only
//! while a thread is about to claim a step.
//!
//! [`CLAIM_STEPS`]: super::pools::CLAIM_STEPS
//! [`Loan`]: super::Loan
//! [`ReadAheadPool`]: super::ReadAheadPool
//! [`hold_outside`]: super::NodeCache::hold_outside

use buttress_exact::Exact as _;

/// The memory of a cached block beyond the block's bytes: header, reference counts, the cache's own
/// records.
pub(super) const BLOCK_OVERHEAD_BYTES: u64 = 320;

/// The maximum number of shards. More shards gain nothing: a cache hit holds its shard's lock for
/// some tens of nanoseconds.
pub(super) const SHARDS_MAX: u64 = 32;

/// The cache keeps at least this part of its budget, however much a writer holds.
const KEPT_OF: u64 = 12;

/// The shares of the cache's budget, by owner.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Shares {
    /// The part of the budget that the cache keeps for itself, in bytes.
    whole_bytes: u64,
    /// The bytes that are lent to a sweep.
    pub(super) lent_bytes: u64,
    /// The bytes that a writer holds outside the cache.
    pub(super) held_bytes: u64,
    /// The unclaimed bytes of the quarter of the cache budget that is reserved for read-ahead.
    pub(super) unclaimed_bytes: u64,
}

impl Shares {
    /// Makes shares in which the cache owns all bytes.
    pub(super) fn of(whole_bytes: u64) -> Self {
        Self {
            whole_bytes,
            ..Self::default()
        }
    }

    /// Returns the cache's own part without the writer's bytes.
    pub(super) fn own_bytes(&self) -> u64 {
        let kept = self.whole_bytes.quotient(KEPT_OF);
        // Clamp: a writer may hold more bytes than the cache's part.
        self.whole_bytes.saturating_sub(self.held_bytes).max(kept)
    }

    /// Returns the capacity of the cache in bytes.
    pub(super) fn capacity_bytes(&self) -> u64 {
        // Clamp: a writer may hold bytes that were lent to it before.
        let bytes = self
            .own_bytes()
            .saturating_sub(self.lent_bytes)
            .exact_add(self.unclaimed_bytes);
        // The shards of the cache get equal parts, rounded up, so the capacity is a multiple of the
        // shard count.
        bytes.exact_sub(bytes.remainder(SHARDS_MAX))
    }
}
