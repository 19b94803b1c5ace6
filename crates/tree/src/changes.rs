//! The differences between two trees, found without reading the blocks that both share.
//!
//! Snapshots of one history share all blocks that no transaction has changed since. Blocks that
//! both trees share have the same address, generation and bytes. The comparison merges two rows of
//! pointers at each level. The comparison drops pointers that occur in both rows, reads the
//! remaining blocks, and merges their children as the rows of the next level. At the leaf level,
//! the rows of the comparison are items. The comparison drops items with equal keys and equal
//! bytes.
//!
//! The trees may differ in height: each root joins the row of its own level. The walk knows
//! differing blocks one level ahead. The module `stage` fetches differing blocks in windows in
//! address order, for both trees in one plug. The forest's threads check them. The comparison's
//! memory is one window of blocks, plus one block for each level and tree.
//!
//! The two trees may also belong to two volumes, such as two images of the same history. In two
//! volumes, an equal address and generation prove nothing, because copies of a volume that were
//! both written number their transactions alike. If the two trees belong to two volumes, the
//! comparison skips nothing and reads both trees completely.

mod stage;

use crate::error::{Error, Result};
use crate::read_ahead::ReadAhead;
use crate::step::Step;
use crate::tree::Tree;
use buttress_exact::Exact as _;
use buttress_format::node::{Item, TreeBlock};
use buttress_format::{ByteCount, Key};
use core::cmp::Ordering;
use stage::{Stages, smallest};
use std::sync::Arc;

/// An item that differs between two trees. The bytes are `None` for a tree without an item of this
/// key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Change<'a> {
    /// The item's key.
    pub key: Key,
    /// The item's bytes in the old tree.
    pub old: Option<&'a [u8]>,
    /// The item's bytes in the new tree.
    pub new: Option<&'a [u8]>,
    /// The leaf that holds the new bytes. [`TreeBlock::shared`] keeps the bytes without a copy.
    pub new_leaf: Option<&'a TreeBlock>,
}

/// A walk over the differences between two trees; see the module's documentation.
#[derive(Debug)]
pub struct Changes {
    stages: Stages,
    /// The current leaf of each tree, at its first item that the walk has not compared.
    leaves: [Option<Step>; 2],
    /// The first key of the next leaf.
    front: Option<Key>,
    started: bool,
    failure: Option<Error>,
}

/// Returns a walk over the items that differ between `old` and `new`, in key order.
///
/// Every read-ahead mode yields the same items. [`ReadAhead::Sweep`] fetches differing blocks in
/// windows of the given size. For the kernel's modes, the windows are small: as many bytes as the
/// mode fetches at most.
#[must_use]
pub fn changes(old: &Tree, new: &Tree, read_ahead: ReadAhead) -> Changes {
    changes_where(old, new, read_ahead, |_, _| true)
}

/// Like [`changes`], but skips subtrees that `wanted` refuses. `wanted` receives the first possible
/// key of a subtree, and the exclusive end of its keys (`None`: the keys have no end).
///
/// The walk may still return items outside the wanted subtrees. Blocks of the two trees need not
/// end at the same keys, so such items may even be equal in both trees.
#[must_use]
pub fn changes_where(
    old: &Tree,
    new: &Tree,
    read_ahead: ReadAhead,
    wanted: fn(&Key, Option<&Key>) -> bool,
) -> Changes {
    Changes {
        stages: Stages::new(
            [Arc::clone(old.forest()), Arc::clone(new.forest())],
            read_ahead,
            wanted,
        ),
        leaves: [None, None],
        front: None,
        started: false,
        failure: None,
    }
    .with_roots(old, new)
}

impl Changes {
    fn with_roots(mut self, old: &Tree, new: &Tree) -> Self {
        if let Err(error) = self.stages.set_roots([old, new]) {
            self.failure = Some(error);
        }
        self
    }

    /// Lends the next item that differs, or returns `None` at the end.
    ///
    /// # Errors
    /// Fails if a differing block cannot be read. The walk then ends, because it could not
    /// distinguish items of one tree from changes. After an error, all later calls return the same
    /// error.
    #[expect(
        clippy::should_implement_trait,
        reason = "a walk that lends its items; an iterator cannot"
    )]
    pub fn next(&mut self) -> Result<Option<Change<'_>>> {
        if let Some(error) = &self.failure {
            return Err(error.clone());
        }
        if !self.started {
            self.started = true;
            self.front = self.stages.front(0);
        }
        match self.advance() {
            Ok(slots) => Ok(slots.and_then(|slots| self.change(slots))),
            Err(error) => {
                self.failure = Some(error.clone());
                Err(error)
            }
        }
    }

    /// Returns the items of the new tree after the last change that [`Changes::next`] returned, if
    /// the new tree has that item. These items of the new tree lie in the same leaf, and may be
    /// equal in both trees. The first of these items is the next item of the new tree. If this
    /// method returns no items, the tree can still have further items.
    pub fn following(&self) -> impl Iterator<Item = Item<'_>> {
        let [_, new] = &self.leaves;
        new.iter().flat_map(|leaf| leaf.block.items().skip(leaf.slot))
    }

    /// Returns the first key that the new tree may have after all of [`Changes::following`], or
    /// `None` if no key follows.
    #[must_use]
    pub fn following_end(&self) -> Option<Key> {
        let [_, new] = &self.leaves;
        new.as_ref()?.pointer.end_key
    }

    /// Starts reads of up to `ahead` bytes of the leaves to compare next, and waits for none of
    /// them. A caller starts these reads before other work. Only [`ReadAhead::Sweep`] supports it;
    /// in other modes, the call does nothing.
    pub fn look_ahead(&mut self, ahead: ByteCount) {
        if self.failure.is_none() {
            self.stages.look_ahead(ahead.get());
        }
    }

    /// Advances to the next item that differs. Returns the item's slots in the two leaves.
    fn advance(&mut self) -> Result<Option<[Option<usize>; 2]>> {
        loop {
            let [old, new] = &mut self.leaves;
            let (old_key, new_key) = (key_of(old), key_of(new));
            let next = smallest(old_key, new_key);
            if self
                .front
                .is_some_and(|front| next.is_none_or(|next| front <= next))
            {
                if let Some(pulled) = self.stages.pull(0) {
                    let (side, leaf) = pulled?;
                    // The previous leaf of this tree has no items left: all its keys are below the
                    // first key of the new leaf.
                    *side.of_mut(&mut self.leaves) = Some(leaf);
                }
                self.front = self.stages.front(0);
                continue;
            }
            let slots = match (old_key, new_key) {
                (None, None) => return Ok(None),
                (Some(_), None) => [step(old), None],
                (None, Some(_)) => [None, step(new)],
                (Some(old_key), Some(new_key)) => match old_key.cmp(&new_key) {
                    Ordering::Less => [step(old), None],
                    Ordering::Greater => [None, step(new)],
                    Ordering::Equal => [step(old), step(new)],
                },
            };
            let [old_slot, new_slot] = slots;
            if old_slot.is_none() || new_slot.is_none() || data_of(old, old_slot) != data_of(new, new_slot) {
                return Ok(Some(slots));
            }
        }
    }

    fn change(&self, [old, new]: [Option<usize>; 2]) -> Option<Change<'_>> {
        let [old_leaf, new_leaf] = &self.leaves;
        let key = match (old, new) {
            (Some(slot), _) => old_leaf.as_ref()?.block.key(slot),
            (None, Some(slot)) => new_leaf.as_ref()?.block.key(slot),
            (None, None) => None,
        };
        Some(Change {
            key: key?,
            old: data_of(old_leaf, old),
            new: data_of(new_leaf, new),
            new_leaf: new.and(new_leaf.as_ref()).map(|leaf| &leaf.block),
        })
    }
}

/// Returns the key in a step's slot.
fn key_of(step: &Option<Step>) -> Option<Key> {
    step.as_ref().and_then(|step| step.block.key(step.slot))
}

/// Advances to the next slot, and returns the previous one.
fn step(step: &mut Option<Step>) -> Option<usize> {
    let step = step.as_mut()?;
    let slot = step.slot;
    step.slot = slot.exact_add(1);
    Some(slot)
}

fn data_of(step: &Option<Step>, slot: Option<usize>) -> Option<&[u8]> {
    Some(step.as_ref()?.block.item(slot?)?.data)
}
