//! Calls with their begins and ends.

use super::call::{Answer, Call};
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};

/// A completed call. One clock numbers the begins and ends of all threads.
#[derive(Clone, Debug)]
pub struct Record {
    /// Index of the calling thread.
    pub thread: usize,
    /// The call.
    pub call: Call,
    /// The answer to the call.
    pub answer: Answer,
    /// Clock value at the begin of the call.
    pub begin: u64,
    /// Clock value after the end of the call.
    pub end: u64,
}

impl fmt::Display for Record {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{:>4} to {:>4}  thread {}  {} -> {}",
            self.begin, self.end, self.thread, self.call, self.answer
        )
    }
}

/// Clock that numbers every begin and end.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    /// Returns the next number of the clock.
    pub fn next(&self) -> u64 {
        self.0.fetch_add(1, Ordering::SeqCst)
    }
}
