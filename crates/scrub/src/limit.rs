//! A limit of bytes per second, for each device.

use buttress_exact::Exact as _;
use buttress_locks::{Mutex, Rank, lock_class};
use core::time::Duration;
use std::time::Instant;

lock_class!(DueLock, "due", Rank::LEAF);

/// Limits the bytes per second of one device.
#[derive(Debug)]
pub(crate) struct Limiter {
    bytes_per_second: Option<u64>,
    /// The time at which the bytes admitted so far will be due.
    due: Mutex<Option<Instant>, DueLock>,
}

impl Limiter {
    pub(crate) const fn new(bytes_per_second: Option<u64>) -> Self {
        Self {
            bytes_per_second,
            due: Mutex::new(None),
        }
    }

    /// Returns how long to wait before `bytes` more are requested from the device.
    pub(crate) fn delay(&self, bytes: u64, now: Instant) -> Duration {
        let Some(rate) = self.bytes_per_second.filter(|rate| *rate > 0) else {
            return Duration::ZERO;
        };
        let nanoseconds = u128::from(bytes)
            .exact_mul(1_000_000_000)
            .quotient(u128::from(rate));
        // Clamp: a rate of one byte per second gives spans of centuries.
        let span = Duration::from_nanos(u64::try_from(nanoseconds).unwrap_or(u64::MAX));
        let mut due = self.due.lock();
        let begin = due.map_or(now, |due| due.max(now));
        *due = begin.checked_add(span);
        // Clamp: a time in the past needs no wait.
        begin.saturating_duration_since(now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_let_through_at_the_rate() {
        let now = Instant::now();
        let limiter = Limiter::new(Some(1000));
        assert_eq!(limiter.delay(500, now), Duration::ZERO);
        assert_eq!(limiter.delay(500, now), Duration::from_millis(500));
        assert_eq!(limiter.delay(1, now), Duration::from_secs(1));
        // The limit does not accumulate bytes that were unused in the past.
        let later = now + Duration::from_secs(60);
        assert_eq!(limiter.delay(1000, later), Duration::ZERO);
        assert_eq!(limiter.delay(1, later), Duration::from_secs(1));
        assert_eq!(Limiter::new(None).delay(u64::MAX, now), Duration::ZERO);
    }
}
