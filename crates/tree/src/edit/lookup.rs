//! Lookups in an edited tree: routes for edits, and items without a cursor.
//!
//! Invariant: a lookup changes nothing. A block of its path is in memory, or the forest reads and checks
//! it.

use super::editable::EditableTree;
use super::route::{Place, Route, RouteStep};
use crate::error::Result;
use crate::owned_item::OwnedItem;
use crate::pointer::BlockPointer;
use buttress_exact::Exact as _;
use buttress_format::Key;
use buttress_format::node::Header;
use core::ops::ControlFlow;

impl EditableTree {
    /// Returns the root block of the tree.
    pub(super) fn root_place(&self) -> Result<Place<'_>> {
        match &self.root.node {
            Some(node) => Ok(Place::Node(node)),
            None => {
                let pointer = BlockPointer::root(&self.root.pointer);
                let block = self.forest.read_block(&pointer)?;
                Ok(Place::Clean(Box::new((pointer, block))))
            }
        }
    }

    /// Returns the child in `slot`. `end_key` is the exclusive end of the keys below the parent.
    pub(super) fn child_place<'tree>(
        &'tree self,
        parent: &Place<'tree>,
        slot: usize,
        end_key: Option<Key>,
    ) -> Result<Option<Place<'tree>>> {
        if let Place::Node(node) = parent
            && let Some(link) = node.links.get(slot).and_then(Option::as_deref)
        {
            return Ok(Some(Place::Node(link)));
        }
        let block = parent.block();
        let above = BlockPointer {
            end_key,
            ..BlockPointer::root(&self.root.pointer)
        };
        let above = BlockPointer {
            level: block.level(),
            ..above
        };
        match above.child(block, slot) {
            None => Ok(None),
            Some(pointer) => {
                let block = self.forest.read_block(&pointer)?;
                Ok(Some(Place::Clean(Box::new((pointer, block)))))
            }
        }
    }

    /// Descends to the leaf that covers `key`. `visit` receives each block on the path, with the
    /// slot of the child that the descent takes. Returns the exclusive end of the leaf's keys, and
    /// true if the leaf has the key.
    fn descend<'tree>(
        &'tree self,
        key: &Key,
        mut visit: impl FnMut(Place<'tree>, usize),
    ) -> Result<(bool, Option<Key>)> {
        let mut end_key = None;
        let mut place = self.root_place()?;
        loop {
            let block = place.block();
            let searched = match &place {
                Place::Node(node) => node.search(key),
                Place::Clean(clean) => clean.1.search(key),
            };
            if block.is_leaf() {
                let slot = searched.unwrap_or_else(|slot| slot);
                visit(place, slot);
                return Ok((searched.is_ok(), end_key));
            }
            // Clamp: keys below the node's first key belong to the first child.
            let slot = searched.unwrap_or_else(|slot| slot.saturating_sub(1));
            let child = self.child_place(&place, slot, end_key)?;
            end_key = block.key(slot.exact_add(1)).or(end_key);
            let Some(child) = child else {
                // No check accepts a node without pointers. The descent treats a node without
                // pointers as an empty leaf.
                visit(place, 0);
                return Ok((false, None));
            };
            visit(core::mem::replace(&mut place, child), slot);
        }
    }

    /// Returns the path to the leaf that covers `key`.
    pub(super) fn route(&self, key: &Key) -> Result<Route> {
        let mut route = Route::default();
        let (found, end_key) = self.descend(key, |place, slot| {
            let clean = match place {
                Place::Node(_) => None,
                Place::Clean(clean) => Some(clean),
            };
            route.steps.push(RouteStep { slot, clean });
        })?;
        route.found = found;
        route.end_key = end_key;
        Ok(route)
    }

    /// Returns the leaf that covers `key`, the key's slot, whether the key exists, and the
    /// exclusive end of the leaf.
    pub(super) fn leaf_of<'tree>(&'tree self, key: &Key) -> Result<LeafPlace<'tree>> {
        let mut leaf = None;
        let (found, end_key) = self.descend(key, |place, slot| leaf = Some((place, slot)))?;
        Ok(LeafPlace { leaf, found, end_key })
    }

    /// Reads the path to the place of `key`: an edit there needs no read while the cache keeps the
    /// path. `visit` receives the blocks that the edit would copy, and their headers. Returns the
    /// exclusive end of the leaf; `None` for the last leaf.
    ///
    /// # Errors
    /// Fails if a block on the path cannot be read.
    pub fn reach(&self, key: &Key, mut visit: impl FnMut(&BlockPointer, &Header)) -> Result<Option<Key>> {
        let visit_clean = |place: Place<'_>, _| match place {
            Place::Node(node) if node.epoch == self.epoch => {}
            Place::Node(node) => visit(&node.pointer(self.tree), node.block.header()),
            Place::Clean(clean) => visit(&clean.0, clean.1.header()),
        };
        self.descend(key, visit_clean).map(|(_, end_key)| end_key)
    }

    /// Returns the item with exactly this key.
    ///
    /// # Errors
    /// Fails if a block on the path cannot be read.
    pub fn get(&self, key: &Key) -> Result<Option<OwnedItem>> {
        let place = self.leaf_of(key)?;
        Ok(if place.found { place.item(0) } else { None })
    }

    /// Lends the data of the item with exactly this key to `read`, without keeping its leaf.
    /// Returns false if the item does not exist.
    ///
    /// # Errors
    /// Fails if a block on the path cannot be read.
    pub fn with_item(&self, key: &Key, read: impl FnOnce(&[u8])) -> Result<bool> {
        let place = self.leaf_of(key)?;
        let item = match &place.leaf {
            Some((leaf, slot)) if place.found => leaf.block().item(*slot),
            _ => None,
        };
        Ok(item.map(|item| read(item.data)).is_some())
    }

    /// Returns the last item whose key is not above `key`.
    ///
    /// # Errors
    /// Fails if a block on the path cannot be read.
    pub fn at_or_before(&self, key: &Key) -> Result<Option<OwnedItem>> {
        let place = self.leaf_of(key)?;
        // A leaf's first key is its lower bound, so no item of the tree precedes the leaf's slot 0.
        Ok(place.item(usize::from(!place.found)))
    }

    /// Calls `read` with each item from `from` on, in order, until `read` returns `Break`; does not
    /// keep the leaves.
    ///
    /// # Errors
    /// Fails if a block on the path cannot be read. Before that error, `read` has received the
    /// items in front of the unreadable block.
    pub fn scan(&self, from: &Key, read: impl FnMut(&Key, &[u8]) -> ControlFlow<()>) -> Result<()> {
        self.scan_leaves(*from, false, read)
    }

    /// Lends items to a callback like [`scan`](Self::scan). If no item has the key `from`, the scan
    /// starts with the last item before `from`.
    ///
    /// # Errors
    /// Fails as [`scan`](Self::scan) does.
    pub fn scan_from_before(
        &self,
        from: &Key,
        read: impl FnMut(&Key, &[u8]) -> ControlFlow<()>,
    ) -> Result<()> {
        self.scan_leaves(*from, true, read)
    }

    fn scan_leaves(
        &self,
        mut from: Key,
        mut with_one_before: bool,
        mut read: impl FnMut(&Key, &[u8]) -> ControlFlow<()>,
    ) -> Result<()> {
        loop {
            let place = self.leaf_of(&from)?;
            if let Some((leaf, slot)) = &place.leaf {
                let block = leaf.block();
                // A leaf's first key is its lower bound, so no item of the tree precedes slot 0.
                let before = usize::from(with_one_before && !place.found);
                // Clamp: no item precedes slot 0.
                let mut slot = slot.saturating_sub(before);
                while let Some(item) = block.item(slot) {
                    if read(&item.key, item.data).is_break() {
                        return Ok(());
                    }
                    slot = slot.exact_add(1);
                }
            }
            match place.end_key {
                Some(next) => from = next,
                None => return Ok(()),
            }
            with_one_before = false;
        }
    }

    /// Returns the first item whose key is not below `key`.
    ///
    /// # Errors
    /// Fails if a block on the path cannot be read.
    pub fn at_or_after(&self, key: &Key) -> Result<Option<OwnedItem>> {
        let place = self.leaf_of(key)?;
        match (place.item(0), place.end_key) {
            (None, Some(next)) => Ok(self.leaf_of(&next)?.item(0)),
            (item, _) => Ok(item),
        }
    }
}

/// The leaf, and the slot in it, that a lookup found.
pub(super) struct LeafPlace<'tree> {
    pub(super) leaf: Option<(Place<'tree>, usize)>,
    pub(super) found: bool,
    pub(super) end_key: Option<Key>,
}

impl LeafPlace<'_> {
    /// Returns the item that is `before` slots before the slot of the route's key.
    fn item(&self, before: usize) -> Option<OwnedItem> {
        let (leaf, slot) = self.leaf.as_ref()?;
        OwnedItem::new(leaf.block(), slot.checked_sub(before)?)
    }
}
