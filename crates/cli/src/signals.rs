//! A long job that is asked to end, by the user or the system, ends in order: it says how far it came.
//!
//! The first SIGINT, SIGTERM or SIGHUP cancels the job; the second ends the process at once.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::thread::JoinHandle;

use anyhow::Result;
use buttress_fs::Progress;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::flag;
use signal_hook::iterator::{Handle, Signals};

/// Cancels a job on a signal, until it is dropped.
#[derive(Debug)]
pub struct Cancelling {
    handle: Handle,
    thread: Option<JoinHandle<()>>,
}

impl Cancelling {
    /// Begins to wait for signals.
    ///
    /// # Errors
    /// That the system does not let us.
    pub fn start(progress: &Progress) -> Result<Self> {
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
        let thread = std::thread::spawn(move || {
            if signals.forever().next().is_some() {
                progress.cancel();
            }
        });
        Ok(Self {
            handle,
            thread: Some(thread),
        })
    }
}

impl Drop for Cancelling {
    fn drop(&mut self) {
        self.handle.close();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
