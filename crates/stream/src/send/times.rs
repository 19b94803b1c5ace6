//! Times of directories, which every new entry changes on the receiver.
//!
//! A send therefore sets the times of a directory once, after its last change: at the end of the
//! stream, or earlier when too many directories are pending. A directory that changes after its
//! times were sent gets its times again.

use crate::send::attributes::Times;
use buttress_format::InodeNumber;
use std::collections::BTreeMap;

/// Largest number of pending directories; they take a few MiB.
const WAITING_MAX: usize = 1 << 16;

/// Directories whose times are pending.
#[derive(Debug, Default)]
pub(crate) struct DirectoryTimes {
    /// Pending directories, with their times if these are already known.
    waiting: BTreeMap<InodeNumber, Option<Times>>,
}

impl DirectoryTimes {
    /// Records that the receiver's times of a directory are wrong, so the send sets them later.
    pub(crate) fn touch(&mut self, directory: InodeNumber) {
        self.waiting.entry(directory).or_default();
    }

    /// Sets the final times of a directory.
    pub(crate) fn set(&mut self, directory: InodeNumber, times: Times) {
        self.waiting.insert(directory, Some(times));
    }

    /// Returns whether the pending directories reached their limit and should be sent.
    pub(crate) fn is_full(&self) -> bool {
        self.waiting.len() >= WAITING_MAX
    }

    /// Takes all directories with pending times, sorted by number.
    pub(crate) fn take(&mut self) -> BTreeMap<InodeNumber, Option<Times>> {
        core::mem::take(&mut self.waiting)
    }
}
