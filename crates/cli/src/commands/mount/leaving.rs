//! The end of the server by a signal: unmounts, and if the mount is busy, commits and ends anyway.
//!
//! The result of the last commit reaches the log and the registry, as after an unmount: processes
//! that wait for the server read it there.

use std::sync::{Arc, Weak};
use std::time::Duration;

use anyhow::{Error, Result};
use buttress_mount::fuse::Notifier;
use buttress_mount::vfs::{Looks, Vfs as _};
use buttress_mount::volume::{Log, MountedVolume};
use crossbeam_channel::{Receiver, RecvTimeoutError};
use parking_lot::Mutex;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use super::images::Images;
use super::registry::Entry;
use super::watch::Watch;

/// Time for the server to notice that it was unmounted.
const UNMOUNTED_WITHIN: Duration = Duration::from_secs(2);

/// The server's entry in the registry, until its result is recorded. Leaf lock.
pub(super) type OpenEntry = Arc<Mutex<Option<Entry>>>;

/// Parts of the server that its end by a signal needs.
pub(super) struct Leaving {
    pub(super) volume: Weak<MountedVolume>,
    pub(super) watch: Arc<Mutex<Option<Watch>>>,
    pub(super) notifier: Notifier,
    pub(super) images: Arc<Images>,
    pub(super) entry: OpenEntry,
    pub(super) log: Log,
}

impl Leaving {
    /// Waits for a signal in a thread of its own. `end` disconnects when the session has ended.
    pub(super) fn on_signals(self, end: Receiver<()>) -> Result<()> {
        let mut signals = Signals::new([SIGINT, SIGTERM, SIGHUP])?;
        std::thread::Builder::new()
            .name("buttress-signals".to_owned())
            .spawn(move || {
                if signals.forever().next().is_some() {
                    self.leave(&end);
                }
            })?;
        Ok(())
    }

    fn leave(self, end: &Receiver<()>) {
        // A mount is busy while a long call runs in it.
        self.volume.upgrade().inspect(|volume| volume.cancel_jobs());
        let taken = self.watch.lock().take();
        if let Some(mut watch) = taken {
            watch.unmount();
        }
        if end.recv_timeout(UNMOUNTED_WITHIN) == Err(RecvTimeoutError::Disconnected) {
            return;
        }
        // If the mount is busy, the server would keep running.
        let result = match self.volume.upgrade() {
            Some(volume) => {
                self.notifier.forget(&volume.kept_back(Looks::All).content);
                volume.leave()
            }
            None => Ok(()),
        };
        if let Some(text) = self.images.deleted() {
            (self.log)(&text);
        }
        let result = result.map_err(|error| logged_loss(error, &self.log));
        let failed = result.is_err();
        if let Some(entry) = self.entry.lock().take() {
            entry.end(&result);
        }
        // A process that waits for the end of the server expects the image to be free then.
        std::process::exit(i32::from(failed));
    }
}

/// If the last commit fails with this error, returns the part of a message that names the loss.
fn lost_with(error: &buttress::unstable::fs::Error) -> &'static str {
    match error.out_of_host_space() {
        Some(_) => "data without space on the host is lost; everything else was committed",
        None => "the last commit failed; changes since the commit before are lost",
    }
}

/// Logs an error of the last commit, and returns it.
pub(super) fn logged_loss(error: buttress::unstable::fs::Error, log: &Log) -> Error {
    let lost = lost_with(&error);
    log(&format!("{lost}: {error}"));
    Error::new(error).context(lost)
}
