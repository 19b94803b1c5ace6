//! Calls with their begins and ends.

use super::call::{Answer, Call};
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};

/// A call that ended. Begins and ends are counted by one clock for all threads.
#[derive(Clone, Debug)]
pub struct Record {
    /// Who called.
    pub thread: usize,
    /// What was called.
    pub call: Call,
    /// What was answered.
    pub answer: Answer,
    /// When the call began.
    pub begin: u64,
    /// When it had ended.
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

/// The clock: a number for every begin and end.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    /// The next number.
    pub fn next(&self) -> u64 {
        self.0.fetch_add(1, Ordering::SeqCst)
    }
}
