//! How long locks are held and waited for.
//!
//! Off until [`measure`] switches it on, for the whole process. Then each hold of a lock with a rank is counted and timed by
//! its class, exclusive and shared holds apart, and so is each wait for one that somebody else had. [`read`] gives what was
//! gathered since [`reset`], a line for each class.
//!
//! A thread that is ready and has no processor holds its locks meanwhile. How long that was is known to Linux, as the *run delay*
//! of each thread; with [`measure_run_delay`] the longest times are also given without it: what is left is what the code does.
//!
//! Left out: leaves, which are held for a moment, and threads: figures are those of all threads.

use crate::class::Class;
use crate::stopwatch::{Stopwatch, Taken};
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use core::time::Duration;

static MEASURING: AtomicBool = AtomicBool::new(false);

/// The only rank that is measured; 0 for all of them.
static ONLY_RANK: AtomicU64 = AtomicU64::new(0);

/// Classes whose locks were taken since measuring began for the first time.
static KNOWN: parking_lot::Mutex<Vec<&'static Figures>> = parking_lot::Mutex::new(Vec::new());

/// Times of one kind, summed.
#[derive(Debug)]
struct Times {
    count: AtomicU64,
    total_nanos: AtomicU64,
    longest_nanos: AtomicU64,
    longest_without_run_delay_nanos: AtomicU64,
}

/// What is gathered for one class.
#[derive(Debug)]
pub struct Figures {
    class: &'static Class,
    exclusive: Times,
    shared: Times,
    waits: Times,
    is_known: AtomicBool,
}

/// Times of one kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TimeFigures {
    /// How often.
    pub count: u64,
    /// All of them together.
    pub total: Duration,
    /// The longest.
    pub longest: Duration,
    /// The longest of them without the run delay of its thread, if that was measured.
    pub longest_without_run_delay: Duration,
}

/// What was gathered for one class of locks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LockFigures {
    /// The name and the rank.
    pub class: &'static Class,
    /// Exclusive holds.
    pub exclusive: TimeFigures,
    /// Shared holds.
    pub shared: TimeFigures,
    /// Waits for a lock that was not free.
    pub waits: TimeFigures,
}

/// How a lock is held.
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
    /// None so far. For [`lock_class!`](crate::lock_class).
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

/// Whether locks of a class are to be timed now.
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

/// A stopwatch, if locks of the class are timed now.
#[inline]
pub(crate) fn stopwatch(class: &Class) -> Option<Stopwatch> {
    is_measured(class).then(Stopwatch::start)
}

/// Switches measuring on or off. A hold counts when it was measured from its beginning.
pub fn measure(on: bool) {
    MEASURING.store(on, Ordering::Relaxed);
}

/// Asks the system for the run delays of threads, too ([`Stopwatch`]).
pub fn measure_run_delay(on: bool) {
    crate::stopwatch::measure_run_delay(on);
}

/// Measures locks of `rank` alone, or of all ranks again: what is timed within a hold makes that hold longer.
pub fn measure_only(rank: Option<u8>) {
    ONLY_RANK.store(rank.map_or(0, u64::from), Ordering::Relaxed);
}

/// Forgets what was gathered.
pub fn reset() {
    for figures in KNOWN.lock().iter() {
        figures.exclusive.reset();
        figures.shared.reset();
        figures.waits.reset();
    }
}

/// What was gathered, by rank: classes whose locks were taken while that was measured.
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
