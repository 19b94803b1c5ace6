//! Whether synced content lasts: the content of a deleted image is gone when the server ends.

use super::MountedVolume;
use crate::vfs::{Errno, Result};
use std::sync::Arc;

/// Returns why what is committed now will not last, as a sentence; nothing while it will.
pub type Doomed = Arc<dyn Fn() -> Option<String> + Send + Sync>;

impl MountedVolume {
    /// Sets the question that every sync and commit asks when it is done.
    pub fn asks_if_doomed(&self, doomed: Doomed) {
        // The first one counts.
        let _is_first = self.doomed.set(doomed).is_ok();
    }

    /// Fails after a sync or a commit whose result will not last: the caller must not take it for durable.
    pub(super) fn require_lasting(&self) -> Result<()> {
        let Some(why) = self.doomed.get().and_then(|doomed| doomed()) else {
            return Ok(());
        };
        self.tell(&why);
        Err(Errno::IO)
    }
}
