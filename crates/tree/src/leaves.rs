//! A walk over a key range leaf by leaf, for jobs that read millions of items.
//!
//! [`Leaves`] lends one leaf at a time, with the slots that lie in the range. The job reads the
//! items of a lent leaf without calls into the walk, without reference counts, and without copies.
//! The walk over leaves skips unwanted subtrees before it reads them ([`Tree::leaves_where`]).

use crate::error::Result;
use crate::path::Path;
use crate::pointer::BlockPointer;
use crate::read_ahead::{Ahead, ReadAhead, Toward};
use crate::scope::Scope;
use crate::step::Step;
use crate::tree::Tree;
use buttress_exact::Exact as _;
use buttress_format::Key;
use buttress_format::node::{Item, TreeBlock};
use core::ops::RangeBounds;
use core::ops::{Bound, Range};
use std::sync::Arc;

/// A leaf of a walk, and the slots of its items in the walk's range.
#[derive(Clone, Debug)]
pub struct Leaf<'a> {
    /// The pointer to the leaf.
    pub pointer: &'a BlockPointer,
    /// The block of the leaf.
    pub block: &'a TreeBlock,
    /// The slots of the items in the range; never empty.
    pub slots: Range<usize>,
}

impl<'a> Leaf<'a> {
    /// Returns the leaf's items in the range, in order.
    pub fn items(&self) -> impl Iterator<Item = Item<'a>> + use<'a> {
        self.block.items().skip(self.slots.start).take(self.slots.len())
    }
}

/// A walk over the leaves of a key range; see the module's documentation.
///
/// An error stands for all items below an unreadable block. After an error, the walk continues
/// after the unreadable block. The walk returns at most one error for each damaged block, so
/// callers that ignore errors reach the range's end.
#[derive(Debug)]
pub struct Leaves {
    tree: Tree,
    path: Path,
    ahead: Ahead,
    scope: Scope,
    /// The first key of the range.
    start: Key,
    /// The exclusive end of the range of keys.
    end: Option<Key>,
    state: State,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Fresh,
    /// The last step of the path is the next child to visit, or a lent leaf.
    Running,
    Done,
}

impl Tree {
    /// Returns the leaves that hold items with keys in `range`, in order. Read-ahead stops at the
    /// range's end. A walk leaf by leaf is the cheapest walk over many items.
    #[must_use]
    pub fn leaves(&self, range: impl RangeBounds<Key>, read_ahead: ReadAhead) -> Leaves {
        let (start, end) = (range.start_bound().cloned(), range.end_bound().cloned());
        Leaves::new(self, start, end, read_ahead, |scope| scope)
    }

    /// Walks leaves like [`Tree::leaves`], but skips unwanted subtrees without reading them.
    ///
    /// `wanted(first, end)` returns true if the caller wants any key of `[first, end)`, or of
    /// `[first, ..)` without `end`. The walk calls the predicate for nodes and leaves, several
    /// times for each. The predicate must always return the same result for a range. The leaves
    /// that the walk returns may also hold items outside the wanted ranges.
    #[must_use]
    pub fn leaves_where(
        &self,
        range: impl RangeBounds<Key>,
        read_ahead: ReadAhead,
        wanted: impl Fn(&Key, Option<&Key>) -> bool + Send + Sync + 'static,
    ) -> Leaves {
        let (start, end) = (range.start_bound().cloned(), range.end_bound().cloned());
        Leaves::new(self, start, end, read_ahead, |scope| scope.only(Arc::new(wanted)))
    }
}

impl Leaves {
    pub(crate) fn new(
        tree: &Tree,
        start: Bound<Key>,
        end: Bound<Key>,
        read_ahead: ReadAhead,
        scope: impl FnOnce(Scope) -> Scope,
    ) -> Self {
        let start = match start {
            Bound::Unbounded => Some(Key::MIN),
            Bound::Included(key) => Some(key),
            Bound::Excluded(key) => key.successor(),
        };
        let end = match end {
            Bound::Unbounded => None,
            Bound::Excluded(key) => Some(key),
            Bound::Included(key) => key.successor(),
        };
        let scope = scope(Scope::below(end));
        let empty = start.is_none_or(|start| end.is_some_and(|end| end <= start));
        Self {
            tree: tree.clone(),
            path: Path::default(),
            ahead: Ahead::new(read_ahead, 0, scope.clone()),
            scope,
            // Clamp: no key follows the last key.
            start: start.unwrap_or(Key::MAX),
            end,
            state: if empty { State::Done } else { State::Fresh },
        }
    }

    /// Makes the walk read leaves past the cache. A job that visits each leaf once gains nothing
    /// from caching, and filling the cache's memory would take longer than the walk saves.
    #[must_use]
    pub fn passing(mut self) -> Self {
        self.ahead.pass_leaves();
        self
    }

    /// Lends the next leaf that has items in the range, or returns `None` at the end.
    ///
    /// # Errors
    /// Fails if the next block cannot be read. The next call continues after the unreadable block.
    #[expect(
        clippy::should_implement_trait,
        reason = "a walk that lends its leaves; an iterator cannot"
    )]
    pub fn next(&mut self) -> Result<Option<Leaf<'_>>> {
        let Some(slots) = self.advance()? else {
            self.state = State::Done;
            return Ok(None);
        };
        Ok(self.path.leaf().map(|step| Leaf {
            pointer: &step.pointer,
            block: &step.block,
            slots,
        }))
    }

    /// Advances to the next leaf with items in the range.
    fn advance(&mut self) -> Result<Option<Range<usize>>> {
        match self.state {
            State::Done => return Ok(None),
            State::Fresh => {
                // If the root cannot be read, the walk ends.
                self.state = State::Done;
                let root = BlockPointer::root(self.tree.root());
                if !self.scope.admits(&root) {
                    return Ok(None);
                }
                self.path.load_root(&self.tree)?;
                self.state = State::Running;
                if let Some(slots) = self.arrive() {
                    return Ok(Some(slots));
                }
            }
            State::Running => {}
        }
        while let Some(step) = self.path.last() {
            let child = step.child(step.slot);
            if child.is_some_and(|child| self.scope.ends_before(&child)) {
                return Ok(None);
            }
            let Some(child) = child else {
                self.path.pop();
                self.child_done();
                continue;
            };
            if !self.scope.admits(&child) {
                self.child_done();
                continue;
            }
            if let Err(error) = self
                .path
                .enter(self.tree.forest(), &mut self.ahead, Toward::Higher)
            {
                self.child_done();
                return Err(error);
            }
            if let Some(slots) = self.arrive() {
                return Ok(Some(slots));
            }
        }
        Ok(None)
    }

    fn child_done(&mut self) {
        if let Some(step) = self.path.last_mut() {
            step.slot = step.slot.exact_add(1);
        }
    }

    /// Prepares the block at the end of the path. On arrival at a node, the walk continues with the
    /// child that covers the range's start. On arrival at a leaf, returns the slots of the range,
    /// if the leaf has any.
    fn arrive(&mut self) -> Option<Range<usize>> {
        let Step {
            pointer, block, slot, ..
        } = self.path.last_mut()?;
        let count = block.item_count();
        // Returns the slot of the first key that is not below `key`.
        let position = |key: &Key| block.search(key).unwrap_or_else(|position| position);
        if pointer.level > 0 {
            *slot = match block.search(&self.start) {
                Ok(slot) => slot,
                // Clamp: keys below the node's first key belong to the first child.
                Err(slot) => slot.saturating_sub(1),
            };
            return None;
        }
        let first = match block.key(0) {
            Some(first) if first < self.start => position(&self.start),
            _ => 0,
        };
        // Clamp: an empty leaf has no last key.
        let end = match (self.end, block.key(count.saturating_sub(1))) {
            (Some(end), Some(last)) if last >= end => position(&end),
            _ => count,
        };
        (first < end).then_some(first..end)
    }
}
