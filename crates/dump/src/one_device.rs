//! The metadata of a volume with several devices on one device, as btrfs-image restores it.
//!
//! Each chunk has one stripe, at the physical address that equals its logical address. The chunk
//! tree has one device item, the device tree one device extent for each chunk, and block group items
//! have no profile.
//!
//! Left out: device trees of several blocks, whose items would have to move between leaves.

use crate::block::{self, RawItem};
use crate::chunk_tree::Geometry;
use crate::cluster::bytes_at;
use crate::error::{Error, Result};
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
    if geometry.device_blocks > 1 {
        return Err(Error::Unusable {
            what: "its device tree has several blocks, so it is restored to all devices only (give -m)",
            logical: geometry.superblock.root.get(),
        });
    }
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

/// Changes the items of a leaf to those of the flattened geometry. Nodes stay.
pub(crate) fn rewrite_leaf(leaf: &mut [u8], logical: u64, geometry: &Geometry) -> Result<()> {
    if block::level(leaf) != Some(0) || !block::is_whole(leaf, geometry.superblock.checksum_type) {
        return Ok(());
    }
    let items = match block::owner(leaf) {
        Some(TreeId::CHUNK) if geometry.blocks.binary_search(&logical).is_ok() => {
            chunk_tree_items(leaf, geometry)
        }
        Some(TreeId::DEVICE) => device_tree_items(leaf, geometry),
        Some(TreeId::EXTENT | TreeId::BLOCK_GROUP) => {
            clear_profiles(leaf);
            block::seal(leaf, geometry.superblock.checksum_type);
            return Ok(());
        }
        _ => return Ok(()),
    };
    block::repack(leaf, &items)?;
    block::seal(leaf, geometry.superblock.checksum_type);
    Ok(())
}

fn data_of(leaf: &[u8], item: &RawItem) -> Vec<u8> {
    // Clamp: the items of a block are inside the block.
    leaf.get(item.range.clone()).unwrap_or_default().to_vec()
}

fn chunk_tree_items(leaf: &[u8], geometry: &Geometry) -> Vec<(Key, Vec<u8>)> {
    let own = geometry.devices.first();
    let changed = |item: RawItem| {
        let data = match item.key.item_type {
            ItemType::CHUNK_ITEM => geometry.chunks.get(&item.key.offset)?.encode(),
            ItemType::DEV_ITEM => own
                .filter(|own| own.device.get() == item.key.offset)?
                .to_bytes()
                .to_vec(),
            _ => data_of(leaf, &item),
        };
        Some((item.key, data))
    };
    block::items(leaf).filter_map(changed).collect()
}

/// Returns the items of the device tree: one device extent for each chunk, beside what is no extent.
fn device_tree_items(leaf: &[u8], geometry: &Geometry) -> Vec<(Key, Vec<u8>)> {
    let others = block::items(leaf).filter(|item| item.key.item_type != ItemType::DEV_EXTENT);
    let mut items: Vec<(Key, Vec<u8>)> = others.map(|item| (item.key, data_of(leaf, &item))).collect();
    let chunk_tree_uuid = bytes_at(leaf, 64).map_or(Uuid::nil(), Uuid::from_bytes);
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
