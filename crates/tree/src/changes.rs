//! What differs between two trees, without reading what they share.
//!
//! Snapshots of one history share all blocks that no transaction has touched since: same address, same
//! generation, same bytes. So two trees are compared as two rows of pointers are merged: at each level those
//! that are in both rows are dropped, what is left is read, and its children are the rows of the next level. At
//! the leaves, the rows are items, and those with equal keys and equal bytes are dropped.
//!
//! The trees may differ in height: a root joins the row of its own level. Blocks that differ are known one level
//! ahead, so they are fetched in windows, in order of address, both trees' in one plug, and are checked on the
//! forest's threads: `stage` has that. Memory is one window of blocks, and one block a level and tree.
//!
//! Trees of two volumes may be compared too (another image of the same history). There an address and a
//! generation prove nothing, since copies of an image that were both written to number their transactions alike:
//! nothing is skipped then, and both trees are read whole.

mod stage;

use crate::error::{Error, Result};
use crate::forest::Forest;
use crate::path::Step;
use crate::read_ahead::ReadAhead;
use crate::tree::Tree;
use buttress_exact::Exact as _;
use buttress_format::node::{Item, TreeBlock};
use buttress_format::{ByteCount, Key};
use core::cmp::Ordering;
use stage::Stages;
use std::sync::Arc;

/// An item that differs: its bytes in the two trees, `None` where there is none with this key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Change<'a> {
    /// The item's key.
    pub key: Key,
    /// Its bytes in the old tree.
    pub old: Option<&'a [u8]>,
    /// Its bytes in the new tree.
    pub new: Option<&'a [u8]>,
    /// The leaf that those lie in: [`TreeBlock::shared`] keeps them without a copy.
    pub new_leaf: Option<&'a TreeBlock>,
}

/// A walk over what differs between two trees; see the module's documentation.
#[derive(Debug)]
pub struct Changes {
    stages: Stages,
    /// The leaves that the walk is in, and the first item of each that it has not looked at.
    leaves: [Option<Step>; 2],
    /// The first key of the leaf that comes next.
    front: Option<Key>,
    started: bool,
    failure: Option<Error>,
}

/// The items that differ between `old` and `new`, in order of their keys.
///
/// Every mode gives the same items. [`ReadAhead::Sweep`] fetches differing blocks in windows of the given size;
/// the kernel's modes mean small windows here, of as many bytes as they fetch at most.
#[must_use]
pub fn changes(old: &Tree, new: &Tree, read_ahead: ReadAhead) -> Changes {
    changes_where(old, new, read_ahead, |_, _| true)
}

/// [`changes`] for a caller who has no use for some items: `wanted` is asked of every subtree with the first key that
/// it may have and the first behind it (`None`: there is none), and what it refuses is not read.
///
/// Items that the caller has no use for may still be given, and since the trees' blocks need not end at the same
/// keys, even where they do not differ.
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

    /// Lends the next item that differs; `None` when there is none.
    ///
    /// # Errors
    /// When a block that differs cannot be had. That ends the walk, since items of one tree could not be told
    /// from changes: all later calls return the same error.
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

    /// The items of the new tree behind the change that [`Changes::next`] gave last, where the new tree has that item:
    /// those that lie in the same leaf, whether they differ or not. The first of them is the next item of the tree; that
    /// there are none says nothing.
    pub fn following(&self) -> impl Iterator<Item = Item<'_>> {
        let [_, new] = &self.leaves;
        new.iter().flat_map(|leaf| leaf.block.items().skip(leaf.slot))
    }

    /// The first key that the new tree may have behind all of [`Changes::following`]; `None` where it has none.
    #[must_use]
    pub fn following_end(&self) -> Option<Key> {
        let [_, new] = &self.leaves;
        new.as_ref()?.pointer.end_key
    }

    /// Asks for up to `ahead` of the leaves that come next, without waiting for any: for a caller who is going to do
    /// something else for a while. Modes other than [`ReadAhead::Sweep`] stay as they are.
    pub fn look_ahead(&mut self, ahead: ByteCount) {
        if self.failure.is_none() {
            self.stages.look_ahead(ahead.get());
        }
    }

    /// Goes on to the next item that differs: its slots in the two leaves.
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
                    // The side's leaf before has no items left: they are below the first key of this one.
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

/// The key in a step's slot.
fn key_of(step: &Option<Step>) -> Option<Key> {
    step.as_ref().and_then(|step| step.block.key(step.slot))
}

/// Goes on to the next slot; gives back the one before.
fn step(step: &mut Option<Step>) -> Option<usize> {
    let step = step.as_mut()?;
    let slot = step.slot;
    step.slot = slot.exact_add(1);
    Some(slot)
}

fn data_of(step: &Option<Step>, slot: Option<usize>) -> Option<&[u8]> {
    Some(step.as_ref()?.block.item(slot?)?.data)
}

/// The smaller of two keys, where there are any.
fn smallest(one: Option<Key>, other: Option<Key>) -> Option<Key> {
    match (one, other) {
        (Some(one), Some(other)) => Some(one.min(other)),
        (one, other) => one.or(other),
    }
}

/// Whether the blocks of two forests are the same when their addresses and generations are.
fn is_one_volume(old: &Forest, new: &Forest) -> bool {
    Arc::ptr_eq(old.volume(), new.volume())
}
