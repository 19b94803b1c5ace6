//! A long job that is asked to end, by the user or the system, ends in order: it says how far it came.
//!
//! The first SIGINT, SIGTERM or SIGHUP cancels the job; the second ends the process at once. A job that only reads and
//! keeps nothing on disk is not waited for long: there is nothing to put in order ([`Cancelling::start_reading`]).
//!
//! Where no job is under way any more, as in a session between two words, signals do again what they do by default.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::Result;
use buttress_fs::Progress;
use signal_hook::SigId;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::flag;
use signal_hook::iterator::{Handle, Signals};
use signal_hook::low_level::{emulate_default_handler, unregister};

/// The signals that ask.
const ALL: [i32; 3] = [SIGINT, SIGTERM, SIGHUP];

/// Whether no job is under way that a signal would cancel. Once a signal was listened to, what it does by default has to
/// be done for it.
static IS_IDLE: OnceLock<Arc<AtomicBool>> = OnceLock::new();

/// How long a job that only reads has to end in order.
const PATIENCE: Duration = Duration::from_millis(40);

/// Cancels a job on a signal, until it is dropped.
#[derive(Debug)]
pub struct Cancelling {
    handle: Handle,
    actions: Vec<SigId>,
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
        let is_idle = match IS_IDLE.get() {
            Some(is_idle) => is_idle,
            None => {
                let is_idle = Arc::new(AtomicBool::new(false));
                for signal in ALL {
                    flag::register_conditional_default(signal, Arc::clone(&is_idle))?;
                }
                IS_IDLE.get_or_init(|| is_idle)
            }
        };
        is_idle.store(false, Ordering::SeqCst);
        let asked = Arc::new(AtomicBool::new(false));
        let mut actions = Vec::new();
        for signal in ALL {
            // In this order: the second of them looks whether there was one before.
            let status = 128_i32.saturating_add(signal);
            let ends = flag::register_conditional_shutdown(signal, status, Arc::clone(&asked))?;
            actions.extend([ends, flag::register(signal, Arc::clone(&asked))?]);
        }
        let mut signals = Signals::new(ALL)?;
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
            actions,
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
        for action in self.actions.drain(..) {
            unregister(action);
        }
        if let Some(is_idle) = IS_IDLE.get() {
            is_idle.store(true, Ordering::SeqCst);
        }
    }
}
