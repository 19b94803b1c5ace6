//! Sorted records on disk, and trees packed from sorted items.
//!
//! Jobs that write whole trees sort their items first, in bounded memory, and then pack the items
//! into blocks in one pass. This crate does both, and knows no volume.
//!
//! | module | holds |
//! |---|---|
//! | [`spool`] | bytes that are written once and read in order, in memory or in a file |
//! | [`sort`] | records sorted by their keys, on disk if they exceed the memory |
//! | [`pack`] | trees packed into blocks in one pass over their items |
//! | [`shape`] | the number and levels of the blocks that packing will make |
//!
//! # Invariants
//!
//! - Equal items and options yield equal blocks, for any memory limit.
//! - A packed block is sealed: header, checksum, and items in key order.
//!
//! # Left out
//!
//! The meaning of items, and I/O on volumes. The caller chooses the address of each block
//! ([`Places`]) and keeps the blocks ([`BlockSink`]).
#![forbid(unsafe_code)]
#![cfg_attr(
    test,
    allow(clippy::arithmetic_side_effects, reason = "tests compute with known numbers")
)]

mod error;
pub mod pack;
pub mod shape;
pub mod sort;
pub mod spool;

pub use error::{Error, Result};
pub use pack::{BlockFormat, BlockNote, BlockSink, PackedRoot, Packer, Places, Top};
pub use shape::Shape;
pub use sort::{Record, Sorted, SortedReader, Sorter};
pub use spool::{Spool, SpoolFolder, SpoolReader, Spooled};
