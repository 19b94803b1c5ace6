//! Orderly end of a long job on a signal: the job is cancelled and reports its progress.
//!
//! The first SIGINT, SIGTERM or SIGHUP cancels the job; the second one ends the process at once. A
//! job that only reads has nothing to clean up, so a signal gives it only a short time
//! ([`Cancelling::start_reading`]). Only this time limit needs a thread.
//!
//! A signal interrupts neither a read of an idle pipe nor a write to a full pipe, because the
//! kernel restarts the call. A cancellable job therefore reads through [`Cancelling::input`] and
//! writes through [`Cancelling::output`] ([`waiting`]).
//!
//! Without a running job, signals have their default effect. In a session that handles signals
//! itself ([`enter_session`]), they only cancel the job of a shell command.

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

/// Signals that cancel a job.
const ALL: [i32; 3] = [SIGINT, SIGTERM, SIGHUP];

/// True while no job is running that a signal would cancel. Once a handler is registered for a
/// signal, the program must emulate the signal's default effect.
static IS_IDLE: OnceLock<Arc<AtomicBool>> = OnceLock::new();

/// True if a session handles signals.
static IS_IN_SESSION: AtomicBool = AtomicBool::new(false);

/// Time in which a job that only reads must end after a signal.
const PATIENCE: Duration = Duration::from_millis(20);

/// Leaves the handling of signals to a session.
pub fn enter_session() {
    IS_IN_SESSION.store(true, Ordering::SeqCst);
}

/// Guard that cancels a job on a signal, until it is dropped.
#[derive(Debug)]
pub struct Cancelling {
    actions: Vec<SigId>,
    waiting: Option<Waiting>,
}

/// Sets a flag on SIGINT until the value is dropped. The flag tells a job whether its user or the system ended it.
#[derive(Debug)]
pub struct Interrupted(SigId);

impl Interrupted {
    /// Sets `flag` on SIGINT. The flag must be set up before [`Cancelling::start`], which acts on
    /// the same signal.
    ///
    /// # Errors
    /// The system refuses.
    pub fn start(flag: Arc<AtomicBool>) -> Result<Self> {
        Ok(Self(flag::register(SIGINT, flag)?))
    }
}

impl Drop for Interrupted {
    fn drop(&mut self) {
        unregister(self.0);
    }
}

/// Thread that waits for a signal, and then for the end of the job.
#[derive(Debug)]
struct Waiting {
    handle: Handle,
    thread: JoinHandle<()>,
    /// Sender that is dropped when the job has ended.
    running: Sender<()>,
}

impl Cancelling {
    /// Starts to cancel the job of `progress` on signals.
    ///
    /// # Errors
    /// Fails if the system refuses to register a signal handler.
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
            // The order matters: the first action checks whether an earlier signal arrived.
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

    /// Starts like [`Cancelling::start`], for a job that only reads. If the job does not end
    /// shortly after the signal, because the machine is busy or sorts a long list, the signal's
    /// default effect ends the process.
    ///
    /// # Errors
    /// Fails if the system refuses to register a signal handler.
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
                // If emulating the signal fails, the job still ends by itself.
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

/// Guard that runs a clean-up action before a signal ends the process, for a job without an orderly
/// end of its own. Dropping the guard disables the clean-up action.
#[derive(Debug)]
pub struct BeforeTheEnd {
    handle: Handle,
    thread: Option<JoinHandle<()>>,
}

impl BeforeTheEnd {
    /// Runs `action` when a signal arrives, followed by the signal's default effect.
    ///
    /// # Errors
    /// The system refuses to register a signal handler.
    pub fn start(action: impl FnOnce() + Send + 'static) -> Result<Self> {
        let mut signals = Signals::new(ALL)?;
        let handle = signals.handle();
        let thread = std::thread::spawn(move || {
            if let Some(signal) = signals.forever().next() {
                action();
                // If the default effect fails, the job continues and fails by itself.
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
