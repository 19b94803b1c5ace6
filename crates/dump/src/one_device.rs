//! The metadata of a volume with several devices on one device, as btrfs-image restores it.
//!
//! Each chunk has one stripe, at the physical address that equals its logical address. The chunk
//! tree has one device item, the device tree one device extent for each chunk, and block group items
//! have no profile.
//!
//! The new items of chunk and device tree are spread over the blocks that the trees have.

use crate::block;
use crate::chunk_tree::Geometry;
use crate::cluster::bytes_at;
use crate::error::{Error, Result};
use crate::spreading::{Blocks, leaves, root_of, spread};
use buttress_format::{
    BlockGroupFlags, ByteCount, Chunk, DeviceExtent, DeviceItem, ItemType, Key, Logical, ObjectId, Physical,
    Stripe, TreeId, Uuid,
};

/// The kinds of block groups, without their profiles.
const KINDS: BlockGroupFlags = BlockGroupFlags::DATA
    .union(BlockGroupFlags::METADATA)
    .union(BlockGroupFlags::SYSTEM);

/// Returns the geometry of the restored volume.
pub(crate) fn flattened(mut geometry: Geometry) -> Result<Geometry> {
    let own = geometry.superblock.device_item;
    let mut end = 0_u64;
    for (start, chunk) in &mut geometry.chunks {
        *chunk = flat_chunk(chunk, *start, &own);
        let chunk_end = start.checked_add(chunk.length.get()).ok_or(Error::Unusable {
            what: "a chunk ends past the last address",
            logical: *start,
        })?;
        end = end.max(chunk_end);
    }
    let item = DeviceItem {
        total_bytes: ByteCount::new(end),
        bytes_used: geometry.chunks.values().fold(ByteCount::ZERO, |sum, chunk| {
            // Clamp: chunks do not overlap, so their sum is at most the end of the last.
            ByteCount::new(sum.get().saturating_add(chunk.length.get()))
        }),
        ..own
    };
    geometry.devices = vec![item];
    let superblock = &mut geometry.superblock;
    superblock.device_item = item;
    superblock.num_devices = 1;
    superblock.total_bytes = item.total_bytes;
    for (key, chunk) in &mut superblock.system_chunks {
        *chunk = flat_chunk(chunk, key.offset, &own);
    }
    rewrite_trees(&mut geometry)?;
    Ok(geometry)
}

fn flat_chunk(chunk: &Chunk, start: u64, device: &DeviceItem) -> Chunk {
    Chunk {
        profile: chunk.profile & KINDS,
        sub_stripes: 1,
        stripes: vec![Stripe {
            device: device.device,
            physical: Physical::new(start),
            device_uuid: device.uuid,
        }],
        ..chunk.clone()
    }
}

/// Changes the items of the chunk tree and of the device tree to those of the flattened geometry.
fn rewrite_trees(geometry: &mut Geometry) -> Result<()> {
    let checksum = geometry.superblock.checksum_type;
    let chunk_root = geometry.superblock.chunk_root.get();
    let items = chunk_tree_items(geometry, &leaves(&geometry.chunk_tree, chunk_root, checksum)?);
    spread(&mut geometry.chunk_tree, chunk_root, &items, checksum)?;
    let Some(device_root) = root_of(&geometry.device_tree) else {
        return Err(Error::Unusable {
            what: "its device tree is damaged, so it is restored to all devices only (give -m)",
            logical: geometry.superblock.root.get(),
        });
    };
    let items = device_tree_items(geometry, &leaves(&geometry.device_tree, device_root, checksum)?);
    spread(&mut geometry.device_tree, device_root, &items, checksum)
}

/// Changes a block to that of the flattened geometry.
pub(crate) fn rewrite(bytes: &mut [u8], logical: u64, geometry: &Geometry) {
    let checksum = geometry.superblock.checksum_type;
    if block::address(bytes) != Some(logical) || !block::is_whole(bytes, checksum) {
        return;
    }
    let new = match block::owner(bytes) {
        Some(TreeId::CHUNK) => geometry.chunk_tree.get(&logical),
        Some(TreeId::DEVICE) => geometry.device_tree.get(&logical),
        Some(TreeId::EXTENT | TreeId::BLOCK_GROUP) if block::level(bytes) == Some(0) => {
            clear_profiles(bytes);
            block::seal(bytes, checksum);
            return;
        }
        _ => return,
    };
    if let Some(new) = new.filter(|new| new.len() == bytes.len()) {
        bytes.copy_from_slice(new);
    }
}

/// Returns the items of leaves, in order.
fn items_of<'a>(tree: &'a Blocks, leaves: &'a [u64]) -> impl Iterator<Item = (Key, Vec<u8>)> + 'a {
    leaves.iter().filter_map(|leaf| tree.get(leaf)).flat_map(|leaf| {
        let items = block::items(leaf);
        // Clamp: the items of a block are inside the block.
        items.map(|item| (item.key, leaf.get(item.range).unwrap_or_default().to_vec()))
    })
}

fn chunk_tree_items(geometry: &Geometry, leaves: &[u64]) -> Vec<(Key, Vec<u8>)> {
    let own = geometry.devices.first();
    let changed = |(key, data): (Key, Vec<u8>)| {
        let data = match key.item_type {
            ItemType::CHUNK_ITEM => geometry.chunks.get(&key.offset)?.encode(),
            ItemType::DEV_ITEM => own
                .filter(|own| own.device.get() == key.offset)?
                .to_bytes()
                .to_vec(),
            _ => data,
        };
        Some((key, data))
    };
    items_of(&geometry.chunk_tree, leaves)
        .filter_map(changed)
        .collect()
}

/// Returns the items of the device tree: one device extent for each chunk, beside what is no extent.
fn device_tree_items(geometry: &Geometry, leaves: &[u64]) -> Vec<(Key, Vec<u8>)> {
    let tree = &geometry.device_tree;
    let items = items_of(tree, leaves).filter(|(key, _)| key.item_type != ItemType::DEV_EXTENT);
    let mut items: Vec<(Key, Vec<u8>)> = items.collect();
    let first = leaves.first().and_then(|leaf| tree.get(leaf));
    let chunk_tree_uuid = first.and_then(|leaf| bytes_at(leaf, 64));
    // Clamp: a block is longer than its header.
    let chunk_tree_uuid = chunk_tree_uuid.map_or(Uuid::nil(), Uuid::from_bytes);
    for (start, chunk) in &geometry.chunks {
        let extent = DeviceExtent {
            device: geometry.superblock.device_item.device,
            physical: Physical::new(*start),
            chunk_tree: TreeId::CHUNK,
            chunk_objectid: ObjectId::FIRST_CHUNK_TREE,
            chunk: Logical::new(*start),
            length: chunk.length,
            chunk_tree_uuid,
        };
        let objectid = ObjectId::new(extent.device.get());
        let key = Key::new(objectid, ItemType::DEV_EXTENT, *start);
        items.push((key, extent.to_bytes().to_vec()));
    }
    items.sort_by_key(|(key, _)| *key);
    items
}

/// Clears the profile in all block group items of a leaf.
fn clear_profiles(leaf: &mut [u8]) {
    /// The place of the flags in a block group item.
    const FLAGS_AT: usize = 16;
    let groups = block::items(leaf).filter(|item| item.key.item_type == ItemType::BLOCK_GROUP_ITEM);
    let places: Vec<_> = groups.map(|item| item.range).collect();
    for range in places {
        let place = leaf.get_mut(range).and_then(|data| data.get_mut(FLAGS_AT..));
        let Some(flags) = place.and_then(|place| place.first_chunk_mut::<8>()) else {
            continue;
        };
        *flags = (u64::from_le_bytes(*flags) & KINDS.bits()).to_le_bytes();
    }
}
