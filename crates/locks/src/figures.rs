//! Figures: hold times and wait times of locks.
//!
//! Measuring is off until [`measure`] switches it on for the whole process. Each hold of a lock
//! with a rank is then counted and timed by class, with separate figures for exclusive and shared
//! holds. Each wait for a lock that another thread holds is counted and timed too. [`read`] returns
//! the figures since [`reset`], a line for each class.
//!
//! A runnable thread without a processor still holds its locks. Linux reports this time as the *run
//! delay* of each thread. With [`measure_run_delay`], the longest times are also reported without
//! the run delay. Without the run delay, the hold time is the time of the code itself.
//!
//! Left out: leaf locks, which are held for a moment, and single threads: the figures are sums over
//! all threads.

use crate::class::Class;
use crate::stopwatch::{Stopwatch, Taken};
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use core::time::Duration;

static MEASURING: AtomicBool = AtomicBool::new(false);

/// The only lock rank to measure; 0 for all ranks.
static ONLY_RANK: AtomicU64 = AtomicU64::new(0);

/// The classes whose locks were acquired since the first measurement began.
static KNOWN: parking_lot::Mutex<Vec<&'static Figures>> = parking_lot::Mutex::new(Vec::new());

/// The sum of times of one kind.
#[derive(Debug)]
struct Times {
    count: AtomicU64,
    total_nanos: AtomicU64,
    longest_nanos: AtomicU64,
    longest_without_run_delay_nanos: AtomicU64,
}

/// The figures of one class.
#[derive(Debug)]
pub struct Figures {
    class: &'static Class,
    exclusive: Times,
    shared: Times,
    waits: Times,
    is_known: AtomicBool,
}

/// The measured times of one kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TimeFigures {
    /// The number of measured times.
    pub count: u64,
    /// The sum of all times.
    pub total: Duration,
    /// The longest time.
    pub longest: Duration,
    /// The longest time of a lock without its thread's run delay, if the run delay was measured.
    pub longest_without_run_delay: Duration,
}

/// The figures of one class of locks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LockFigures {
    /// The lock class, with its name and rank.
    pub class: &'static Class,
    /// The times of exclusive holds.
    pub exclusive: TimeFigures,
    /// The times of shared holds.
    pub shared: TimeFigures,
    /// The times of waits for a lock that was not free.
    pub waits: TimeFigures,
}

/// The mode in which a lock is held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    Exclusive,
    Shared,
}

impl Times {
    const fn new() -> Self {
        Self {
            count: AtomicU64::new(0),
            total_nanos: AtomicU64::new(0),
            longest_nanos: AtomicU64::new(0),
            longest_without_run_delay_nanos: AtomicU64::new(0),
        }
    }

    fn add(&self, taken: Taken) {
        let nanos = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        self.count.fetch_add(1, Ordering::Relaxed);
        self.total_nanos.fetch_add(nanos(taken.time), Ordering::Relaxed);
        self.longest_nanos.fetch_max(nanos(taken.time), Ordering::Relaxed);
        self.longest_without_run_delay_nanos
            .fetch_max(nanos(taken.without_run_delay()), Ordering::Relaxed);
    }

    fn read(&self) -> TimeFigures {
        TimeFigures {
            count: self.count.load(Ordering::Relaxed),
            total: Duration::from_nanos(self.total_nanos.load(Ordering::Relaxed)),
            longest: Duration::from_nanos(self.longest_nanos.load(Ordering::Relaxed)),
            longest_without_run_delay: Duration::from_nanos(
                self.longest_without_run_delay_nanos.load(Ordering::Relaxed),
            ),
        }
    }

    fn reset(&self) {
        self.count.store(0, Ordering::Relaxed);
        self.total_nanos.store(0, Ordering::Relaxed);
        self.longest_nanos.store(0, Ordering::Relaxed);
        self.longest_without_run_delay_nanos.store(0, Ordering::Relaxed);
    }
}

impl Figures {
    /// Makes empty figures of a lock class, for [`lock_class!`](crate::lock_class).
    #[must_use]
    pub const fn new(class: &'static Class) -> Self {
        Self {
            class,
            exclusive: Times::new(),
            shared: Times::new(),
            waits: Times::new(),
            is_known: AtomicBool::new(false),
        }
    }

    fn be_known(&'static self) {
        if !self.is_known.load(Ordering::Relaxed) && !self.is_known.swap(true, Ordering::Relaxed) {
            KNOWN.lock().push(self);
        }
    }

    pub(crate) fn add_hold(&'static self, mode: Mode, taken: Taken) {
        self.be_known();
        match mode {
            Mode::Exclusive => self.exclusive.add(taken),
            Mode::Shared => self.shared.add(taken),
        }
    }

    pub(crate) fn add_wait(&'static self, taken: Taken) {
        self.be_known();
        self.waits.add(taken);
    }
}

/// Returns true if locks of a class are currently timed.
#[inline]
pub(crate) fn is_measured(class: &Class) -> bool {
    class
        .rank
        .number()
        .is_some_and(|rank| MEASURING.load(Ordering::Relaxed) && is_wanted(u64::from(rank)))
}

fn is_wanted(rank: u64) -> bool {
    let only = ONLY_RANK.load(Ordering::Relaxed);
    only == 0 || only == rank
}

/// Starts a stopwatch if locks of the class are currently timed.
#[inline]
pub(crate) fn stopwatch(class: &Class) -> Option<Stopwatch> {
    is_measured(class).then(Stopwatch::start)
}

/// Switches measuring on or off. While measuring is on, a hold counts if it was measured from its
/// beginning.
pub fn measure(on: bool) {
    MEASURING.store(on, Ordering::Relaxed);
}

/// Switches the measuring of run delays ([`Stopwatch`]) on or off.
pub fn measure_run_delay(on: bool) {
    crate::stopwatch::measure_run_delay(on);
}

/// Measures only locks of `rank`, or of all ranks with `None`. Measuring inner locks would lengthen
/// the measured holds of outer locks.
pub fn measure_only(rank: Option<u8>) {
    ONLY_RANK.store(rank.map_or(0, u64::from), Ordering::Relaxed);
}

/// Clears the figures of all lock classes.
pub fn reset() {
    for figures in KNOWN.lock().iter() {
        figures.exclusive.reset();
        figures.shared.reset();
        figures.waits.reset();
    }
}

/// Returns the figures by rank, for classes whose locks were acquired while they were measured.
#[must_use]
pub fn read() -> Vec<LockFigures> {
    let known = KNOWN.lock();
    let mut read: Vec<_> = known
        .iter()
        .map(|figures| LockFigures {
            class: figures.class,
            exclusive: figures.exclusive.read(),
            shared: figures.shared.read(),
            waits: figures.waits.read(),
        })
        .collect();
    read.sort_by_key(|figures| {
        (
            figures.class.rank.number(),
            figures.class.name,
            figures.class.file,
        )
    });
    read
}
