//! Images in memory for tests: one device, one chunk, any trees. Feature `testing`.
//!
//! The blocks have the on-disk format with correct checksums, so readers treat them like those of a
//! real volume. A test then damages individual blocks of its image. The images are not meant to
//! hold real data.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects,
    clippy::cast_possible_truncation,
    clippy::panic,
    reason = "test support: the numbers are the test's own, and a panic is how a test fails"
)]

mod scratch;

pub use scratch::{Account, Scratch};

use crate::pointer::RootPointer;
use buttress_device::Device;
use buttress_format::block_group::BlockGroupFlags;
use buttress_format::checksum::ChecksumType;
use buttress_format::chunk::{RawChunk, RawStripe};
use buttress_format::device_item::RawDeviceItem;
use buttress_format::key::RawKey;
use buttress_format::node::{HEADER_BYTES, RawHeader, RawItem, RawKeyPointer};
use buttress_format::superblock::{Incompat, RawSuperblock, SUPERBLOCK_MAGIC, SUPERBLOCK_OFFSETS};
use buttress_format::{Generation, ItemType, Key, Logical, ObjectId, TreeId};
use buttress_volume::{OpenOptions, Volume};
use std::sync::Arc;
use zerocopy::{FromBytes, FromZeros, IntoBytes};

/// The logical address of the image's only chunk.
pub const CHUNK_LOGICAL: Logical = Logical::new(16 << 20);

/// The physical address of the chunk on its device.
pub(crate) const CHUNK_PHYSICAL: u64 = 1 << 20;

const FSID: [u8; 16] = *b"test-volume-fsid";
const DEVICE_UUID: [u8; 16] = *b"test-device-uuid";
pub(crate) const CHUNK_TREE_UUID: [u8; 16] = *b"test-chunk-tree!";

/// The placement of new blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Placement {
    /// Blocks are placed at consecutive addresses.
    InOrder,
    /// Blocks are placed at random addresses of the chunk, which the seed determines.
    Scattered {
        /// The seed of the pseudo-random order.
        seed: u64,
    },
}

/// The properties of an image.
#[derive(Clone, Copy, Debug)]
pub struct ImageOptions {
    /// Size of tree blocks.
    pub node_bytes: u32,
    /// The size of the chunk for tree blocks.
    pub chunk_bytes: u64,
    /// Type of checksums.
    pub checksum_type: ChecksumType,
    /// The placement of blocks.
    pub placement: Placement,
    /// The generation of the superblock and of new blocks.
    pub generation: Generation,
}

impl Default for ImageOptions {
    fn default() -> Self {
        Self {
            node_bytes: 4096,
            chunk_bytes: 8 << 20,
            checksum_type: ChecksumType::Crc32c,
            placement: Placement::InOrder,
            generation: Generation::new(7),
        }
    }
}

/// The shape of a tree: how full its blocks are.
#[derive(Clone, Copy, Debug)]
pub struct TreeShape {
    /// The maximum number of items in a leaf.
    pub items_per_leaf: usize,
    /// The maximum number of children of a node; at least two.
    pub children_per_node: usize,
}

/// A written block, with the fields of its parent's pointer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Written {
    /// The block's first key.
    pub first_key: Key,
    /// The block's address.
    pub logical: Logical,
    /// The generation of the damaged block.
    pub generation: Generation,
    /// The block's level.
    pub level: u8,
}

impl Written {
    /// Returns the block as the root of a tree.
    #[must_use]
    pub const fn root(&self, tree: TreeId) -> RootPointer {
        let Self {
            logical,
            generation,
            level,
            ..
        } = *self;
        RootPointer {
            tree,
            logical,
            generation,
            level,
        }
    }
}

/// A random number generator for tests: SplitMix64. Equal seeds yield equal numbers.
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// Makes a generator with this seed.
    #[must_use]
    pub const fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// Returns the next number.
    pub fn next_number(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// Returns a pseudo-random number below `bound`.
    pub fn below(&mut self, bound: u64) -> u64 {
        self.next_number() % bound.max(1)
    }
}

/// An image under construction.
#[derive(Debug)]
pub struct ImageBuilder {
    options: ImageOptions,
    bytes: Vec<u8>,
    /// Indexes of the chunk's free blocks; the last index is allocated next.
    free: Vec<u64>,
}

impl ImageBuilder {
    /// Makes an image without trees.
    #[must_use]
    pub fn new(options: ImageOptions) -> Self {
        let blocks = options.chunk_bytes / u64::from(options.node_bytes);
        let mut free: Vec<u64> = (0..blocks).rev().collect();
        if let Placement::Scattered { seed } = options.placement {
            let mut random = Random::new(seed);
            for upper in (1..free.len()).rev() {
                free.swap(upper, random.below(upper as u64 + 1) as usize);
            }
        }
        let bytes = vec![0; (CHUNK_PHYSICAL + options.chunk_bytes) as usize];
        Self { options, bytes, free }
    }

    /// Writes a tree of `items`, which are in key order, leaves first.
    pub fn tree(&mut self, tree: TreeId, items: &[(Key, Vec<u8>)], shape: TreeShape) -> RootPointer {
        let mut level: Vec<Written> = Vec::new();
        let mut rest = items;
        while !rest.is_empty() || level.is_empty() {
            let count = self.leaf_capacity(rest).min(shape.items_per_leaf).min(rest.len());
            let (now, later) = rest.split_at(count);
            level.push(self.leaf(tree, now));
            rest = later;
        }
        while level.len() > 1 {
            let nodes = level.chunks(shape.children_per_node.max(2));
            level = nodes.map(|children| self.node(tree, children)).collect();
        }
        level[0].root(tree)
    }

    fn leaf_capacity(&self, items: &[(Key, Vec<u8>)]) -> usize {
        let mut room = self.options.node_bytes as usize - HEADER_BYTES;
        items
            .iter()
            .take_while(|(_, data)| {
                let needed = size_of::<RawItem>() + data.len();
                let fits = needed <= room;
                room = room.saturating_sub(needed);
                fits
            })
            .count()
    }

    /// Writes a leaf.
    pub fn leaf(&mut self, owner: TreeId, items: &[(Key, Vec<u8>)]) -> Written {
        let mut block = vec![0; self.options.node_bytes as usize];
        let mut head = HEADER_BYTES;
        let mut data_end = block.len();
        for (key, data) in items {
            let start = data_end - data.len();
            block[start..data_end].copy_from_slice(data);
            data_end = start;
            let item = RawItem {
                key: RawKey::from(*key),
                offset: ((start - HEADER_BYTES) as u32).into(),
                size: (data.len() as u32).into(),
            };
            block[head..head + size_of::<RawItem>()].copy_from_slice(item.as_bytes());
            head += size_of::<RawItem>();
        }
        assert!(head <= data_end, "the items do not fit the leaf");
        let first_key = items.first().map_or(Key::MIN, |(key, _)| *key);
        self.place(owner, 0, items.len(), first_key, block)
    }

    /// Writes a node above `children`.
    pub fn node(&mut self, owner: TreeId, children: &[Written]) -> Written {
        let mut block = vec![0; self.options.node_bytes as usize];
        let mut head = HEADER_BYTES;
        for child in children {
            let pointer = RawKeyPointer {
                key: RawKey::from(child.first_key),
                blockptr: child.logical.get().into(),
                generation: child.generation.get().into(),
            };
            block[head..head + size_of::<RawKeyPointer>()].copy_from_slice(pointer.as_bytes());
            head += size_of::<RawKeyPointer>();
        }
        self.place(
            owner,
            children[0].level + 1,
            children.len(),
            children[0].first_key,
            block,
        )
    }

    fn place(
        &mut self,
        owner: TreeId,
        level: u8,
        count: usize,
        first_key: Key,
        mut block: Vec<u8>,
    ) -> Written {
        let number = self.free.pop().expect("the image is full");
        let logical = Logical::new(CHUNK_LOGICAL.get() + number * u64::from(self.options.node_bytes));
        let mut header = RawHeader::new_zeroed();
        header.fsid = FSID;
        header.bytenr = logical.get().into();
        header.flags = [1, 0, 0, 0, 0, 0, 0];
        header.backref_revision = 1;
        header.chunk_tree_uuid = CHUNK_TREE_UUID;
        header.generation = self.options.generation.get().into();
        header.owner = owner.get().into();
        header.nritems = (count as u32).into();
        header.level = level;
        block[..HEADER_BYTES].copy_from_slice(header.as_bytes());
        seal(self.options.checksum_type, &mut block);
        self.block_mut(logical).copy_from_slice(&block);
        Written {
            first_key,
            logical,
            generation: self.options.generation,
            level,
        }
    }

    /// Returns the bytes of the block at `logical` for a test to damage.
    pub fn block_mut(&mut self, logical: Logical) -> &mut [u8] {
        let offset = (logical.get() - CHUNK_LOGICAL.get() + CHUNK_PHYSICAL) as usize;
        &mut self.bytes[offset..offset + self.options.node_bytes as usize]
    }

    /// Changes a block and recomputes its checksum.
    pub fn edit(&mut self, logical: Logical, change: impl FnOnce(&mut [u8])) {
        let checksum_type = self.options.checksum_type;
        let block = self.block_mut(logical);
        change(block);
        seal(checksum_type, block);
    }

    /// Changes a block's header and recomputes its checksum.
    pub fn edit_header(&mut self, logical: Logical, change: impl FnOnce(&mut RawHeader)) {
        self.edit(logical, |block| {
            change(RawHeader::mut_from_bytes(&mut block[..HEADER_BYTES]).expect("a header's bytes"));
        });
    }

    /// Changes the pointer in `slot` of a node and recomputes the node's checksum.
    pub fn edit_pointer(&mut self, node: Logical, slot: usize, change: impl FnOnce(&mut RawKeyPointer)) {
        self.edit(node, |block| {
            let start = HEADER_BYTES + slot * size_of::<RawKeyPointer>();
            let bytes = &mut block[start..start + size_of::<RawKeyPointer>()];
            change(RawKeyPointer::mut_from_bytes(bytes).expect("a pointer's bytes"));
        });
    }

    /// Returns the chunk's item for a chunk tree.
    #[must_use]
    pub fn chunk_item(&self) -> (Key, Vec<u8>) {
        let chunk = RawChunk {
            length: self.options.chunk_bytes.into(),
            owner: TreeId::EXTENT.get().into(),
            stripe_len: (64 << 10).into(),
            chunk_type: BlockGroupFlags::SYSTEM.bits().into(),
            io_align: (64 << 10).into(),
            io_width: (64 << 10).into(),
            sector_size: 4096.into(),
            num_stripes: 1.into(),
            sub_stripes: 0.into(),
        };
        let stripe = RawStripe {
            devid: 1.into(),
            offset: CHUNK_PHYSICAL.into(),
            dev_uuid: DEVICE_UUID,
        };
        let key = Key::new(
            ObjectId::FIRST_CHUNK_TREE,
            ItemType::CHUNK_ITEM,
            CHUNK_LOGICAL.get(),
        );
        (key, [chunk.as_bytes(), stripe.as_bytes()].concat())
    }

    /// Returns the device's item for a chunk tree.
    #[must_use]
    pub fn device_item(&self) -> (Key, Vec<u8>) {
        let key = Key::new(ObjectId::DEVICE_ITEMS, ItemType::DEV_ITEM, 1);
        (key, self.raw_device_item().as_bytes().to_vec())
    }

    fn raw_device_item(&self) -> RawDeviceItem {
        let mut item = RawDeviceItem::new_zeroed();
        item.devid = 1.into();
        item.total_bytes = (self.bytes.len() as u64).into();
        item.bytes_used = self.options.chunk_bytes.into();
        item.io_align = 4096.into();
        item.io_width = 4096.into();
        item.sector_size = 4096.into();
        item.uuid = DEVICE_UUID;
        item.fsid = FSID;
        item
    }

    /// Returns the image's bytes, with a superblock that names these two roots.
    #[must_use]
    pub fn finish(mut self, root: &RootPointer, chunk_root: &RootPointer) -> Vec<u8> {
        let at = SUPERBLOCK_OFFSETS[0];
        let node_bytes = self.options.node_bytes;
        let (chunk_key, chunk) = self.chunk_item();
        let system_chunks = [RawKey::from(chunk_key).as_bytes(), &chunk].concat();
        let mut raw = RawSuperblock::new_zeroed();
        raw.fsid = FSID;
        raw.bytenr = at.get().into();
        raw.flags = 1.into();
        raw.magic = SUPERBLOCK_MAGIC;
        raw.generation = self.options.generation.get().into();
        raw.root = root.logical.get().into();
        raw.root_level = root.level;
        raw.chunk_root = chunk_root.logical.get().into();
        raw.chunk_root_level = chunk_root.level;
        raw.chunk_root_generation = chunk_root.generation.get().into();
        raw.total_bytes = (self.bytes.len() as u64).into();
        raw.bytes_used = (u64::from(node_bytes) * 6).into();
        raw.root_dir_objectid = TreeId::ROOT_DIRECTORY.get().into();
        raw.num_devices = 1.into();
        raw.sectorsize = 4096.into();
        raw.nodesize = node_bytes.into();
        raw.leafsize = node_bytes.into();
        raw.stripesize = 4096.into();
        raw.sys_chunk_array_size = (system_chunks.len() as u32).into();
        raw.sys_chunk_array[..system_chunks.len()].copy_from_slice(&system_chunks);
        let incompat = Incompat::MIXED_BACKREF
            | Incompat::BIG_METADATA
            | Incompat::EXTENDED_IREF
            | Incompat::SKINNY_METADATA
            | Incompat::NO_HOLES;
        raw.incompat_flags = incompat.bits().into();
        raw.csum_type = self.options.checksum_type.to_raw().into();
        raw.dev_item = self.raw_device_item();
        let mut bytes = raw.as_bytes().to_vec();
        seal(self.options.checksum_type, &mut bytes);
        let offset = at.get() as usize;
        self.bytes[offset..offset + bytes.len()].copy_from_slice(&bytes);
        self.bytes
    }

    /// Opens the image as a volume; `device` makes a device of its bytes. `root` serves as the root
    /// of all trees.
    pub fn open(self, root: &RootPointer, device: impl FnOnce(Vec<u8>) -> Device) -> Arc<Volume> {
        let bytes = self.finish(root, root);
        Arc::new(Volume::open(vec![device(bytes)], OpenOptions::default()).expect("the image opens"))
    }
}

/// Writes the checksum of a block or a superblock into it.
fn seal(checksum_type: ChecksumType, block: &mut [u8]) {
    let checksum = checksum_type.compute(&block[32..]);
    block[..32].fill(0);
    block[..checksum.as_bytes().len()].copy_from_slice(checksum.as_bytes());
}
