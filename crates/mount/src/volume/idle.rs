//! A commit soon after the last file that was open for writing is closed.
//!
//! A program that unmounts with `fusermount3 -u` learns that the kernel let go, not that the server is done. So little should be left
//! to do by then: when no file is open for writing any more, and nobody has written for a second, what is not committed is.
//! While files come and go there is no such commit: the one that the commit interval brings is enough.

use super::handles::Handles;
use buttress::unstable::writer::WritableFilesystem;
use core::time::Duration;
use crossbeam_channel::{Receiver, RecvTimeoutError, Sender};
use parking_lot::Mutex;
use std::sync::Arc;
use std::thread::{Builder, JoinHandle};

/// How long nothing is closed before it is taken for the last.
const QUIET: Duration = Duration::from_secs(1);

/// See the module.
#[derive(Debug)]
pub(super) struct Idle {
    /// Leaves.
    closed: Mutex<Option<Sender<()>>>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Idle {
    /// Starts the thread; `None` where none can be had: then commits happen by time and by size only.
    pub(super) fn start(writer: WritableFilesystem, handles: Arc<Handles>) -> Option<Self> {
        let (closed, closings) = crossbeam_channel::bounded(1);
        let thread = Builder::new()
            .name("buttress-idle".to_owned())
            .spawn(move || run(&writer, &handles, &closings))
            .ok()?;
        Some(Self {
            closed: Mutex::new(Some(closed)),
            thread: Mutex::new(Some(thread)),
        })
    }

    /// The last file that was open for writing was closed.
    pub(super) fn closed(&self) {
        if let Some(closed) = self.closed.lock().as_ref() {
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

fn run(writer: &WritableFilesystem, handles: &Handles, closings: &Receiver<()>) {
    while closings.recv().is_ok() {
        loop {
            match closings.recv_timeout(QUIET) {
                Ok(()) => {}
                Err(RecvTimeoutError::Timeout) => break,
                Err(RecvTimeoutError::Disconnected) => return,
            }
        }
        if handles.writers() == 0 && !writer.uncommitted().is_empty() {
            // What fails here is met again by whoever syncs or unmounts.
            drop(writer.commit());
        }
    }
}
