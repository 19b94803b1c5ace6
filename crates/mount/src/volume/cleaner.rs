//! Gives back the space of subvolumes that were deleted, in the background: those of this mount, and those that an earlier one left.

use buttress::Progress;
use buttress::unstable::writer::WritableFilesystem;
use core::sync::atomic::{AtomicBool, Ordering};
use crossbeam_channel::{Receiver, Sender};
use parking_lot::Mutex;
use std::sync::Arc;
use std::thread::{Builder, JoinHandle};

/// See the module.
#[derive(Debug)]
pub(super) struct Cleaner {
    /// Leaves.
    wakes: Mutex<Option<Sender<()>>>,
    thread: Mutex<Option<JoinHandle<()>>>,
    cancelled: Arc<AtomicBool>,
}

impl Cleaner {
    /// Starts the thread; `None` where none can be had: then the next opening does it.
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

    /// There is something to do.
    pub(super) fn wake(&self) {
        if let Some(wakes) = self.wakes.lock().as_ref() {
            let _is_new = wakes.try_send(()).is_ok();
        }
    }

    /// Ends it where it is: what is half dropped is gone on with by the next.
    pub(super) fn stop(&self) {
        self.cancelled.store(true, Ordering::SeqCst);
        drop(self.wakes.lock().take());
        let thread = self.thread.lock().take();
        if let Some(thread) = thread {
            // A panic there has been printed.
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
        // What fails here is met again by the next that tries, and told by whoever syncs.
        let progress = Progress::cancelled_by(Arc::clone(cancelled));
        drop(writer.drop_deleted_subvolumes(&progress));
    }
}
