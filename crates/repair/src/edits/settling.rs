//! Names: one target for each name of a directory, and three records that agree.
//!
//! A name has a `DIR_ITEM`, a `DIR_INDEX`, and a record of its target: an `INODE_REF` or
//! `INODE_EXTREF` of an inode, or the pair of root references of a subvolume. Each of them claims a
//! target for the name. [`settle`] collects the claims, chooses a target, and writes all records
//! again.
//!
//! 1. A target must exist. Without any, the entries lead to nothing and are removed.
//! 2. The target's own record outweighs a `DIR_INDEX`, and a `DIR_INDEX` a `DIR_ITEM`.
//! 3. Another existing target keeps its content: it gets the name `NAME~2` in the same directory,
//!    unless it has a name elsewhere.
//!
//! Invariant: an existing inode has as many reachable names after [`settle`] as before.

use super::names::{Spot, free_name, inode_of, place_keys, subvolume_location, write};
use super::{counts, inodes, places};
use crate::items::{Entry, Items, broken, is_subvolume, keys_of_type};
use crate::steps::{Applied, Hints};
use buttress_exact::Exact as _;
use buttress_format::{DirItem, DirItems, FileKind, InodeItem, InodeNumber, ItemType, Key, TreeId};
use buttress_fs::error::Result;
use std::collections::{BTreeMap, BTreeSet};

/// The first index that a name can have.
const FIRST_OF_NAMES: u64 = 2;

/// The most targets of one name, and the most records. A single edit changes them all, within
/// [`PLACES`](super::PLACES).
const TARGETS_MAX: usize = 4;
const RECORDS_MAX: usize = 12;

/// The claims on a name that lead to one target.
#[derive(Debug, Default)]
struct Claim {
    /// Whether the target's own record has the name, and under which indexes.
    recorded: Vec<u64>,
    /// The indexes of `DIR_INDEX` items that lead to the target.
    indexes: Vec<u64>,
    /// The number of `DIR_ITEM` entries that lead to the target.
    items: usize,
}

impl Claim {
    const fn weight(&self) -> (bool, bool, bool) {
        (
            !self.recorded.is_empty(),
            !self.indexes.is_empty(),
            self.items > 0,
        )
    }
}

/// The indexes of names in the directory that a repair settled last. A single pass over a
/// directory serves all its names.
#[derive(Debug, Default)]
pub(crate) struct Indexes {
    of: Option<(TreeId, InodeNumber)>,
    wanted: BTreeMap<(TreeId, InodeNumber), BTreeSet<Vec<u8>>>,
    found: BTreeMap<Vec<u8>, Vec<u64>>,
}

impl Indexes {
    /// Adds a name that a later [`settle`] searches for.
    pub(crate) fn want(&mut self, tree: TreeId, directory: InodeNumber, name: &[u8]) {
        let names = self.wanted.entry((tree, directory)).or_default();
        names.insert(name.to_vec());
    }

    /// Returns the indexes of the `DIR_INDEX` items with a name.
    fn of(&mut self, items: &mut Items<'_>, spot: &Spot<'_>) -> Result<Vec<u64>> {
        let place = (spot.tree, spot.directory);
        if self.of != Some(place) {
            self.found.clear();
            // Clamp: a directory that no step names has no wanted names.
            let wanted = self.wanted.get(&place).cloned().unwrap_or_default();
            let found = &mut self.found;
            let keys = keys_of_type(spot.directory.object_id(), ItemType::DIR_INDEX);
            items.each(spot.tree, keys, &mut |key, data| {
                let entries = DirItems::parse(key, data).map_err(|error| broken(spot.tree, error))?;
                for entry in entries.filter(|entry| wanted.contains(entry.name)) {
                    found.entry(entry.name.to_vec()).or_default().push(key.offset);
                }
                Ok(())
            })?;
            self.of = Some(place);
        }
        // Clamp: a name without a `DIR_INDEX` has no indexes.
        Ok(self.found.get(spot.name).cloned().unwrap_or_default())
    }
}

/// Makes all records of a name agree. See the module's documentation.
pub(super) fn settle(
    items: &mut Items<'_>,
    tree: TreeId,
    directory: InodeNumber,
    name: &[u8],
    hints: &Hints,
    indexes: &mut Indexes,
) -> Result<Applied> {
    let spot = Spot {
        tree,
        directory,
        name,
    };
    let nothing = inodes::require_directory(items, tree, directory)?;
    if let Some(reason) = nothing {
        return Ok(Applied::Nothing(reason));
    }
    let known = indexes.of(items, &spot)?;
    let Some(mut claims) = claims(items, &spot, &known, hints)? else {
        return Ok(Applied::Nothing("too many records claim the name"));
    };
    remove_all(items, &spot, &claims)?;
    let touched: BTreeSet<Key> = claims.keys().copied().collect();
    let mut existing = Vec::new();
    for (target, claim) in core::mem::take(&mut claims) {
        if exists(items, &spot, &target, &claim)? {
            existing.push((target, claim));
        } else if is_subvolume(&target) {
            places::delete_rest(items, TreeId::new(target.objectid.get()))?;
        }
    }
    // Of equal claims, the lowest number wins, so the result does not depend on any order.
    existing.sort_by(|(one, a), (other, b)| b.weight().cmp(&a.weight()).then_with(|| one.cmp(other)));
    for (place, (target, claim)) in existing.iter().enumerate() {
        if place == 0 {
            write_all(items, &spot, target, claim)?;
        } else if !claim.recorded.is_empty() || !has_name(items, &spot, target)? {
            let other = free_name(items, &spot)?;
            let spot = Spot { name: &other, ..spot };
            write_all(items, &spot, target, claim)?;
        }
    }
    items.touch(tree, directory);
    for target in touched.iter().filter(|target| !is_subvolume(target)) {
        items.touch(tree, inode_of(target));
    }
    Ok(Applied::Changed)
}

/// Returns whether a single edit cannot change all records of the claims.
fn are_too_many(claims: &BTreeMap<Key, Claim>) -> bool {
    let records = claims
        .values()
        .map(|claim| claim.indexes.len().exact_add(claim.recorded.len()));
    claims.len() > TARGETS_MAX || records.fold(0, usize::exact_add) > RECORDS_MAX
}

/// Collects the claims on a name by target. Returns `None` as soon as they are too many.
fn claims(
    items: &mut Items<'_>,
    spot: &Spot<'_>,
    known: &[u64],
    hints: &Hints,
) -> Result<Option<BTreeMap<Key, Claim>>> {
    // Each known index is a record.
    if known.len() > RECORDS_MAX {
        return Ok(None);
    }
    let mut claims: BTreeMap<Key, Claim> = BTreeMap::new();
    let is_named = |entry: &Entry| entry.name == spot.name;
    for entry in items
        .entries(spot.tree, &spot.item_key())?
        .iter()
        .filter(|entry| is_named(entry))
    {
        let claim = claims.entry(entry.location).or_default();
        claim.items = claim.items.exact_add(1);
    }
    for inode in &hints.inodes {
        claims.entry(InodeItem::key(*inode)).or_default();
    }
    for child in &hints.subvolumes {
        claims.entry(subvolume_location(*child)).or_default();
    }
    if are_too_many(&claims) {
        return Ok(None);
    }
    let mut indexes: BTreeSet<u64> = known.iter().copied().collect();
    let mut looked = BTreeSet::new();
    // A record can name a further index, and the index another target.
    while let Some(index) = indexes.pop_first() {
        if looked.insert(index) {
            let key = DirItem::index_key(spot.directory, index);
            for entry in items
                .entries(spot.tree, &key)?
                .iter()
                .filter(|entry| is_named(entry))
            {
                claims.entry(entry.location).or_default().indexes.push(index);
            }
        }
        add_records(items, spot, &mut claims)?;
        if are_too_many(&claims) {
            return Ok(None);
        }
        let recorded = claims.values().flat_map(|claim| claim.recorded.iter().copied());
        indexes.extend(recorded.filter(|index| !looked.contains(index)));
    }
    add_records(items, spot, &mut claims)?;
    Ok((!are_too_many(&claims)).then_some(claims))
}

/// Adds what the targets themselves record.
fn add_records(items: &mut Items<'_>, spot: &Spot<'_>, claims: &mut BTreeMap<Key, Claim>) -> Result<()> {
    for (target, claim) in claims {
        claim.recorded = if is_subvolume(target) {
            let place = items.place(&place_keys(spot, target)[0])?;
            let here = place.filter(|place| place.directory == spot.directory && place.name == spot.name);
            here.into_iter().map(|place| place.index).collect()
        } else {
            items.recorded(spot.tree, inode_of(target), spot.directory, spot.name)?
        };
    }
    Ok(())
}

/// Returns whether a claim's target exists and may have the name.
fn exists(items: &mut Items<'_>, spot: &Spot<'_>, target: &Key, claim: &Claim) -> Result<bool> {
    if claim.weight() == (false, false, false) {
        return Ok(false);
    }
    if is_subvolume(target) {
        // A snapshot keeps the entries of subvolumes below its source, without their records.
        let is_whole_entry = !claim.indexes.is_empty() && claim.items > 0;
        let child = TreeId::new(target.objectid.get());
        if !claim.recorded.is_empty() && places::is_half_deleted(items, child)? {
            return Ok(false);
        }
        return Ok(is_whole_entry || items.has_tree(child)?);
    }
    let inode = inode_of(target);
    if inode == spot.directory || inode == InodeNumber::ROOT_DIRECTORY {
        return Ok(false);
    }
    let Some(item) = items.inode(spot.tree, inode)? else {
        return Ok(false);
    };
    // A directory has one name.
    let is_stray = item.kind() == FileKind::Directory
        && claim.recorded.is_empty()
        && counts::sums(items, spot.tree, inode)?.names > 0;
    Ok(!is_stray)
}

/// Returns whether a target has a name anywhere.
fn has_name(items: &mut Items<'_>, spot: &Spot<'_>, target: &Key) -> Result<bool> {
    if !is_subvolume(target) {
        return Ok(counts::sums(items, spot.tree, inode_of(target))?.names > 0);
    }
    let mut has_place = false;
    items.each(
        TreeId::ROOT,
        keys_of_type(target.objectid, ItemType::ROOT_BACKREF),
        &mut |_, _| {
            has_place = true;
            Ok(())
        },
    )?;
    Ok(has_place)
}

/// Removes all records of a name.
fn remove_all(items: &mut Items<'_>, spot: &Spot<'_>, claims: &BTreeMap<Key, Claim>) -> Result<()> {
    items.remove_entries(spot.tree, &spot.item_key(), spot.name)?;
    for (target, claim) in claims {
        for index in claim.indexes.iter().chain(&claim.recorded) {
            let key = DirItem::index_key(spot.directory, *index);
            items.remove_entries(spot.tree, &key, spot.name)?;
        }
        if !is_subvolume(target) {
            items.remove_records(spot.tree, inode_of(target), spot.directory, spot.name)?;
        } else if !claim.recorded.is_empty() {
            for key in place_keys(spot, target) {
                items.remove(TreeId::ROOT, &key)?;
            }
        }
    }
    Ok(())
}

/// Writes all records of a name for a target, under an index that the claims name if it is free.
fn write_all(items: &mut Items<'_>, spot: &Spot<'_>, target: &Key, claim: &Claim) -> Result<()> {
    let mut index = None;
    for known in claim.recorded.iter().chain(&claim.indexes) {
        let key = DirItem::index_key(spot.directory, *known);
        if *known >= FIRST_OF_NAMES && !items.has(spot.tree, &key)? {
            index = Some(*known);
            break;
        }
    }
    let index = match index {
        Some(index) => index,
        None => items.free_index(spot.tree, spot.directory)?,
    };
    let is_recorded = !claim.recorded.is_empty();
    write(items, spot, target, index, is_recorded)
}
