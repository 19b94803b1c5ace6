//! The clock of simulated devices.
//!
//! It moves only when somebody waits for a simulated request, or charges CPU time. Devices of one pool share one
//! clock: what one caller waits for on one disk, the others' disks use to get on with their queues.
//!
//! Clamps: times and costs of a simulated disk; no bytes depend on them.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Virtual time since the clock was made, in nanoseconds; clones show the same time.
#[derive(Clone, Debug, Default)]
pub struct VirtualClock {
    nanoseconds: Arc<AtomicU64>,
}

impl VirtualClock {
    /// A clock that shows zero.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// The time it shows.
    #[must_use]
    pub fn now(&self) -> Duration {
        Duration::from_nanos(self.nanoseconds())
    }

    /// Lets `span` pass: the caller computes, and queued requests are served meanwhile.
    pub fn charge_cpu(&self, span: Duration) {
        let span = u64::try_from(span.as_nanos()).unwrap_or(u64::MAX);
        self.advance_to(self.nanoseconds().saturating_add(span));
    }

    /// The time it shows, in nanoseconds.
    #[must_use]
    pub fn nanoseconds(&self) -> u64 {
        self.nanoseconds.load(Ordering::Acquire)
    }

    /// Moves on to `nanoseconds`, unless it is later already: the clock never goes back. For a [`Schedule`](crate::Schedule).
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
