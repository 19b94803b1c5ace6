//! The rate limit of a job.
//!
//! Each batch is due at a moment that follows from the bytes moved so far. The time that a batch
//! itself takes counts. A job that was slower than its limit may catch up, but only by
//! [`CREDIT_MAX`].

use buttress_exact::Exact as _;
use buttress_fs::error::Result;
use buttress_fs::progress::Progress;
use core::time::Duration;
use std::time::Instant;

/// The longest sleep between two checks for the job's cancellation.
const SLEEP_MAX: Duration = Duration::from_millis(100);

/// The longest time without moved bytes that a job may catch up.
const CREDIT_MAX: Duration = Duration::from_secs(1);

/// Limits the rate of batches.
#[derive(Debug)]
pub(super) struct Pace {
    bytes_per_second: Option<u64>,
    /// The moment at which the rate limit allows the bytes moved so far.
    due: Instant,
}

impl Pace {
    /// Returns the limit of a job that begins `now`.
    pub(super) fn new(bytes_per_second: Option<u64>, now: Instant) -> Self {
        Self {
            bytes_per_second: bytes_per_second.filter(|rate| *rate > 0),
            due: now,
        }
    }

    /// Waits until the rate limit allows a batch of this many bytes.
    pub(super) fn wait(&mut self, bytes: u64, progress: &Progress) -> Result<()> {
        let Some(due) = self.due_after(bytes, Instant::now()) else {
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

    /// Counts a batch that has ended `now`. Returns the moment at which the next one may begin.
    fn due_after(&mut self, bytes: u64, now: Instant) -> Option<Instant> {
        let rate = self.bytes_per_second?;
        let nanoseconds = u128::from(bytes)
            .exact_mul(1_000_000_000)
            .quotient(u128::from(rate));
        // Clamp: a rate of one byte a second makes durations of centuries.
        let span = Duration::from_nanos(u64::try_from(nanoseconds).unwrap_or(u64::MAX));
        // Clamp: no clock runs for so long.
        let due = self.due.checked_add(span).unwrap_or(now);
        self.due = match now.checked_sub(CREDIT_MAX) {
            Some(earliest) if !buttress_faults::on("relocation-limit-forgets") => due.max(earliest),
            _ => due.max(now),
        };
        Some(self.due)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RATE: u64 = 10 << 20;
    const BATCH: u64 = 1 << 20;

    /// Runs batches that take these times themselves, on a clock of the test. Returns bytes per
    /// second.
    fn rate_of(batches: &[Duration]) -> f64 {
        let start = Instant::now();
        let mut now = start;
        let mut pace = Pace::new(Some(RATE), now);
        for batch in batches {
            now += *batch;
            now = now.max(pace.due_after(BATCH, now).unwrap());
        }
        (batches.len() as u64 * BATCH) as f64 / (now - start).as_secs_f64()
    }

    #[test]
    fn limited_rate_is_within_a_tenth_of_the_limit() {
        for batch in [0, 1, 40, 90, 99] {
            let rate = rate_of(&[Duration::from_millis(batch); 50]);
            let part = rate / RATE as f64;
            assert!((0.9..=1.1).contains(&part), "batches of {batch} ms: {part}");
        }
    }

    /// At the limit, a batch takes 100 ms.
    #[test]
    fn job_catches_up_after_each_slow_batch() {
        let batches = [150, 10].map(Duration::from_millis).repeat(25);
        let part = rate_of(&batches) / RATE as f64;
        assert!((0.9..=1.1).contains(&part), "{part}");
    }

    #[test]
    fn stalled_job_does_not_catch_up_at_full_speed() {
        let mut batches = [Duration::from_millis(1); 50];
        batches[1] = Duration::from_secs(60);
        let rate = rate_of(&batches);
        assert!(rate < RATE as f64 / 10.0, "{rate}");
        let start = Instant::now();
        let mut pace = Pace::new(Some(RATE), start);
        let late = start + Duration::from_secs(60);
        assert_eq!(pace.due_after(BATCH, late), Some(late - CREDIT_MAX));
    }

    #[test]
    fn job_without_a_limit_never_waits() {
        let now = Instant::now();
        for rate in [None, Some(0)] {
            assert_eq!(Pace::new(rate, now).due_after(u64::MAX, now), None);
        }
    }
}
