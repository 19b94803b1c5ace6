//! Edits of trees: copy-on-write in memory.
//!
//! An [`EditableTree`] is the newest version of one tree. An edit copies each committed block on
//! its path once, reports the copy to the [`EditContext`], and changes the copy in its on-disk
//! layout. The parent node, which was copied before its child, links the child's copy. The commit
//! assigns its address.
//!
//! | module | holds |
//! |---|---|
//! | `node` | a block in memory with links to its children in memory |
//! | `route` | the path to a leaf, looked up before any change; lookups |
//! | `editor` | copies of the blocks on a path, and the accounting of blocks that join and leave the tree |
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

mod editor;
mod freeze;
mod insert;
mod node;
mod remove;
mod renaming;
mod route;

#[cfg(test)]
mod tests;

use buttress_exact::Exact as _;
pub use freeze::{Frozen, FrozenBlock};
pub(crate) use node::Node;
pub use renaming::Holder;

use crate::error::{Cause, ContextError, Error, Result};
use crate::forest::Forest;
use crate::pointer::{BlockPointer, RootPointer};
use crate::tree::Tree;
use buttress_format::node::edit::leaf_data_bytes_max;
use buttress_format::node::{NewBlock, TreeBlock};
use buttress_format::{Generation, Key, Logical, TreeId};
use editor::Editor;
use insert::{NewItem, put_into, put_run};
use node::{NO_SLOT, new_identity};
use route::Route;
use std::sync::Arc;
use uuid::Uuid;

/// Accounts for blocks while a tree is edited.
pub trait EditContext {
    /// Returns the generation of the running transaction, which all new blocks carry.
    fn generation(&self) -> Generation;

    /// A committed or frozen block left this tree, and its content continues in memory. The content
    /// is in a copy, in a neighbour that absorbed it, or in items that
    /// [`EditableTree::remove_range`] will report to its caller. Called once for each such block,
    /// parents before children, after the tree lost the block.
    ///
    /// # Errors
    /// Any error. The edit fails with the error of this method, and the tree must not be committed.
    fn copied(&mut self, tree: TreeId, old: &BlockPointer, block: &TreeBlock) -> Result<(), ContextError>;

    /// A block in memory left the tree. The dropped block had an address and was not frozen, and
    /// its content was moved or removed before. Blocks without an address cause no call.
    ///
    /// # Errors
    /// Fails with any error, as [`EditContext::copied`] does.
    fn dropped(&mut self, tree: TreeId, old: &BlockPointer, block: &TreeBlock) -> Result<(), ContextError>;
}

/// The newest version of one tree; see the module's documentation.
#[derive(Debug)]
pub struct EditableTree {
    forest: Arc<Forest>,
    tree: TreeId,
    root: Root,
    /// The epoch, which increases with each freeze. Edits never change blocks of earlier epochs.
    epoch: u64,
    /// The number of blocks in memory without an address.
    unassigned: u64,
    /// The number of blocks that were given addresses since the last freeze.
    assigned: u64,
    /// The number of blocks written and [kept](Self::keep_written) since the last full release.
    kept: u64,
    /// Released blocks whose memory the next new blocks reuse.
    recycled: Vec<TreeBlock>,
}

/// The root of the tree, on disk and in memory.
#[derive(Debug)]
struct Root {
    /// The committed root. The pointer is out of date while `node` is set.
    pointer: RootPointer,
    /// The root block in memory.
    node: Option<Arc<Node>>,
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
                Node::copy_of(&block, editor::links_for(&block), tree, generation, 1)
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

    /// Inserts a new item.
    ///
    /// # Errors
    /// Returns [`Cause::ItemExists`](crate::error::Cause) or [`Cause::ItemTooLarge`](crate::error::Cause).
    /// Also fails if a block cannot be read, or with an error of the context.
    pub fn insert(&mut self, context: &mut dyn EditContext, key: &Key, data: &[u8]) -> Result<()> {
        self.check_size(key, data)?;
        let route = self.route(key)?;
        if route.found {
            return Err(self.error(Cause::ItemExists(*key)));
        }
        self.insert_at(context, route, key, data)
    }

    /// Inserts an item, or replaces the data of the item with this key by data of any size.
    ///
    /// # Errors
    /// Returns [`Cause::ItemTooLarge`](crate::error::Cause), or fails as [`EditableTree::remove`] does.
    pub fn put(&mut self, context: &mut dyn EditContext, key: &Key, data: &[u8]) -> Result<()> {
        self.check_size(key, data)?;
        let mut route = self.route(key)?;
        if !route.found {
            return self.insert_at(context, route, key, data);
        }
        let slot = route.leaf_slot();
        let (mut editor, root) = self.editor(context);
        let leaf = editor.leaf(root, &mut route, None)?;
        let fits = leaf.block.edit_leaf(|leaf| {
            if !leaf.resize(slot, data.len()) {
                return leaf.remove(slot..slot.exact_add(1)).then_some(false);
            }
            leaf.data_mut(slot)?.copy_from_slice(data);
            Some(true)
        });
        let Some(fits) = fits else {
            return Err(editor.broken("an item that was found is not in its leaf"));
        };
        if !fits {
            let item = NewItem { key, data, slot };
            if !put_into(leaf, slot, key, data) {
                return editor.insert_with_room(root, &route, item);
            }
        } else if editor.is_small(leaf) && route.steps.len() > 1 {
            return editor.tidy(root, &route, route.steps.len().exact_sub(1));
        }
        Ok(())
    }

    /// Changes an item's data in place. Returns false and copies nothing if the item does not exist.
    ///
    /// # Errors
    /// Fails if a block cannot be read, or with an error of the context.
    pub fn update(
        &mut self,
        context: &mut dyn EditContext,
        key: &Key,
        change: &mut dyn FnMut(&mut [u8]),
    ) -> Result<bool> {
        let mut route = self.route(key)?;
        if !route.found {
            return Ok(false);
        }
        let slot = route.leaf_slot();
        let (mut editor, root) = self.editor(context);
        let leaf = editor.leaf(root, &mut route, None)?;
        match leaf.block.edit_leaf(|leaf| leaf.data_mut(slot).map(change)) {
            Some(()) => Ok(true),
            None => Err(editor.broken("an item that was found is not in its leaf")),
        }
    }

    /// Removes an item. Returns false and copies nothing if the item does not exist.
    ///
    /// # Errors
    /// Fails if a block cannot be read, or with an error of the context.
    pub fn remove(&mut self, context: &mut dyn EditContext, key: &Key) -> Result<bool> {
        let mut route = self.route(key)?;
        if !route.found {
            return Ok(false);
        }
        let slot = route.leaf_slot();
        let depth = route.steps.len().exact_sub(1);
        let (mut editor, root) = self.editor(context);
        let leaf = editor.leaf(root, &mut route, None)?;
        let slots = slot..slot.exact_add(1);
        if !leaf.block.edit_leaf(|leaf| leaf.remove(slots)) {
            return Err(editor.broken("an item that was found is not in its leaf"));
        }
        leaf.next_slot = NO_SLOT;
        if depth > 0 && (slot == 0 || editor.is_small(leaf)) {
            editor.tidy(root, &route, depth)?;
        }
        Ok(true)
    }

    /// Inserts new items, which are in key order. Items of the same leaf share one descent.
    ///
    /// # Errors
    /// Fails as [`EditableTree::insert`] does. Items before the failed item stay in the tree.
    pub fn insert_many(&mut self, context: &mut dyn EditContext, items: &[(Key, &[u8])]) -> Result<()> {
        match self.insert_many_new(context, items)?.first() {
            Some((key, _)) => Err(self.error(Cause::ItemExists(*key))),
            None => Ok(()),
        }
    }

    /// Like [`EditableTree::insert_many`], but stops at the first item whose key the tree already
    /// has. Returns this existing item and all later items.
    ///
    /// # Errors
    /// Fails as [`EditableTree::insert_many`] does.
    pub fn insert_many_new<'i, 'd>(
        &mut self,
        context: &mut dyn EditContext,
        items: &'i [(Key, &'d [u8])],
    ) -> Result<&'i [(Key, &'d [u8])]> {
        let mut rest = items;
        while let Some((key, data)) = rest.first() {
            self.check_size(key, data)?;
            let route = self.route(key)?;
            if route.found {
                break;
            }
            self.insert_at(context, route, key, data)?;
            // Clamp: the caller has just inserted the first item.
            rest = rest.get(1..).unwrap_or_default();
            let Some((next, _)) = rest.first() else {
                break;
            };
            // The loop inserts items into the same leaf while the leaf has space and the next leaf
            // does not begin.
            let mut route = self.route(next)?;
            let end = route.end_key;
            let (mut editor, root) = self.editor(context);
            let leaf = editor.leaf(root, &mut route, None)?;
            while let Some((key, _)) = rest.first().filter(|(key, _)| end.is_none_or(|end| *key < end)) {
                let Err(slot) = leaf.block.search(key) else {
                    break;
                };
                // An insertion before a leaf's first item changes keys in the blocks above, so it
                // takes the slow path.
                let taken = match slot {
                    0 => 0,
                    _ => put_run(leaf, slot, run_before(rest, leaf.block.key(slot).or(end))),
                };
                if taken == 0 {
                    break;
                }
                // Clamp: the call has just inserted exactly these items.
                rest = rest.get(taken..).unwrap_or_default();
            }
        }
        Ok(rest)
    }

    /// Inserts an item at the end of a route whose search did not find its key.
    fn insert_at(
        &mut self,
        context: &mut dyn EditContext,
        mut route: Route,
        key: &Key,
        data: &[u8],
    ) -> Result<()> {
        let slot = route.leaf_slot();
        let (mut editor, root) = self.editor(context);
        let leaf = editor.leaf(root, &mut route, Some(key))?;
        if put_into(leaf, slot, key, data) {
            return Ok(());
        }
        editor.insert_with_room(root, &route, NewItem { key, data, slot })
    }

    fn editor<'a>(&'a mut self, context: &'a mut dyn EditContext) -> (Editor<'a>, &'a mut Root) {
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

    fn check_size(&self, key: &Key, data: &[u8]) -> Result<()> {
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

    fn error(&self, cause: Cause) -> Error {
        let root = self.root.pointer(self.tree, self.epoch);
        Error::new(&BlockPointer::root(&root), cause)
    }
}

/// Returns the items at the beginning of a row that lie below a key and in ascending order.
fn run_before<'r, 'd>(items: &'r [(Key, &'d [u8])], end: Option<Key>) -> &'r [(Key, &'d [u8])] {
    let mut last = None;
    let count = items
        .iter()
        .take_while(|(key, _)| {
            let follows = last.replace(*key).is_none_or(|last| last < *key);
            follows && end.is_none_or(|end| *key < end)
        })
        .count();
    // Clamp: the loop has just counted these items.
    items.get(..count).unwrap_or_default()
}
