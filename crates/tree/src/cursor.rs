//! A cursor: a position in a tree.
//!
//! A cursor is before the first item, at an item, or after the last item. The cursor holds the
//! blocks of its path, one for each level. Moving to the next item reads nothing, and moving to the
//! next leaf reads only that leaf. A seek ascends only as far as it must, so seeks to nearby keys
//! are cheap.
//!
//! # Damaged blocks
//!
//! If a block cannot be read, the method returns the error, and the cursor stays in the gap that
//! the block's items would fill. [`Cursor::next`] then continues after the gap, and
//! [`Cursor::previous`] before it. A caller that wants all readable items calls the method again
//! after an error, and reaches the end after finitely many errors.

use crate::error::Result;
use crate::owned_item::OwnedItem;
use crate::path::{Aim, Path};
use crate::pointer::BlockPointer;
use crate::read_ahead::{Ahead, ReadAhead, Toward};
use crate::scope::Scope;
use crate::step::Step;
use crate::tree::Tree;
use buttress_format::Key;
use buttress_format::node::{Header, Item, TreeBlock};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    Before,
    Item,
    /// The cursor is in the gap that the items of an unreadable block would fill.
    Gap,
    After,
}

/// A position in one tree; see the module's documentation.
#[derive(Debug)]
pub struct Cursor {
    tree: Tree,
    path: Path,
    ahead: Ahead,
    place: Place,
}

impl Tree {
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
}

impl Cursor {
    /// Makes a cursor before the first item. Read-ahead stops before the key `end`.
    pub(crate) fn new(tree: Tree, read_ahead: ReadAhead, end: Option<Key>) -> Self {
        let ahead = Ahead::new(read_ahead, 0, Scope::below(end));
        Self {
            tree,
            path: Path::default(),
            ahead,
            place: Place::Before,
        }
    }

    /// Returns the tree.
    #[must_use]
    pub const fn tree(&self) -> &Tree {
        &self.tree
    }

    /// Returns the item at the cursor.
    #[must_use]
    pub fn current(&self) -> Option<Item<'_>> {
        let leaf = self.current_step()?;
        leaf.block.item(leaf.slot)
    }

    /// Returns the key of the item at the cursor.
    #[must_use]
    pub fn key(&self) -> Option<Key> {
        let leaf = self.current_step()?;
        leaf.block.key(leaf.slot)
    }

    /// Returns the item at the cursor in a form to keep. The item shares the leaf's memory.
    #[must_use]
    pub fn owned(&self) -> Option<OwnedItem> {
        let leaf = self.current_step()?;
        OwnedItem::new(&leaf.block, leaf.slot)
    }

    /// Returns the leaf that holds the current item.
    #[must_use]
    pub fn current_leaf(&self) -> Option<&TreeBlock> {
        self.current_step().map(|leaf| &leaf.block)
    }

    /// Returns the slot of the current item in its leaf.
    #[must_use]
    pub fn current_slot(&self) -> Option<usize> {
        self.current_step().map(|leaf| leaf.slot)
    }

    /// Returns the pointer to the current leaf.
    #[must_use]
    pub fn current_pointer(&self) -> Option<&BlockPointer> {
        self.current_step().map(|leaf| &leaf.pointer)
    }

    /// Returns the blocks on the path to the current item, each with its header, from the root to
    /// the leaf. Skips blocks that the running transaction made: they have no address yet, and only
    /// this tree refers to them.
    pub fn path(&self) -> impl Iterator<Item = (BlockPointer, &Header)> + '_ {
        let stands = self.current_step().is_some();
        self.path.blocks().filter(move |_| stands)
    }

    /// Moves to the first item whose key is not below `key`, or after the last item. Returns true
    /// if the cursor's item has the key `key`.
    ///
    /// # Errors
    /// Fails if a block cannot be read.
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

    /// Moves to the last item whose key is not above `key`, or before the first item. Returns true
    /// if the cursor's item has the key `key`.
    ///
    /// # Errors
    /// Fails if a block cannot be read.
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
            // A leaf's first key is its lower bound, so no key of the tree is below `key`.
            None => self.place = Place::Before,
        }
        Ok(found)
    }

    /// Moves to the first item. Returns false if the tree is empty.
    ///
    /// # Errors
    /// Fails if a block cannot be read.
    pub fn seek_first(&mut self) -> Result<bool> {
        self.arrive(Toward::Higher, Aim::First)
    }

    /// Moves to the last item. Returns false if the tree is empty.
    ///
    /// # Errors
    /// Fails if a block cannot be read.
    pub fn seek_last(&mut self) -> Result<bool> {
        self.arrive(Toward::Lower, Aim::Last)
    }

    /// Moves to the next item. If no next item exists, the cursor stays after the last item and the
    /// method returns false.
    ///
    /// # Errors
    /// Fails if the next leaf cannot be read. After an error, the next call continues after the
    /// unreadable leaf.
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

    /// Moves to the previous item. If no previous item exists, the cursor stays before the first
    /// item and the method returns false.
    ///
    /// # Errors
    /// Fails if the previous leaf cannot be read. The next call continues before the unreadable
    /// leaf.
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

    /// Moves to the first item of the next leaf. If there is no next leaf, the cursor stays after
    /// the last item and the method returns false.
    ///
    /// # Errors
    /// Fails if the next leaf cannot be read. After an error, the next call continues after the
    /// unreadable leaf.
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

    /// Moves to the last item of the previous leaf. If there is no previous leaf, the cursor stays
    /// before the first item and the method returns false.
    ///
    /// # Errors
    /// Fails if the previous leaf cannot be read. After an error, the next call continues before
    /// the unreadable leaf.
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

    /// Removes the leaf from the path. Returns false if the removed leaf is the root, which has no
    /// neighbours.
    fn leave_leaf(&mut self) -> bool {
        if self.path.leaf().is_some() {
            if self.path.at_root() {
                return false;
            }
            self.path.pop();
        }
        true
    }

    /// Reads the root. If the root cannot be read, the cursor cannot continue.
    fn load_root(&mut self) -> Result<()> {
        self.path
            .load_root(&self.tree)
            .inspect_err(|_| self.place = Place::After)
    }

    /// Moves the path to the leaf that covers `key`.
    fn approach(&mut self, key: &Key, toward: Toward) -> Result<()> {
        self.load_root()?;
        self.path.ascend_to(key);
        if self.path.leaf().is_none() {
            self.place = Place::Gap;
            self.path
                .descend(self.tree.forest(), &mut self.ahead, toward, Aim::Key(key))?;
        }
        // If the tree is an empty root leaf, it has no items on either side of the cursor.
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

    /// Descends from the last step's slot to a leaf.
    fn enter(&mut self, toward: Toward, aim: Aim<'_>) -> Result<bool> {
        self.place = Place::Gap;
        self.path.enter(self.tree.forest(), &mut self.ahead, toward)?;
        self.path
            .descend(self.tree.forest(), &mut self.ahead, toward, aim)?;
        Ok(self.settle(toward))
    }

    /// Sets the cursor's place after a descent: at an item, or beyond the end of an empty tree.
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
