//! A long job that is asked to end, by the user or the system, ends in order: it says how far it came.
//!
//! The first SIGINT, SIGTERM or SIGHUP cancels the job; the second ends the process at once. A job that only reads and
//! keeps nothing on disk is not waited for long: there is nothing to put in order ([`Cancelling::start_reading`]).

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::Result;
use buttress_fs::Progress;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::flag;
use signal_hook::iterator::{Handle, Signals};
use signal_hook::low_level::emulate_default_handler;

/// How long a job that only reads has to end in order.
const PATIENCE: Duration = Duration::from_millis(40);

/// Cancels a job on a signal, until it is dropped.
#[derive(Debug)]
pub struct Cancelling {
    handle: Handle,
    thread: Option<JoinHandle<()>>,
    /// Dropped when the job has ended.
    running: Option<Sender<()>>,
}

impl Cancelling {
    /// Begins to wait for signals.
    ///
    /// # Errors
    /// That the system does not let us.
    pub fn start(progress: &Progress) -> Result<Self> {
        Self::start_with(progress, None)
    }

    /// As [`Cancelling::start`], for a job that only reads: where it has not ended shortly after the signal, because the
    /// machine is busy or sorts a long list, the signal ends the process as it does by default.
    ///
    /// # Errors
    /// That the system does not let us.
    pub fn start_reading(progress: &Progress) -> Result<Self> {
        Self::start_with(progress, Some(PATIENCE))
    }

    fn start_with(progress: &Progress, patience: Option<Duration>) -> Result<Self> {
        let asked = Arc::new(AtomicBool::new(false));
        let all = [SIGINT, SIGTERM, SIGHUP];
        for signal in all {
            // In this order: the second of them looks whether there was one before.
            flag::register_conditional_shutdown(signal, 128_i32.saturating_add(signal), Arc::clone(&asked))?;
            flag::register(signal, Arc::clone(&asked))?;
        }
        let mut signals = Signals::new(all)?;
        let handle = signals.handle();
        let progress = progress.clone();
        let (running, ended) = channel::<()>();
        let thread = std::thread::spawn(move || {
            let Some(signal) = signals.forever().next() else {
                return;
            };
            progress.cancel();
            if let Some(patience) = patience
                && ended.recv_timeout(patience) == Err(RecvTimeoutError::Timeout)
            {
                // Where that fails, the job still ends by itself.
                let _ = emulate_default_handler(signal);
            }
        });
        Ok(Self {
            handle,
            thread: Some(thread),
            running: Some(running),
        })
    }
}

impl Drop for Cancelling {
    fn drop(&mut self) {
        self.running = None;
        self.handle.close();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
