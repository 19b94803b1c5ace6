//! The counters of the request queue, and the figures that iostat derives from them.
//!
//! Source: the manual page iostat(1), "Device Utilization Report", for the meaning of each column.
//! A request is counted when it completes, after merging. The waiting time of a request begins when
//! the request is queued.
//!
//! Clamps: statistics may stop at their largest number; a clock may stand still.

use std::fmt;
use std::time::Duration;

use buttress_locks::unscheduled::Mutex;
use buttress_locks::{Rank, lock_class};

lock_class!(StatisticsLock, "state", Rank::LEAF);

/// The raw counters of one direction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// The number of completed requests, after merging.
    pub requests: u64,
    /// The number of requests that were merged into a neighbour, and are not counted in `requests`.
    pub merged: u64,
    /// The bytes of completed requests.
    pub bytes: u64,
    /// The sum of the times from queueing to completion of all completed requests.
    pub waited: Duration,
}

impl Counters {
    fn since(&self, earlier: &Self) -> Self {
        Self {
            requests: self.requests.saturating_sub(earlier.requests),
            merged: self.merged.saturating_sub(earlier.merged),
            bytes: self.bytes.saturating_sub(earlier.bytes),
            waited: self.waited.saturating_sub(earlier.waited),
        }
    }

    /// `%rrqm` or `%wrqm`: the share of requests that were merged, in percent.
    #[must_use]
    pub fn merged_percent(&self) -> f64 {
        ratio(self.merged, self.merged.saturating_add(self.requests)) * 100.0
    }

    /// `r_await` or `w_await`: the mean time from being queued to completion, in milliseconds.
    #[must_use]
    pub fn await_milliseconds(&self) -> f64 {
        if self.requests == 0 {
            0.0
        } else {
            self.waited.as_secs_f64() * 1e3 / real(self.requests)
        }
    }

    /// `rareq-sz` or `wareq-sz`: the mean size of a request after merging, in KiB.
    #[must_use]
    pub fn request_kibibytes(&self) -> f64 {
        ratio(self.bytes, self.requests) / 1024.0
    }
}

/// Reads that reached no device, because the page cache held all their bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Copies {
    /// The number of read requests, after merging.
    pub reads: u64,
    /// The bytes of the counted reads.
    pub bytes: u64,
}

impl Copies {
    fn since(&self, earlier: &Self) -> Self {
        Self {
            reads: self.reads.saturating_sub(earlier.reads),
            bytes: self.bytes.saturating_sub(earlier.bytes),
        }
    }
}

/// A device's activity in a span of time. The statistics print (`{}`) as a row of `iostat -x`,
/// under [`Self::HEADER`].
#[derive(Clone, Debug, Default, PartialEq)]
pub struct QueueStatistics {
    /// The device's name.
    pub device: String,
    /// The span of time: real for real devices, virtual for simulated ones.
    pub elapsed: Duration,
    /// The counters of reads.
    pub reads: Counters,
    /// The counters of writes.
    pub writes: Counters,
    /// The time during which at least one request was queued or in service.
    pub busy: Duration,
    /// The number of requests that were cancelled before they were started. No other counter
    /// includes cancelled requests.
    pub cancelled: u64,
    /// Reads that the page cache served. No other counter includes reads from the page cache,
    /// because iostat does not see them. Large reads through io_uring count as device reads,
    /// because the kernel does not report their source.
    pub copies: Copies,
}

impl QueueStatistics {
    /// The column heads of the printed row.
    pub const HEADER: &str = "Device               r/s      rkB/s   rrqm/s  %rrqm r_await rareq-sz      w/s      wkB/s   wrqm/s  %wrqm w_await wareq-sz aqu-sz  %util";

    /// Returns the difference from an earlier reading of the same device's counters.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        Self {
            device: self.device.clone(),
            elapsed: self.elapsed.saturating_sub(earlier.elapsed),
            reads: self.reads.since(&earlier.reads),
            writes: self.writes.since(&earlier.writes),
            busy: self.busy.saturating_sub(earlier.busy),
            cancelled: self.cancelled.saturating_sub(earlier.cancelled),
            copies: self.copies.since(&earlier.copies),
        }
    }

    /// `count` per second of the span: `r/s`, `rrqm/s`, `w/s`, `wrqm/s`.
    #[must_use]
    pub fn per_second(&self, count: u64) -> f64 {
        let seconds = self.elapsed.as_secs_f64();
        if seconds > 0.0 { real(count) / seconds } else { 0.0 }
    }

    /// `rkB/s` or `wkB/s`: KiB per second.
    #[must_use]
    pub fn kibibytes_per_second(&self, counters: &Counters) -> f64 {
        self.per_second(counters.bytes) / 1024.0
    }

    /// `aqu-sz`: the mean number of requests in the queue or in service, computed by Little's law.
    #[must_use]
    pub fn mean_queue_depth(&self) -> f64 {
        let seconds = self.elapsed.as_secs_f64();
        let waited = self.reads.waited.saturating_add(self.writes.waited).as_secs_f64();
        if seconds > 0.0 { waited / seconds } else { 0.0 }
    }

    /// `%util`: the share of the span in which the device had something to do, in percent.
    #[must_use]
    pub fn utilisation_percent(&self) -> f64 {
        let seconds = self.elapsed.as_secs_f64();
        if seconds > 0.0 {
            self.busy.as_secs_f64() / seconds * 100.0
        } else {
            0.0
        }
    }
}

impl fmt::Display for QueueStatistics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:<12}", self.device)?;
        for counters in [&self.reads, &self.writes] {
            write!(
                f,
                " {:>11.2} {:>10.2} {:>8.2} {:>6.2} {:>7.2} {:>8.2}",
                self.per_second(counters.requests),
                self.kibibytes_per_second(counters),
                self.per_second(counters.merged),
                counters.merged_percent(),
                counters.await_milliseconds(),
                counters.request_kibibytes(),
            )?;
        }
        write!(
            f,
            " {:>6.2} {:>6.2}",
            self.mean_queue_depth(),
            self.utilisation_percent()
        )
    }
}

#[expect(
    clippy::cast_precision_loss,
    reason = "figures for people; 53 bits are exact enough"
)]
fn real(count: u64) -> f64 {
    count as f64
}

fn ratio(part: u64, whole: u64) -> f64 {
    if whole == 0 { 0.0 } else { real(part) / real(whole) }
}

/// The direction of the bytes: read or write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Direction {
    Read,
    Write,
}

/// The counters of a running device queue. Callers pass times as spans since the device was opened,
/// so the recorder serves real and virtual clocks alike.
#[derive(Debug, Default)]
pub(crate) struct Recorder {
    state: Mutex<State, StatisticsLock>,
}

#[derive(Debug, Default)]
struct State {
    reads: Counters,
    writes: Counters,
    cancelled: u64,
    copies: Copies,
    in_flight: u64,
    busy: Duration,
    busy_since: Duration,
}

impl Recorder {
    /// Records that `count` requests (after merging) were queued at `now`.
    pub(crate) fn queued(&self, count: usize, now: Duration) {
        let mut state = self.state.lock();
        if state.in_flight == 0 {
            state.busy_since = now;
        }
        state.in_flight = state.in_flight.saturating_add(crate::error::byte_length(count));
    }

    /// Records the completion at `now` of a request of `bytes`, queued at `queued`, into which
    /// `merged` other requests were merged.
    pub(crate) fn completed(
        &self,
        direction: Direction,
        bytes: u64,
        merged: usize,
        queued: Duration,
        now: Duration,
    ) {
        let mut state = self.state.lock();
        let counters = match direction {
            Direction::Read => &mut state.reads,
            Direction::Write => &mut state.writes,
        };
        counters.requests = counters.requests.saturating_add(1);
        counters.merged = counters.merged.saturating_add(crate::error::byte_length(merged));
        counters.bytes = counters.bytes.saturating_add(bytes);
        counters.waited = counters.waited.saturating_add(now.saturating_sub(queued));
        state.left_the_queue(now);
    }

    /// Records bytes that were copied from memory without being queued.
    pub(crate) fn copied(&self, bytes: u64) {
        self.state.lock().count_copy(bytes);
    }

    /// Records bytes of a queued request that were copied from memory.
    pub(crate) fn copied_from_queue(&self, bytes: u64, now: Duration) {
        let mut state = self.state.lock();
        state.count_copy(bytes);
        state.left_the_queue(now);
    }

    /// Records that a queued request was cancelled before it was started.
    pub(crate) fn cancelled(&self, now: Duration) {
        let mut state = self.state.lock();
        state.cancelled = state.cancelled.saturating_add(1);
        state.left_the_queue(now);
    }

    pub(crate) fn read(&self, device: &str, elapsed: Duration) -> QueueStatistics {
        let state = self.state.lock();
        let running = if state.in_flight == 0 {
            Duration::ZERO
        } else {
            elapsed.saturating_sub(state.busy_since)
        };
        QueueStatistics {
            device: device.to_owned(),
            elapsed,
            reads: state.reads,
            writes: state.writes,
            busy: state.busy.saturating_add(running),
            cancelled: state.cancelled,
            copies: state.copies,
        }
    }
}

impl State {
    fn count_copy(&mut self, bytes: u64) {
        self.copies.reads = self.copies.reads.saturating_add(1);
        self.copies.bytes = self.copies.bytes.saturating_add(bytes);
    }

    fn left_the_queue(&mut self, now: Duration) {
        self.in_flight = self.in_flight.saturating_sub(1);
        if self.in_flight == 0 {
            self.busy = self.busy.saturating_add(now.saturating_sub(self.busy_since));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn near(value: f64, expected: f64, tolerance: f64) {
        assert!(
            (value - expected).abs() <= tolerance,
            "{value} is not within {tolerance} of {expected}"
        );
    }

    /// The numbers are one second of a drive, in the v6.3 row of the kernel's commit ae76d8e3e135.
    /// The test's numbers are 9731 reads a second, 17237 merges, 3425544 KiB, and 2.18 ms each. The
    /// other columns of the row must equal those that iostat printed.
    #[test]
    fn a_published_row_of_iostat_is_reproduced() {
        let statistics = QueueStatistics {
            device: "nvme0n1p3".to_owned(),
            elapsed: Duration::from_secs(1),
            reads: Counters {
                requests: 9731,
                merged: 17_237,
                bytes: 3_425_544 * 1024,
                waited: Duration::from_micros(2180) * 9731,
            },
            busy: Duration::from_secs(1),
            ..QueueStatistics::default()
        };
        near(statistics.reads.merged_percent(), 63.92, 0.005);
        near(statistics.reads.request_kibibytes(), 352.02, 0.01);
        near(statistics.reads.await_milliseconds(), 2.18, 0.001);
        // The latency of 2.18 ms is itself rounded to 0.01 ms, which allows a difference of 9731 x
        // 0.005 ms.
        near(statistics.mean_queue_depth(), 21.18, 0.05);
        let row = statistics.to_string();
        assert!(row.starts_with("nvme0n1p3"), "{row}");
        for figure in [
            "9731.00",
            "3425544.00",
            "17237.00",
            "63.92",
            "2.18",
            "352.02",
            "100.00",
        ] {
            assert!(
                row.split_whitespace().any(|word| word == figure),
                "{figure} in {row}"
            );
        }
        assert_eq!(
            row.split_whitespace().count(),
            QueueStatistics::HEADER.split_whitespace().count()
        );
    }

    /// Computed by hand: A [0, 10) ms and B [5, 20) ms overlap, then nothing runs until C [30, 40).
    /// The three requests keep the device busy for 20 + 10 ms. The test's requests wait 10 + 15 +
    /// 10 = 35 ms in 50 ms, a mean depth of 0.7.
    #[test]
    fn overlapping_requests_are_busy_once_and_waited_twice() {
        let ms = Duration::from_millis;
        let recorder = Recorder::default();
        recorder.queued(1, ms(0));
        recorder.queued(1, ms(5));
        recorder.completed(Direction::Read, 4096, 1, ms(0), ms(10));
        recorder.completed(Direction::Write, 8192, 0, ms(5), ms(20));
        recorder.queued(1, ms(30));
        recorder.completed(Direction::Read, 4096, 0, ms(30), ms(40));
        let statistics = recorder.read("test", ms(50));
        assert_eq!(statistics.busy, ms(30));
        near(statistics.mean_queue_depth(), 0.7, 1e-9);
        near(statistics.utilisation_percent(), 60.0, 1e-9);
        near(statistics.reads.await_milliseconds(), 10.0, 1e-9);
        near(statistics.reads.merged_percent(), 100.0 / 3.0, 1e-9);
        assert_eq!(
            statistics.writes,
            Counters {
                requests: 1,
                merged: 0,
                bytes: 8192,
                waited: ms(15)
            }
        );

        let later = recorder.read("test", ms(60)).since(&statistics);
        assert_eq!(later.reads, Counters::default());
        assert_eq!(later.elapsed, ms(10));
    }

    #[test]
    fn cancelled_requests_leave_the_queue_uncounted() {
        let recorder = Recorder::default();
        recorder.queued(2, Duration::ZERO);
        recorder.cancelled(Duration::from_millis(1));
        recorder.cancelled(Duration::from_millis(2));
        let statistics = recorder.read("test", Duration::from_millis(9));
        assert_eq!((statistics.cancelled, statistics.reads.requests), (2, 0));
        assert_eq!(statistics.busy, Duration::from_millis(2));
    }

    #[test]
    fn copies_are_no_requests() {
        let recorder = Recorder::default();
        recorder.copied(4096);
        recorder.queued(1, Duration::ZERO);
        recorder.copied_from_queue(8192, Duration::from_millis(1));
        let statistics = recorder.read("test", Duration::from_millis(9));
        assert_eq!(statistics.reads, Counters::default());
        assert_eq!(
            statistics.copies,
            Copies {
                reads: 2,
                bytes: 12_288
            }
        );
        assert_eq!(
            statistics.busy,
            Duration::from_millis(1),
            "the queue is empty again"
        );
        assert_eq!(statistics.since(&statistics).copies, Copies::default());
    }

    #[test]
    fn nothing_done_divides_by_nothing() {
        let statistics = QueueStatistics::default();
        assert!(!statistics.to_string().contains("NaN"), "{statistics}");
    }
}
