//! Errors of calls: a number for the caller, and a message in the log for the user.
//!
//! The log reports damage, failing devices and defects of this program, and the same text at most once a minute. It does
//! not report errors of callers, such as a missing name.

use super::MountedVolume;
use crate::vfs::Errno;
use buttress::unstable::format::ErrorKind;
use std::time::Instant;

impl MountedVolume {
    /// Returns the errno of an error, and logs an error that the user should know.
    pub(super) fn failed(&self, error: &buttress::unstable::fs::Error) -> Errno {
        if error.kind() != ErrorKind::Caller {
            self.tell(&error.to_string());
        }
        Errno(error.errno())
    }

    /// Logs a text, unless the log has it from the last minute.
    pub(super) fn tell(&self, text: &str) {
        const AGAIN_AFTER_S: u64 = 60;
        const KEPT: usize = 64;
        let mut told = self.told.lock();
        told.retain(|(_, at)| at.elapsed().as_secs() < AGAIN_AFTER_S);
        if told.len() >= KEPT || told.iter().any(|(known, _)| known == text) {
            return;
        }
        told.push((text.to_owned(), Instant::now()));
        drop(told);
        (self.log)(text);
    }
}
