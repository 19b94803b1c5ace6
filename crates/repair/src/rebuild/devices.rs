//! The items of the device tree and of the chunk tree, from the chunks.
//!
//! The chunk tree of an open volume is readable, and its chunks decide: each stripe has a device
//! extent, and each device uses the sum of its extents. Counts of device errors, and the state of a
//! replacement, stay if they can be read.

use super::errors::refused;
use super::places::Group;
use buttress_exact::Exact as _;
use buttress_format::{ByteCount, Chunk, DeviceExtent, DeviceItem, ItemType, Key, ObjectId, TreeId, Uuid};
use buttress_fs::error::Corruption;
use buttress_fs::{Error, Filesystem, Progress, Result};
use buttress_tree::ReadAhead;
use std::collections::BTreeMap;

/// Items in the order of their keys.
pub(super) type Items = Vec<(Key, Vec<u8>)>;

/// Returns the items of the device tree.
pub(super) fn device_tree(
    filesystem: &Filesystem,
    chunk_tree_uuid: Uuid,
    progress: &Progress,
) -> Result<Items> {
    let mut items = kept(filesystem, progress)?;
    for chunk in filesystem.volume().chunk_map().chunks() {
        for stripe in &chunk.chunk().stripes {
            let extent = DeviceExtent {
                device: stripe.device,
                physical: stripe.physical,
                chunk_tree: TreeId::CHUNK,
                chunk_objectid: ObjectId::FIRST_CHUNK_TREE,
                chunk: chunk.start(),
                length: chunk.layout().device_extent_bytes(),
                chunk_tree_uuid,
            };
            items.insert(extent.key(), extent.to_bytes().to_vec());
        }
    }
    require_apart(filesystem)?;
    Ok(items.into_iter().collect())
}

/// Returns the readable items of the old device tree, except its extents.
fn kept(filesystem: &Filesystem, progress: &Progress) -> Result<BTreeMap<Key, Vec<u8>>> {
    let mut kept = BTreeMap::new();
    let tree = match filesystem.tree(TreeId::DEVICE) {
        Ok(tree) => tree,
        Err(Error::TreeNotFound { .. }) => return Ok(kept),
        Err(error) => return Err(error),
    };
    let mut leaves = tree.leaves(.., ReadAhead::None);
    loop {
        progress.check()?;
        let leaf = match leaves.next() {
            Ok(Some(leaf)) => leaf,
            Ok(None) => return Ok(kept),
            // The leaves after an unreadable block may be readable.
            Err(_) => continue,
        };
        for item in leaf.items() {
            if matches!(
                item.key.item_type,
                ItemType::PERSISTENT_ITEM | ItemType::DEV_REPLACE
            ) {
                kept.insert(item.key, item.data.to_vec());
            }
        }
    }
}

/// Requires that no two stripes share a place on a device. Any write could then destroy data.
fn require_apart(filesystem: &Filesystem) -> Result<()> {
    let mut last = (0, 0);
    for ((device, start), length) in stripes(filesystem) {
        if last.0 == device && start < last.1 {
            return Err(refused("two chunks use the same place on a device"));
        }
        let end = start.checked_add(length);
        last = (
            device,
            end.ok_or_else(|| refused("a chunk ends above all addresses"))?,
        );
    }
    Ok(())
}

/// Returns the lengths of all stripes by device and place.
fn stripes(filesystem: &Filesystem) -> BTreeMap<(u64, u64), u64> {
    let mut stripes = BTreeMap::new();
    for chunk in filesystem.volume().chunk_map().chunks() {
        let length = chunk.layout().device_extent_bytes().get();
        for stripe in &chunk.chunk().stripes {
            stripes.insert((stripe.device.get(), stripe.physical.get()), length);
        }
    }
    stripes
}

/// Returns the device items, with the used bytes of their stripes.
pub(super) fn device_items(filesystem: &Filesystem) -> Vec<DeviceItem> {
    let mut used: BTreeMap<u64, u64> = BTreeMap::new();
    for ((device, _), length) in stripes(filesystem) {
        let sum = used.entry(device).or_default();
        *sum = sum.exact_add(length);
    }
    let items = filesystem.volume().devices().into_iter();
    let items = items.filter_map(|slot| slot.item());
    let counted = items.map(|item| DeviceItem {
        // Clamp: a device without stripes uses nothing.
        bytes_used: ByteCount::new(used.get(&item.device.get()).copied().unwrap_or(0)),
        ..item
    });
    counted.collect()
}

/// Returns the items of the chunk tree, with the counts of `devices` and the types of `groups`.
pub(super) fn chunk_tree(filesystem: &Filesystem, devices: &[DeviceItem], groups: &[Group]) -> Result<Items> {
    let broken = |error| {
        Error::from(Corruption::Item {
            tree: TreeId::CHUNK,
            error,
        })
    };
    let mut items = Vec::new();
    for item in filesystem.tree(TreeId::CHUNK)?.range(.., ReadAhead::None) {
        let item = item?;
        let key = item.key();
        let data = match key.item_type {
            ItemType::DEV_ITEM => {
                let old = DeviceItem::parse(&key, item.data()).map_err(broken)?;
                let new = devices.iter().find(|device| device.device == old.device);
                new.unwrap_or(&old).to_bytes().to_vec()
            }
            ItemType::CHUNK_ITEM => {
                let old = Chunk::parse(&key, item.data(), filesystem.sector_bytes()).map_err(broken)?;
                let group = groups.iter().find(|group| group.start == key.offset);
                let profile = group.map_or(old.profile, |group| group.flags);
                Chunk { profile, ..old }.encode()
            }
            _ => item.data().to_vec(),
        };
        items.push((key, data));
    }
    Ok(items)
}
