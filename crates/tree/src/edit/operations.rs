//! Insertion, replacement and removal of single items, and rows of insertions.

use super::context::EditContext;
use super::editable::EditableTree;
use super::insert::{NewItem, put_into, put_run};
use super::node::NO_SLOT;
use super::route::Route;
use crate::error::{Cause, Result};
use buttress_exact::Exact as _;
use buttress_format::Key;

impl EditableTree {
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
