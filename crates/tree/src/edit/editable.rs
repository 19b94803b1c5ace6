//! The newest version of one tree: its root, and its counts of blocks in memory.

use super::context::EditContext;
use super::editor::{Editor, links_for};
use super::node::{Node, new_identity};
use super::root::Root;
use crate::error::{Cause, Error, Result};
use crate::forest::Forest;
use crate::pointer::{BlockPointer, RootPointer};
use crate::tree::Tree;
use buttress_exact::Exact as _;
use buttress_format::node::edit::leaf_data_bytes_max;
use buttress_format::node::{NewBlock, TreeBlock};
use buttress_format::{Generation, Key, Logical, TreeId};
use std::sync::Arc;
use uuid::Uuid;

/// The newest version of one tree; see the documentation of [`edit`](super).
#[derive(Debug)]
pub struct EditableTree {
    pub(super) forest: Arc<Forest>,
    pub(super) tree: TreeId,
    pub(super) root: Root,
    /// The epoch, which increases with each freeze. Edits never change blocks of earlier epochs.
    pub(super) epoch: u64,
    /// The number of blocks in memory without an address.
    pub(super) unassigned: u64,
    /// The number of blocks that were given addresses since the last freeze.
    pub(super) assigned: u64,
    /// The number of blocks written and [kept](Self::keep_written) since the last full release.
    pub(super) kept: u64,
    /// Released blocks whose memory the next new blocks reuse.
    pub(super) recycled: Vec<TreeBlock>,
}

impl EditableTree {
    /// Opens a committed tree for edits. This call reads no block yet.
    #[must_use]
    pub fn open(tree: &Tree) -> Self {
        let node = tree.node().cloned();
        Self {
            forest: Arc::clone(tree.forest()),
            tree: tree.root().tree,
            epoch: node.as_ref().map_or(0, |node| node.epoch).exact_add(1),
            root: Root {
                pointer: *tree.root(),
                node,
            },
            unassigned: 0,
            assigned: 0,
            kept: 0,
            recycled: Vec::new(),
        }
    }

    /// Makes a new tree of one empty leaf in memory.
    #[must_use]
    pub fn new_empty(
        forest: &Arc<Forest>,
        tree: TreeId,
        generation: Generation,
        chunk_tree_uuid: Uuid,
    ) -> Self {
        let format = forest.block_format();
        let new = NewBlock {
            fsid: format.fsid,
            chunk_tree_uuid,
            logical: new_identity(),
            generation,
            owner: tree,
            level: 0,
        };
        let block = TreeBlock::new_empty(format.node_bytes, &new);
        Self::of_root(forest, tree, Node::new(block, Vec::new(), 1))
    }

    /// Makes a new tree with the content of a committed tree. The new root is a copy in memory
    /// under the new tree's id. The caller adds references to the shared blocks.
    ///
    /// # Errors
    /// Fails if the root cannot be read, or has no address yet.
    pub fn from_copied_root(source: &Tree, tree: TreeId, generation: Generation) -> Result<Self> {
        let forest = source.forest();
        let node = match source.node() {
            Some(node) if node.address().is_none() => {
                let cause = Cause::Broken("a tree is copied before it is committed");
                return Err(Error::new(&node.pointer(tree), cause));
            }
            Some(node) => {
                let links = node.links.clone();
                Node::copy_of(&node.block, links, tree, generation, node.epoch.exact_add(1))
            }
            None => {
                let block = forest.read_block(&BlockPointer::root(source.root()))?;
                Node::copy_of(&block, links_for(&block), tree, generation, 1)
            }
        };
        Ok(Self::of_root(forest, tree, node))
    }

    fn of_root(forest: &Arc<Forest>, tree: TreeId, node: Node) -> Self {
        Self {
            forest: Arc::clone(forest),
            tree,
            epoch: node.epoch,
            root: Root {
                pointer: RootPointer {
                    tree,
                    logical: node.block.logical(),
                    generation: node.generation(),
                    level: node.level(),
                },
                node: Some(Arc::new(node)),
            },
            unassigned: 1,
            assigned: 0,
            kept: 0,
            recycled: Vec::new(),
        }
    }

    /// Returns a view of the tree's current state, to hold and read.
    #[must_use]
    pub fn view(&self) -> Tree {
        let root = self.root.pointer(self.tree, self.epoch);
        Tree::in_memory(Arc::clone(&self.forest), root, self.root.node.clone())
    }

    /// Returns the tree's id.
    #[must_use]
    pub const fn id(&self) -> TreeId {
        self.tree
    }

    /// Returns the forest through which the tree is read.
    #[must_use]
    pub const fn forest(&self) -> &Arc<Forest> {
        &self.forest
    }

    /// Returns true if the tree was changed since the last freeze.
    #[must_use]
    pub fn is_dirty(&self) -> bool {
        self.root
            .node
            .as_ref()
            .is_some_and(|node| node.epoch == self.epoch)
    }

    /// Returns true if the root is in memory: changed, or not yet [forgotten](Self::forget_written).
    #[must_use]
    pub const fn is_in_memory(&self) -> bool {
        self.root.node.is_some()
    }

    /// Returns the root's level.
    #[must_use]
    pub fn level(&self) -> u8 {
        self.root
            .node
            .as_ref()
            .map_or(self.root.pointer.level, |node| node.level())
    }

    /// Returns the root's address, or `None` if the root has no address yet.
    #[must_use]
    pub fn root_logical(&self) -> Option<Logical> {
        match &self.root.node {
            Some(node) => node.address(),
            None => Some(self.root.pointer.logical),
        }
    }

    /// Returns the generation of the root block.
    #[must_use]
    pub fn root_generation(&self) -> Generation {
        self.root
            .node
            .as_ref()
            .map_or(self.root.pointer.generation, |node| node.generation())
    }

    /// Returns the number of the tree's blocks in memory without an address.
    #[must_use]
    pub const fn unassigned_nodes(&self) -> u64 {
        self.unassigned
    }

    /// Returns the number of blocks in memory that are not frozen, with or without an address.
    #[must_use]
    pub fn unfrozen_nodes(&self) -> u64 {
        self.unassigned.exact_add(self.assigned)
    }

    pub(super) fn editor<'a>(&'a mut self, context: &'a mut dyn EditContext) -> (Editor<'a>, &'a mut Root) {
        let editor = Editor {
            forest: &self.forest,
            tree: self.tree,
            epoch: self.epoch,
            unassigned: &mut self.unassigned,
            takes_over: self.kept > 0,
            recycled: &mut self.recycled,
            context,
        };
        (editor, &mut self.root)
    }

    pub(super) fn check_size(&self, key: &Key, data: &[u8]) -> Result<()> {
        let most_bytes = leaf_data_bytes_max(self.forest.block_format().node_bytes);
        if data.len() <= most_bytes {
            return Ok(());
        }
        Err(self.error(Cause::ItemTooLarge {
            key: *key,
            size_bytes: data.len(),
            most_bytes,
        }))
    }

    pub(super) fn error(&self, cause: Cause) -> Error {
        let root = self.root.pointer(self.tree, self.epoch);
        Error::new(&BlockPointer::root(&root), cause)
    }
}
