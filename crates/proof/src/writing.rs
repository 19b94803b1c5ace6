//! What tests of the writer need: volumes in memory, random operations from a seed, and what a volume holds as one text.

pub mod state;
pub mod volume;
pub mod workload;
