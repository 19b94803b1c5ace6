//! Space reserved for data before writes need it, so that a small write need not acquire the edit
//! lock.
//!
//! A small write takes its reservation from the pool without the edit lock. If the pool has too
//! little, the write acquires the edit lock and reserves a batch more than it needs. Released
//! reservations return to the pool, up to one batch. The pool counts as reserved
//! ([`Core::reserved_data_bytes`](crate::core_state::Core::reserved_data_bytes)). The engine gives
//! the pool up before any call fails for lack of space.
//!
//! Invariant: the reservations of all files and this pool always add up to the running
//! transaction's reserved bytes.

use buttress_exact::Exact as _;
use buttress_locks::atomic::{AtomicBool, AtomicU64, Ordering};

/// The pool of reserved bytes. See the module's documentation.
#[derive(Debug, Default)]
pub struct ReservedAhead {
    bytes: AtomicU64,
    /// The size of the last refill, which is the maximum that the pool keeps.
    batch_bytes: AtomicU64,
    /// Whether, at the last refill, dirty data occupied space that other edits need.
    is_short: AtomicBool,
    /// The bytes of content that may be dirty even if space is short, as determined at the last
    /// refill.
    spared_bytes: AtomicU64,
}

impl ReservedAhead {
    /// Takes a reservation of `bytes` from the pool. Returns false, and takes nothing, if the pool
    /// has fewer bytes.
    pub fn take(&self, bytes: u64) -> bool {
        self.bytes
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |ahead| {
                ahead.checked_sub(bytes)
            })
            .is_ok()
    }

    /// Returns a reservation to the pool. Returns the part of the reservation that exceeds the
    /// pool's limit.
    pub fn give_back(&self, bytes: u64) -> u64 {
        let batch = self.batch_bytes.load(Ordering::Relaxed);
        let mut kept = 0;
        let _always = self
            .bytes
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |ahead| {
                kept = match buttress_faults::on("ahead-keeps-all") {
                    true => bytes,
                    // Clamp: a refill may make the limit smaller than the bytes in the pool.
                    false => bytes.min(batch.saturating_sub(ahead)),
                };
                ahead.checked_add(kept)
            });
        if buttress_faults::on("ahead-rest-forgotten") {
            return 0;
        }
        bytes.exact_sub(kept)
    }

    /// Returns the bytes in the pool.
    pub fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Returns whether dirty data took space that other edits need, as of the last refill.
    pub fn is_short(&self) -> bool {
        self.is_short.load(Ordering::Relaxed)
    }

    /// Returns the bytes of content that may be dirty when space is short, as of the last refill.
    pub fn spared_bytes(&self) -> u64 {
        self.spared_bytes.load(Ordering::Relaxed)
    }

    pub(crate) fn set_spared_bytes(&self, bytes: u64) {
        self.spared_bytes.store(bytes, Ordering::Relaxed);
    }

    /// Adds a batch to the pool. The batch's size becomes the pool's new limit.
    pub(crate) fn refill(&self, batch: u64) {
        self.batch_bytes.store(batch, Ordering::Relaxed);
        self.bytes.fetch_add(batch, Ordering::Relaxed);
    }

    /// Takes all bytes from the pool, and sets its limit to zero.
    pub(crate) fn take_all(&self) -> u64 {
        let all = self.bytes.swap(0, Ordering::Relaxed);
        self.batch_bytes.store(0, Ordering::Relaxed);
        all
    }

    pub(crate) fn set_short(&self, is_short: bool) {
        self.is_short.store(is_short, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_taken_was_there_and_no_more_than_a_batch_is_kept() {
        let ahead = ReservedAhead::default();
        assert!(!ahead.take(1), "nothing is there");
        assert_eq!(ahead.give_back(10), 10, "nothing is kept before a refill");
        ahead.batch_bytes.store(100, Ordering::Relaxed);
        ahead.bytes.store(100, Ordering::Relaxed);
        assert!(ahead.take(60) && !ahead.take(41) && ahead.take(40));
        assert_eq!(ahead.give_back(70), 0);
        assert_eq!(ahead.give_back(70), 40);
        assert!(ahead.take(100) && !ahead.take(1));
    }
}
