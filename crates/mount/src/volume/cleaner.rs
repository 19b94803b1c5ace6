//! Background thread that frees the space of deleted subvolumes, both of this mount and of earlier
//! ones.

use buttress::Progress;
use buttress::unstable::writer::WritableFilesystem;
use core::sync::atomic::{AtomicBool, Ordering};
use crossbeam_channel::{Receiver, Sender};
use parking_lot::Mutex;
use std::sync::Arc;
use std::thread::{Builder, JoinHandle};

/// The cleaner thread.
#[derive(Debug)]
pub(super) struct Cleaner {
    /// Channel that wakes the thread. Leaf lock, as is the lock of `thread`.
    wakes: Mutex<Option<Sender<()>>>,
    thread: Mutex<Option<JoinHandle<()>>>,
    cancelled: Arc<AtomicBool>,
}

impl Cleaner {
    /// Starts the thread. Returns `None` if the system cannot create a thread; the next opening
    /// then frees the space.
    pub(super) fn start(writer: WritableFilesystem) -> Option<Self> {
        let (wake, wakes) = crossbeam_channel::bounded(1);
        let cancelled = Arc::new(AtomicBool::new(false));
        let asked = Arc::clone(&cancelled);
        let thread = Builder::new()
            .name("buttress-cleaner".to_owned())
            .spawn(move || run(&writer, &wakes, &asked))
            .ok()?;
        let cleaner = Self {
            wakes: Mutex::new(Some(wake)),
            thread: Mutex::new(Some(thread)),
            cancelled,
        };
        cleaner.wake();
        Some(cleaner)
    }

    /// Wakes the thread, because a subvolume was deleted.
    pub(super) fn wake(&self) {
        if let Some(wakes) = self.wakes.lock().as_ref() {
            let _is_new = wakes.try_send(()).is_ok();
        }
    }

    /// Stops the thread immediately. The next opening continues with a partly dropped subvolume.
    pub(super) fn stop(&self) {
        self.cancelled.store(true, Ordering::SeqCst);
        drop(self.wakes.lock().take());
        let thread = self.thread.lock().take();
        if let Some(thread) = thread {
            // A panic of the thread has already been printed.
            drop(thread.join());
        }
    }
}

impl Drop for Cleaner {
    fn drop(&mut self) {
        self.stop();
    }
}

fn run(writer: &WritableFilesystem, wakes: &Receiver<()>, cancelled: &Arc<AtomicBool>) {
    while wakes.recv().is_ok() && !cancelled.load(Ordering::SeqCst) {
        // The cleaner's next attempt meets the same error, and a sync reports it.
        let progress = Progress::cancelled_by(Arc::clone(cancelled));
        drop(writer.subvolumes().drop_deleted(&progress));
    }
}
