//! The rate limit of a job.

use buttress_exact::Exact as _;
use buttress_fs::error::Result;
use buttress_fs::progress::Progress;
use core::time::Duration;
use std::time::Instant;

/// The longest sleep between two checks for the job's cancellation.
const SLEEP_MAX: Duration = Duration::from_millis(100);

/// Lets batches through at a rate.
#[derive(Debug)]
pub(super) struct Pace {
    bytes_per_second: Option<u64>,
    /// The moment at which the rate limit allows the bytes moved so far.
    due: Option<Instant>,
}

impl Pace {
    pub(super) fn new(bytes_per_second: Option<u64>) -> Self {
        Self {
            bytes_per_second: bytes_per_second.filter(|rate| *rate > 0),
            due: None,
        }
    }

    /// Waits until the rate limit allows a batch of this many bytes.
    pub(super) fn wait(&mut self, bytes: u64, progress: &Progress) -> Result<()> {
        let Some(rate) = self.bytes_per_second else {
            return Ok(());
        };
        let nanoseconds = u128::from(bytes)
            .exact_mul(1_000_000_000)
            .quotient(u128::from(rate));
        // Clamp: a rate of one byte a second makes durations of centuries.
        let span = Duration::from_nanos(u64::try_from(nanoseconds).unwrap_or(u64::MAX));
        let now = Instant::now();
        self.due = self.due.map_or(now, |due| due.max(now)).checked_add(span);
        let Some(due) = self.due else {
            return Ok(());
        };
        loop {
            progress.check()?;
            // Clamp: if the due time has passed, the wait is zero.
            let left = due.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(());
            }
            std::thread::sleep(left.min(SLEEP_MAX));
        }
    }
}
