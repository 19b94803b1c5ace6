//! A commit soon after the last file that was open for writing is closed.
//!
//! A program that unmounts with `fusermount3 -u` learns that the kernel let go, not that the server is done. So little should be left
//! to do by then: when no file is open for writing any more, and nobody has written for a second, what is not committed is.
//! While files come and go there is no such commit: the one that the commit interval brings is enough.
//!
//! A close wakes the thread only if the thread sleeps without a deadline. A wake-up for each close would cost a program that
//! makes many files a switch of threads for each.

use super::handles::Handles;
use buttress::unstable::writer::WritableFilesystem;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use core::time::Duration;
use crossbeam_channel::{Receiver, RecvTimeoutError, Sender};
use parking_lot::Mutex;
use std::sync::Arc;
use std::thread::{Builder, JoinHandle};
use std::time::Instant;

/// How long nothing is closed before it is taken for the last.
const QUIET: Duration = Duration::from_secs(1);

/// The closes so far, as the thread sees them.
#[derive(Debug)]
struct Closes {
    start: Instant,
    /// When a file was closed last, in nanoseconds since `start`.
    last_ns: AtomicU64,
    /// The thread waits for a time to pass, and inspects `last_ns` then.
    is_timed: AtomicBool,
}

impl Closes {
    fn new() -> Self {
        Self {
            start: Instant::now(),
            last_ns: AtomicU64::new(0),
            is_timed: AtomicBool::new(false),
        }
    }

    /// Notes a close. Returns whether the thread has to be woken.
    fn note(&self) -> bool {
        // Clamp: 584 years.
        let now = u64::try_from(self.start.elapsed().as_nanos()).unwrap_or(u64::MAX);
        self.last_ns.store(now, Ordering::SeqCst);
        !self.is_timed.swap(true, Ordering::SeqCst)
    }

    /// Returns for how long nothing has to be closed from now on.
    fn rest(&self, last_ns: u64) -> Duration {
        // Clamp: zero when the time has passed.
        QUIET.saturating_sub(self.start.elapsed().saturating_sub(Duration::from_nanos(last_ns)))
    }
}

/// See the module.
#[derive(Debug)]
pub(super) struct Idle {
    closes: Arc<Closes>,
    /// Leaves.
    closed: Mutex<Option<Sender<()>>>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Idle {
    /// Starts the thread; `None` where none can be had: then commits happen by time and by size only.
    pub(super) fn start(writer: WritableFilesystem, handles: Arc<Handles>) -> Option<Self> {
        let (closed, closings) = crossbeam_channel::bounded(1);
        let closes = Arc::new(Closes::new());
        let seen = Arc::clone(&closes);
        let thread = Builder::new()
            .name("buttress-idle".to_owned())
            .spawn(move || run(&writer, &handles, &seen, &closings))
            .ok()?;
        Some(Self {
            closes,
            closed: Mutex::new(Some(closed)),
            thread: Mutex::new(Some(thread)),
        })
    }

    /// The last file that was open for writing was closed.
    pub(super) fn closed(&self) {
        if self.closes.note()
            && let Some(closed) = self.closed.lock().as_ref()
        {
            let _is_new = closed.try_send(()).is_ok();
        }
    }

    /// Waits for a commit under way; there is none after that.
    pub(super) fn stop(&self) {
        drop(self.closed.lock().take());
        let thread = self.thread.lock().take();
        if let Some(thread) = thread {
            // A panic there has been printed.
            drop(thread.join());
        }
    }
}

impl Drop for Idle {
    fn drop(&mut self) {
        self.stop();
    }
}

fn run(writer: &WritableFilesystem, handles: &Handles, closes: &Closes, closings: &Receiver<()>) {
    while closings.recv().is_ok() {
        let mut last = closes.last_ns.load(Ordering::SeqCst);
        loop {
            if closings.recv_timeout(closes.rest(last)) == Err(RecvTimeoutError::Disconnected) {
                return;
            }
            if closes.last_ns.load(Ordering::SeqCst) == last {
                closes.is_timed.store(false, Ordering::SeqCst);
                // A close before that did not wake this thread.
                if closes.last_ns.load(Ordering::SeqCst) == last {
                    break;
                }
                closes.is_timed.store(true, Ordering::SeqCst);
            }
            last = closes.last_ns.load(Ordering::SeqCst);
        }
        if handles.writers() == 0 && !writer.uncommitted().is_empty() {
            // What fails here is met again by whoever syncs or unmounts.
            drop(writer.commit());
        }
    }
}
