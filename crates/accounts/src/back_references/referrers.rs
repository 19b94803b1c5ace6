//! The number of referrers of each extent in a batch, found in one pass over the extent tree in
//! order of address.
//!
//! A *referrer* is one reference as the format counts it: a file of a tree at one offset, or a
//! parent block. A referrer may count for several items, for instance after a write split an extent
//! in its middle. The addresses of a batch are sorted. The pass skips subtrees of the extent tree
//! without any extent of the batch, and reads leaves ahead. Almost every extent has one reference,
//! which the first field of its item records. Only extents with more than one reference are
//! inspected further.
//!
//! In a running transaction, some references are delayed and not yet in the extent tree. The caller
//! passes delayed references as [`DelayedReferencesOf`], and the pass adds them, so the answer is
//! exact.
//!
//! Memory: a few words for each address.

use super::extent::{broken, extent_at, extent_references};
use crate::delayed_references::{Pending, Reference};
use buttress_exact::Exact as _;
use buttress_format::{
    ByteCount, ExtentItem, InlineReference, ItemType, Key, Logical, ObjectId, TreeBlock, TreeId,
};
use buttress_fs::error::{Corruption, Error, Result};
use buttress_fs::filesystem::Filesystem;
use buttress_fs::progress::Progress;
use buttress_tree::ReadAhead;
use std::collections::HashMap;
use std::sync::Arc;

/// Delayed references of the running transaction, by extent.
pub type DelayedReferencesOf = HashMap<Logical, Pending>;

/// The number of items after the last hit that a search tries first, because batches often contain
/// neighbours.
const STEPS_BEFORE_SEARCH: usize = 4;

/// The referrers of an extent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Referrers {
    /// No referrer was found: no extent begins at the address, or all its references are delayed.
    None,
    /// A single referrer with one item; its identity does not matter.
    One,
    /// A single referrer with several items.
    OneOfSeveralItems(InlineReference),
    /// More than one referrer.
    Several,
}

/// Returns the referrers of the extents that begin at `addresses`, in their ascending order; never
/// [`Referrers::None`].
///
/// # Errors
/// Fails with [`Corruption::ExtentMissing`] for an address where no extent begins,
/// [`Error::Cancelled`], or with an error of reading the extent tree.
pub(super) fn referrers_of(
    filesystem: &Filesystem,
    addresses: &Arc<Vec<Logical>>,
    waiting: &DelayedReferencesOf,
    progress: Option<&Progress>,
) -> Result<Vec<Referrers>> {
    let mut found: Vec<Referrers> = vec![Referrers::None; addresses.len()];
    let (Some(first), Some(last)) = (addresses.first(), addresses.last()) else {
        return Ok(Vec::new());
    };
    let tree = filesystem.tree(TreeId::EXTENT)?;
    let wanted = Arc::clone(addresses);
    let mut leaves = tree.leaves_where(
        first_key(*first)..=last_key(*last),
        ReadAhead::sweep(),
        move |first, end| is_wanted(&wanted, first, end),
    );
    let mut next = 0;
    while let Some(leaf) = leaves.next()? {
        if let Some(progress) = progress {
            progress.check()?;
        }
        let mut slot = leaf.slots.start;
        let leaf_end = leaf
            .slots
            .end
            .checked_sub(1)
            .and_then(|slot| leaf.block.key(slot));
        while let Some(address) = addresses
            .get(next)
            .filter(|at| leaf_end.is_some_and(|end| first_key(**at) <= end))
        {
            slot = position(leaf.block, slot, *address);
            if let Some(place) = found.get_mut(next) {
                *place = look_at(filesystem, leaf.block, slot, *address)?;
            }
            next = next.exact_add(1);
        }
    }
    for (address, found) in addresses.iter().zip(&mut found) {
        if let Some(pending) = waiting.get(address) {
            *found = with_waiting(filesystem, *address, *found != Referrers::None, pending)?;
        } else if *found == Referrers::None {
            return Err(missing(*address, ByteCount::ZERO));
        }
    }
    Ok(found)
}

fn missing(logical: Logical, length: ByteCount) -> Error {
    Corruption::ExtentMissing { logical, length }.into()
}

/// Returns the least key that an extent item of this address can have.
const fn first_key(address: Logical) -> Key {
    Key::new(ObjectId::new(address.get()), ItemType::EXTENT_ITEM, 0)
}

/// Returns the greatest key that an extent item of this address can have.
const fn last_key(address: Logical) -> Key {
    Key::new(ObjectId::new(address.get()), ItemType::METADATA_ITEM, u64::MAX)
}

/// Returns whether the key range `[first, end)` may contain the item of one of the extents.
fn is_wanted(addresses: &[Logical], first: &Key, end: Option<&Key>) -> bool {
    let from = addresses.partition_point(|address| last_key(*address) < *first);
    addresses
        .get(from)
        .is_some_and(|address| end.is_none_or(|end| first_key(*address) < *end))
}

/// Returns the slot of the first item at or after `slot` whose key is not below the extent's.
fn position(leaf: &TreeBlock, slot: usize, address: Logical) -> usize {
    let wanted = first_key(address);
    let near = slot..slot.exact_add(STEPS_BEFORE_SEARCH);
    for slot in near {
        if leaf.key(slot).is_none_or(|key| key >= wanted) {
            // Smaller addresses have already passed the earlier slots.
            return slot;
        }
    }
    leaf.search(&wanted).unwrap_or_else(|slot| slot)
}

/// Returns the referrers that the extent's item in this slot records; none if the item is missing.
fn look_at(filesystem: &Filesystem, leaf: &TreeBlock, slot: usize, address: Logical) -> Result<Referrers> {
    let Some(item) = leaf.item(slot) else {
        return Ok(Referrers::None);
    };
    let is_extent = matches!(
        item.key.item_type,
        ItemType::EXTENT_ITEM | ItemType::METADATA_ITEM
    );
    if item.key.objectid.get() != address.get() || !is_extent {
        return Ok(Referrers::None);
    }
    if ExtentItem::parse_count(&item.key, item.data).map_err(broken)? <= 1 {
        return Ok(Referrers::One);
    }
    let format = filesystem.volume().block_format();
    let extent = ExtentItem::parse(&item.key, item.data, format).map_err(broken)?;
    let mut own = extent
        .inline_references
        .iter()
        .filter(|reference| reference.count() > 0);
    Ok(match (own.next(), own.next()) {
        (Some(only), None) if u64::from(only.count()) == extent.references => {
            Referrers::OneOfSeveralItems(*only)
        }
        (Some(_), _) => Referrers::Several,
        // All references to this extent are items of their own.
        (None, _) => {
            let extent = super::Extent { item: extent };
            let mut tally = Tally::default();
            for reference in extent_references(filesystem, &extent)? {
                if tally.add(reference?, 0) {
                    break;
                }
            }
            tally
                .referrers()
                .ok_or_else(|| missing(address, extent.item.length))?
        }
    })
}

/// Counts referrers up to the second.
#[derive(Debug, Default)]
struct Tally {
    first: Option<(InlineReference, i64)>,
    is_several: bool,
}

impl Tally {
    /// Counts a reference to the extent, whose count changes by `change`. Returns true once the
    /// tally has several referrers.
    fn add(&mut self, reference: InlineReference, change: i64) -> bool {
        let count = i64::from(reference.count()).exact_add(change);
        if count > 0 && !matches!(reference, InlineReference::Owner { .. }) {
            self.is_several |= self.first.is_some();
            self.first.get_or_insert((reference, count));
        }
        self.is_several
    }

    fn referrers(&self) -> Option<Referrers> {
        let (reference, count) = self.first?;
        Some(match (self.is_several, count) {
            (true, _) => Referrers::Several,
            (false, 1) => Referrers::One,
            (false, _) => Referrers::OneOfSeveralItems(reference),
        })
    }
}

/// Returns the referrers of an extent with delayed references. `is_recorded` tells whether the
/// extent tree has the extent.
fn with_waiting(
    filesystem: &Filesystem,
    address: Logical,
    is_recorded: bool,
    pending: &Pending,
) -> Result<Referrers> {
    let mut tally = Tally::default();
    let mut changes: Vec<_> = pending.changes.iter().copied().collect();
    if is_recorded && pending.created.is_none() {
        let extent = extent_at(filesystem, address)?;
        for reference in extent_references(filesystem, &extent)? {
            let reference = reference?;
            let waits = changes
                .iter()
                .position(|(waiting, _)| is_same(waiting, &reference));
            let change = waits.map_or(0, |place| changes.swap_remove(place).1);
            if tally.add(reference, change) {
                return Ok(Referrers::Several);
            }
        }
    }
    for (reference, count) in &changes {
        tally.add(as_recorded(reference), count.exact_sub(1));
    }
    tally.referrers().ok_or_else(|| missing(address, pending.length))
}

/// Returns a delayed reference with a count of one, in its recorded form.
fn as_recorded(reference: &Reference) -> InlineReference {
    match *reference {
        Reference::TreeBlock { root } => InlineReference::TreeBlock { root },
        Reference::SharedBlock { parent } => InlineReference::SharedBlock { parent },
        Reference::SharedData { parent } => InlineReference::SharedData { parent, count: 1 },
        Reference::Data { root, inode, offset } => {
            InlineReference::ExtentData(buttress_format::ExtentDataReference {
                root,
                inode,
                offset,
                count: 1,
            })
        }
    }
}

fn is_same(waiting: &Reference, recorded: &InlineReference) -> bool {
    as_recorded(waiting).is_same_place(recorded)
}
