//! Background threads of a volume, which work when woken. [`background`](crate::background) defines
//! the work of these threads.

use crossbeam_channel::{Receiver, Sender};
use std::thread::{self, JoinHandle};

/// The background threads. Dropping this value waits for the end of the threads.
#[derive(Debug)]
pub(crate) struct Workers {
    pub commits: Worker,
    pub write_back: Worker,
}

/// A thread that works each time it is woken.
#[derive(Debug)]
pub(crate) struct Worker {
    wake: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Workers {
    /// Wakes the thread that commits. Does nothing if a wake-up of that thread is already pending.
    pub(crate) fn wake(&self) {
        self.commits.wake();
    }

    /// Wakes the thread that writes content back.
    pub(crate) fn wake_write_back(&self) {
        self.write_back.wake();
    }
}

impl Worker {
    pub(crate) fn start(name: &str, work: impl FnOnce(&Receiver<()>) + Send + 'static) -> Option<Self> {
        let (wake, woken) = crossbeam_channel::bounded(1);
        let thread = thread::Builder::new()
            .name(name.to_owned())
            .spawn(move || work(&woken))
            .ok()?;
        Some(Self {
            wake: Some(wake),
            thread: Some(thread),
        })
    }

    fn wake(&self) {
        if let Some(wake) = &self.wake {
            let _is_new = wake.try_send(()).is_ok();
        }
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        // Without a sender, the thread ends after its current work.
        drop(self.wake.take());
        if let Some(thread) = self.thread.take() {
            // The thread already printed its panic, and the half-done work of the thread is not
            // committed.
            drop(thread.join());
        }
    }
}
