//! Edits of trees: copy-on-write in memory.
//!
//! An [`EditableTree`] is the newest version of one tree. An edit copies each committed block on
//! its path once, reports the copy to the [`EditContext`], and changes the copy in its on-disk
//! layout. The parent node, which was copied before its child, links the child's copy. The commit
//! assigns its address.
//!
//! | module | holds |
//! |---|---|
//! | `context` | the caller's account of blocks |
//! | `editable` | the newest version of a tree, with its root and its counts of blocks |
//! | `node` | a block in memory with links to its children in memory |
//! | `route`, `lookup` | the path to a leaf, looked up before any change; lookups |
//! | `editor` | copies of the blocks on a path, and the accounting of blocks that join and leave the tree |
//! | `operations` | insertion, replacement and removal of single items |
//! | `insert`, `remove` | splitting and pushing; merging, whole leaves |
//! | `freeze` | addresses, freezing, sealing, releasing memory |
//!
//! # Readers
//!
//! [`EditableTree::view`] returns the current state as a [`Tree`]. If a view holds a block on the
//! path of a later edit, the edit changes a copy. A block also keeps its bytes while a reader keeps
//! one of its items (an [`OwnedItem`](crate::OwnedItem)). A view makes the next edits copy blocks.
//!
//! # A commit
//!
//! 1. [`EditableTree::for_each_unassigned`] assigns addresses. The assignment runs again after
//!    every later edit of this tree, until [`EditableTree::unassigned_nodes`] is zero.
//! 2. [`EditableTree::freeze`] fixes the tree's state for the commit. The next edit copies the
//!    blocks that it changes, in the next generation that the context returns. Frozen blocks may
//!    also be written during a transaction to free memory. After such a write, an edit copies the
//!    block to a new address before it changes it. No edit of the transaction may reuse the old
//!    address: the cache keys blocks by address and generation.
//! 3. [`Frozen::blocks`] lists the frozen blocks, and [`FrozenBlock::seal`] seals each on any
//!    thread. The caller writes the blocks, and [`Forest::keep_written`] caches them.
//! 4. [`EditableTree::forget_written`] releases the blocks, and the caller drops the [`Frozen`].
//!    [`EditableTree::keep_written`] instead keeps written blocks, which edits change in place if
//!    nothing else holds them. The context is notified as of a copy.
//!
//! # Memory
//!
//! Memory outside the cache's budget holds blocks changed since the last freeze, blocks frozen but
//! not yet forgotten, and blocks that views hold, but no clean blocks. The number of dirty blocks
//! is [`EditableTree::unassigned_nodes`] plus the number of assigned addresses.
//!
//! # Errors
//!
//! An edit reads its whole path before any change, so an unreadable block leaves the tree
//! unchanged. After an error of the context, or of the kind [`Cause::Broken`](crate::error::Cause),
//! the tree must not be committed.
//!
//! [`Forest::keep_written`]: crate::Forest::keep_written
//! [`Tree`]: crate::Tree

mod context;
mod editable;
mod editor;
mod freeze;
mod insert;
mod lookup;
mod node;
mod operations;
mod remove;
mod renaming;
mod root;
mod route;

#[cfg(test)]
mod tests;

pub use context::EditContext;
pub use editable::EditableTree;
pub use freeze::{Frozen, FrozenBlock};
pub(crate) use node::Node;
pub use renaming::Holder;
