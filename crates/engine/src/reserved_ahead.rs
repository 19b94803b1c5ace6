//! Space reserved for data ahead of the writes that will want it, so that a small write need not take the edit lock.
//!
//! A write that needs a reservation takes it from here. When there is too little, it takes the edit lock and reserves a
//! batch more than it needs; what is released comes back here, up to a batch. What is here counts as reserved
//! ([`Core::reserved_data_bytes`](crate::core_state::Core::reserved_data_bytes)) and is given up before anybody is told that
//! there is no space.
//!
//! Invariant: what files have reserved and what is here are together what the running transaction has reserved.

use buttress_exact::Exact as _;
use buttress_locks::atomic::{AtomicBool, AtomicU64, Ordering};

/// See the module.
#[derive(Debug, Default)]
pub struct ReservedAhead {
    bytes: AtomicU64,
    /// How much the last refill reserved ahead: no more is kept.
    batch_bytes: AtomicU64,
    /// Whether dirty data took space, as of the last refill, that other edits need.
    is_short: AtomicBool,
    /// How much content may be dirty even then, as of the last refill.
    spared_bytes: AtomicU64,
}

impl ReservedAhead {
    /// Takes a reservation of so many bytes over; false, and nothing, when there are fewer.
    pub fn take(&self, bytes: u64) -> bool {
        self.bytes
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |ahead| {
                ahead.checked_sub(bytes)
            })
            .is_ok()
    }

    /// Takes a reservation back; gives what is left of it, which is too much to keep.
    pub fn give_back(&self, bytes: u64) -> u64 {
        let batch = self.batch_bytes.load(Ordering::Relaxed);
        let mut kept = 0;
        let _always = self
            .bytes
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |ahead| {
                kept = match buttress_faults::on("ahead-keeps-all") {
                    true => bytes,
                    // Clamp: a refill may make the batch smaller than what is here.
                    false => bytes.min(batch.saturating_sub(ahead)),
                };
                ahead.checked_add(kept)
            });
        if buttress_faults::on("ahead-rest-forgotten") {
            return 0;
        }
        bytes.exact_sub(kept)
    }

    /// What is here.
    pub fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Whether the last refill found that dirty data took space that other edits need.
    pub fn is_short(&self) -> bool {
        self.is_short.load(Ordering::Relaxed)
    }

    /// How much content may be dirty where space is short, as of the last refill.
    pub fn spared_bytes(&self) -> u64 {
        self.spared_bytes.load(Ordering::Relaxed)
    }

    pub(crate) fn set_spared_bytes(&self, bytes: u64) {
        self.spared_bytes.store(bytes, Ordering::Relaxed);
    }

    /// Adds a batch, which is the most that is kept from now on.
    pub(crate) fn refill(&self, batch: u64) {
        self.batch_bytes.store(batch, Ordering::Relaxed);
        self.bytes.fetch_add(batch, Ordering::Relaxed);
    }

    /// Takes all that is here, and keeps nothing from now on.
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
