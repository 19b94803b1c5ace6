//! The end of a server after the last request of its mount.
//!
//! The last commit comes first, then the entry of the registry, for whose removal `buttress umount`
//! waits.

use std::io;
use std::sync::Arc;

use anyhow::{Result, anyhow};
use buttress_mount::volume::{Log, MountedVolume};
use parking_lot::Mutex;

use super::images::Images;
use super::leaving::{OpenEntry, logged_loss};
use super::watch::Watch;
use crate::exit::Outcome;

/// The parts of a server that end after the last request.
pub(super) struct Ending {
    pub(super) volume: Arc<MountedVolume>,
    pub(super) images: Arc<Images>,
    pub(super) entry: OpenEntry,
    pub(super) watch: Arc<Mutex<Option<Watch>>>,
    pub(super) log: Log,
    pub(super) in_background: bool,
}

impl Ending {
    /// Makes the last commit, closes the images, and tells the registry the result.
    pub(super) fn finish(self, served: io::Result<()>) -> Result<Outcome> {
        let left = self.volume.leave();
        if let Err(error) = &served {
            (self.log)(&format!("the connection to the kernel failed: {error}"));
        }
        let doomed = self.images.deleted();
        if let Some(text) = &doomed {
            (self.log)(text);
        }
        let left = left.map_err(|error| logged_loss(error, &self.log));
        drop(self.volume);
        let result = left.and_then(|()| {
            served.map_err(|error| anyhow!(error).context("the connection to the kernel failed"))
        });
        if let Some(entry) = self.entry.lock().take() {
            entry.end(&result);
        }
        drop(self.watch.lock().take());
        result?;
        match doomed {
            Some(text) if !self.in_background => Err(anyhow!(text)),
            _ => Ok(Outcome::Done),
        }
    }
}
