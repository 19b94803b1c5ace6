//! Places of subvolumes: the pair of references in the root tree, and the entry of a directory.

use super::{inodes, names};
use crate::items::{Items, Place, broken, keys_of_type, subvolume_of};
use crate::steps::Applied;
use buttress_format::{DirItem, ItemType, ObjectId, OrphanItem, RootRef, TreeId};
use buttress_fs::error::Result;

/// Sets both references of a subvolume to the place that a directory confirms. If no directory
/// confirms one, both are removed.
pub(super) fn settle(items: &mut Items<'_>, parent: TreeId, child: TreeId) -> Result<Applied> {
    if !items.has_tree(child)? {
        return Ok(Applied::Nothing("the subvolume does not exist"));
    }
    let keys = RootRef::keys(subvolume_of(parent), subvolume_of(child));
    let mut places = Vec::new();
    for key in &keys {
        places.extend(items.place(key)?);
    }
    let mut confirmed = None;
    if items.has_tree(parent)? {
        for place in &places {
            if confirmed.is_none() && is_confirmed(items, parent, child, place)? {
                confirmed = Some(place.clone());
            }
        }
    }
    // Without a directory, the parent's reference counts: the next round makes its entry.
    let Some(place) = confirmed.or_else(|| places.into_iter().next()) else {
        return Ok(Applied::Nothing("the subvolume has no place in this parent"));
    };
    if items.running.root_item(child)?.references == 0 {
        // The subvolume has a name, so its deletion was not intended to continue.
        items.running.root_item_mut(child)?.references = 1;
        items
            .running
            .remove(TreeId::ROOT, &OrphanItem::key(child.object_id()))?;
    }
    let data = place.encode()?;
    for key in &keys {
        items.running.put(TreeId::ROOT, key, &data)?;
    }
    Ok(Applied::Changed)
}

/// Returns whether one of both items of a directory confirms a place.
fn is_confirmed(items: &mut Items<'_>, parent: TreeId, child: TreeId, place: &Place) -> Result<bool> {
    for key in [
        DirItem::index_key(place.directory, place.index),
        DirItem::key(place.directory, &place.name),
    ] {
        let entries = items.entries(parent, &key)?;
        let leads_there = entries.iter().any(|entry| {
            entry.name == place.name
                && entry.location.item_type == ItemType::ROOT_ITEM
                && entry.location.objectid == child.object_id()
        });
        if leads_there {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Returns the place of a subvolume, with the parent.
fn place_of(items: &mut Items<'_>, child: TreeId) -> Result<Option<(TreeId, Place)>> {
    let mut found = None;
    let keys = keys_of_type(child.object_id(), ItemType::ROOT_BACKREF);
    items.each(TreeId::ROOT, keys, &mut |key, data| {
        let place = RootRef::parse(key, data).map_err(|error| broken(TreeId::ROOT, error))?;
        found = Some((
            TreeId::new(key.offset),
            Place {
                directory: place.directory,
                index: place.sequence,
                name: place.name.to_vec(),
            },
        ));
        Ok(())
    })?;
    Ok(found)
}

/// Names a subvolume in `lost+found` of the top level.
pub(super) fn give_name(items: &mut Items<'_>, child: TreeId) -> Result<Applied> {
    if place_of(items, child)?.is_some() {
        return Ok(Applied::Nothing("the subvolume has a place"));
    }
    if !items.has_tree(child)? {
        return Ok(Applied::Nothing("the subvolume does not exist"));
    }
    let directory = inodes::lost_and_found(items, TreeId::FS)?;
    let name = format!("subvolume-{child}");
    let target = names::subvolume_location(child);
    names::add(items, TreeId::FS, directory, name.as_bytes(), &target)?;
    items.running.root_item_mut(child)?.references = 1;
    Ok(Applied::Changed)
}

/// Settles a root item without references: a subvolume with a place, or one that was not being
/// deleted, stays. Another gets its orphan item, so that its deletion continues.
pub(super) fn settle_references(items: &mut Items<'_>, child: TreeId) -> Result<Applied> {
    if let Some((parent, place)) = place_of(items, child)?
        && items.has_tree(parent)?
        && is_confirmed(items, parent, child, &place)?
    {
        items.running.root_item_mut(child)?.references = 1;
        return Ok(Applied::Changed);
    }
    if items.running.root_item(child)?.is_dead() {
        let key = OrphanItem::key(child.object_id());
        items.running.put(TreeId::ROOT, &key, &[])?;
        return Ok(Applied::Changed);
    }
    give_name(items, child)
}

/// Removes the place of a subvolume that does not exist: both references, and the entry.
pub(super) fn forget(items: &mut Items<'_>, parent: TreeId, child: TreeId) -> Result<Applied> {
    if items.has_tree(child)? {
        return Ok(Applied::Nothing("the subvolume exists"));
    }
    let keys = RootRef::keys(subvolume_of(parent), subvolume_of(child));
    let has_parent = items.has_tree(parent)?;
    for key in &keys {
        if let Some(place) = items.place(key)?.filter(|_| has_parent) {
            names::remove_target(items, parent, &place, child)?;
        }
        items.running.remove(TreeId::ROOT, key)?;
    }
    Ok(Applied::Changed)
}

/// The directory of the root tree that holds the default subvolume.
pub(super) const ROOT_TREE_DIRECTORY: ObjectId = ObjectId::new(6);
