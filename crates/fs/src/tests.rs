//! Tests of several parts together, on volumes made in memory.

mod content;
mod directories;
mod hostile;
mod opening;
mod simulated;
