//! Changing trees: copy-on-write in memory.
//!
//! An [`EditableTree`] is the newest version of one tree. An edit copies each committed block on its way once into
//! memory, tells the [`EditContext`], and changes the copy there, in the on-disk layout; the copy is linked from its
//! parent, which was copied before it. Nothing has an address until the commit gives it one.
//!
//! | module | has |
//! |---|---|
//! | `node` | a block in memory with links to its children in memory |
//! | `route` | the way to a leaf, looked up before anything is changed; look-ups |
//! | `editor` | copying what is on the way, and the account of blocks that come and go |
//! | `insert`, `remove` | splitting and pushing; merging, whole leaves |
//! | `renaming` | other addresses for blocks that were copied outside of an edit |
//! | `freeze` | addresses, freezing, sealing, letting go |
//!
//! # Readers
//!
//! [`EditableTree::view`] holds the tree as it is now: a [`Tree`], with which everything works that works with a
//! committed one. A later edit finds out from the root down whether a block on its way is held by a view, and if so
//! changes a copy. Blocks that were only read from (an [`OwnedItem`](crate::OwnedItem)) keep their bytes in the same
//! way. So views cost the next edits copies of what they touch; they are best let go of soon.
//!
//! # A commit
//!
//! 1. [`EditableTree::for_each_unassigned`], and again after every edit of this tree that followed, until
//!    [`EditableTree::unassigned_nodes`] is zero.
//! 2. [`EditableTree::freeze`]. The next edit may come at once; it copies what it touches, with the context's next
//!    generation. (Frozen blocks may also be written in the middle of a transaction to free memory; a block that was
//!    is copied to a new address when it is changed again, and its old one must not be used again by the same
//!    transaction, since the cache knows blocks by address and generation.)
//! 3. [`Frozen::blocks`], [`FrozenBlock::seal`] on any thread, writing, [`Forest::keep_written`].
//! 4. [`EditableTree::forget_written`], and the [`Frozen`] is dropped; or [`EditableTree::keep_written`]: then an edit changes
//!    a block in place that was written and that nobody else has, and the context is told as if it had copied it.
//!
//! # Memory
//!
//! Blocks changed since the last freeze and those frozen but not yet forgotten are in memory, outside of the cache's
//! budget, beside what views hold. Clean blocks are not: a node links changed children only. [`EditableTree::unassigned_nodes`]
//! and the sum of addresses given say how many there are.
//!
//! # Errors
//!
//! The way of an edit is read before anything is changed, so a block that cannot be had leaves the tree as it was.
//! After an error of the context, or one of the kind [`Cause::Broken`](crate::error::Cause), the tree must not be
//! committed any more.

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

/// Keeps account of blocks while a tree is edited.
pub trait EditContext {
    /// The running transaction: the generation of all that is made.
    fn generation(&self) -> Generation;

    /// A committed (or frozen) block was left by this tree; its content goes on in memory, in a copy or in a
    /// neighbour that it was merged with, or its items are reported to the caller of
    /// [`EditableTree::remove_range`] after this. Called once for each such block, parents before their children,
    /// when the tree no longer has it.
    ///
    /// # Errors
    /// Any; the edit ends with it, and the tree must not be committed any more.
    fn copied(&mut self, tree: TreeId, old: &BlockPointer, block: &TreeBlock) -> Result<(), ContextError>;

    /// A block in memory that had been given an address, and was not frozen, left the tree: what it held was taken
    /// over or removed before. Blocks that never had an address go without a word.
    ///
    /// # Errors
    /// As for [`EditContext::copied`].
    fn dropped(&mut self, tree: TreeId, old: &BlockPointer, block: &TreeBlock) -> Result<(), ContextError>;
}

/// The newest version of one tree; see the module's documentation.
#[derive(Debug)]
pub struct EditableTree {
    forest: Arc<Forest>,
    tree: TreeId,
    root: Root,
    /// Moves on with each freeze; blocks of earlier epochs are not changed.
    epoch: u64,
    /// How many blocks in memory have no address.
    unassigned: u64,
    /// How many were given addresses since the last freeze.
    assigned: u64,
    /// How many were written and [kept](Self::keep_written) since all were let go of.
    kept: u64,
    /// Blocks that were let go of and whose memory the next new ones get.
    recycled: Vec<TreeBlock>,
}

/// Where the tree begins.
#[derive(Debug)]
struct Root {
    /// The committed root; out of date while there is a node.
    pointer: RootPointer,
    /// The root in memory.
    node: Option<Arc<Node>>,
}

impl EditableTree {
    /// A committed tree, to be changed. Nothing is read yet.
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

    /// A new tree: one leaf without items, in memory.
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

    /// A new tree with the content of another, committed one: its root is a copy in memory under the new tree's id,
    /// and shares everything below it. The references to what is below are the caller's to add.
    ///
    /// # Errors
    /// When the root cannot be read, or has no address yet.
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

    /// The tree as it is now, to be held and read.
    #[must_use]
    pub fn view(&self) -> Tree {
        let root = self.root.pointer(self.tree, self.epoch);
        Tree::in_memory(Arc::clone(&self.forest), root, self.root.node.clone())
    }

    /// The tree's id.
    #[must_use]
    pub const fn id(&self) -> TreeId {
        self.tree
    }

    /// The forest that the tree is read through.
    #[must_use]
    pub const fn forest(&self) -> &Arc<Forest> {
        &self.forest
    }

    /// Whether the tree was changed since the last freeze.
    #[must_use]
    pub fn is_dirty(&self) -> bool {
        self.root
            .node
            .as_ref()
            .is_some_and(|node| node.epoch == self.epoch)
    }

    /// Whether the root is a block in memory: one that changed, or that was frozen and not yet
    /// [forgotten](Self::forget_written).
    #[must_use]
    pub const fn is_in_memory(&self) -> bool {
        self.root.node.is_some()
    }

    /// The root's level.
    #[must_use]
    pub fn level(&self) -> u8 {
        self.root
            .node
            .as_ref()
            .map_or(self.root.pointer.level, |node| node.level())
    }

    /// The root's address; `None` while it has none.
    #[must_use]
    pub fn root_logical(&self) -> Option<Logical> {
        match &self.root.node {
            Some(node) => node.address(),
            None => Some(self.root.pointer.logical),
        }
    }

    /// The generation of the root block.
    #[must_use]
    pub fn root_generation(&self) -> Generation {
        self.root
            .node
            .as_ref()
            .map_or(self.root.pointer.generation, |node| node.generation())
    }

    /// How many blocks in memory have no address yet.
    #[must_use]
    pub const fn unassigned_nodes(&self) -> u64 {
        self.unassigned
    }

    /// How many blocks in memory wait to be frozen, with or without an address.
    #[must_use]
    pub fn unfrozen_nodes(&self) -> u64 {
        self.unassigned.exact_add(self.assigned)
    }

    /// Puts a new item in.
    ///
    /// # Errors
    /// [`Cause::ItemExists`](crate::error::Cause), [`Cause::ItemTooLarge`](crate::error::Cause), a block that cannot be
    /// had, errors of the context.
    pub fn insert(&mut self, context: &mut dyn EditContext, key: &Key, data: &[u8]) -> Result<()> {
        self.check_size(key, data)?;
        let route = self.route(key)?;
        if route.found {
            return Err(self.error(Cause::ItemExists(*key)));
        }
        self.insert_at(context, route, key, data)
    }

    /// Puts an item in, or gives the item with this key other data, of any size.
    ///
    /// # Errors
    /// [`Cause::ItemTooLarge`](crate::error::Cause), a block that cannot be had, errors of the context.
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

    /// Changes the data of an item in place. False, and nothing is copied, when there is no such item.
    ///
    /// # Errors
    /// A block that cannot be had, errors of the context.
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

    /// Removes an item. False, and nothing is copied, when there is no such item.
    ///
    /// # Errors
    /// A block that cannot be had, errors of the context.
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

    /// Puts new items in, which are in order of their keys. Those that belong into one leaf cost one way down.
    ///
    /// # Errors
    /// As for [`EditableTree::insert`]; the items before the one that fails are in the tree.
    pub fn insert_many(&mut self, context: &mut dyn EditContext, items: &[(Key, &[u8])]) -> Result<()> {
        match self.insert_many_new(context, items)?.first() {
            Some((key, _)) => Err(self.error(Cause::ItemExists(*key))),
            None => Ok(()),
        }
    }

    /// As [`EditableTree::insert_many`], up to the first item whose key the tree has already: gives that one and those behind it.
    ///
    /// # Errors
    /// As there.
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
            // Clamp: the first item was just put in.
            rest = rest.get(1..).unwrap_or_default();
            let Some((next, _)) = rest.first() else {
                break;
            };
            // The same leaf goes on taking items while there is room and the next leaf does not begin.
            let mut route = self.route(next)?;
            let end = route.end_key;
            let (mut editor, root) = self.editor(context);
            let leaf = editor.leaf(root, &mut route, None)?;
            while let Some((key, _)) = rest.first().filter(|(key, _)| end.is_none_or(|end| *key < end)) {
                let Err(slot) = leaf.block.search(key) else {
                    break;
                };
                // Before the first item of a leaf it is a matter of the blocks above.
                let taken = match slot {
                    0 => 0,
                    _ => put_run(leaf, slot, run_before(rest, leaf.block.key(slot).or(end))),
                };
                if taken == 0 {
                    break;
                }
                // Clamp: as many were just put in.
                rest = rest.get(taken..).unwrap_or_default();
            }
        }
        Ok(rest)
    }

    /// Puts an item in at the end of a route that did not find it.
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

/// The items at the beginning of a row that come before a key, each after the one before it.
fn run_before<'r, 'd>(items: &'r [(Key, &'d [u8])], end: Option<Key>) -> &'r [(Key, &'d [u8])] {
    let mut last = None;
    let count = items
        .iter()
        .take_while(|(key, _)| {
            let follows = last.replace(*key).is_none_or(|last| last < *key);
            follows && end.is_none_or(|end| *key < end)
        })
        .count();
    // Clamp: so many were just counted.
    items.get(..count).unwrap_or_default()
}
