//! Jobs beside writers.
