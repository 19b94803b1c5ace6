//! A tree at one moment: a held root, and the operations on it.
//!
//! Committed blocks are never changed in place. Blocks in memory are not changed while another
//! owner holds them. All blocks below a held root therefore stay unchanged while the root is held.
//! A root is either clean and on disk, or it is the newest version of a tree that a transaction
//! changes. In the second case, the `Tree` holds the root block in memory.

use crate::blocks::{BlockOrder, Blocks};
use crate::by_address::BlocksByAddress;
use crate::cursor::Cursor;
use crate::edit::Node;
use crate::error::Result;
use crate::forest::Forest;
use crate::items::{Items, OwnedItem};
use crate::leaves::Leaves;
use crate::path::Step;
use crate::pointer::{BlockPointer, RootPointer};
use crate::read_ahead::ReadAhead;
use buttress_format::Key;
use core::ops::RangeBounds;
use std::sync::Arc;

/// A tree in the state of its root block. Cloning a tree is cheap.
#[derive(Clone, Debug)]
pub struct Tree {
    forest: Arc<Forest>,
    root: RootPointer,
    node: Option<Arc<Node>>,
}

impl Tree {
    pub(crate) const fn new(forest: Arc<Forest>, root: RootPointer) -> Self {
        Self::in_memory(forest, root, None)
    }

    /// Makes a tree whose root is in memory, if `node` is given.
    pub(crate) const fn in_memory(forest: Arc<Forest>, root: RootPointer, node: Option<Arc<Node>>) -> Self {
        Self { forest, root, node }
    }

    /// Returns the root block, if it is in memory.
    pub(crate) const fn node(&self) -> Option<&Arc<Node>> {
        self.node.as_ref()
    }

    /// Returns the root block as the first step of a path.
    pub(crate) fn root_step(&self) -> Result<Step> {
        let pointer = BlockPointer::root(&self.root);
        let block = match &self.node {
            Some(node) => node.block.clone(),
            None => self.forest.read_block(&pointer)?,
        };
        Ok(Step {
            pointer,
            block,
            node: self.node.clone(),
            slot: 0,
        })
    }

    /// Returns true if the root is in memory because a transaction changed the tree. [`Tree::root`]
    /// then has a placeholder address, from which no block can be read.
    #[must_use]
    pub const fn is_in_memory(&self) -> bool {
        self.node.is_some()
    }

    /// Returns the pointer to the tree's root.
    #[must_use]
    pub const fn root(&self) -> &RootPointer {
        &self.root
    }

    /// Returns the forest through which the tree is read.
    #[must_use]
    pub const fn forest(&self) -> &Arc<Forest> {
        &self.forest
    }

    /// Returns a cursor before the first item.
    #[must_use]
    pub fn cursor(&self, read_ahead: ReadAhead) -> Cursor {
        Cursor::new(self.clone(), read_ahead, None)
    }

    /// Returns the item with exactly this key.
    ///
    /// # Errors
    /// Fails if a block on the path to the item cannot be read.
    pub fn get(&self, key: &Key) -> Result<Option<OwnedItem>> {
        let mut cursor = self.cursor(ReadAhead::None);
        Ok(if cursor.seek(key)? { cursor.owned() } else { None })
    }

    /// Returns the items whose keys lie in `range`, in order. Read-ahead stops at the range's end.
    #[must_use]
    pub fn range(&self, range: impl RangeBounds<Key>, read_ahead: ReadAhead) -> Items {
        Items::new(
            self,
            range.start_bound().cloned(),
            range.end_bound().cloned(),
            read_ahead,
        )
    }

    /// Returns the leaves that hold items with keys in `range`, in order. Read-ahead stops at the
    /// range's end. This is the cheapest walk over many items.
    #[must_use]
    pub fn leaves(&self, range: impl RangeBounds<Key>, read_ahead: ReadAhead) -> Leaves {
        let (start, end) = (range.start_bound().cloned(), range.end_bound().cloned());
        Leaves::new(self, start, end, read_ahead, |scope| scope)
    }

    /// Walks leaves like [`Tree::leaves`], but skips unwanted subtrees without reading them.
    ///
    /// `wanted(first, end)` returns true if the caller wants any key of `[first, end)`, or of
    /// `[first, ..)` without `end`. The walk calls the predicate for nodes and leaves, several
    /// times for each. The predicate must always return the same result for a range. The leaves
    /// that the walk returns may also hold unwanted items.
    #[must_use]
    pub fn leaves_where(
        &self,
        range: impl RangeBounds<Key>,
        read_ahead: ReadAhead,
        wanted: impl Fn(&Key, Option<&Key>) -> bool + Send + Sync + 'static,
    ) -> Leaves {
        let (start, end) = (range.start_bound().cloned(), range.end_bound().cloned());
        Leaves::new(self, start, end, read_ahead, |scope| scope.only(Arc::new(wanted)))
    }

    /// Returns every node and leaf, parents before their children. The walk continues after
    /// unreadable blocks.
    #[must_use]
    pub fn blocks(&self, read_ahead: ReadAhead) -> Blocks {
        Blocks::new(self.clone(), BlockOrder::Depth, read_ahead)
    }

    /// Returns every node and leaf like [`Tree::blocks`], in the given order.
    #[must_use]
    pub fn blocks_in(&self, order: BlockOrder, read_ahead: ReadAhead) -> Blocks {
        Blocks::new(self.clone(), order, read_ahead)
    }

    /// Returns every node and leaf, with leaves in address order. This is the fastest walk for jobs
    /// that need no key order.
    #[must_use]
    pub fn blocks_by_address(&self) -> BlocksByAddress {
        BlocksByAddress::new(self.clone())
    }
}
