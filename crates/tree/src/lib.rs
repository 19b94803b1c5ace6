//! B-trees: cursors, walks and edits over copy-on-write trees, with their node cache and
//! read-ahead.
//!
//! | module | holds |
//! |---|---|
//! | [`forest`] | all trees of one volume: reads blocks through the cache, checked once |
//! | [`cache`] | checked blocks by address and generation, within a byte budget |
//! | [`mod@pointer`] | the parent's facts about its child: address, generation, level, owner, range of keys |
//! | [`tree`] | one held root |
//! | [`cursor`], [`items`] | a position in a tree: seek, next, previous; ranges of items |
//! | [`leaves`] | a range of items leaf by leaf, which skips unwanted subtrees |
//! | [`changes`](mod@changes) | the differences between two trees, found without reading shared blocks |
//! | [`blocks`] | a walk over nodes and leaves that continues after damaged blocks |
//! | [`by_address`] | a walk for jobs that need no key order: one pass over the disk |
//! | [`edit`] | edits: copy-on-write in memory, until a commit freezes and writes the tree |
//! | `non_blocking` | lookups that do not read, for callers that hold a lock |
//! | [`scan`] | many trees at once, in no order, on all cores |
//! | [`sectors`] | a set of the blocks that a scan has visited |
//! | [`read_ahead`] | the choice of blocks to fetch before a reader requests them |
//! | [`measure`] | the cost of each read-ahead mode on a simulated disk |
//! | `testing` | trees made in memory, for tests (feature `testing`) |
//!
//! The crates above `tree` interpret items. The crate below `tree` handles mirrors, parity and
//! devices.
//!
//! # Invariants
//!
//! - A block is checked once, when it is read: checksum, file system, address, level, generation,
//!   owner, first key, every item ([`buttress_format`]). After this check, access to a tree block
//!   cannot fail.
//! - A descent through a tree moves down one level with each step, because a child's level is one
//!   less. A descent into a cycle of pointers therefore ends at a leaf. The keys of a child lie in
//!   `[its pointer's key, the next pointer's key)`, so two places of one level never hold the same
//!   block. A walk visits each block at most once for each level, even in a hostile tree.
//! - The budget given to [`Forest::new`], plus the blocks that callers hold, bounds the memory of a
//!   forest. A cursor holds one block for each level, and an [`OwnedItem`] holds its leaf.
//! - A tree that a transaction changes ([`edit`]) keeps its changed blocks in memory. Readers find
//!   changed blocks only through the parent's link, never through the cache. A reader's view
//!   therefore keeps its whole version. The module `path` follows the links. Read-ahead inspects
//!   the links to skip blocks in memory.
#![forbid(unsafe_code)]
#![cfg_attr(
    test,
    allow(
        clippy::arithmetic_side_effects,
        clippy::cast_possible_truncation,
        reason = "tests compute with known numbers"
    )
)]

pub mod blocks;
pub mod by_address;
pub mod cache;
pub mod changes;
pub mod cursor;
pub mod edit;
pub mod error;
pub mod forest;
pub mod items;
pub mod leaves;
pub mod measure;
mod non_blocking;
mod owned_item;
mod path;
pub mod pointer;
mod reach;
pub mod read_ahead;
mod reader;
pub mod scan;
mod scope;
pub mod sectors;
mod step;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
pub mod tree;
mod workers;

#[cfg(test)]
mod tests;

pub use blocks::{BlockOrder, Blocks, Visit};
pub use by_address::BlocksByAddress;
pub use cache::CacheStatistics;
pub use changes::{Change, Changes, changes, changes_where};
pub use cursor::Cursor;
pub use edit::{EditContext, EditableTree, Frozen, FrozenBlock, Holder};
pub use error::{Cause, ContextError, Error, Result};
pub use forest::{Forest, HeldMemory};
pub use items::Items;
pub use leaves::{Leaf, Leaves};
pub use non_blocking::{Blocking, NonBlocking};
pub use owned_item::OwnedItem;
pub use pointer::{BlockPointer, RootPointer};
pub use read_ahead::ReadAhead;
pub use scan::Scanner;
pub use sectors::Sectors;
pub use tree::Tree;
