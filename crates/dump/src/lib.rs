//! Metadata dumps of btrfs volumes: all tree blocks and the superblock in one file, in the format of
//! btrfs-image.
//!
//! | to | see |
//! |---|---|
//! | write a dump of a volume | [`write()`] |
//! | read the items of a dump | [`DumpReader`] |
//! | restore a dump to devices | [`restore`] |
//! | write the smallest dump that shows a finding of a check | [`reduce()`] |
//!
//! A dump is a sequence of clusters. All numbers are little-endian.
//!
//! | cluster at | bytes | content |
//! |---|---|---|
//! | 0 | 8 | magic `0xbd5c25e27295668b` |
//! | 8 | 8 | offset of this cluster in the dump |
//! | 16 | 4 | number of items, at most 83 |
//! | 20 | 1 | compression: 0 none, 1 zlib |
//! | 21 | 12 each | items: logical address (8), stored bytes (4) |
//! | 1024 | | the stored items, without padding between; then zeros to a multiple of 1024 |
//!
//! The first item is the superblock, at address 65536. The other items are runs of tree blocks of at
//! most 256 KiB. Each compressed item is a zlib stream of its own.
//!
//! Invariants:
//! - Memory is bounded by the format's limits, whatever a dump claims.
//! - A dump has the same bytes for any number of threads.
//! - Inline content, symlink targets and unused bytes of blocks are zeros in a dump, except the
//!   contents of chosen files ([`DumpOptions::with_data`]). Names and extended attributes stay,
//!   unless the dump is sanitised ([`Sanitise`]).
//!
//! Data extents of chosen files are items at their logical addresses, after all blocks. btrfs-image
//! writes no such items, and restores them.
//!
//! Source: dumps that btrfs-image 6.2 and 6.14 wrote.
#![forbid(unsafe_code)]
#![cfg_attr(
    test,
    allow(
        clippy::arithmetic_side_effects,
        clippy::cast_possible_truncation,
        clippy::indexing_slicing,
        clippy::unwrap_used,
        reason = "tests compute with known numbers, and a panic is how a test fails"
    )
)]

mod block;
mod capturing;
mod chunk_tree;
mod cluster;
mod contents;
mod error;
mod one_device;
mod reading;
mod reduce;
mod restoring;
mod sanitise;
mod source;
mod spreading;
#[cfg(test)]
mod tests;
mod walking;
mod writing;

pub use capturing::{DumpOptions, Dumped, write};
pub use error::{Error, Result};
pub use reading::{DumpItem, DumpReader};
pub use reduce::{ReduceOptions, Reduced, reduce};
pub use restoring::{Restored, restore};
pub use sanitise::Sanitise;
