//! A commit soon after the last close of a written file.
//!
//! A program that unmounts with `fusermount3 -u` learns that the kernel released the mount, but not
//! that the server is done. After the unmount, the server should have little work left. After a
//! second without files open for writing and without writes, this thread commits all changes. While
//! files are opened and closed continuously, no such commit happens; the periodic commits are
//! enough.
//!
//! A close wakes the thread only if the thread sleeps without a deadline. A wake-up at each close
//! would cost a thread switch per file for a program that creates many files.

use super::handles::Handles;
use buttress::unstable::writer::WritableFilesystem;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use core::time::Duration;
use crossbeam_channel::{Receiver, RecvTimeoutError, Sender};
use parking_lot::Mutex;
use std::sync::Arc;
use std::thread::{Builder, JoinHandle};
use std::time::Instant;

/// A close is the last close if no other close follows within this time.
const QUIET: Duration = Duration::from_secs(1);

/// State of file closes that is shared with the commit thread.
#[derive(Debug)]
struct Closes {
    start: Instant,
    /// Time of the last close, in nanoseconds since `start`.
    last_ns: AtomicU64,
    /// True if the commit thread sleeps with a deadline, and inspects `last_ns` when it wakes.
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

    /// Records a close. Returns whether the caller must wake the thread.
    fn note(&self) -> bool {
        // Clamp: 584 years.
        let now = u64::try_from(self.start.elapsed().as_nanos()).unwrap_or(u64::MAX);
        self.last_ns.store(now, Ordering::SeqCst);
        !self.is_timed.swap(true, Ordering::SeqCst)
    }

    /// Returns the remaining time without a close that is needed before a commit.
    fn rest(&self, last_ns: u64) -> Duration {
        // Clamp: zero when the time has passed.
        QUIET.saturating_sub(self.start.elapsed().saturating_sub(Duration::from_nanos(last_ns)))
    }
}

/// The thread that commits after the last close.
#[derive(Debug)]
pub(super) struct Idle {
    closes: Arc<Closes>,
    /// Channel that wakes the thread. Leaf locks, as is the lock of `thread`.
    closed: Mutex<Option<Sender<()>>>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Idle {
    /// Starts the thread. Returns `None` if the system cannot create a thread; commits then depend
    /// on time and size only.
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

    /// Handles the last close of a written file.
    pub(super) fn closed(&self) {
        if self.closes.note()
            && let Some(closed) = self.closed.lock().as_ref()
        {
            let _is_new = closed.try_send(()).is_ok();
        }
    }

    /// Stops the idle thread, and waits for its running commit.
    pub(super) fn stop(&self) {
        drop(self.closed.lock().take());
        let thread = self.thread.lock().take();
        if let Some(thread) = thread {
            // A panic of the thread has already been printed.
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
                // A close that happened before this store did not wake the thread.
                if closes.last_ns.load(Ordering::SeqCst) == last {
                    break;
                }
                closes.is_timed.store(true, Ordering::SeqCst);
            }
            last = closes.last_ns.load(Ordering::SeqCst);
        }
        if handles.writers() == 0 && !writer.uncommitted().is_empty() {
            // A later sync or unmount meets the same error and reports it.
            drop(writer.commit());
        }
    }
}
