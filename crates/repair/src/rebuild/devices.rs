//! The items of the device tree and of the chunk tree, from the chunks.
//!
//! The chunk tree of an open volume is readable: each stripe of its chunks gets a device extent, and
//! each device uses the sum of its extents. If an old device extent contradicts a chunk, the content
//! of the chunk decides ([`super::stripes`]). Counts of device errors, and the state of a
//! replacement, stay if they can be read.

use super::description::{Description, Items};
use super::places::Group;
use super::stripes;
use buttress_exact::Exact as _;
use buttress_format::{ByteCount, Chunk, DeviceExtent, DeviceItem, ItemType, Key, ObjectId, TreeId, Uuid};
use buttress_fs::error::Corruption;
use buttress_fs::{Error, Filesystem, Progress, Result};
use buttress_tree::ReadAhead;
use std::collections::BTreeMap;

/// Returns the items of the device tree.
pub(super) fn device_tree(description: &Description<'_>, chunk_tree_uuid: Uuid) -> Result<Items> {
    let filesystem = description.filesystem;
    let (mut items, extents) = readable(filesystem, description.progress)?;
    let stripes = stripes::all(filesystem);
    stripes::require_apart(&stripes)?;
    stripes::require_evidence(description, &stripes, &extents)?;
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
    Ok(items.into_iter().collect())
}

/// Items of the old tree, in order of keys.
type OldItems = BTreeMap<Key, Vec<u8>>;

/// Returns the readable items of the old device tree that stay, and its device extents.
fn readable(filesystem: &Filesystem, progress: &Progress) -> Result<(OldItems, Vec<DeviceExtent>)> {
    let (mut kept, mut extents) = (BTreeMap::new(), Vec::new());
    let tree = match filesystem.tree(TreeId::DEVICE) {
        Ok(tree) => tree,
        Err(Error::TreeNotFound { .. }) => return Ok((kept, extents)),
        Err(error) => return Err(error),
    };
    let mut leaves = tree.leaves(.., ReadAhead::None);
    loop {
        progress.check()?;
        let leaf = match leaves.next() {
            Ok(Some(leaf)) => leaf,
            Ok(None) => return Ok((kept, extents)),
            // The leaves after an unreadable block may be readable.
            Err(_) => continue,
        };
        for item in leaf.items() {
            match item.key.item_type {
                ItemType::PERSISTENT_ITEM | ItemType::DEV_REPLACE => {
                    kept.insert(item.key, item.data.to_vec());
                }
                ItemType::DEV_EXTENT => {
                    extents.extend(DeviceExtent::parse(
                        &item.key,
                        item.data,
                        filesystem.sector_bytes(),
                    ));
                }
                _ => {}
            }
        }
    }
}

/// Returns the device items, with the used bytes of their stripes.
pub(super) fn device_items(filesystem: &Filesystem) -> Vec<DeviceItem> {
    let mut used: BTreeMap<u64, u64> = BTreeMap::new();
    for stripe in stripes::all(filesystem) {
        let sum = used.entry(stripe.device).or_default();
        *sum = sum.exact_add(stripe.length);
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
                // Clamp: an item of a device that the volume does not list stays as it is.
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
