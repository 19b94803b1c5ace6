//! A long job that is asked to end, by the user or the system, ends in order: it says how far it came.
//!
//! The first SIGINT, SIGTERM or SIGHUP cancels the job; the second ends the process at once. A job that only reads and
//! keeps nothing on disk is not waited for long: there is nothing to put in order ([`Cancelling::start_reading`]). Only
//! that waiting takes a thread.
//!
//! A signal does not end a read of a pipe that is idle, nor a write to a pipe that is full: the kernel restarts the call. A job
//! that is cancelled in order reads through [`Cancelling::input`] and writes through [`Cancelling::output`] ([`waiting`]).
//!
//! Where no job is under way any more, signals do again what they do by default. In a session that has signals itself
//! ([`enter_session`]) they cancel the job of a word, and nothing more.

pub mod waiting;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::Result;
use buttress::Progress;
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

/// Whether a session takes signals.
static IS_IN_SESSION: AtomicBool = AtomicBool::new(false);

/// How long a job that only reads has to end in order.
const PATIENCE: Duration = Duration::from_millis(20);

/// From now on a session decides what becomes of the process.
pub fn enter_session() {
    IS_IN_SESSION.store(true, Ordering::SeqCst);
}

/// Cancels a job on a signal, until it is dropped.
#[derive(Debug)]
pub struct Cancelling {
    actions: Vec<SigId>,
    waiting: Option<Waiting>,
}

/// A thread that waits for a signal, and then for the end of the job.
#[derive(Debug)]
struct Waiting {
    handle: Handle,
    thread: JoinHandle<()>,
    /// Dropped when the job has ended.
    running: Sender<()>,
}

impl Cancelling {
    /// Begins to wait for signals.
    ///
    /// # Errors
    /// That the system does not let us.
    pub fn start(progress: &Progress) -> Result<Self> {
        if IS_IN_SESSION.load(Ordering::SeqCst) {
            return Self::start_in_session(progress);
        }
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
            // In this order: the first of them looks whether there was a signal before.
            let status = 128_i32.saturating_add(signal);
            actions.extend([
                flag::register_conditional_shutdown(signal, status, Arc::clone(&asked))?,
                flag::register(signal, Arc::clone(&asked))?,
                flag::register(signal, progress.cancellation())?,
            ]);
        }
        Ok(Self {
            actions,
            waiting: None,
        })
    }

    fn start_in_session(progress: &Progress) -> Result<Self> {
        let mut actions = Vec::new();
        for signal in ALL {
            actions.push(flag::register(signal, progress.cancellation())?);
        }
        Ok(Self {
            actions,
            waiting: None,
        })
    }

    /// As [`Cancelling::start`], for a job that only reads: where it has not ended shortly after the signal, because the
    /// machine is busy or sorts a long list, the signal ends the process as it does by default.
    ///
    /// # Errors
    /// That the system does not let us.
    pub fn start_reading(progress: &Progress) -> Result<Self> {
        let mut cancelling = Self::start(progress)?;
        if IS_IN_SESSION.load(Ordering::SeqCst) {
            return Ok(cancelling);
        }
        cancelling.waiting = Some(Waiting::start()?);
        Ok(cancelling)
    }
}

impl Waiting {
    fn start() -> Result<Self> {
        let mut signals = Signals::new(ALL)?;
        let handle = signals.handle();
        let (running, ended) = channel::<()>();
        let thread = std::thread::spawn(move || {
            let Some(signal) = signals.forever().next() else {
                return;
            };
            if ended.recv_timeout(PATIENCE) == Err(RecvTimeoutError::Timeout) {
                // Where that fails, the job still ends by itself.
                let _ = emulate_default_handler(signal);
            }
        });
        Ok(Self {
            handle,
            thread,
            running,
        })
    }

    fn end(self) {
        drop(self.running);
        self.handle.close();
        let _ = self.thread.join();
    }
}

/// Puts something in order before a signal ends the process, for a job that nothing else would end in order; until it is
/// dropped.
#[derive(Debug)]
pub struct BeforeTheEnd {
    handle: Handle,
    thread: Option<JoinHandle<()>>,
}

impl BeforeTheEnd {
    /// Has `action` done when a signal comes; then the signal does what it does by default.
    ///
    /// # Errors
    /// That the system does not let us.
    pub fn start(action: impl FnOnce() + Send + 'static) -> Result<Self> {
        let mut signals = Signals::new(ALL)?;
        let handle = signals.handle();
        let thread = std::thread::spawn(move || {
            if let Some(signal) = signals.forever().next() {
                action();
                // Where that fails, the job goes on, and fails by itself.
                let _ = emulate_default_handler(signal);
            }
        });
        Ok(Self {
            handle,
            thread: Some(thread),
        })
    }
}

impl Drop for BeforeTheEnd {
    fn drop(&mut self) {
        self.handle.close();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Drop for Cancelling {
    fn drop(&mut self) {
        if let Some(waiting) = self.waiting.take() {
            waiting.end();
        }
        for action in self.actions.drain(..) {
            unregister(action);
        }
        if let Some(is_idle) = IS_IDLE.get() {
            is_idle.store(true, Ordering::SeqCst);
        }
    }
}
