//! The geometry of a state: its chunks and devices.
//!
//! The chunk tree of the state counts. If it cannot be read, the newest older one counts, then the
//! oldest newer one. A chunk that a balance moved in between makes its blocks unreadable: each block
//! is checked, so a wrong chunk yields no wrong content.
//!
//! The chunk tree is read through the system chunks of the superblock. If this fails, the index
//! locates the blocks of the chunk tree, so that neither superblock nor system chunks are needed.
//!
//! # Left out
//!
//! Chunks from device extents and block headers, for volumes without any chunk tree.

use crate::error::{Error, Result};
use crate::identity::Identity;
use crate::index::{BlockIndex, IndexReader};
use crate::scan::format_of;
use crate::states::{State, newest_tops, superblocks};
use buttress_device::Device;
use buttress_exact::{Exact as _, usize_of};
use buttress_format::node::{BlockFormat, TreeBlock};
use buttress_format::{BackupTree, Chunk, DeviceItem, ItemType, Key, Logical, TreeId};
use buttress_tree::{BlockPointer, RootPointer};
use buttress_volume::superblocks::choose;
use std::collections::HashSet;
use uuid::Uuid;

/// The largest number of chunk roots that are tried.
const ROOTS_MAX: usize = 256;

/// The largest number of blocks that a chunk tree can have here.
const BLOCKS_MAX: usize = 1 << 20;

/// The number of copies of one block that are tried.
const COPIES_MAX: usize = 64;

/// The items of a chunk tree.
#[derive(Debug, Default)]
pub(crate) struct ChunkItems {
    pub(crate) devices: Vec<DeviceItem>,
    pub(crate) chunks: Vec<(Logical, Chunk)>,
}

/// Returns the pointer to a chunk tree's root.
pub(crate) const fn chunk_pointer(root: &BackupTree) -> RootPointer {
    RootPointer {
        tree: TreeId::CHUNK,
        logical: root.logical,
        generation: root.generation,
        level: root.level,
    }
}

/// Returns the roots of chunk trees in the order in which they are tried for a state.
pub(crate) fn chunk_roots(
    devices: &[Device],
    identity: &Identity,
    state: &State,
    index: Option<&BlockIndex>,
) -> Result<Vec<BackupTree>> {
    let generation = state.generation();
    let (mut older, mut newer) = (Vec::new(), Vec::new());
    let mut add = |root: BackupTree| match root.generation <= generation {
        true => older.push(root),
        false => newer.push(root),
    };
    for (_, superblock) in superblocks(devices, identity.fsid) {
        add(BackupTree {
            logical: superblock.chunk_root,
            generation: superblock.chunk_root_generation,
            level: superblock.chunk_root_level,
        });
        superblock
            .backup_roots
            .iter()
            .for_each(|backup| add(backup.chunk_root));
    }
    if let Some(index) = index {
        newest_tops(index, TreeId::CHUNK)?
            .into_values()
            .flatten()
            .for_each(add);
    }
    let place = |root: &BackupTree| (root.generation, root.logical);
    older.sort_by_key(|root| core::cmp::Reverse(place(root)));
    newer.sort_by_key(place);
    let mut known = HashSet::new();
    let own = state.chunk_root.into_iter();
    let ordered = own.chain(older).chain(newer).filter(|root| {
        let is_root =
            root.logical != Logical::MIN && root.level <= buttress_format::superblock::HIGHEST_LEVEL;
        is_root && known.insert((root.logical, root.generation, root.level))
    });
    Ok(ordered.take(ROOTS_MAX).collect())
}

/// Reads a chunk tree by the places that the index has for its blocks. Returns `None` if a block
/// is missing.
pub(crate) fn read_by_index(
    devices: &[Device],
    identity: &Identity,
    index: &BlockIndex,
    root: &BackupTree,
) -> Result<Option<ChunkItems>> {
    let mut walk = IndexedWalk {
        devices: indexed_devices(devices, index.identity()),
        format: format_of(identity),
        reader: index.reader(),
        blocks: 0,
        items: ChunkItems::default(),
    };
    let is_whole = walk.visit(&BlockPointer::root(&chunk_pointer(root)))?;
    Ok((is_whole && !walk.items.chunks.is_empty()).then_some(walk.items))
}

/// Returns the devices in the order of the scan: by their uuids, else in the given order.
fn indexed_devices(devices: &[Device], scanned: &Identity) -> Vec<Option<Device>> {
    let uuids: Vec<Option<Uuid>> = devices
        .iter()
        .map(|device| {
            let chosen = choose(device).ok()?;
            Some(chosen.superblock.device_item.uuid)
        })
        .collect();
    let found = scanned.devices.iter().enumerate().map(|(number, found)| {
        let member = found.member.map(|(uuid, _, _)| uuid);
        let place = uuids.iter().position(|uuid| uuid.is_some() && *uuid == member);
        devices.get(place.unwrap_or(number)).cloned() // Clamp: without a uuid, the order counts.
    });
    found.collect()
}

struct IndexedWalk<'a> {
    devices: Vec<Option<Device>>,
    format: BlockFormat,
    reader: IndexReader<'a>,
    blocks: usize,
    items: ChunkItems,
}

impl IndexedWalk<'_> {
    /// Collects the items below a pointer. Returns false if a block is missing. The level of the
    /// pointer bounds the depth.
    fn visit(&mut self, pointer: &BlockPointer) -> Result<bool> {
        self.blocks = self.blocks.exact_add(1);
        let Some(block) = self.read(pointer)?.filter(|_| self.blocks <= BLOCKS_MAX) else {
            return Ok(false);
        };
        for slot in 0..block.item_count() {
            match pointer.child(&block, slot) {
                Some(child) if !self.visit(&child)? => return Ok(false),
                Some(_) => {}
                None if !self.take(&block, slot) => return Ok(false),
                None => {}
            }
        }
        Ok(true)
    }

    /// Keeps an item of a leaf. Returns false if the item is invalid.
    fn take(&mut self, leaf: &TreeBlock, slot: usize) -> bool {
        let Some(item) = leaf.item(slot) else { return false };
        let key: Key = item.key;
        match key.item_type {
            ItemType::CHUNK_ITEM => match Chunk::parse(&key, item.data, self.format.sector_bytes) {
                Ok(chunk) => self.items.chunks.push((Logical::new(key.offset), chunk)),
                Err(_) => return false,
            },
            ItemType::DEV_ITEM => match DeviceItem::parse(&key, item.data) {
                Ok(device) => self.items.devices.push(device),
                Err(_) => return false,
            },
            _ => {}
        }
        true
    }

    fn read(&mut self, pointer: &BlockPointer) -> Result<Option<TreeBlock>> {
        for record in self.reader.at(pointer.logical, COPIES_MAX)? {
            if record.generation != pointer.generation || record.level != pointer.level || !record.is_sound()
            {
                continue;
            }
            let device = self.devices.get(usize::from(record.device)).cloned().flatten();
            let length = usize_of(self.format.node_bytes);
            // The image may have changed since the scan.
            let read = device.map(|device| device.read(record.physical.get(), length));
            let Some(Ok(buffer)) = read else { continue };
            if let Ok(block) = TreeBlock::check(buffer.into_bytes(), &self.format, &pointer.expectation()) {
                return Ok(Some(block));
            }
        }
        Ok(None)
    }
}

/// Returns the error for a state without any readable chunk tree.
pub(crate) const fn no_chunk_tree(state: &State, tried: usize) -> Error {
    Error::NoChunkTree {
        generation: state.generation(),
        tried,
    }
}
