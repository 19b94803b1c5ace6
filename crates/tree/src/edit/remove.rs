//! Removal of items and whole leaves, and merging of blocks that removals made small.
//!
//! A block that falls below a third of its capacity is merged with a neighbour, if an eighth of the
//! merged block stays free. The neighbour to merge with must be in memory, as a node of the tree or
//! in the cache. An edit never reads a block only for a merge.

use super::context::EditContext;
use super::editable::EditableTree;
use super::editor::{Editor, Gone, links_for};
use super::insert::sync_key;
use super::node::{NO_SLOT, Node};
use super::root::Root;
use super::route::{Place, Route, RouteStep};
use crate::error::Result;
use crate::pointer::BlockPointer;
use buttress_exact::Exact as _;
use buttress_format::Key;
use buttress_format::node::{NewBlock, TreeBlock};
use core::ops::Range;
use std::sync::Arc;

/// A block is merged with a neighbour if it uses less than this fraction of its capacity.
const SMALL_PARTS: usize = 3;

/// The fraction of a merged block that must stay free.
const SPARE_PARTS: usize = 8;

impl Editor<'_> {
    /// Returns true if a leaf or node is small enough to be merged.
    pub(super) fn is_small(&self, node: &Node) -> bool {
        let (used, room) = self.measure(&node.block);
        used < room.quotient(SMALL_PARTS)
    }

    /// Returns the used and the total capacity: bytes of a leaf, or pointers of a node.
    fn measure(&self, block: &TreeBlock) -> (usize, usize) {
        let room = if block.is_leaf() {
            self.leaf_capacity()
        } else {
            self.pointers_max()
        };
        (room.exact_sub(block.free_space()), room)
    }

    /// Repairs a route after items were removed at its end: removes empty blocks, merges small
    /// blocks, and updates the first keys in pointers. All blocks of the route down to `depth` may
    /// be changed.
    pub(super) fn tidy(&mut self, root: &mut Root, route: &Route, depth: usize) -> Result<()> {
        if let Some(node) = root.node.as_mut() {
            self.tidy_below(Arc::make_mut(node), route, 0, depth)?;
        }
        self.lower(root)
    }

    fn tidy_below(&mut self, node: &mut Node, route: &Route, at: usize, depth: usize) -> Result<()> {
        if at >= depth {
            return Ok(());
        }
        let slot = route.slot(at);
        let Some(child) = node.links.get_mut(slot).and_then(Option::as_mut) else {
            return Err(self.broken("a child in memory is missing"));
        };
        self.tidy_below(Arc::make_mut(child), route, at.exact_add(1), depth)?;
        let Some(child) = node.link(slot) else {
            return Err(self.broken("a child in memory is missing"));
        };
        if child.block.item_count() == 0 {
            let gone = Gone::Node(Arc::clone(child));
            self.unlink(node, slot)?;
            return self.gone(&gone);
        }
        sync_key(node, slot);
        if node.link(slot).is_some_and(|child| self.is_small(child)) {
            self.merge(node, slot)?;
        }
        Ok(())
    }

    /// Merges the child in `slot` with a neighbour, if one is suitable.
    fn merge(&mut self, node: &mut Node, slot: usize) -> Result<()> {
        let right = slot.exact_add(1);
        let sides = [
            slot.checked_sub(1),
            Some(right).filter(|right| *right < node.block.item_count()),
        ];
        for neighbour in sides.into_iter().flatten() {
            if let Some(gone) = self.fitting(node, slot, neighbour) {
                let is_left = neighbour < slot;
                let Some(child) = node.links.get_mut(slot).and_then(Option::as_mut) else {
                    return Err(self.broken("a child in memory is missing"));
                };
                if !absorb(Arc::make_mut(child), &gone, is_left) {
                    // If the neighbour were removed now, all its content would be lost.
                    return Err(self.broken("a block does not fit the one that it is merged with"));
                }
                self.unlink(node, neighbour)?;
                sync_key(node, if is_left { neighbour } else { slot });
                if buttress_faults::on("tree-merged-block-kept") {
                    return Ok(());
                }
                return self.gone(&gone);
            }
        }
        Ok(())
    }

    /// Returns the neighbour of a small child, if the neighbour is in memory and both fit into one
    /// block.
    fn fitting(&self, node: &Node, slot: usize, neighbour: usize) -> Option<Gone> {
        let child = node.link(slot)?;
        let gone = match node.link(neighbour) {
            Some(link) => Gone::Node(Arc::clone(link)),
            None => {
                let above = BlockPointer {
                    end_key: None,
                    ..node.pointer(self.tree)
                };
                let pointer = above.child(&node.block, neighbour)?;
                let block = self.forest.cache().get(&pointer)?;
                Gone::Clean(Box::new((pointer, block)))
            }
        };
        let (used, room) = self.measure(&child.block);
        let (more, _) = self.measure(gone.block());
        let most = room.exact_sub(room.checked_div(SPARE_PARTS)?);
        let fits = used.checked_add(more)? <= most || buttress_faults::on("tree-merge-overfull");
        fits.then_some(gone)
    }

    /// Removes roots with one child, and replaces a root without children by an empty leaf.
    fn lower(&mut self, root: &mut Root) -> Result<()> {
        loop {
            let Some(node) = root.node.as_ref().filter(|node| node.level() > 0) else {
                return Ok(());
            };
            match node.block.item_count() {
                0 => {
                    let header = *node.block.header();
                    let new = NewBlock {
                        fsid: header.fsid,
                        chunk_tree_uuid: header.chunk_tree_uuid,
                        logical: super::node::new_identity(),
                        generation: header.generation,
                        owner: header.owner,
                        level: 0,
                    };
                    let leaf = TreeBlock::new_empty(self.forest.block_format().node_bytes, &new);
                    let leaf = Arc::new(Node::new(leaf, Vec::new(), self.epoch));
                    let gone = root.node.replace(leaf);
                    self.made();
                    return gone.map_or(Ok(()), |gone| self.gone(&Gone::Node(gone)));
                }
                1 => {
                    if node.link(0).is_none_or(|child| child.epoch != self.epoch) && !self.only_child(root)? {
                        return Ok(());
                    }
                    let child = root.node.as_ref().and_then(|node| node.link(0)).cloned();
                    let Some(child) = child else {
                        return Err(self.broken("a child in memory is missing"));
                    };
                    if let Some(gone) = root.node.replace(child) {
                        self.gone(&Gone::Node(gone))?;
                    }
                }
                _ => return Ok(()),
            }
        }
    }

    /// Copies the root's only child, so that it can become the root. Returns false if the child is
    /// not in memory. If the child is not in memory, the tree keeps its height until a later edit.
    fn only_child(&mut self, root: &mut Root) -> Result<bool> {
        let Some(node) = root.node.as_mut().map(Arc::make_mut) else {
            return Ok(false);
        };
        let mut step = RouteStep { slot: 0, clean: None };
        if node.link(0).is_none() {
            let above = node.pointer(self.tree);
            let found = above
                .child(&node.block, 0)
                .and_then(|pointer| Some((pointer, self.forest.cache().get(&pointer)?)));
            let Some(found) = found else {
                return Ok(false);
            };
            step.clean = Some(Box::new(found));
        }
        self.child(node, 0, &mut step)?;
        Ok(true)
    }
}

impl Gone {
    fn block(&self) -> &TreeBlock {
        match self {
            Self::Node(node) => &node.block,
            Self::Clean(clean) => &clean.1,
        }
    }
}

/// Moves all content of a neighbour into a node. Returns false, and changes nothing, if the
/// neighbour's content does not fit.
fn absorb(node: &mut Node, gone: &Gone, is_left: bool) -> bool {
    let block = gone.block();
    let all = 0..block.item_count();
    let at = if is_left { 0 } else { node.block.item_count() };
    if block.is_leaf() {
        node.next_slot = NO_SLOT;
        return node.block.edit_leaf(|leaf| leaf.insert_from(at, block, all));
    }
    if !node.block.edit_node(|node| node.insert_from(at, block, all)) {
        return false;
    }
    let links = match gone {
        Gone::Node(gone) => gone.links.clone(),
        Gone::Clean(clean) => links_for(&clean.1),
    };
    node.links.splice(at..at, links);
    true
}

impl Editor<'_> {
    /// Removes a child from a node in memory.
    fn unlink(&self, node: &mut Node, slot: usize) -> Result<()> {
        let slots = slot..slot.exact_add(1);
        if slot >= node.links.len() || !node.block.edit_node(|node| node.remove(slots)) {
            return Err(self.broken("a child that goes is not in its node"));
        }
        node.links.remove(slot);
        Ok(())
    }
}

/// The part of a leaf that lies in a removed range.
enum Part {
    Nothing,
    Some(Range<usize>),
    Whole,
}

impl EditableTree {
    /// Removes the items with keys in `range`, leaf by leaf, and returns their number. `removed`
    /// receives each item in order, after the context was notified of its block. Leaves that are
    /// removed completely are not copied.
    ///
    /// # Errors
    /// Fails if a block cannot be read, or with an error of the context. If the method fails, the
    /// items before the unreadable block are already removed.
    pub fn remove_range(
        &mut self,
        context: &mut dyn EditContext,
        range: Range<Key>,
        removed: &mut dyn FnMut(&Key, &[u8]),
    ) -> Result<u64> {
        let mut total: u64 = 0;
        let mut next = range.start;
        while next < range.end {
            let mut route = self.route(&next)?;
            let part = self.part_of(&route, &range.end);
            let depth = route.steps.len().exact_sub(1);
            let (mut editor, root) = self.editor(context);
            let mut count = |key: &Key, data: &[u8]| {
                total = total.exact_add(1);
                removed(key, data);
            };
            match part {
                Part::Nothing => {}
                Part::Whole if depth > 0 => {
                    let above = depth.exact_sub(1);
                    let slot = route.slot(above);
                    editor.descend(root, &mut route, above, None)?;
                    let clean = route.steps.get_mut(depth).and_then(|step| step.clean.take());
                    let node = editor.descend(root, &mut route, above, None)?;
                    let gone = match (node.link(slot), clean) {
                        (Some(link), _) => Gone::Node(Arc::clone(link)),
                        (None, Some(clean)) => Gone::Clean(clean),
                        (None, None) => return Err(editor.broken("a block on the way was not read")),
                    };
                    editor.unlink(node, slot)?;
                    editor.gone(&gone)?;
                    gone.block().items().for_each(|item| count(&item.key, item.data));
                    editor.tidy(root, &route, above)?;
                }
                Part::Whole | Part::Some(_) => {
                    let leaf = editor.leaf(root, &mut route, None)?;
                    let slots = match part {
                        Part::Some(slots) => slots,
                        _ => 0..leaf.block.item_count(),
                    };
                    for slot in slots.clone() {
                        if let Some(item) = leaf.block.item(slot) {
                            count(&item.key, item.data);
                        }
                    }
                    if !leaf.block.edit_leaf(|leaf| leaf.remove(slots)) {
                        return Err(editor.broken("items of a range are not in their leaf"));
                    }
                    leaf.next_slot = NO_SLOT;
                    editor.tidy(root, &route, depth)?;
                }
            }
            match route.end_key {
                Some(end) => next = end,
                None => break,
            }
        }
        Ok(total)
    }

    /// Returns the part of the route's leaf between the route's key and `end`.
    fn part_of(&self, route: &Route, end: &Key) -> Part {
        let Some(step) = route.steps.last() else {
            return Part::Nothing;
        };
        let place = match &step.clean {
            Some(clean) => Some(Place::Clean(clean.clone())),
            None => self.node_at(route).map(Place::Node),
        };
        let Some(place) = place else {
            return Part::Nothing;
        };
        let block = place.block();
        let count = block.item_count();
        // Clamp: an empty leaf has no last key.
        let past = match block.key(count.saturating_sub(1)) {
            Some(last) if last < *end => count,
            _ => block.search(end).unwrap_or_else(|slot| slot),
        };
        if step.slot >= past {
            Part::Nothing
        } else if step.slot == 0 && past == count {
            Part::Whole
        } else {
            let more = usize::from(buttress_faults::on("tree-range-removes-one-more"));
            Part::Some(step.slot..past.exact_add(more).min(count))
        }
    }

    /// Returns the leaf at the end of a route, if it is in memory.
    fn node_at(&self, route: &Route) -> Option<&Node> {
        let mut node = self.root.node.as_deref()?;
        let above = route.steps.len().checked_sub(1)?;
        for step in route.steps.iter().take(above) {
            node = node.link(step.slot)?;
        }
        Some(node)
    }
}
