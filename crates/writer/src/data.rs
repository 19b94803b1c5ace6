//! File content: writing, reading what is not yet written back, and everything that changes which extents a file has.
//!
//! Content that is written is dirty data at first, by file, in whole sectors (*delayed allocation*): only when it is written
//! back is it decided whether it is compressed, kept inside the tree or overwritten in place, and where it goes. It is
//! written back before a commit, when more than [`DataOptions::delalloc_bytes_max`](crate::DataOptions::delalloc_bytes_max) waits, and when an operation needs
//! the file's extents. The commit then holds it.
//!
//! | module | holds |
//! |---|---|
//! | `content` | what a call knows of its file while it holds the file's lock |
//! | `file_calls` | how a call comes to a file's content, and leaves it |
//! | `writing` | writing and reading at any offset |
//! | `flushing` | when content of many files is written back, and by whom |
//! | `in_flight` | content on its way to extents, and who waits for it |
//! | `write_back` | from memory to extents: order of the steps |
//! | `small_files` | the same for many small files together |
//! | `sums` | checksums on their way to the checksum tree |
//! | `compressing` | which extents are made of content, compressed on all cores |
//! | `allocation` | room for extents, their checksums, writing them |
//! | `in_place` | content that may be overwritten where it lies |
//! | `insertion` | extents that go into the trees next |
//! | `stored` | a file extent item outside of its leaf |
//! | `items` | file extent items: replaced, cut, split; holes |
//! | `truncating`, `preallocation` | other sizes; room ahead of content, holes, zeros |
//! | `sharing` | extents that several files have: reflink, dedupe, copy |
//! | `encoded` | extents whose stored bytes are given, compressed or not |
//! | `encoded_files` | such extents of many files that are being made |
//!
//! # Locks
//!
//! Each file with a call under way has a lock of its own, held during reads and writes of devices, but while the background,
//! a commit or a sync writes back. The edit lock is taken inside it, for looking and for inserting items, never across input
//! or output. Commits that an edit makes for want of room do not write back content, so none of them waits for a file's lock.
//!
//! # Invariants
//!
//! - The size in the inode item grows only after the content before it has extents.
//! - Whatever lies between a file's size and the end of its last sector is zero, on disk and in memory.
//! - An inline extent is the only content of its file: before anything comes behind it, it becomes dirty as a sector.
//!
//! Source: on-disk format documentation, section "EXTENT_DATA"; btrfs(5), sections "Compression" and "Mount options".

mod allocation;
mod compressing;
mod content;
pub(crate) mod encoded;
pub(crate) mod encoded_files;
mod file_calls;
mod flushing;
mod in_flight;
mod in_place;
mod insertion;
pub(crate) mod items;
pub(crate) mod preallocation;
pub(crate) mod sharing;
mod small_files;
pub(crate) mod stored;
mod sums;
#[cfg(test)]
mod tests;
mod truncating;
mod write_back;
mod writing;

pub use encoded::EncodedExtent;
pub use preallocation::AllocateMode;
