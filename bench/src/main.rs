//! Benchmarks side by side with the kernel and other tools.
fn main() {}
