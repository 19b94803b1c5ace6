//! The clock of simulated devices.
//!
//! The clock advances only when a thread waits for a simulated request, or charges CPU time.
//! Devices of one pool share one clock. While one caller waits for one simulated disk, the other
//! disks serve their queues.
//!
//! Clamps: the times and costs belong to a simulated disk; no bytes depend on them.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Virtual time since the clock was made, in nanoseconds. All clones show the same time.
#[derive(Clone, Debug, Default)]
pub struct VirtualClock {
    nanoseconds: Arc<AtomicU64>,
}

impl VirtualClock {
    /// Makes a clock at zero.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Returns the current time.
    #[must_use]
    pub fn now(&self) -> Duration {
        Duration::from_nanos(self.nanoseconds())
    }

    /// Advances by `span`: the caller computes, and queued requests are served during this time.
    pub fn charge_cpu(&self, span: Duration) {
        let span = u64::try_from(span.as_nanos()).unwrap_or(u64::MAX);
        self.advance_to(self.nanoseconds().saturating_add(span));
    }

    /// Returns the current time in nanoseconds.
    #[must_use]
    pub fn nanoseconds(&self) -> u64 {
        self.nanoseconds.load(Ordering::Acquire)
    }

    /// Advances to `nanoseconds`, unless the clock is already later. The clock never goes back. The
    /// calls of this kind are for a [`Schedule`](crate::Schedule).
    pub fn advance_to(&self, nanoseconds: u64) {
        self.nanoseconds.fetch_max(nanoseconds, Ordering::AcqRel);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_is_shared_and_never_goes_back() {
        let clock = VirtualClock::new();
        let same = clock.clone();
        clock.charge_cpu(Duration::from_micros(3));
        assert_eq!(same.now(), Duration::from_micros(3));
        same.advance_to(1);
        assert_eq!(clock.nanoseconds(), 3000);
    }
}
