//! Insertion: pushing items to a neighbour, and splitting leaves and nodes.
//!
//! A row of insertions with ascending keys fills leaves to the end, both at the end of the tree and
//! inside it. A full leaf is split at the position at which the row of insertions continues. Other
//! insertions push items to a neighbour in memory that is at least a tenth free, until both leaves
//! are equally full. If no neighbour has the space, the leaf is split in the middle.

use super::editor::Editor;
use super::node::{NO_SLOT, Node};
use super::root::Root;
use super::route::Route;
use crate::error::Result;
use buttress_exact::Exact as _;
use buttress_format::Key;
use buttress_format::node::edit::{ITEM_HEAD_BYTES, LeafEdit, NodeEdit};
use core::ops::Range;
use smallvec::SmallVec;
use std::sync::Arc;

/// The fraction of a neighbour that must be free for it to receive items.
const PUSH_PARTS: usize = 10;

/// A new item to insert.
#[derive(Clone, Copy)]
pub(super) struct NewItem<'a> {
    pub(super) key: &'a Key,
    pub(super) data: &'a [u8],
    /// The new item's slot in the leaf that has no space for it.
    pub(super) slot: usize,
}

impl NewItem<'_> {
    fn bytes(&self) -> usize {
        self.data.len().exact_add(ITEM_HEAD_BYTES)
    }
}

/// The new blocks to the right of a split block.
type Siblings = SmallVec<[Arc<Node>; 2]>;

/// Inserts an item into a leaf. Returns false if the leaf has no space.
pub(super) fn put_into(leaf: &mut Node, slot: usize, key: &Key, data: &[u8]) -> bool {
    let done = leaf.block.edit_leaf(|leaf| {
        let place = leaf.insert(slot, key, data.len());
        place.map(|place| place.copy_from_slice(data)).is_some()
    });
    if done {
        leaf.next_slot = slot.exact_add(1);
    }
    done
}

/// Inserts adjacent items into a leaf at `slot`, as many as fit. Returns the number of inserted
/// items.
pub(super) fn put_run(leaf: &mut Node, slot: usize, items: &[(Key, &[u8])]) -> usize {
    let count = leaf.block.edit_leaf(|leaf| leaf.insert_run(slot, items));
    if count > 0 {
        leaf.next_slot = slot.exact_add(count);
    }
    count
}

impl Editor<'_> {
    /// Inserts an item into a full leaf, after making space for the item. All blocks of the route
    /// may be changed.
    pub(super) fn insert_with_room(
        &mut self,
        root: &mut Root,
        route: &Route,
        item: NewItem<'_>,
    ) -> Result<()> {
        let mut above = 0;
        if route.steps.len() <= 1 {
            self.raise(root)?;
            above = 1;
        }
        let Some(node) = root.node.as_mut().map(Arc::make_mut) else {
            return Err(self.broken("a root in memory is missing"));
        };
        let sibling = self.insert_below(node, route, above, item)?;
        if let Some(sibling) = sibling {
            self.raise(root)?;
            let Some(node) = root.node.as_mut().map(Arc::make_mut) else {
                return Err(self.broken("a root in memory is missing"));
            };
            self.insert_links(node, 1, Siblings::from_iter([sibling]))?;
        }
        Ok(())
    }

    /// Inserts an item below `node`, and returns the new sibling of `node` if `node` was split.
    /// `above` is the number of blocks that were added above the route's first block.
    fn insert_below(
        &mut self,
        node: &mut Node,
        route: &Route,
        above: usize,
        item: NewItem<'_>,
    ) -> Result<Option<Arc<Node>>> {
        let highest = route.steps.len().exact_add(above).exact_sub(1);
        let depth = highest.exact_sub(usize::from(node.level()));
        let slot = depth.checked_sub(above).map_or(0, |depth| route.slot(depth));
        if node.level() == 1 {
            let siblings = self.make_room(node, slot, route.end_key.is_none(), item)?;
            return self.add_children(node, slot, siblings);
        }
        let Some(child) = node.links.get_mut(slot).and_then(Option::as_mut) else {
            return Err(self.broken("a child in memory is missing"));
        };
        let sibling = self.insert_below(Arc::make_mut(child), route, above, item)?;
        match sibling {
            Some(sibling) => self.add_children(node, slot, Siblings::from_iter([sibling])),
            None => Ok(None),
        }
    }

    /// Links new children after the child in `slot`. If the children do not fit, splits the node
    /// and returns its new sibling.
    fn add_children(
        &mut self,
        node: &mut Node,
        slot: usize,
        siblings: Siblings,
    ) -> Result<Option<Arc<Node>>> {
        let at = slot.exact_add(1);
        let count = node.block.item_count();
        if siblings.is_empty() || count.exact_add(siblings.len()) <= self.pointers_max() {
            self.insert_links(node, at, siblings)?;
            return Ok(None);
        }
        // If the insertion is at the end of a row, only the new children move to the right.
        let from = if at >= count { slot } else { count.quotient(2) };
        let mut right = self.new_sibling(node);
        self.made();
        let moved = from..count;
        let copy = |right: &mut NodeEdit<'_>| right.insert_from(0, &node.block, moved.clone());
        if node.links.len() != count || !right.block.edit_node(copy) {
            return Err(self.broken("the half of a node does not fit an empty one"));
        }
        right.links = node.links.split_off(from);
        if !node.block.edit_node(|node| node.remove(moved)) {
            return Err(self.broken("a node lacks the half that it was split at"));
        }
        match at.checked_sub(from) {
            Some(at) if at > 0 => self.insert_links(&mut right, at, siblings)?,
            _ => self.insert_links(node, at, siblings)?,
        }
        Ok(Some(Arc::new(right)))
    }

    /// Makes space in the leaf in `slot`, and inserts the item into it. Returns the new leaves to
    /// the right of the split leaf.
    fn make_room(
        &mut self,
        parent: &mut Node,
        slot: usize,
        is_last: bool,
        item: NewItem<'_>,
    ) -> Result<Siblings> {
        let Some(leaf) = parent.link(slot) else {
            return Err(self.broken("a leaf in memory is missing"));
        };
        let count = leaf.block.item_count();
        let in_row =
            leaf.next_slot == item.slot || (leaf.next_slot == NO_SLOT && is_last && item.slot >= count);
        if !in_row && self.push(parent, slot, item)? {
            return Ok(Siblings::new());
        }
        let Some(leaf) = parent.links.get_mut(slot).and_then(Option::as_mut) else {
            return Err(self.broken("a leaf in memory is missing"));
        };
        let siblings = self.split(Arc::make_mut(leaf), item, in_row)?;
        sync_key(parent, slot);
        Ok(siblings)
    }

    /// Splits a leaf and inserts the item. Returns the new leaves to the right of the split leaf.
    fn split(&mut self, leaf: &mut Node, item: NewItem<'_>, in_row: bool) -> Result<Siblings> {
        let count = leaf.block.item_count();
        let room = self.leaf_capacity();
        let from = if in_row {
            item.slot
        } else {
            split_slot(leaf, item, room)
        };
        let mut siblings = Siblings::new();
        if from < count {
            let mut right = self.new_sibling(leaf);
            if !buttress_faults::on("ledger-split-block-uncounted") {
                self.made();
            }
            let kept = usize::from(buttress_faults::on("tree-split-leaves-one-behind"));
            self.move_items(leaf, &mut right, from..count.exact_sub(kept), 0)?;
            siblings.push(Arc::new(right));
        }
        // The new item's place is left of the split, or right of it. If the item fits on neither
        // side of the split, it gets a leaf between both.
        if item.slot <= from && put_into(leaf, item.slot, item.key, item.data) {
            return Ok(siblings);
        }
        if let (Some(at), Some(right)) = (item.slot.checked_sub(from), siblings.first_mut())
            && put_into(Arc::make_mut(right), at, item.key, item.data)
        {
            return Ok(siblings);
        }
        self.split_around(leaf, siblings, from, item)
    }

    /// Puts the item into a separate leaf, at its place in a leaf that was split at `from`.
    fn split_around(
        &mut self,
        leaf: &mut Node,
        mut siblings: Siblings,
        from: usize,
        item: NewItem<'_>,
    ) -> Result<Siblings> {
        // The items between the split and the new item's place move, so that the leaf splits at
        // that place.
        if let Some(right) = siblings.first_mut() {
            let right = Arc::make_mut(right);
            if item.slot < from {
                self.move_items(leaf, right, item.slot..from, 0)?;
            } else {
                let count = leaf.block.item_count();
                self.move_items(right, leaf, 0..item.slot.exact_sub(from), count)?;
            }
        }
        let mut alone = self.new_sibling(leaf);
        self.made();
        if !put_into(&mut alone, 0, item.key, item.data) {
            return Err(self.broken("an item does not fit an empty leaf"));
        }
        siblings.retain(|right| right.block.item_count() > 0);
        siblings.insert(0, Arc::new(alone));
        if leaf.block.item_count() == 0 {
            // All items moved to the right, so the leaf reuses the content of its next sibling.
            let next = siblings.remove(0);
            let all = next.block.item_count();
            if !leaf
                .block
                .edit_leaf(|leaf| leaf.insert_from(0, &next.block, 0..all))
            {
                return Err(self.broken("the items of a leaf do not fit an empty one"));
            }
            leaf.next_slot = all;
            self.unmade()?;
        }
        Ok(siblings)
    }

    /// Moves items to a neighbour in memory, so that the leaf has space for the new item, and
    /// inserts it. Returns false, and changes nothing, if no neighbour has the space.
    fn push(&self, parent: &mut Node, slot: usize, item: NewItem<'_>) -> Result<bool> {
        if let Some(left) = slot.checked_sub(1)
            && self.push_left(parent, left, item)?
        {
            return Ok(true);
        }
        self.push_right(parent, slot, item)
    }

    fn push_left(&self, parent: &mut Node, left_slot: usize, item: NewItem<'_>) -> Result<bool> {
        let Some((left, leaf)) = self.neighbours(parent, left_slot) else {
            return Ok(false);
        };
        let Some(half) = self.worth_pushing(left, leaf, item) else {
            return Ok(false);
        };
        // The split moves items while the left leaf holds at most half of all bytes.
        let count = leaf.block.item_count();
        let left_used = self.used(left);
        let moved = (0..count)
            .take_while(|slot| {
                let all = 0..slot.exact_add(1);
                left_used.exact_add(leaf.block.items_bytes(all)) <= half
            })
            .count();
        let moved_bytes = leaf.block.items_bytes(0..moved);
        let goes_left = item.slot < moved;
        let target_used = if goes_left {
            left_used.exact_add(moved_bytes)
        } else {
            self.used(leaf).exact_sub(moved_bytes)
        };
        let is_overfull = target_used.exact_add(item.bytes()) > self.leaf_capacity();
        if moved == 0 || (is_overfull && !buttress_faults::on("tree-push-overfull")) {
            return Ok(false);
        }
        let (left, leaf) = (Arc::make_mut(left), Arc::make_mut(leaf));
        let before = left.block.item_count();
        self.move_items(leaf, left, 0..moved, before)?;
        let done = match item.slot.checked_sub(moved) {
            Some(at) => put_into(leaf, at, item.key, item.data),
            None => put_into(left, before.exact_add(item.slot), item.key, item.data),
        };
        sync_key(parent, left_slot.exact_add(1));
        self.pushed(done)
    }

    fn push_right(&self, parent: &mut Node, slot: usize, item: NewItem<'_>) -> Result<bool> {
        let Some((leaf, right)) = self.neighbours(parent, slot) else {
            return Ok(false);
        };
        let Some(half) = self.worth_pushing(right, leaf, item) else {
            return Ok(false);
        };
        let count = leaf.block.item_count();
        let right_used = self.used(right);
        let moved = (0..count)
            .rev()
            .take_while(|slot| right_used.exact_add(leaf.block.items_bytes(*slot..count)) <= half)
            .count();
        let from = count.exact_sub(moved);
        let moved_bytes = leaf.block.items_bytes(from..count);
        let goes_right = item.slot > from;
        let target_used = if goes_right {
            right_used.exact_add(moved_bytes)
        } else {
            self.used(leaf).exact_sub(moved_bytes)
        };
        if moved == 0 || target_used.exact_add(item.bytes()) > self.leaf_capacity() {
            return Ok(false);
        }
        let (leaf, right) = (Arc::make_mut(leaf), Arc::make_mut(right));
        self.move_items(leaf, right, from..count, 0)?;
        let done = match item.slot.checked_sub(from) {
            Some(at) if goes_right => put_into(right, at, item.key, item.data),
            _ => put_into(leaf, item.slot, item.key, item.data),
        };
        sync_key(parent, slot);
        sync_key(parent, slot.exact_add(1));
        self.pushed(done)
    }

    /// After items moved to a neighbour, their leaf has space, so the new item must fit.
    fn pushed(&self, done: bool) -> Result<bool> {
        match done {
            true => Ok(true),
            false => Err(self.broken("an item does not fit where items made space for it")),
        }
    }

    /// Returns the leaves in `slot` and in the next slot of a node, if both leaves may be changed.
    fn neighbours<'n>(
        &self,
        parent: &'n mut Node,
        slot: usize,
    ) -> Option<(&'n mut Arc<Node>, &'n mut Arc<Node>)> {
        let pair = parent.links.get_mut(slot..slot.checked_add(2)?)?;
        match pair {
            [Some(left), Some(right)] if left.epoch == self.epoch && right.epoch == self.epoch => {
                Some((left, right))
            }
            _ => None,
        }
    }

    /// Returns half of the bytes of a leaf, its neighbour and the new item, if the neighbour has
    /// enough space.
    fn worth_pushing(&self, neighbour: &Node, leaf: &Node, item: NewItem<'_>) -> Option<usize> {
        let room = self.leaf_capacity();
        let free = neighbour.block.free_space();
        if free < room.checked_div(PUSH_PARTS)? {
            return None;
        }
        let all = self
            .used(neighbour)
            .checked_add(self.used(leaf))?
            .checked_add(item.bytes())?;
        all.checked_div(2)
    }

    /// Returns the bytes that a leaf's items take.
    pub(super) fn used(&self, leaf: &Node) -> usize {
        self.leaf_capacity().exact_sub(leaf.block.free_space())
    }
}

/// Returns the slot that splits a leaf into two halves of about equal size, including the item.
fn split_slot(leaf: &Node, item: NewItem<'_>, room: usize) -> usize {
    let count = leaf.block.item_count();
    let used = room.exact_sub(leaf.block.free_space());
    let half = used.exact_add(item.bytes()).quotient(2);
    let left_bytes = |from: usize| {
        let items = leaf.block.items_bytes(0..from);
        let new = if item.slot < from { item.bytes() } else { 0 };
        items.exact_add(new)
    };
    // Clamp: if all slots are right of the leaf's middle, the split moves the whole leaf.
    let from = (0..=count)
        .take_while(|from| left_bytes(*from) <= half)
        .last()
        .unwrap_or(0);
    // The next slot may be nearer to the middle of the leaf.
    let next = from.exact_add(1).min(count);
    let nearer = left_bytes(next).abs_diff(half) < left_bytes(from).abs_diff(half);
    if nearer && left_bytes(next) <= room {
        next
    } else {
        from
    }
}

/// Moves items from one leaf to a place in another leaf. Returns false if the moved items do not
/// fit.
fn move_items(from: &mut Node, to: &mut Node, slots: Range<usize>, at: usize) -> bool {
    from.next_slot = NO_SLOT;
    to.next_slot = NO_SLOT;
    let copy = |to: &mut LeafEdit<'_>| to.insert_from(at, &from.block, slots.clone());
    to.block.edit_leaf(copy) && from.block.edit_leaf(|from| from.remove(slots))
}

/// Links new children from `slot` on. Returns false if the node has no space for all of these
/// children.
fn insert_links(node: &mut Node, slot: usize, new: Siblings) -> bool {
    let mut at = slot;
    for child in new {
        let pointer = child.key_pointer();
        if at > node.links.len() || !node.block.edit_node(|node| node.insert(at, &pointer)) {
            return false;
        }
        node.links.insert(at, Some(child));
        at = at.exact_add(1);
    }
    true
}

impl Editor<'_> {
    /// Moves items, and fails if they do not fit. If the move failed silently, the items would be
    /// in neither leaf, or in both.
    fn move_items(&self, from: &mut Node, to: &mut Node, slots: Range<usize>, at: usize) -> Result<()> {
        match move_items(from, to, slots, at) {
            true => Ok(()),
            false => Err(self.broken("items do not fit the leaf that they are moved to")),
        }
    }

    /// Links new children, and fails if they do not fit. If the new children did not fit and were
    /// dropped, their subtrees would be lost.
    fn insert_links(&self, node: &mut Node, slot: usize, new: Siblings) -> Result<()> {
        match insert_links(node, slot, new) {
            true => Ok(()),
            false => Err(self.broken("new children do not fit their node")),
        }
    }
}

/// Sets the key in `slot` of a node to the first key of the child in that slot.
pub(super) fn sync_key(node: &mut Node, slot: usize) {
    if buttress_faults::on("tree-parent-key-kept") {
        return;
    }
    let Some(first) = node.link(slot).and_then(|child| child.block.key(0)) else {
        return;
    };
    if node.block.key(slot) != Some(first) {
        let is_set = node.block.edit_node(|node| node.set_key(slot, &first));
        debug_assert!(is_set, "a linked child has a key");
    }
}
