//! Tests of several parts together, on volumes made in memory.

mod content;
mod directories;
mod hostile;
mod log_tree;
mod opening;
mod simulated;
mod stripe_tree;
