//! The editor of one running edit: it copies blocks before they change, and accounts for the tree's
//! new and removed blocks.

use super::context::EditContext;
use super::node::{Node, new_identity};
use super::root::Root;
use super::route::{Route, RouteStep};
use crate::error::{Cause, ContextError, Error, Result};
use crate::forest::Forest;
use crate::pointer::BlockPointer;
use buttress_exact::Exact as _;
use buttress_format::node::{NewBlock, TreeBlock};
use buttress_format::{Key, TreeId};
use std::sync::Arc;

/// The editor of one running edit.
pub(super) struct Editor<'a> {
    pub(super) forest: &'a Arc<Forest>,
    pub(super) tree: TreeId,
    pub(super) epoch: u64,
    pub(super) unassigned: &'a mut u64,
    /// True if the editor changes written and [kept](super::EditableTree::keep_written) blocks in
    /// place. The editor never changes blocks of other trees in place: a snapshot's tree may hold
    /// blocks in memory that its source made and owns.
    pub(super) takes_over: bool,
    /// Released blocks whose memory new blocks reuse.
    pub(super) recycled: &'a mut Vec<TreeBlock>,
    pub(super) context: &'a mut dyn EditContext,
}

/// A block that an edit removes from its tree.
pub(super) enum Gone {
    Node(Arc<Node>),
    Clean(Box<(BlockPointer, TreeBlock)>),
}

impl Editor<'_> {
    /// Returns the error for a broken invariant.
    pub(super) fn broken(&self, what: &'static str) -> Error {
        Error::new(&self.nowhere(), Cause::Broken(what))
    }

    fn failed(&self, pointer: &BlockPointer, error: ContextError) -> Error {
        Error::new(pointer, Cause::Context(Arc::new(error)))
    }

    fn nowhere(&self) -> BlockPointer {
        BlockPointer {
            tree: self.tree,
            logical: buttress_format::Logical::MIN,
            generation: self.context.generation(),
            level: 0,
            first_key: None,
            end_key: None,
        }
    }

    /// Accounts for a new node of the edited tree.
    pub(super) fn made(&mut self) {
        *self.unassigned = self.unassigned.exact_add(1);
    }

    /// Returns an empty leaf or node beside another one.
    pub(super) fn new_sibling(&mut self, node: &Node) -> Node {
        node.new_sibling(self.recycled.pop())
    }

    /// Accounts for the removal of a node without an address.
    pub(super) fn unmade(&mut self) -> Result<()> {
        let Some(rest) = self.unassigned.checked_sub(1) else {
            let cause = Cause::Miscounted {
                what: "blocks without an address",
                count: *self.unassigned,
                found: 1,
            };
            return Err(Error::new(&self.nowhere(), cause));
        };
        *self.unassigned = rest;
        Ok(())
    }

    /// Accounts for a block whose content was moved, or removed item by item.
    pub(super) fn gone(&mut self, gone: &Gone) -> Result<()> {
        let tree = self.tree;
        let (pointer, answer) = match gone {
            Gone::Node(node) if node.epoch == self.epoch => {
                if node.address().is_none() {
                    return self.unmade();
                }
                let pointer = node.pointer(tree);
                (pointer, self.context.dropped(tree, &pointer, &node.block))
            }
            Gone::Node(node) => {
                let pointer = node.pointer(tree);
                (pointer, self.context.copied(tree, &pointer, &node.resolved()))
            }
            Gone::Clean(clean) => (clean.0, self.context.copied(tree, &clean.0, &clean.1)),
        };
        answer.map_err(|error| self.failed(&pointer, error))
    }

    /// Returns the root in a form that may be changed.
    pub(super) fn root<'r>(&mut self, root: &'r mut Root, step: &mut RouteStep) -> Result<&'r mut Node> {
        let is_current = root.node.as_ref().is_some_and(|node| node.epoch == self.epoch);
        if !is_current && !self.take_over(root.node.as_mut())? {
            let gone = self.take(root.node.take(), step)?;
            root.node = Some(Arc::new(self.copy(&gone)));
            self.made();
            self.gone(&gone)?;
        }
        let node = root.node.as_mut().map(Arc::make_mut);
        node.ok_or_else(|| self.broken("a root in memory is missing"))
    }

    /// Returns the child in `slot` in a form that may be changed.
    pub(super) fn child<'n>(
        &mut self,
        parent: &'n mut Node,
        slot: usize,
        step: &mut RouteStep,
    ) -> Result<&'n mut Node> {
        let is_current =
            |node: &Arc<Node>| node.epoch == self.epoch || buttress_faults::on("tree-frozen-node-changed");
        let is_current = parent.link(slot).is_some_and(is_current);
        if !is_current && self.take_over(parent.links.get_mut(slot).and_then(Option::as_mut))? {
            parent.point_to_link(slot);
        } else if !is_current {
            let gone = self.take(parent.link(slot).cloned(), step)?;
            let copy = Arc::new(self.copy(&gone));
            if let Some(link) = parent.links.get_mut(slot) {
                *link = Some(copy);
            }
            parent.point_to_link(slot);
            self.made();
            self.gone(&gone)?;
        }
        let link = parent.links.get_mut(slot).and_then(Option::as_mut);
        link.map(Arc::make_mut)
            .ok_or_else(|| self.broken("a child in memory is missing"))
    }

    /// Reuses a written block that has no other owner: it stays in memory, and gets a new address.
    /// Returns false and changes nothing if the block has another owner or was never written.
    fn take_over(&mut self, link: Option<&mut Arc<Node>>) -> Result<bool> {
        let Some(node) = link
            .filter(|_| self.takes_over)
            .and_then(Arc::get_mut)
            .filter(|node| node.address().is_some() && node.block.header().owner == self.tree)
        else {
            return Ok(false);
        };
        node.resolve();
        let pointer = node.pointer(self.tree);
        let answer = self.context.copied(self.tree, &pointer, &node.block);
        answer.map_err(|error| self.failed(&pointer, error))?;
        node.take_over(self.context.generation(), self.epoch);
        self.made();
        Ok(true)
    }

    fn take(&self, node: Option<Arc<Node>>, step: &mut RouteStep) -> Result<Gone> {
        match (node, step.clean.take()) {
            (Some(node), _) => Ok(Gone::Node(node)),
            (None, Some(clean)) => Ok(Gone::Clean(clean)),
            (None, None) => Err(self.broken("a block on the way was not read")),
        }
    }

    fn copy(&self, gone: &Gone) -> Node {
        let (block, links) = match gone {
            Gone::Node(node) => (&node.block, node.links.clone()),
            Gone::Clean(clean) => {
                // The copy replaces the clean block, and is the wanted leaf. Nodes stay in the
                // cache, because readers of earlier states share them.
                if clean.1.is_leaf() {
                    self.forest.cache().forget(&clean.0);
                }
                (&clean.1, links_for(&clean.1))
            }
        };
        Node::copy_of(block, links, self.tree, self.context.generation(), self.epoch)
    }

    /// Returns the leaf at the end of a route. The returned leaf and all blocks above it may be
    /// changed. If `lowest` is below the first key on the path, `lowest` becomes the first key.
    pub(super) fn leaf<'r>(
        &mut self,
        root: &'r mut Root,
        route: &mut Route,
        lowest: Option<&Key>,
    ) -> Result<&'r mut Node> {
        let last = route.steps.len().exact_sub(1);
        self.descend(root, route, last, lowest)
    }

    /// Returns the block at a depth of the route, like [`Editor::leaf`].
    pub(super) fn descend<'r>(
        &mut self,
        root: &'r mut Root,
        route: &mut Route,
        depth: usize,
        lowest: Option<&Key>,
    ) -> Result<&'r mut Node> {
        let mut steps = route.steps.iter_mut().take(depth.exact_add(1));
        let Some(first) = steps.next() else {
            return Err(self.broken("a route without a root"));
        };
        let mut node = self.root(root, first)?;
        let mut slot = first.slot;
        for step in steps {
            if let Some(lowest) = lowest.filter(|_| slot == 0)
                && node.block.key(0).is_some_and(|first| *lowest < first)
                && !node.block.edit_node(|node| node.set_key(0, lowest))
            {
                return Err(self.broken("a node on the way has no first key"));
            }
            node = self.child(node, slot, step)?;
            slot = step.slot;
        }
        Ok(node)
    }

    /// Adds a new root node above the root.
    pub(super) fn raise(&mut self, root: &mut Root) -> Result<()> {
        let Some(below) = root.node.take() else {
            return Err(self.broken("a root in memory is missing"));
        };
        let header = *below.block.header();
        let new = NewBlock {
            fsid: header.fsid,
            chunk_tree_uuid: header.chunk_tree_uuid,
            logical: new_identity(),
            generation: header.generation,
            owner: header.owner,
            level: header.level.exact_add(1),
        };
        if new.level >= crate::pointer::LEVELS_MAX {
            root.node = Some(below);
            return Err(self.broken("a tree higher than trees can be"));
        }
        let mut block = TreeBlock::new_empty(self.forest.block_format().node_bytes, &new);
        let pointer = below.key_pointer();
        if !block.edit_node(|node| node.insert(0, &pointer)) {
            return Err(self.broken("an empty node has no space for a pointer"));
        }
        root.node = Some(Arc::new(Node::new(block, vec![Some(below)], self.epoch)));
        self.made();
        Ok(())
    }

    /// Returns the capacity of a leaf in bytes, including heads.
    pub(super) fn leaf_capacity(&self) -> usize {
        let node_bytes = self.forest.block_format().node_bytes;
        buttress_format::node::edit::leaf_data_bytes_max(node_bytes)
            .exact_add(buttress_format::node::edit::ITEM_HEAD_BYTES)
    }

    /// Returns the maximum number of pointers of a node.
    pub(super) fn pointers_max(&self) -> usize {
        buttress_format::node::edit::node_pointers_max(self.forest.block_format().node_bytes)
    }
}

/// Returns one empty link for each child of a clean block.
pub(super) fn links_for(block: &TreeBlock) -> Vec<Option<Arc<Node>>> {
    if block.is_leaf() {
        Vec::new()
    } else {
        vec![None; block.item_count()]
    }
}
