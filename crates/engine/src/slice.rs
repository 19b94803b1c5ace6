//! How long a commit holds the edit lock before it lets others have it for a moment.
//!
//! What a commit does under the lock grows with what is dirty, so it is done in parts, and after some milliseconds of them the
//! lock is released: whoever waits gets it, and the commit goes on with what was edited meanwhile. Nothing of what a commit
//! writes depends on where the slices end: a part is never cut.
//!
//! Where everything is to run on the caller's thread there is nobody to let in, and no clock is asked.

use core::time::Duration;
use std::time::Instant;

/// The length of a slice: a reader of a view, or an edit, waits for it at most once.
const SLICE: Duration = Duration::from_millis(2);

/// A hold of the lock.
#[derive(Clone, Copy, Debug)]
pub struct Slice {
    end: Option<Instant>,
}

impl Slice {
    /// Begins now.
    pub fn begin() -> Self {
        Self {
            end: Instant::now().checked_add(SLICE),
        }
    }

    /// Never over.
    pub const fn endless() -> Self {
        Self { end: None }
    }

    /// Whether the lock should be released after the part that was just done.
    pub fn is_over(&self) -> bool {
        self.end.is_some_and(|end| Instant::now() >= end)
    }
}
