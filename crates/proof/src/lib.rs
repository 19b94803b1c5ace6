//! Proofs: comparisons of Buttress with the kernel, layer by layer and as a whole.
//!
//! No crate depends on this one. Its modules:
//!
//! - [`library`]: reads an unmounted volume through the library into a manifest;
//! - [`fiemap`]: extents, sharedness and seeks compared with the kernel's, on random volumes;
//! - [`send`]: sends histories of snapshots, makes the kernel receive them, and compares the
//!   results;
//! - [`writing`]: random changes compared with a model after each commit;
//! - [`concurrent`]: concurrent calls, and a sequential order that explains their answers;
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
