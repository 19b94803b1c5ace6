//! File content: writes, reads of data that is not yet written back, and every change of a file's
//! extents.
//!
//! Written content is first dirty data of its file, in whole sectors (*delayed allocation*).
//! Write-back decides whether the content is compressed, stored inline, or overwritten in place,
//! and allocates its extents. Write-back runs before a commit, when dirty data exceeds
//! [`DataOptions::delalloc_bytes_max`](crate::DataOptions::delalloc_bytes_max), and when an
//! operation needs the file's extents. The next commit makes the written extents durable.
//!
//! | module | holds |
//! |---|---|
//! | `content` | a file's content during a call that holds the file lock |
//! | `file_calls` | how a call acquires a file's content, and releases it |
//! | `writing` | writes and reads at any offset |
//! | `flushing` | write-back of many files: when, in which order, by which thread |
//! | `in_flight` | content in flight to extents, and calls that wait for it |
//! | `write_back` | from memory to extents: order of the steps |
//! | `small_files` | these steps for many small files together |
//! | `sums` | checksums on their way to the checksum tree |
//! | `compressing` | which extents content becomes, compressed on all cores |
//! | `allocation` | space for extents, their checksums, their writes |
//! | `in_place` | content that may be overwritten in place |
//! | `insertion` | extents to be inserted into the trees |
//! | `stored` | a file extent item outside of its leaf |
//! | `items` | file extent items: replaced, cut, split; holes |
//! | `truncating`, `preallocation` | changes of size; space ahead of content, holes, zeros |
//! | `sharing` | extents that several files share: reflink, dedupe, copy |
//! | `defragment` | small extents joined to large ones; content compressed later |
//! | `encoded` | extents whose stored bytes a caller provides, compressed or not |
//! | `encoded_files` | such extents for many new files |
//!
//! # Locks
//!
//! Each file with a call in progress has its own file lock. A call holds the file lock during
//! device I/O; only write-backs by the background, a commit or a sync release it. Calls acquire the
//! edit lock after the file lock, for lookups and for inserting items, and never hold it during
//! I/O. A commit that an edit makes for lack of space writes no content back, so it waits for no
//! file lock.
//!
//! # Invariants
//!
//! - The size in the inode item grows only after the content before the new end has extents.
//! - The bytes between a file's size and the end of its last sector are always zero, on disk and in
//!   memory.
//! - An inline extent is the only extent of its file. Before a write adds content after inline
//!   content, that content becomes a dirty sector.
//!
//! Source: on-disk format documentation, section "EXTENT_DATA"; btrfs(5), sections "Compression"
//! and "Mount options".

mod allocation;
mod compressing;
mod content;
pub(crate) mod defragment;
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

pub use defragment::{DefragmentCompression, DefragmentOptions, DefragmentSummary};
pub use encoded::EncodedExtent;
pub use preallocation::AllocateMode;
