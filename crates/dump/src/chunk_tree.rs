//! The chunk tree of a dump: chunks and device items, read before anything is placed. The device tree
//! is kept beside it.
//!
//! Memory is bounded: a dump whose two trees exceed [`TREES_BYTES_MAX`] is refused.

use crate::block;
use crate::error::{Error, Result};
use crate::reading::DumpItem;
use crate::spreading::Blocks;
use buttress_exact::{Exact as _, usize_of};
use buttress_format::superblock::{SUPERBLOCK_OFFSETS, Superblock};
use buttress_format::{Chunk, DeviceItem, ItemType, Logical, Physical, TreeId};
use std::collections::BTreeMap;

/// The largest chunk and device tree of a dump: 10,000,000 chunks are larger than any volume.
const TREES_BYTES_MAX: usize = 256 << 20;

/// The facts of a dump that say where its blocks belong.
#[derive(Debug)]
pub(crate) struct Geometry {
    pub(crate) superblock: Superblock,
    pub(crate) chunks: BTreeMap<u64, Chunk>,
    /// The device items in order of their ids.
    pub(crate) devices: Vec<DeviceItem>,
    /// The blocks of the chunk tree.
    pub(crate) chunk_tree: Blocks,
    /// The blocks of the device tree, and maybe damaged blocks with its id.
    pub(crate) device_tree: Blocks,
}

/// Collects the chunk tree from the items of a dump.
#[derive(Debug, Default)]
pub(crate) struct Gathering {
    superblock: Option<Superblock>,
    chunk_tree: Blocks,
    device_tree: Blocks,
    bytes: usize,
}

impl Gathering {
    /// Takes an item of the dump, in order. The first item is the superblock.
    pub(crate) fn add(&mut self, item: &DumpItem) -> Result<()> {
        let Some(superblock) = &self.superblock else {
            self.superblock = Some(parse_superblock(item)?);
            return Ok(());
        };
        let node_bytes = usize_of(superblock.block_format().node_bytes);
        for (index, block) in item.bytes.chunks(node_bytes).enumerate() {
            let at = item.logical.checked_add(index.exact_mul(node_bytes) as u64);
            // Content in the dump may look like a block of any volume.
            let is_block = block.len() == node_bytes && block::address(block) == at;
            let tree = match block::owner(block) {
                Some(TreeId::CHUNK) => &mut self.chunk_tree,
                Some(TreeId::DEVICE) => &mut self.device_tree,
                _ => continue,
            };
            let (true, Some(at)) = (is_block, at) else {
                continue;
            };
            self.bytes = self.bytes.exact_add(node_bytes);
            if self.bytes > TREES_BYTES_MAX {
                let what = "its chunk and device trees are too large";
                return Err(Error::Unusable { what, logical: at });
            }
            tree.insert(at, block.to_vec());
        }
        Ok(())
    }

    /// Reads the chunk tree from its root.
    pub(crate) fn finish(self) -> Result<Geometry> {
        let Some(superblock) = self.superblock else {
            let what = "it has no superblock";
            return Err(Error::Unusable { what, logical: 0 });
        };
        let mut geometry = Geometry {
            chunks: BTreeMap::new(),
            devices: Vec::new(),
            chunk_tree: Blocks::new(),
            device_tree: self.device_tree,
            superblock,
        };
        let root = geometry.superblock.chunk_root.get();
        let mut waiting = vec![(root, geometry.superblock.chunk_root_level)];
        let mut blocks = self.chunk_tree;
        while let Some((logical, level)) = waiting.pop() {
            // A block that two parents name is damage: each block is taken once.
            let Some(bytes) = blocks.remove(&logical) else {
                let what = "a block of the chunk tree is missing";
                return Err(Error::Unusable { what, logical });
            };
            let fits = block::is_whole(&bytes, geometry.superblock.checksum_type)
                && block::address(&bytes) == Some(logical)
                && block::level(&bytes) == Some(level);
            if !fits {
                let what = "a block of the chunk tree is damaged";
                return Err(Error::Unusable { what, logical });
            }
            match level.checked_sub(1) {
                Some(below) => waiting.extend(block::children(&bytes).map(|child| (child, below))),
                None => geometry.add_leaf(&bytes, logical)?,
            }
            geometry.chunk_tree.insert(logical, bytes);
        }
        geometry.devices.sort_by_key(|item| item.device);
        for (key, chunk) in &geometry.superblock.system_chunks {
            geometry.chunks.entry(key.offset).or_insert_with(|| chunk.clone());
        }
        Ok(geometry)
    }
}

impl Geometry {
    fn add_leaf(&mut self, leaf: &[u8], logical: u64) -> Result<()> {
        let sector_bytes = self.superblock.block_format().sector_bytes;
        for item in block::items(leaf) {
            let unusable = |what| Error::Unusable { what, logical };
            let data = leaf
                .get(item.range)
                .ok_or_else(|| unusable("an item is out of its block"))?;
            match item.key.item_type {
                ItemType::CHUNK_ITEM => {
                    let chunk = Chunk::parse(&item.key, data, sector_bytes);
                    let chunk = chunk.map_err(|_| unusable("a chunk is damaged"))?;
                    self.chunks.insert(item.key.offset, chunk);
                }
                ItemType::DEV_ITEM => {
                    let device = DeviceItem::parse(&item.key, data);
                    self.devices
                        .push(device.map_err(|_| unusable("a device item is damaged"))?);
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Returns the chunk that maps an address, with its start.
    pub(crate) fn chunk_of(&self, logical: Logical) -> Option<(u64, &Chunk)> {
        let (start, chunk) = self.chunks.range(..=logical.get()).next_back()?;
        let end = start.checked_add(chunk.length.get())?;
        (logical.get() < end).then_some((*start, chunk))
    }

    /// Requires that an item is whole sectors, all of which chunks map. An item may continue in the
    /// next chunk.
    pub(crate) fn require_place(&self, item: &DumpItem) -> Result<()> {
        let sector_bytes = u64::from(self.superblock.block_format().sector_bytes);
        let is_aligned = |number: u64| number.checked_rem(sector_bytes) == Some(0);
        let unusable = |what, logical| Error::Unusable { what, logical };
        let mut at = item.logical;
        let length = item.bytes.len() as u64;
        if !is_aligned(at) || !is_aligned(length) || length == 0 {
            return Err(unusable("an item is not whole sectors", at));
        }
        let end = at.checked_add(length);
        let end = end.ok_or_else(|| unusable("an item ends past the last address", at))?;
        while at < end {
            let chunk = self.chunk_of(Logical::new(at));
            let (start, chunk) = chunk.ok_or_else(|| unusable("no chunk maps an item", at))?;
            let chunk_end = start.checked_add(chunk.length.get());
            let chunk_end = chunk_end.filter(|end| is_aligned(*end));
            at = chunk_end.ok_or_else(|| unusable("a chunk is not whole sectors", at))?;
        }
        Ok(())
    }
}

/// Parses the superblock of a dump, which is its first item.
pub(crate) fn parse_superblock(item: &DumpItem) -> Result<Superblock> {
    let [primary, ..] = SUPERBLOCK_OFFSETS;
    let unusable = |what| Error::Unusable {
        what,
        logical: item.logical,
    };
    if Physical::new(item.logical) != primary {
        return Err(unusable("its first item is no superblock"));
    }
    Superblock::check(&item.bytes, primary).map_err(|_| unusable("its superblock is damaged"))
}
