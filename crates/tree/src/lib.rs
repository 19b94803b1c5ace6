//! Trees: cursors, walks and edits over copy-on-write B-trees, the node cache under them, and read-ahead.
//!
//! | module | holds |
//! |---|---|
//! | [`forest`] | all trees of one volume: reads blocks through the cache, checked once |
//! | [`cache`] | checked blocks by address and generation, within a byte budget |
//! | [`mod@pointer`] | what a parent says about its child: address, generation, level, owner, range of keys |
//! | [`tree`] | one held root, and what can be asked of it |
//! | [`cursor`], [`items`] | a place in a tree: seek, next, previous; ranges of items |
//! | [`leaves`] | a range of items leaf by leaf, without subtrees that nobody wants |
//! | [`changes`](mod@changes) | what differs between two trees, without reading what they share |
//! | [`blocks`] | a walk over nodes and leaves that goes on past damaged ones |
//! | [`by_address`] | the same for jobs that need no order of keys: one pass over the disk |
//! | [`edit`] | changing trees: copy-on-write in memory, until a commit freezes and writes it |
//! | `non_blocking` | looking without reading, under a lock |
//! | [`scan`] | many trees at once, in no order, on all cores |
//! | [`read_ahead`] | which blocks are fetched before they are asked for |
//! | [`measure`] | what each read-ahead mode costs on a simulated disk |
//! | `testing` | trees made in memory, for tests (feature `testing`) |
//!
//! The meaning of items belongs to the crates above; mirrors, parity and devices to the one below.
//!
//! # Invariants
//!
//! - A block is checked once, when it is read: checksum, file system, address, level, generation, owner, first
//!   key, every item ([`buttress_format`]). After that, access to it cannot fail.
//! - A descent goes down one level a step and a child's level is its parent's less one, so a cycle of pointers
//!   ends at the leaves. The keys of a child lie in `[its pointer's key, the next pointer's key)`, so no two
//!   places of one level can hold the same block: a walk visits each block at most once per level, however
//!   hostile the pointers are.
//! - Memory is bounded by the budget given to [`Forest::new`], plus what callers hold: a cursor holds one block
//!   a level, an [`OwnedItem`] holds its leaf.
//!
//! - A tree that a transaction changes ([`edit`]) is in memory where it was changed. Such blocks are found through
//!   their parent's link only and never through the cache, so that a view that a reader holds keeps its whole
//!   version. The place where links are followed is `path`; read-ahead looks at them to pass over what is in memory.
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
mod path;
pub mod pointer;
pub mod read_ahead;
mod reader;
pub mod scan;
mod scope;
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
pub use items::{Items, OwnedItem};
pub use leaves::{Leaf, Leaves};
pub use non_blocking::{Blocking, NonBlocking};
pub use pointer::{BlockPointer, RootPointer};
pub use read_ahead::ReadAhead;
pub use scan::Scanner;
pub use tree::Tree;
