//! The times of directories, which every new name in them spoils on the receiver.
//!
//! A directory's times are therefore sent once, when all its names are right: at the end, or earlier when too many
//! directories wait; then those that change again are sent again.

use crate::send::attributes::Times;
use buttress_format::InodeNumber;
use std::collections::BTreeMap;

/// How many directories may wait: a few MiB.
const WAITING_MAX: usize = 1 << 16;

/// The directories whose times have to be sent.
#[derive(Debug, Default)]
pub(crate) struct DirectoryTimes {
    /// The times where they are known already.
    waiting: BTreeMap<InodeNumber, Option<Times>>,
}

impl DirectoryTimes {
    /// The receiver's times of this directory are wrong now.
    pub(crate) fn touch(&mut self, directory: InodeNumber) {
        self.waiting.entry(directory).or_default();
    }

    /// These are the times that the directory must have in the end.
    pub(crate) fn set(&mut self, directory: InodeNumber, times: Times) {
        self.waiting.insert(directory, Some(times));
    }

    /// Whether so many wait that they should be sent.
    pub(crate) fn is_full(&self) -> bool {
        self.waiting.len() >= WAITING_MAX
    }

    /// All that wait, by number; none wait afterwards.
    pub(crate) fn take(&mut self) -> BTreeMap<InodeNumber, Option<Times>> {
        core::mem::take(&mut self.waiting)
    }
}
