//! A tree at one moment: a held root. The modules of cursors, items, leaves and walks add the operations
//! on it.
//!
//! An edit never changes committed blocks in place. Blocks in memory are not changed while another
//! owner holds them. All blocks below a held root therefore stay unchanged while the root is held.
//! A root is either clean and on disk, or it is the newest version of a tree that a transaction
//! changes. In the second case, the `Tree` holds the root block in memory.

use crate::edit::Node;
use crate::error::Result;
use crate::forest::Forest;
use crate::pointer::{BlockPointer, RootPointer};
use crate::step::Step;
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

    /// Returns true if the root is in memory because a transaction changed the tree. The root
    /// pointer of such a tree ([`Tree::root`]) has a placeholder address, from which no block can
    /// be read.
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
}

impl Forest {
    /// Returns the tree with the root `root`. Reads no block yet.
    #[must_use]
    pub fn tree(self: &Arc<Self>, root: RootPointer) -> Tree {
        Tree::new(Arc::clone(self), root)
    }
}
