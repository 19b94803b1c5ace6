//! Places of subvolumes: the pair of references in the root tree, and the entry of a directory.

use super::{inodes, names};
use crate::items::{Items, Place, broken, keys_of_type, subvolume_of};
use crate::steps::Applied;
use buttress_format::{DirItem, ItemType, ObjectId, OrphanItem, RootFlags, RootRef, TreeId};
use buttress_fs::error::Result;

/// Sets both references of a subvolume to the place that a directory confirms. If no directory
/// confirms one, the parent's reference counts. A subvolume that is half deleted loses the place.
pub(super) fn settle(items: &mut Items<'_>, parent: TreeId, child: TreeId) -> Result<Applied> {
    if !items.has_tree(child)? {
        return Ok(Applied::Nothing("the subvolume does not exist"));
    }
    if is_half_deleted(items, child)? {
        remove_place(items, parent, child)?;
        delete(items, child)?;
        return Ok(Applied::Changed);
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
    // An edit of a root item cannot be rolled back, so the name is tested first.
    let data = place.encode()?;
    keep(items, child)?;
    for key in &keys {
        items.put(TreeId::ROOT, key, &data)?;
    }
    Ok(Applied::Changed)
}

/// Returns whether a deletion has already removed a part of a subvolume.
pub(super) fn is_half_deleted(items: &mut Items<'_>, child: TreeId) -> Result<bool> {
    if !items.has_tree(child)? {
        return Ok(false);
    }
    let root = items.running.root_item(child)?;
    Ok(root.is_dead() && root.drop_progress.objectid != ObjectId::MIN)
}

/// Ends the deletion of a subvolume that has a name and is whole.
fn keep(items: &mut Items<'_>, child: TreeId) -> Result<()> {
    if !items.running.root_item(child)?.is_dead() {
        return Ok(());
    }
    let root = items.running.root_item_mut(child)?;
    // Clamp: references of a subvolume without any become one, and others stay.
    root.references = root.references.max(1);
    root.flags.remove(RootFlags::DEAD);
    let key = OrphanItem::key(child.object_id());
    items.remove(TreeId::ROOT, &key)
}

/// Marks a subvolume for deletion if a deletion has removed a part of it.
pub(super) fn delete_rest(items: &mut Items<'_>, child: TreeId) -> Result<()> {
    if is_half_deleted(items, child)? {
        delete(items, child)?;
    }
    Ok(())
}

/// Marks a subvolume for deletion: the next mount for writing continues it.
fn delete(items: &mut Items<'_>, child: TreeId) -> Result<()> {
    let root = items.running.root_item_mut(child)?;
    root.references = 0;
    root.flags.insert(RootFlags::DEAD);
    let key = OrphanItem::key(child.object_id());
    items.put(TreeId::ROOT, &key, &[])
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
/// deleted, stays. Another gets its orphan item, so that its deletion continues. A subvolume that is
/// half deleted never stays.
pub(super) fn settle_references(items: &mut Items<'_>, child: TreeId) -> Result<Applied> {
    let found = place_of(items, child)?;
    if is_half_deleted(items, child)? {
        if let Some((parent, _)) = found {
            remove_place(items, parent, child)?;
        }
        delete(items, child)?;
        return Ok(Applied::Changed);
    }
    if let Some((parent, place)) = found
        && items.has_tree(parent)?
        && is_confirmed(items, parent, child, &place)?
    {
        keep(items, child)?;
        return Ok(Applied::Changed);
    }
    if items.running.root_item(child)?.is_dead() {
        delete(items, child)?;
        return Ok(Applied::Changed);
    }
    give_name(items, child)
}

/// Removes the place of a subvolume that does not exist: both references, and the entry.
pub(super) fn forget(items: &mut Items<'_>, parent: TreeId, child: TreeId) -> Result<Applied> {
    if items.has_tree(child)? {
        return Ok(Applied::Nothing("the subvolume exists"));
    }
    remove_place(items, parent, child)?;
    Ok(Applied::Changed)
}

/// Removes the place of a subvolume in a parent: both references, and the entry.
fn remove_place(items: &mut Items<'_>, parent: TreeId, child: TreeId) -> Result<()> {
    let keys = RootRef::keys(subvolume_of(parent), subvolume_of(child));
    let has_parent = items.has_tree(parent)?;
    for key in &keys {
        if let Some(place) = items.place(key)?.filter(|_| has_parent) {
            names::remove_target(items, parent, &place, child)?;
        }
        items.remove(TreeId::ROOT, key)?;
    }
    Ok(())
}

/// The directory of the root tree that holds the default subvolume.
pub(super) const ROOT_TREE_DIRECTORY: ObjectId = ObjectId::new(6);
