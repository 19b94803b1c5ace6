//! The geometry of a state: its chunks and devices.
//!
//! The chunk tree of the state counts. If it cannot be read, the newest older one counts, then the
//! oldest newer one. A chunk that a balance moved in between makes its blocks unreadable: each block
//! is checked, so a wrong chunk yields no wrong content.
//!
//! The chunk tree is read through the system chunks of the superblock. If this fails, the index
//! locates the blocks of the chunk tree, so that neither superblock nor system chunks are needed.
//! Without any chunk tree, [`chunks`](crate::chunks) derives the chunks from other records.

use crate::error::{Error, Result};
use crate::identity::Identity;
use crate::index::BlockIndex;
use crate::indexed::{IndexedTrees, Walked};
use crate::states::{State, newest_tops, superblocks};
use buttress_device::Device;
use buttress_format::{BackupTree, Chunk, DeviceItem, ItemType, Key, Logical, TreeId};
use buttress_tree::RootPointer;
use core::ops::ControlFlow;
use std::collections::HashSet;

/// The largest number of chunk roots that are tried.
const ROOTS_MAX: usize = 256;

/// The largest number of chunks, and of devices, that a chunk tree can have here.
pub(crate) const CHUNKS_MAX: usize = 1 << 20;

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
    let mut trees = IndexedTrees::new(devices, identity, index);
    let mut items = ChunkItems::default();
    let sector_bytes = identity.sector_bytes;
    let mut take = |key: &Key, data: &[u8]| items.take(key, data, sector_bytes);
    let walked = trees.items(&chunk_pointer(root), &(Key::MIN..=Key::MAX), &mut take)?;
    Ok((walked == Walked::Whole && !items.chunks.is_empty()).then_some(items))
}

impl ChunkItems {
    /// Keeps an item. Ends the walk at an invalid item, or at too many.
    fn take(&mut self, key: &Key, data: &[u8], sector_bytes: u32) -> ControlFlow<()> {
        match key.item_type {
            ItemType::CHUNK_ITEM if self.chunks.len() < CHUNKS_MAX => {
                match Chunk::parse(key, data, sector_bytes) {
                    Ok(chunk) => self.chunks.push((Logical::new(key.offset), chunk)),
                    Err(_) => return ControlFlow::Break(()),
                }
            }
            ItemType::DEV_ITEM if self.devices.len() < CHUNKS_MAX => match DeviceItem::parse(key, data) {
                Ok(device) => self.devices.push(device),
                Err(_) => return ControlFlow::Break(()),
            },
            ItemType::CHUNK_ITEM | ItemType::DEV_ITEM => return ControlFlow::Break(()),
            _ => {}
        }
        ControlFlow::Continue(())
    }
}

/// Returns the error for a state without any readable chunk tree.
pub(crate) const fn no_chunk_tree(state: &State, tried: usize) -> Error {
    Error::NoChunkTree {
        generation: state.generation(),
        tried,
    }
}
