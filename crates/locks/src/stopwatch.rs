//! How long something takes, and for how much of that its thread had no processor.
//!
//! Linux counts for each thread how long it was ready to run and did not (`schedstat`, its second number: the run delay). It is read
//! from a file that each thread keeps open. Where there is none, the run delay is 0.
//!
//! To read it takes some microseconds, longer than most locks are held. So it is read at the end of what took a millisecond or more, and
//! at a beginning only when the thread's last reading is older than [`OLDEST_READING`]: by so much the delay may be too long.

use core::cell::Cell;
use core::sync::atomic::{AtomicBool, Ordering};
use core::time::Duration;
#[cfg(target_os = "linux")]
use std::fs::File;
#[cfg(target_os = "linux")]
use std::os::unix::fs::FileExt;
use std::time::Instant;

static MEASURING_RUN_DELAY: AtomicBool = AtomicBool::new(false);

/// How old a reading may be that stands for a beginning.
const OLDEST_READING: Duration = Duration::from_micros(200);

/// The shortest time of which the run delay is asked for.
const SHORTEST_ASKED: Duration = Duration::from_millis(1);

std::thread_local! {
    #[cfg(target_os = "linux")]
    static SCHEDSTAT: Option<File> = File::open("/proc/thread-self/schedstat").ok();
    static READING: Cell<Option<Reading>> = const { Cell::new(None) };
}

/// The run delay of a thread at some time.
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

    /// The thread's last one, if it is new enough; else one of now.
    fn recent() -> Option<Self> {
        let last = READING.try_with(Cell::get).ok().flatten();
        last.filter(|last| last.at.elapsed() < OLDEST_READING)
            .or_else(Self::new)
    }
}

/// Runs from its start.
#[derive(Clone, Copy, Debug)]
pub struct Stopwatch {
    start: Instant,
    before: Option<Reading>,
}

/// What a [`Stopwatch`] measured.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Taken {
    /// From its start.
    pub time: Duration,
    /// How much of it the thread was ready and had no processor; 0 while that is not measured, and of less than a millisecond.
    pub run_delay: Duration,
}

impl Taken {
    /// The time for which the thread ran, or waited for something else than a processor.
    #[must_use]
    pub fn without_run_delay(self) -> Duration {
        self.time.saturating_sub(self.run_delay)
    }
}

impl Stopwatch {
    /// Starts one.
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

    /// Since its start, on the thread that started it.
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

/// Switches it on or off, for all threads.
pub(crate) fn measure_run_delay(on: bool) {
    MEASURING_RUN_DELAY.store(on, Ordering::Relaxed);
}

/// For how long this thread was ready to run and did not.
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

/// Other systems do not say.
#[cfg(not(target_os = "linux"))]
const fn run_delay() -> Option<Duration> {
    None
}

/// The run delay in the text of a `schedstat`: time on a processor, run delay, both in nanoseconds, and how often it ran.
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

    /// More threads than processors, all of them at work: each waits for no longer than it took, and its time has both.
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
