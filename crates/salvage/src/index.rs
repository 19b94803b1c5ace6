//! The index of a scan: a file beside the image that keeps every found tree block.
//!
//! | at | bytes | content |
//! |---|---|---|
//! | 0 | 16,384 | header A |
//! | 16,384 | 16,384 | header B: the newer valid header counts |
//! | 32,768 | 65,536 each | pages of records |
//! | then | 65,536 each | if the index is complete: pages of record numbers, by tree, level, key and age |
//!
//! | page, at | bytes | content |
//! |---|---|---|
//! | 0 | 4 | CRC-32C of all bytes after it |
//! | 4 | 2 | kind: 1 records, 2 order |
//! | 6 | 2 | number of entries |
//! | 8 | 8 | number of the page, from 0 |
//! | 16 | 65,520 | 819 [records](crate::record) of 80 bytes, or 16,380 record numbers of 4 bytes |
//!
//! While the scan runs, pages are appended. After each 256 MiB of a device, the pages become
//! durable, then a header that counts them and holds each device's position. A scan that is killed
//! continues from these positions. After the last position, the records are sorted by address and
//! written into a second file with the order pages, and that file replaces the first. The second file
//! has a new name, so sorting writes to no existing file.
//!
//! # Invariants
//!
//! - A header never counts a page that is not durable.
//! - A page, a record or a number with a wrong value is an error, never a wrong answer about the
//!   index. A block that an index names is read and checked again before it is used.
//! - The scan of changed devices starts from nothing: sizes, times of change and generations of
//!   superblocks must be those in the header. A complete index counts only if each device has a time
//!   of change or a superblock.
//!
//! # Left out
//!
//! Superblocks: readers inspect their three places, which costs less than an index.

mod layout;
mod reader;
mod writer;

#[cfg(test)]
mod tests;

pub use layout::DEVICES_MAX;
pub use reader::{BlockIndex, IndexReader};
pub use writer::{IndexWriter, OpenedIndex};
