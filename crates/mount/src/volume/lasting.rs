//! Check whether synced content lasts: the content of a deleted image is gone when the server ends.

use super::MountedVolume;
use crate::vfs::{Errno, Result};
use std::sync::Arc;

/// Returns a sentence that explains why committed content will not last, or `None` if it will.
pub type Doomed = Arc<dyn Fn() -> Option<String> + Send + Sync>;

impl MountedVolume {
    /// Sets the check that every sync and commit runs at its end.
    pub fn asks_if_doomed(&self, doomed: Doomed) {
        // The server keeps only the first check that a caller sets.
        let _is_first = self.doomed.set(doomed).is_ok();
    }

    /// Returns an error after a sync or commit whose result will not last, so that the caller does
    /// not consider it durable.
    pub(super) fn require_lasting(&self) -> Result<()> {
        let Some(why) = self.doomed.get().and_then(|doomed| doomed()) else {
            return Ok(());
        };
        self.tell(&why);
        Err(Errno::IO)
    }
}
