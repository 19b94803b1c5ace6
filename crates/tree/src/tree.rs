//! One tree at one moment: a held root and what can be asked of it.
//!
//! Committed blocks are never changed in place, and blocks in memory not while somebody holds them, so everything
//! that can be reached from a root stays as it was for as long as the root is held. A root is clean, and lies on disk,
//! or it is the newest version of a tree that a transaction is changing: then the `Tree` holds it in memory.

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

/// A tree as it was when its root was written. Cheap to clone.
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

    /// A tree whose root is in memory, if there is a node.
    pub(crate) const fn in_memory(forest: Arc<Forest>, root: RootPointer, node: Option<Arc<Node>>) -> Self {
        Self { forest, root, node }
    }

    /// The root, where it is in memory.
    pub(crate) const fn node(&self) -> Option<&Arc<Node>> {
        self.node.as_ref()
    }

    /// The root block as the first step of a path.
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

    /// Whether the root is in memory because a transaction changed the tree. Then [`Tree::root`] has a stand-in for
    /// the address, which no block can be read from.
    #[must_use]
    pub const fn is_in_memory(&self) -> bool {
        self.node.is_some()
    }

    /// Where the tree begins.
    #[must_use]
    pub const fn root(&self) -> &RootPointer {
        &self.root
    }

    /// The forest that the tree is read through.
    #[must_use]
    pub const fn forest(&self) -> &Arc<Forest> {
        &self.forest
    }

    /// A cursor before the first item.
    #[must_use]
    pub fn cursor(&self, read_ahead: ReadAhead) -> Cursor {
        Cursor::new(self.clone(), read_ahead, None)
    }

    /// The item with this very key.
    ///
    /// # Errors
    /// When a block on the way to it cannot be had.
    pub fn get(&self, key: &Key) -> Result<Option<OwnedItem>> {
        let mut cursor = self.cursor(ReadAhead::None);
        Ok(if cursor.seek(key)? { cursor.owned() } else { None })
    }

    /// The items whose keys lie in `range`, in order. Nothing past its end is read ahead.
    #[must_use]
    pub fn range(&self, range: impl RangeBounds<Key>, read_ahead: ReadAhead) -> Items {
        Items::new(
            self,
            range.start_bound().cloned(),
            range.end_bound().cloned(),
            read_ahead,
        )
    }

    /// The leaves that hold items with keys in `range`, in order. Nothing past its end is read ahead. The least
    /// costly way over many items.
    #[must_use]
    pub fn leaves(&self, range: impl RangeBounds<Key>, read_ahead: ReadAhead) -> Leaves {
        let (start, end) = (range.start_bound().cloned(), range.end_bound().cloned());
        Leaves::new(self, start, end, read_ahead, |scope| scope)
    }

    /// As [`Tree::leaves`], without the subtrees that are not wanted: they are never read.
    ///
    /// `wanted(first, end)` says whether the caller wants anything with a key in `[first, end)`; without `end`,
    /// in `[first, ..)`. It is asked for nodes and for leaves, more than once for each, and must always say the
    /// same. Leaves that come may hold items that are not wanted.
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

    /// Every node and leaf, parents before their children, going on past those that cannot be had.
    #[must_use]
    pub fn blocks(&self, read_ahead: ReadAhead) -> Blocks {
        Blocks::new(self.clone(), BlockOrder::Depth, read_ahead)
    }

    /// As [`Tree::blocks`], in a given order.
    #[must_use]
    pub fn blocks_in(&self, order: BlockOrder, read_ahead: ReadAhead) -> Blocks {
        Blocks::new(self.clone(), order, read_ahead)
    }

    /// Every node and leaf in an order that suits the devices: leaves by address. For jobs that need no order of
    /// keys this is the fastest way through a tree.
    #[must_use]
    pub fn blocks_by_address(&self) -> BlocksByAddress {
        BlocksByAddress::new(self.clone())
    }
}
