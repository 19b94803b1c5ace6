//! A walk over a range of keys leaf by leaf, for jobs that look at millions of items.
//!
//! [`Leaves`] lends one leaf at a time, with the slots that lie in the range; its items are then read without any
//! call into the walk, without reference counts and without copies. Subtrees that the job does not want are left
//! out before they are read ([`Tree::leaves_where`]).

use crate::error::Result;
use crate::path::{Path, Step};
use crate::pointer::BlockPointer;
use crate::read_ahead::{Ahead, ReadAhead, Toward};
use crate::scope::Scope;
use crate::tree::Tree;
use buttress_exact::Exact as _;
use buttress_format::Key;
use buttress_format::node::{Item, TreeBlock};
use core::ops::{Bound, Range};

/// A leaf of a walk, and which of its items belong to the walk's range.
#[derive(Clone, Debug)]
pub struct Leaf<'a> {
    /// What led to it.
    pub pointer: &'a BlockPointer,
    /// The leaf.
    pub block: &'a TreeBlock,
    /// The slots of the items in the range; never empty.
    pub slots: Range<usize>,
}

impl<'a> Leaf<'a> {
    /// The leaf's items in the range, in order.
    pub fn items(&self) -> impl Iterator<Item = Item<'a>> + use<'a> {
        self.block.items().skip(self.slots.start).take(self.slots.len())
    }
}

/// A walk over the leaves of a range of keys; see the module's documentation.
///
/// An error stands for all items below the block that could not be had. After it the walk goes on behind that
/// block; there are no more errors than damaged blocks, so going on ends too.
#[derive(Debug)]
pub struct Leaves {
    tree: Tree,
    path: Path,
    ahead: Ahead,
    scope: Scope,
    /// The first key of the range.
    start: Key,
    /// The first key past the range.
    end: Option<Key>,
    state: State,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Fresh,
    /// The path's last step is the child to go on with, or a leaf that was lent.
    Running,
    Done,
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
            // Clamp: nothing follows the last key.
            start: start.unwrap_or(Key::MAX),
            end,
            state: if empty { State::Done } else { State::Fresh },
        }
    }

    /// The same walk for a job that looks at each leaf once: its leaves are not kept in the cache, where touching memory
    /// for all of them would take longer than the walk gains.
    #[must_use]
    pub fn passing(mut self) -> Self {
        self.ahead.pass_leaves();
        self
    }

    /// Lends the next leaf that has items in the range; `None` when there is none.
    ///
    /// # Errors
    /// When the next block cannot be had; calling again goes on after it.
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

    /// Goes to the next leaf with items in the range.
    fn advance(&mut self) -> Result<Option<Range<usize>>> {
        match self.state {
            State::Done => return Ok(None),
            State::Fresh => {
                // A root that cannot be had leaves nothing to go on with.
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

    /// Prepares the block that the path has come to: a node goes on with the child that holds the range's start,
    /// a leaf gives the slots of the range, unless there are none.
    fn arrive(&mut self) -> Option<Range<usize>> {
        let Step {
            pointer, block, slot, ..
        } = self.path.last_mut()?;
        let count = block.item_count();
        // The slot of the first key that is not below `key`, with a short way out for all but the outer blocks.
        let position = |key: &Key| block.search(key).unwrap_or_else(|position| position);
        if pointer.level > 0 {
            *slot = match block.search(&self.start) {
                Ok(slot) => slot,
                // Clamp: what is left of the first key belongs to the first child.
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
