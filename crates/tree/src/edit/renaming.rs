//! Other addresses for committed blocks: a relocation copies a block once, and each tree then
//! points to the copy.
//!
//! [`EditableTree::holder`] finds the pointer to a block. A pointer in a committed block moves with
//! a copy of that block. [`EditableTree::rename`] replaces a pointer in memory: that of the root,
//! or one in a block that the running transaction changed. [`EditableTree::replace_child`] first
//! copies the blocks above.
//!
//! Invariant: callers hold the lock of commits, and no commit is in progress. A block in memory
//! without an address is of the running epoch. All other blocks were written.

use super::context::EditContext;
use super::editable::EditableTree;
use super::node::Node;
use super::root::Root;
use super::route::{Place, Route, RouteStep};
use crate::error::Result;
use crate::pointer::BlockPointer;
use buttress_exact::Exact as _;
use buttress_format::node::{KeyPointer, TreeBlock};
use buttress_format::{Generation, Key, Logical};
use std::sync::Arc;

/// The holder of the pointer to a block: the tree's root, a committed block, or a changed block in
/// memory.
#[derive(Clone, Debug)]
pub enum Holder {
    /// The block is the root of its tree.
    Root,
    /// The pointer is in a committed block.
    Block(Box<(BlockPointer, TreeBlock)>),
    /// The pointer is in a block that the running transaction changed.
    Memory,
}

/// Returns the slot of the child that covers `key`.
fn child_slot(node: &Node, key: &Key) -> usize {
    // Clamp: a key below the node's first key belongs to the first child.
    node.search(key).unwrap_or_else(|slot| slot.saturating_sub(1))
}

impl EditableTree {
    /// Finds the pointer to the block at `old` by the level and the first key of the block. Returns
    /// `None` if the tree has no such block.
    ///
    /// # Errors
    /// Fails if a block above the wanted block cannot be read.
    pub fn holder(&self, old: Logical, level: u8, first_key: &Key) -> Result<Option<Holder>> {
        let root_level = self.level();
        if root_level <= level {
            let is_root = root_level == level && self.written_root() == Some(old);
            return Ok(is_root.then_some(Holder::Root));
        }
        let mut parent = None;
        self.descend_to(level.exact_add(1), first_key, |place| parent = Some(place))?;
        let Some(place) = parent else {
            return Ok(None);
        };
        let holder = match place {
            Place::Node(node) if node.epoch == self.epoch => {
                has_written_child(node, child_slot(node, first_key), old).then_some(Holder::Memory)
            }
            Place::Node(node) => {
                let block = node.resolved();
                points_to(&block, first_key, old)
                    .then(|| Holder::Block(Box::new((node.pointer(self.tree), block))))
            }
            Place::Clean(clean) => points_to(&clean.1, first_key, old).then_some(Holder::Block(clean)),
        };
        Ok(holder)
    }

    /// Returns the committed leaf that covers `key`, or `None` if the running transaction changed
    /// this leaf.
    ///
    /// # Errors
    /// Fails if a block on the path cannot be read.
    pub fn written_leaf(&self, key: &Key) -> Result<Option<(BlockPointer, TreeBlock)>> {
        let mut leaf = None;
        self.descend_to(0, key, |place| leaf = Some(place))?;
        Ok(match leaf {
            Some(Place::Node(node)) if node.epoch != self.epoch => {
                Some((node.pointer(self.tree), node.resolved()))
            }
            Some(Place::Clean(clean)) => Some(*clean),
            Some(Place::Node(_)) | None => None,
        })
    }

    /// Replaces the pointer to the block at `old` by one to its copy at `new`, if the pointer is the
    /// root's or in memory. Returns false, and changes nothing, if no such pointer exists.
    pub fn rename(&mut self, old: Logical, level: u8, first_key: &Key, new: (Logical, Generation)) -> bool {
        if self.level() == level {
            return self.written_root() == Some(old) && {
                let (logical, generation) = new;
                self.root = Root {
                    pointer: crate::pointer::RootPointer {
                        tree: self.tree,
                        logical,
                        generation,
                        level,
                    },
                    node: None,
                };
                true
            };
        }
        let epoch = self.epoch;
        let Some(mut link) = self.root.node.as_mut() else {
            return false;
        };
        loop {
            if link.epoch != epoch || link.level() <= level {
                return false;
            }
            let slot = child_slot(link, first_key);
            if link.level() == level.exact_add(1) {
                return has_written_child(link, slot, old) && point_to(Arc::make_mut(link), slot, new);
            }
            match Arc::make_mut(link).links.get_mut(slot).and_then(Option::as_mut) {
                Some(child) => link = child,
                None => return false,
            }
        }
    }

    /// Returns the address of a tree's root block, if the block was written.
    fn written_root(&self) -> Option<Logical> {
        match &self.root.node {
            None => Some(self.root.pointer.logical),
            Some(node) if node.epoch != self.epoch => node.address(),
            Some(_) => None,
        }
    }

    /// Returns the pointer to the block of this level that begins with exactly this key. The address
    /// of a changed block in memory is a placeholder.
    ///
    /// # Errors
    /// Fails if a block above the wanted block cannot be read.
    pub fn pointer_at(&self, level: u8, first_key: &Key) -> Result<Option<KeyPointer>> {
        if self.level() <= level {
            return Ok(None);
        }
        let mut found = None;
        self.descend_to(level.exact_add(1), first_key, |place| {
            found = match &place {
                Place::Node(node) => node
                    .search(first_key)
                    .ok()
                    .and_then(|slot| match node.link(slot) {
                        Some(child) => Some(child.key_pointer()),
                        None => node.block.pointer(slot),
                    }),
                Place::Clean(clean) => {
                    let slot = clean.1.search(first_key).ok();
                    slot.and_then(|slot| clean.1.pointer(slot))
                }
            };
        })?;
        Ok(found)
    }

    /// Replaces the pointer to the committed block at `old` by one to another block with the same
    /// keys. The edit copies the nodes above, but the block itself stays as it is. Returns false,
    /// and changes nothing, if no such pointer exists.
    ///
    /// # Errors
    /// Fails if a block above cannot be read, or with an error of the context.
    pub fn replace_child(
        &mut self,
        context: &mut dyn EditContext,
        level: u8,
        first_key: &Key,
        old: Logical,
        new: (Logical, Generation),
    ) -> Result<bool> {
        let pointer = self.pointer_at(level, first_key)?;
        if pointer.is_none_or(|pointer| pointer.logical != old) {
            return Ok(false);
        }
        let mut route = Route::default();
        self.descend_along(level.exact_add(1), first_key, |place, slot| {
            let clean = match place {
                Place::Node(_) => None,
                Place::Clean(clean) => Some(clean),
            };
            route.steps.push(RouteStep { slot, clean });
        })?;
        let slot = route.leaf_slot();
        let (mut editor, root) = self.editor(context);
        let node = editor.leaf(root, &mut route, None)?;
        Ok(point_to(node, slot, new))
    }

    /// Visits the block of this level on the path to `key`.
    fn descend_to<'tree>(&'tree self, level: u8, key: &Key, visit: impl FnOnce(Place<'tree>)) -> Result<()> {
        let mut last = None;
        let has_arrived = self.descend_along(level, key, |place, _| last = Some(place))?;
        if let Some(place) = last.filter(|_| has_arrived) {
            visit(place);
        }
        Ok(())
    }

    /// Visits the blocks on the path to `key`, from the root down to this level, each with the slot
    /// that covers the key. Returns whether the path has a block of this level.
    fn descend_along<'tree>(
        &'tree self,
        level: u8,
        key: &Key,
        mut visit: impl FnMut(Place<'tree>, usize),
    ) -> Result<bool> {
        let mut end_key = None;
        let mut place = self.root_place()?;
        loop {
            let block = place.block();
            let searched = match &place {
                Place::Node(node) => node.search(key),
                Place::Clean(clean) => clean.1.search(key),
            };
            // Clamp: a key below the node's first key belongs to the first child.
            let slot = searched.unwrap_or_else(|slot| slot.saturating_sub(1));
            if block.level() <= level {
                visit(place, slot);
                return Ok(true);
            }
            let child = self.child_place(&place, slot, end_key)?;
            end_key = block.key(slot.exact_add(1)).or(end_key);
            let Some(child) = child else {
                return Ok(false);
            };
            visit(core::mem::replace(&mut place, child), slot);
        }
    }
}

/// Returns true if a slot of a block in memory leads to the committed block at `old`.
fn has_written_child(node: &Node, slot: usize, old: Logical) -> bool {
    match node.link(slot) {
        Some(child) => child.epoch != node.epoch && child.address() == Some(old),
        None => node
            .block
            .pointer(slot)
            .is_some_and(|pointer| pointer.logical == old),
    }
}

fn points_to(block: &TreeBlock, key: &Key, old: Logical) -> bool {
    // Clamp: a key below the first one belongs to the first child.
    let slot = block.search(key).unwrap_or_else(|slot| slot.saturating_sub(1));
    block.pointer(slot).is_some_and(|pointer| pointer.logical == old)
}

fn point_to(node: &mut Node, slot: usize, (logical, generation): (Logical, Generation)) -> bool {
    let Some(key) = node.block.key(slot) else {
        return false;
    };
    if let Some(link) = node.links.get_mut(slot) {
        *link = None;
    }
    let pointer = KeyPointer {
        key,
        logical,
        generation,
    };
    node.block.edit_node(|node| node.set(slot, &pointer))
}
