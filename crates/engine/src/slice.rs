//! Slices: the time for which a commit holds the edit lock before it releases the lock briefly.
//!
//! Holding the edit lock takes longer with more dirty state, so the commit works in slices. After
//! some milliseconds under the edit lock, the commit releases it. Waiting threads acquire the lock,
//! and the commit then continues with their edits included. A slice never ends within a part of the
//! work, so the bytes that a commit writes do not depend on the ends of slices.
//!
//! If all work runs on the caller's thread, no other thread waits, and slices never read a clock.

use core::time::Duration;
use std::time::Instant;

/// The length of a commit's slice of time. An edit, or a reader that takes a view, waits for at
/// most one slice.
const SLICE: Duration = Duration::from_millis(2);

/// A hold of the edit lock by a commit.
#[derive(Clone, Copy, Debug)]
pub struct Slice {
    end: Option<Instant>,
}

impl Slice {
    /// Begins a time slice of a commit now.
    pub fn begin() -> Self {
        Self {
            end: Instant::now().checked_add(SLICE),
        }
    }

    /// Returns a time slice that never ends.
    pub const fn endless() -> Self {
        Self { end: None }
    }

    /// Returns whether the commit should release the edit lock after the part that it has just
    /// done.
    pub fn is_over(&self) -> bool {
        self.end.is_some_and(|end| Instant::now() >= end)
    }
}
