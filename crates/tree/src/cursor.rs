//! A place in a tree.
//!
//! A cursor stands before the first item, at an item, or after the last. It holds the blocks of its path, one a
//! level, so that a step to the next item reads nothing, and a step to the next leaf reads that leaf alone. A
//! seek goes up only as far as it must: looking for keys that lie close together is cheap.
//!
//! # Damaged blocks
//!
//! When a block cannot be had, the method returns the error, and the cursor stands in the gap where the block's
//! items would be. [`Cursor::next`] then goes on behind the gap, [`Cursor::previous`] before it: a caller that
//! wants what can still be read calls again, and ends after finitely many errors.

use crate::error::Result;
use crate::items::OwnedItem;
use crate::path::{Aim, Path, Step};
use crate::pointer::BlockPointer;
use crate::read_ahead::{Ahead, ReadAhead, Toward};
use crate::scope::Scope;
use crate::tree::Tree;
use buttress_format::Key;
use buttress_format::node::{Item, TreeBlock};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    Before,
    Item,
    /// Where the items of a block that could not be had would be.
    Gap,
    After,
}

/// A place in one tree; see the module's documentation.
#[derive(Debug)]
pub struct Cursor {
    tree: Tree,
    path: Path,
    ahead: Ahead,
    place: Place,
}

impl Cursor {
    /// A cursor before the first item. Nothing at `end` and after it is read ahead.
    pub(crate) fn new(tree: Tree, read_ahead: ReadAhead, end: Option<Key>) -> Self {
        let ahead = Ahead::new(read_ahead, 0, Scope::below(end));
        Self {
            tree,
            path: Path::default(),
            ahead,
            place: Place::Before,
        }
    }

    /// The tree.
    #[must_use]
    pub const fn tree(&self) -> &Tree {
        &self.tree
    }

    /// The item that the cursor stands at.
    #[must_use]
    pub fn current(&self) -> Option<Item<'_>> {
        let leaf = self.current_step()?;
        leaf.block.item(leaf.slot)
    }

    /// The key of the item that the cursor stands at.
    #[must_use]
    pub fn key(&self) -> Option<Key> {
        let leaf = self.current_step()?;
        leaf.block.key(leaf.slot)
    }

    /// The item that the cursor stands at, to be kept: it shares the leaf's memory.
    #[must_use]
    pub fn owned(&self) -> Option<OwnedItem> {
        let leaf = self.current_step()?;
        OwnedItem::new(&leaf.block, leaf.slot)
    }

    /// The leaf that holds the current item.
    #[must_use]
    pub fn current_leaf(&self) -> Option<&TreeBlock> {
        self.current_step().map(|leaf| &leaf.block)
    }

    /// The current item's number in its leaf.
    #[must_use]
    pub fn current_slot(&self) -> Option<usize> {
        self.current_step().map(|leaf| leaf.slot)
    }

    /// The current leaf's pointer.
    #[must_use]
    pub fn current_pointer(&self) -> Option<&BlockPointer> {
        self.current_step().map(|leaf| &leaf.pointer)
    }

    /// The blocks on the way to the current item, the root first and the leaf last; without those that the running
    /// transaction made: they have no address yet, and nothing else refers to them.
    pub fn path(&self) -> impl Iterator<Item = BlockPointer> + '_ {
        let stands = self.current_step().is_some();
        self.path.blocks().filter(move |_| stands)
    }

    /// Goes to the first item whose key is not below `key`, or after the last item. True when it is `key`'s.
    ///
    /// # Errors
    /// When a block cannot be had.
    pub fn seek(&mut self, key: &Key) -> Result<bool> {
        self.approach(key, Toward::Higher)?;
        let Some(leaf) = self.path.leaf_mut() else {
            return Ok(false);
        };
        match leaf.block.search(key) {
            Ok(slot) => {
                leaf.slot = slot;
                self.place = Place::Item;
                Ok(true)
            }
            Err(slot) if slot < leaf.block.item_count() => {
                leaf.slot = slot;
                self.place = Place::Item;
                Ok(false)
            }
            Err(_) => {
                self.next_leaf()?;
                Ok(false)
            }
        }
    }

    /// Goes to the last item whose key is not above `key`, or before the first item. True when it is `key`'s.
    ///
    /// # Errors
    /// When a block cannot be had.
    pub fn seek_at_or_before(&mut self, key: &Key) -> Result<bool> {
        self.approach(key, Toward::Lower)?;
        let Some(leaf) = self.path.leaf_mut() else {
            return Ok(false);
        };
        let (found, slot) = match leaf.block.search(key) {
            Ok(slot) => (true, Some(slot)),
            Err(slot) => (false, slot.checked_sub(1)),
        };
        match slot {
            Some(slot) => {
                leaf.slot = slot;
                self.place = Place::Item;
            }
            // A leaf's first key is its lower bound, so this is left of the whole tree.
            None => self.place = Place::Before,
        }
        Ok(found)
    }

    /// Goes to the first item. False when the tree is empty.
    ///
    /// # Errors
    /// When a block cannot be had.
    pub fn seek_first(&mut self) -> Result<bool> {
        self.arrive(Toward::Higher, Aim::First)
    }

    /// Goes to the last item. False when the tree is empty.
    ///
    /// # Errors
    /// When a block cannot be had.
    pub fn seek_last(&mut self) -> Result<bool> {
        self.arrive(Toward::Lower, Aim::Last)
    }

    /// Goes to the next item. False when there is none: the cursor stands after the last item, and stays there.
    ///
    /// # Errors
    /// When the next leaf cannot be had; calling again goes on after it.
    #[expect(
        clippy::should_implement_trait,
        reason = "a cursor lends its items, an iterator cannot"
    )]
    pub fn next(&mut self) -> Result<bool> {
        match self.place {
            Place::Before => self.seek_first(),
            Place::After => Ok(false),
            Place::Gap => self.next_leaf(),
            Place::Item => {
                if let Some(leaf) = self.path.leaf_mut()
                    && let Some(slot) = leaf.next_slot()
                {
                    leaf.slot = slot;
                    return Ok(true);
                }
                self.next_leaf()
            }
        }
    }

    /// Goes to the previous item. False when there is none: the cursor stands before the first item.
    ///
    /// # Errors
    /// When the previous leaf cannot be had; calling again goes on before it.
    pub fn previous(&mut self) -> Result<bool> {
        match self.place {
            Place::Before => Ok(false),
            Place::After => self.seek_last(),
            Place::Gap => self.previous_leaf(),
            Place::Item => {
                if let Some(leaf) = self.path.leaf_mut()
                    && let Some(slot) = leaf.slot.checked_sub(1)
                {
                    leaf.slot = slot;
                    return Ok(true);
                }
                self.previous_leaf()
            }
        }
    }

    /// Goes to the first item of the next leaf. False when there is none: the cursor stands after the last item.
    ///
    /// # Errors
    /// When the next leaf cannot be had; calling again goes on after it.
    pub fn next_leaf(&mut self) -> Result<bool> {
        match self.place {
            Place::Before => return self.seek_first(),
            Place::After => return Ok(false),
            Place::Item | Place::Gap => {}
        }
        let mut more = self.leave_leaf();
        while more && let Some(step) = self.path.last_mut() {
            if let Some(slot) = step.next_slot() {
                step.slot = slot;
                return self.enter(Toward::Higher, Aim::First);
            }
            more = !self.path.at_root();
            if more {
                self.path.pop();
            }
        }
        self.place = Place::After;
        Ok(false)
    }

    /// Goes to the last item of the previous leaf. False when there is none: the cursor stands before the first
    /// item.
    ///
    /// # Errors
    /// When the previous leaf cannot be had; calling again goes on before it.
    pub fn previous_leaf(&mut self) -> Result<bool> {
        match self.place {
            Place::Before => return Ok(false),
            Place::After => return self.seek_last(),
            Place::Item | Place::Gap => {}
        }
        let mut more = self.leave_leaf();
        while more && let Some(step) = self.path.last_mut() {
            if let Some(slot) = step.slot.checked_sub(1) {
                step.slot = slot;
                return self.enter(Toward::Lower, Aim::Last);
            }
            more = !self.path.at_root();
            if more {
                self.path.pop();
            }
        }
        self.place = Place::Before;
        Ok(false)
    }

    fn current_step(&self) -> Option<&Step> {
        match self.place {
            Place::Item => self.path.leaf(),
            Place::Before | Place::Gap | Place::After => None,
        }
    }

    /// Takes the leaf off the path. False when the leaf is the root, which has no neighbours.
    fn leave_leaf(&mut self) -> bool {
        if self.path.leaf().is_some() {
            if self.path.at_root() {
                return false;
            }
            self.path.pop();
        }
        true
    }

    /// Reads the root. A root that cannot be had leaves nothing to go on with.
    fn load_root(&mut self) -> Result<()> {
        self.path
            .load_root(&self.tree)
            .inspect_err(|_| self.place = Place::After)
    }

    /// Brings the path to the leaf that `key` belongs in.
    fn approach(&mut self, key: &Key, toward: Toward) -> Result<()> {
        self.load_root()?;
        self.path.ascend_to(key);
        if self.path.leaf().is_none() {
            self.place = Place::Gap;
            self.path
                .descend(self.tree.forest(), &mut self.ahead, toward, Aim::Key(key))?;
        }
        // An empty root leaf has no items on either side.
        self.place = Place::Item;
        Ok(())
    }

    fn arrive(&mut self, toward: Toward, aim: Aim<'_>) -> Result<bool> {
        self.load_root()?;
        while !self.path.at_root() {
            self.path.pop();
        }
        self.place = Place::Gap;
        self.path
            .descend(self.tree.forest(), &mut self.ahead, toward, aim)?;
        Ok(self.settle(toward))
    }

    /// Goes down from the last step's slot to a leaf.
    fn enter(&mut self, toward: Toward, aim: Aim<'_>) -> Result<bool> {
        self.place = Place::Gap;
        self.path.enter(self.tree.forest(), &mut self.ahead, toward)?;
        self.path
            .descend(self.tree.forest(), &mut self.ahead, toward, aim)?;
        Ok(self.settle(toward))
    }

    /// Says where a finished descent led: to an item, or past the end of an empty tree.
    fn settle(&mut self, toward: Toward) -> bool {
        let found = self
            .path
            .leaf()
            .is_some_and(|leaf| leaf.slot < leaf.block.item_count());
        self.place = match (found, toward) {
            (true, _) => Place::Item,
            (false, Toward::Higher) => Place::After,
            (false, Toward::Lower) => Place::Before,
        };
        found
    }
}
