//! Proof: Buttress against the kernel, layer by layer and as a whole.
//!
//! Nothing depends on this crate. Its modules:
//!
//! - [`library`]: reads an unmounted volume through the library into a manifest;
//! - [`fiemap`]: extents, sharedness and seeks beside the kernel's, on random volumes;
//! - [`send`]: sends histories of snapshots, has the kernel receive them, and compares all that came of it;
//! - [`writing`]: random changes beside a model, checked after each commit;
//! - [`concurrent`]: calls of many threads at once, and the order that explains what they were answered;
//! - [`pax`]: reads a tar stream into a manifest, independently of the writer in the command.
//!
//! The volumes come from `buttress_oracle`; the comparisons themselves are in `tests/`.

pub mod concurrent;
pub mod fiemap;
pub mod library;
pub mod pax;
pub mod send;
pub mod writing;

pub use buttress_oracle::harness;
