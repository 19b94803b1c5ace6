//! Volumes in memory for tests of this crate and of the crates above: files, directories and
//! subvolumes, item by item. Feature `testing`.
//!
//! The functions of this module make the items of a valid volume. A test then removes valid items
//! or adds wrong items.
#![allow(
    clippy::arithmetic_side_effects,
    clippy::indexing_slicing,
    clippy::unwrap_used,
    clippy::missing_panics_doc,
    clippy::must_use_candidate,
    clippy::new_without_default,
    reason = "tests compute with known numbers, and a panic is how a test fails"
)]

use crate::filesystem::Filesystem;
use crate::location::Location;
use crate::open::OpenOptions;
use buttress_device::Device;
use buttress_format::directory::RawDirItem;
use buttress_format::file_extent::{RawExtentSlice, RawFileExtentHead};
use buttress_format::inode::RawInodeItem;
use buttress_format::key::RawKey;
use buttress_format::names::RawInodeRef;
use buttress_format::root::{RawRootItem, RawRootItemExtension, RawRootRef};
use buttress_format::superblock::RawSuperblock;
use buttress_format::{
    ByteCount, ChecksumType, FileKind, InodeNumber, ItemType, Key, Logical, ObjectId, SUPERBLOCK_OFFSETS,
    SubvolumeId, TreeId, name_hash,
};
use buttress_tree::testing::{CHUNK_LOGICAL, ImageBuilder, ImageOptions, TreeShape};
use std::collections::BTreeMap;
use zerocopy::{FromBytes, FromZeros, IntoBytes};

#[cfg(test)]
pub(crate) mod striped;

const FS: u64 = 5;
const GENERATION: u64 = 7;

/// A test volume under construction.
pub struct World {
    /// The items of each tree.
    pub trees: BTreeMap<u64, BTreeMap<Key, Vec<u8>>>,
    data: Vec<(u64, Vec<u8>)>,
    next_data: u64,
    next_index: u64,
}

/// Makes a key.
pub fn key(objectid: u64, item_type: ItemType, offset: u64) -> Key {
    Key::new(ObjectId::new(objectid), item_type, offset)
}

/// Returns the location of an inode of the top level.
pub fn at(inode: u64) -> Location {
    Location::new(SubvolumeId::TOP_LEVEL, InodeNumber::new(inode))
}

fn inode_bytes(mode: u32, size: u64) -> Vec<u8> {
    let mut item = RawInodeItem::new_zeroed();
    item.generation = GENERATION.into();
    item.transid = GENERATION.into();
    item.size = size.into();
    item.nlink = 1.into();
    item.mode = mode.into();
    item.as_bytes().to_vec()
}

impl World {
    /// Makes a volume with an empty top level.
    pub fn new() -> Self {
        let mut world = Self {
            trees: BTreeMap::new(),
            data: Vec::new(),
            next_data: CHUNK_LOGICAL.get() + (4 << 20),
            next_index: 2,
        };
        world.subvolume_root(FS);
        world.trees.insert(TreeId::CHECKSUM.get(), BTreeMap::new());
        world
    }

    /// Returns the items of a tree.
    pub fn items(&mut self, tree: u64) -> &mut BTreeMap<Key, Vec<u8>> {
        self.trees.entry(tree).or_default()
    }

    fn subvolume_root(&mut self, tree: u64) {
        let items = self.items(tree);
        items.insert(key(256, ItemType::INODE_ITEM, 0), inode_bytes(0o040_755, 0));
        items.insert(key(256, ItemType::INODE_REF, 256), reference(0, b".."));
    }

    /// Adds an inode item.
    pub fn inode(&mut self, inode: u64, mode: u32, size: u64) {
        self.items(FS)
            .insert(key(inode, ItemType::INODE_ITEM, 0), inode_bytes(mode, size));
    }

    /// Adds a directory entry that its target's reference does not confirm. Returns the index of
    /// the added directory entry.
    pub fn half_entry(&mut self, directory: u64, name: &[u8], child: Key, kind: FileKind) -> u64 {
        let index = self.next_index;
        self.next_index += 1;
        let mut raw = RawDirItem::new_zeroed();
        raw.location = RawKey::from(child);
        raw.transid = GENERATION.into();
        raw.name_bytes = u16::try_from(name.len()).unwrap().into();
        raw.kind = kind.to_raw();
        let bytes = [raw.as_bytes(), name].concat();
        let items = self.items(FS);
        items.insert(key(directory, ItemType::DIR_INDEX, index), bytes.clone());
        let by_name = key(directory, ItemType::DIR_ITEM, name_hash(name));
        items.entry(by_name).or_default().extend_from_slice(&bytes);
        if let Some(item) = items.get_mut(&key(directory, ItemType::INODE_ITEM, 0)) {
            let size = u64::from_le_bytes(item[16..24].try_into().unwrap()) + 2 * name.len() as u64;
            item[16..24].copy_from_slice(&size.to_le_bytes());
        }
        index
    }

    /// Adds an entry and the reference from its target. Returns the index of the added entry.
    pub fn entry(&mut self, directory: u64, name: &[u8], child: u64, kind: FileKind) -> u64 {
        let index = self.half_entry(directory, name, key(child, ItemType::INODE_ITEM, 0), kind);
        let place = key(child, ItemType::INODE_REF, directory);
        self.items(FS)
            .entry(place)
            .or_default()
            .extend(reference(index, name));
        index
    }

    /// Adds a directory to another directory.
    pub fn directory(&mut self, parent: u64, name: &[u8], inode: u64) -> u64 {
        self.inode(inode, 0o040_755, 0);
        self.entry(parent, name, inode, FileKind::Directory)
    }

    /// Adds a symbolic link.
    pub fn symlink(&mut self, parent: u64, name: &[u8], inode: u64, target: &[u8]) {
        self.inode(inode, 0o120_777, target.len() as u64);
        self.inline(inode, target);
        self.entry(parent, name, inode, FileKind::Symlink);
    }

    /// Adds a file without content.
    pub fn file(&mut self, parent: u64, name: &[u8], inode: u64, size: u64) {
        self.inode(inode, 0o100_644, size);
        self.entry(parent, name, inode, FileKind::Regular);
    }

    /// Adds inline content to a file.
    pub fn inline(&mut self, inode: u64, content: &[u8]) {
        let mut head = RawFileExtentHead::new_zeroed();
        head.generation = GENERATION.into();
        head.ram_bytes = (content.len() as u64).into();
        let bytes = [head.as_bytes(), content].concat();
        self.items(FS).insert(key(inode, ItemType::EXTENT_DATA, 0), bytes);
    }

    /// Adds a range of a file in an extent. `extent` is the extent's address and size.
    pub fn range(&mut self, inode: u64, at: u64, extent: (Logical, u64), inside: u64, length: u64) {
        let mut head = RawFileExtentHead::new_zeroed();
        head.generation = GENERATION.into();
        head.ram_bytes = extent.1.into();
        head.kind = 1;
        let mut slice = RawExtentSlice::new_zeroed();
        slice.disk = extent.0.get().into();
        slice.disk_bytes = extent.1.into();
        slice.offset = inside.into();
        slice.num_bytes = length.into();
        let bytes = [head.as_bytes(), slice.as_bytes()].concat();
        self.items(FS)
            .insert(key(inode, ItemType::EXTENT_DATA, at), bytes);
    }

    /// Adds data on disk, with checksums for its first `summed` sectors.
    pub fn data(&mut self, content: &[u8], summed: usize) -> (Logical, u64) {
        assert_eq!(content.len() % 4096, 0);
        let start = self.next_data;
        self.next_data += content.len() as u64 + 4096;
        self.data.push((start, content.to_vec()));
        let mut sums = Vec::new();
        ChecksumType::Crc32c.compute_sectors(&content[..summed * 4096], 4096, &mut sums);
        if summed > 0 {
            let place = Key::new(ObjectId::EXTENT_CHECKSUM, ItemType::EXTENT_CSUM, start);
            self.items(TreeId::CHECKSUM.get()).insert(place, sums);
        }
        (Logical::new(start), content.len() as u64)
    }

    /// Adds an empty subvolume. The subvolume's place is the entry `name` of `directory` in the top
    /// level.
    pub fn subvolume(&mut self, id: u64, directory: u64, name: &[u8]) {
        self.subvolume_root(id);
        let root = key(id, ItemType::ROOT_ITEM, u64::MAX);
        let index = self.half_entry(directory, name, root, FileKind::Directory);
        let mut raw = RawRootRef::new_zeroed();
        raw.directory = directory.into();
        raw.sequence = index.into();
        raw.name_bytes = u16::try_from(name.len()).unwrap().into();
        let bytes = [raw.as_bytes(), name].concat();
        let roots = self.items(TreeId::ROOT.get());
        roots.insert(key(FS, ItemType::ROOT_REF, id), bytes.clone());
        roots.insert(key(id, ItemType::ROOT_BACKREF, FS), bytes);
    }

    /// Returns the bytes of the test image. `change` receives the finished trees of the root tree
    /// before they are written.
    pub fn image(mut self) -> Vec<u8> {
        let shape = TreeShape {
            items_per_leaf: 40,
            children_per_node: 10,
        };
        let mut builder = ImageBuilder::new(ImageOptions::default());
        let mut roots = self.trees.remove(&TreeId::ROOT.get()).unwrap_or_default();
        let mut chunks = self.trees.remove(&TreeId::CHUNK.get()).unwrap_or_default();
        // The root tree and the chunk tree are never empty.
        let chunk_bytes = ImageOptions::default().chunk_bytes;
        let block_group = [0, 256, 2_u64].map(u64::to_le_bytes).concat();
        let place = key(CHUNK_LOGICAL.get(), ItemType::BLOCK_GROUP_ITEM, chunk_bytes);
        self.items(TreeId::EXTENT.get())
            .entry(place)
            .or_insert(block_group);
        self.items(TreeId::DEVICE.get())
            .insert(key(0, ItemType::PERSISTENT_ITEM, 1), vec![0; 40]);
        for (id, items) in &self.trees {
            let items: Vec<(Key, Vec<u8>)> = items.clone().into_iter().collect();
            let id = TreeId::new(*id);
            let pointer = builder.tree(id, &items, shape);
            let mut raw = RawRootItem::new_zeroed();
            raw.generation = GENERATION.into();
            raw.logical = pointer.logical.get().into();
            raw.level = pointer.level;
            raw.references = 1.into();
            raw.root_directory = 256.into();
            let extension = RawRootItemExtension::new_zeroed();
            let bytes = [raw.as_bytes(), extension.as_bytes()].concat();
            roots.insert(key(id.get(), ItemType::ROOT_ITEM, 0), bytes);
        }
        let roots: Vec<(Key, Vec<u8>)> = roots.into_iter().collect();
        let root = builder.tree(TreeId::ROOT, &roots, shape);
        for (place, bytes) in [builder.device_item(), builder.chunk_item()] {
            chunks.entry(place).or_insert(bytes);
        }
        let chunks: Vec<(Key, Vec<u8>)> = chunks.into_iter().collect();
        let chunk_root = builder.tree(TreeId::CHUNK, &chunks, shape);
        for (start, content) in &self.data {
            for (number, block) in content.chunks(4096).enumerate() {
                let place = Logical::new(start + number as u64 * 4096);
                builder.block_mut(place)[..block.len()].copy_from_slice(block);
            }
        }
        builder.finish(&root, &chunk_root)
    }

    /// Opens the test volume.
    pub fn open(self) -> Filesystem {
        open_image(self.image(), |options| options)
    }
}

/// Changes the superblock and recomputes its checksum.
pub fn edit_superblock(image: &mut [u8], change: impl FnOnce(&mut RawSuperblock)) {
    let start = usize::try_from(SUPERBLOCK_OFFSETS[0].get()).unwrap();
    let bytes = &mut image[start..start + 4096];
    change(RawSuperblock::mut_from_bytes(bytes).unwrap());
    let checksum = ChecksumType::Crc32c.compute(&bytes[32..]);
    bytes[..4].copy_from_slice(checksum.as_bytes());
}

/// Opens an image with options.
pub fn open_image(image: Vec<u8>, change: impl FnOnce(OpenOptions) -> OpenOptions) -> Filesystem {
    let options = OpenOptions::new(vec![Device::memory(image)]).cache(ByteCount::new(4 << 20));
    change(options).open().unwrap()
}

/// Returns the data of an inode reference item of the test volume.
pub fn reference(index: u64, name: &[u8]) -> Vec<u8> {
    let mut raw = RawInodeRef::new_zeroed();
    raw.index = index.into();
    raw.name_bytes = u16::try_from(name.len()).unwrap().into();
    [raw.as_bytes(), name].concat()
}
