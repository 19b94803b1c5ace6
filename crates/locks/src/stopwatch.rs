//! Stopwatches: the duration of a piece of work, and the part of it in which its thread had no
//! processor.
//!
//! For each thread, Linux counts how long it was runnable without running. This is the run delay,
//! the second number of `schedstat`. Each thread keeps its `schedstat` file open and reads it.
//! Without the file, the run delay is 0.
//!
//! Reading the file takes some microseconds, longer than most locks are held. The stopwatch reads
//! it at the end of work that took a millisecond or more. At the beginning, it reads the file only
//! if the thread's last reading is older than [`OLDEST_READING`]. The run delay may be too long by
//! this time.

use core::cell::Cell;
use core::sync::atomic::{AtomicBool, Ordering};
use core::time::Duration;
#[cfg(target_os = "linux")]
use std::fs::File;
#[cfg(target_os = "linux")]
use std::os::unix::fs::FileExt;
use std::time::Instant;

static MEASURING_RUN_DELAY: AtomicBool = AtomicBool::new(false);

/// The maximum age of a reading that serves as the beginning.
const OLDEST_READING: Duration = Duration::from_micros(200);

/// The minimum duration for which the run delay is read.
const SHORTEST_ASKED: Duration = Duration::from_millis(1);

std::thread_local! {
    #[cfg(target_os = "linux")]
    static SCHEDSTAT: Option<File> = File::open("/proc/thread-self/schedstat").ok();
    static READING: Cell<Option<Reading>> = const { Cell::new(None) };
}

/// A reading of a thread's run delay, with its time.
#[derive(Clone, Copy, Debug)]
struct Reading {
    at: Instant,
    run_delay: Duration,
}

impl Reading {
    fn new() -> Option<Self> {
        let reading = run_delay().map(|run_delay| Self {
            at: Instant::now(),
            run_delay,
        });
        let _ = READING.try_with(|last| last.set(reading));
        reading
    }

    /// Returns the thread's last reading if it is recent enough, or else a new one.
    fn recent() -> Option<Self> {
        let last = READING.try_with(Cell::get).ok().flatten();
        last.filter(|last| last.at.elapsed() < OLDEST_READING)
            .or_else(Self::new)
    }
}

/// A stopwatch that runs from its start.
#[derive(Clone, Copy, Debug)]
pub struct Stopwatch {
    start: Instant,
    before: Option<Reading>,
}

/// The measurement of a [`Stopwatch`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Taken {
    /// The time since the start.
    pub time: Duration,
    /// The part of the time in which the thread was runnable without a processor. Zero if this is
    /// not measured, and below a millisecond.
    pub run_delay: Duration,
}

impl Taken {
    /// Returns the time in which the thread ran, or waited for something other than a processor.
    #[must_use]
    pub fn without_run_delay(self) -> Duration {
        self.time.saturating_sub(self.run_delay)
    }
}

impl Stopwatch {
    /// Starts a stopwatch.
    #[must_use]
    pub fn start() -> Self {
        let before = MEASURING_RUN_DELAY
            .load(Ordering::Relaxed)
            .then(Reading::recent)
            .flatten();
        Self {
            start: Instant::now(),
            before,
        }
    }

    /// Returns the time since the start. The caller's thread must be the thread that started the
    /// stopwatch.
    #[must_use]
    pub fn taken(&self) -> Taken {
        let time = self.start.elapsed();
        let asked = self.before.filter(|_| time >= SHORTEST_ASKED);
        let since = |before: Reading| Some(Reading::new()?.run_delay.saturating_sub(before.run_delay));
        Taken {
            time,
            run_delay: asked.and_then(since).unwrap_or_default().min(time),
        }
    }
}

/// Switches the measuring of run delays on or off, for all threads.
pub(crate) fn measure_run_delay(on: bool) {
    MEASURING_RUN_DELAY.store(on, Ordering::Relaxed);
}

/// Returns the total run delay of this thread.
#[cfg(target_os = "linux")]
fn run_delay() -> Option<Duration> {
    SCHEDSTAT
        .try_with(|file| {
            let mut text = [0; 96];
            let length = file.as_ref()?.read_at(&mut text, 0).ok()?;
            run_delay_in(core::str::from_utf8(text.get(..length)?).ok()?)
        })
        .ok()
        .flatten()
}

/// Other systems do not report a run delay.
#[cfg(not(target_os = "linux"))]
const fn run_delay() -> Option<Duration> {
    None
}

/// Returns the run delay in the text of a `schedstat`. A `schedstat` holds three numbers: time on a
/// processor and run delay, both in nanoseconds, and the number of runs.
#[cfg(any(target_os = "linux", test))]
fn run_delay_in(text: &str) -> Option<Duration> {
    let nanos = text.split_ascii_whitespace().nth(1)?.parse().ok()?;
    Some(Duration::from_nanos(nanos))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_run_delay_is_the_second_number() {
        assert_eq!(
            run_delay_in("5000 1234567 89\n"),
            Some(Duration::from_nanos(1_234_567))
        );
        for broken in ["", "5000", "5000 x 89"] {
            assert_eq!(run_delay_in(broken), None);
        }
    }

    /// More threads than processors are busy. The run delay of each is at most its time, and its
    /// time includes it.
    #[test]
    #[cfg_attr(miri, ignore = "the run delay comes from /proc")]
    fn a_run_delay_is_a_part_of_the_time() {
        let threads = std::thread::available_parallelism().unwrap().get() * 3;
        measure_run_delay(true);
        let taken: Vec<Taken> = std::thread::scope(|scope| {
            let work = || {
                let stopwatch = Stopwatch::start();
                while stopwatch.start.elapsed() < Duration::from_millis(50) {
                    core::hint::spin_loop();
                }
                stopwatch.taken()
            };
            let threads: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        measure_run_delay(false);
        for taken in &taken {
            assert!(taken.run_delay <= taken.time, "{taken:?}");
            assert_eq!(taken.without_run_delay() + taken.run_delay, taken.time);
        }
        let stopwatch = Stopwatch::start();
        assert_eq!(
            stopwatch.taken().run_delay,
            Duration::ZERO,
            "it is not measured now"
        );
    }
}
