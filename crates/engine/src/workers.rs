//! Threads of a volume that work when they are woken. [`background`](crate::background) gives them their work.

use crossbeam_channel::{Receiver, Sender};
use std::thread::{self, JoinHandle};

/// The threads. Dropping them waits for their end.
#[derive(Debug)]
pub(crate) struct Workers {
    pub commits: Worker,
    pub write_back: Worker,
}

/// A thread that works when it is woken.
#[derive(Debug)]
pub(crate) struct Worker {
    wake: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Workers {
    /// Has the thread commit. It does nothing more where that was asked for already.
    pub(crate) fn wake(&self) {
        self.commits.wake();
    }

    /// Has content written back.
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
        // Without a sender the thread ends after what it is at.
        drop(self.wake.take());
        if let Some(thread) = self.thread.take() {
            // A panic there has been printed, and what it left half done is not committed.
            drop(thread.join());
        }
    }
}
