//! Edits of a seed volume at known places: one item, one block, the superblocks. Each edit repairs
//! the checksums.
//!
//! [`crate::mutation`] changes any bytes anywhere; an [`Editor`] plants a single damage for a test
//! that knows its consequence. A leaf keeps its address and its neighbours. An edit changes, adds
//! or removes items that fit, and must not change the leaf's first key, which the parent names.

use crate::blocks::{mend_checksum, mend_superblock};
use crate::mutation::Aims;
use crate::seed_volume::{BLOCK_BYTES, Overlay};
use buttress_device::{Device, Engine};
use buttress_format::node::HEADER_BYTES;
use buttress_format::node::edit::LeafEdit;
use buttress_format::{
    ByteCount, ChecksumType, ItemType, Key, Logical, ObjectId, RootItem, SUPERBLOCK_BYTES,
    SUPERBLOCK_OFFSETS, TreeBlock, TreeId,
};
use buttress_fs::{Filesystem, OpenOptions};
use buttress_tree::{ReadAhead, RootPointer, Tree};
use buttress_volume::MappingContent;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// A seed volume that is being edited.
#[derive(Clone, Debug)]
pub struct Editor {
    devices: Vec<Overlay>,
    checksum_type: ChecksumType,
    node_bytes: usize,
}

impl Editor {
    /// Returns an editor of the unchanged volume.
    #[must_use]
    pub fn new(aims: &Aims) -> Self {
        let devices = aims.volume.devices.iter().enumerate();
        Self {
            devices: devices
                .map(|(index, device)| Overlay::new(format!("device-{index}"), Arc::clone(device)))
                .collect(),
            checksum_type: aims.checksum_type,
            node_bytes: aims.node_bytes,
        }
    }

    /// Returns the devices with all edits so far.
    #[must_use]
    pub fn devices(&self) -> &[Overlay] {
        &self.devices
    }

    /// Writes the devices to sparse image files in a folder, and returns their paths.
    ///
    /// # Errors
    /// Fails with the error of a file.
    pub fn write_images(&self, folder: &Path) -> std::io::Result<Vec<PathBuf>> {
        let mut images = Vec::new();
        for (index, device) in self.devices.iter().enumerate() {
            let path = folder.join(format!("device-{index}"));
            let file = File::create(&path)?;
            file.set_len(device.size_bytes())?;
            for number in device.block_numbers() {
                let at = number * BLOCK_BYTES as u64;
                file.write_all_at(&device.read(at, BLOCK_BYTES), at)?;
            }
            images.push(path);
        }
        Ok(images)
    }

    /// Opens the volume with all edits so far, degraded if necessary.
    ///
    /// # Panics
    /// Panics if the volume does not open.
    #[must_use]
    pub fn open(&self) -> Filesystem {
        let devices = self.devices.iter().cloned();
        let devices = devices
            .map(|device| Device::with_backend(Arc::new(device), Engine::Inline))
            .collect();
        OpenOptions::new(devices)
            .cache(ByteCount::new(4 << 20))
            .degraded(true)
            .for_inspection(true)
            .open()
            .expect("a volume that is edited opens")
    }

    /// Removes a device.
    pub fn remove_device(&mut self, index: usize) {
        self.devices.remove(index);
    }

    /// Truncates a device.
    pub fn cut_device(&mut self, index: usize, size_bytes: u64) {
        self.devices[index].cut(size_bytes);
    }

    /// Changes the leaf of `tree` at `key`. The slot is that of the key, or of the next key.
    ///
    /// # Panics
    /// Panics if the tree has no such leaf.
    pub fn leaf(
        &mut self,
        tree: TreeId,
        key: &Key,
        change: impl FnOnce(&mut LeafEdit<'_>, Result<usize, usize>),
    ) {
        let filesystem = self.open();
        let tree = filesystem.tree(tree).expect("the tree is there");
        self.leaf_of(&filesystem, &tree, key, change);
    }

    /// Changes a leaf as [`Editor::leaf`] does, in any tree: a log has no id of its own.
    ///
    /// # Panics
    /// There is no such leaf.
    pub fn leaf_of(
        &mut self,
        filesystem: &Filesystem,
        tree: &Tree,
        key: &Key,
        change: impl FnOnce(&mut LeafEdit<'_>, Result<usize, usize>),
    ) {
        let mut cursor = tree.cursor(ReadAhead::None);
        cursor.seek_at_or_before(key).expect("the tree can be read");
        let block = cursor.current_leaf().expect("the tree has a leaf").clone();
        let slot = block.search(key);
        self.block(filesystem, block, |block| {
            let () = block.edit_leaf(|leaf| change(leaf, slot));
        });
    }

    /// Returns the first log of a subvolume.
    ///
    /// # Panics
    /// Panics if the volume has no log.
    #[must_use]
    pub fn log(&self) -> (Filesystem, Tree) {
        let filesystem = self.open();
        let logs = filesystem.tree(TreeId::TREE_LOG).expect("there is a log");
        let item = logs.range(.., ReadAhead::None).next().expect("it has a root");
        let item = item.expect("it can be read");
        let root = RootItem::parse(&item.key(), item.data(), filesystem.sector_bytes());
        let root = root.expect("it is a root item");
        let tree = filesystem.forest().tree(RootPointer {
            tree: TreeId::TREE_LOG,
            logical: root.logical,
            generation: root.generation,
            level: root.level,
        });
        (filesystem, tree)
    }

    /// Changes the data of the item with the key `key`.
    ///
    /// # Panics
    /// Panics if the tree has no such item.
    pub fn data(&mut self, tree: TreeId, key: &Key, change: impl FnOnce(&mut [u8])) {
        self.leaf(tree, key, |leaf, slot| {
            let slot = slot.unwrap_or_else(|_| panic!("tree {tree} has no {key}"));
            change(leaf.data_mut(slot).expect("the item is there"));
        });
    }

    /// Removes the item with the key `key`.
    ///
    /// # Panics
    /// There is no such item.
    pub fn remove(&mut self, tree: TreeId, key: &Key) {
        self.leaf(tree, key, |leaf, slot| {
            let slot = slot.unwrap_or_else(|_| panic!("tree {tree} has no {key}"));
            assert!(leaf.remove(slot..slot + 1));
        });
    }

    /// Adds an item.
    ///
    /// # Panics
    /// Panics if the item exists already, or does not fit.
    pub fn insert(&mut self, tree: TreeId, key: &Key, data: &[u8]) {
        self.leaf(tree, key, |leaf, slot| {
            let slot = slot.expect_err("the item is not there yet");
            leaf.insert(slot, key, data.len())
                .expect("the item fits")
                .copy_from_slice(data);
        });
    }

    /// Replaces the data of the item with the key `key`, by data of any size.
    pub fn replace(&mut self, tree: TreeId, key: &Key, data: &[u8]) {
        self.leaf(tree, key, |leaf, slot| {
            let slot = slot.unwrap_or_else(|_| panic!("tree {tree} has no {key}"));
            assert!(leaf.resize(slot, data.len()), "it does not fit");
            leaf.data_mut(slot)
                .expect("the item is there")
                .copy_from_slice(data);
        });
    }

    /// Sets another owner in the header of the leaf of `tree` at `key`.
    ///
    /// # Panics
    /// There is no such leaf.
    pub fn owner(&mut self, tree: TreeId, key: &Key, owner: TreeId) {
        self.header(tree, key, |header| {
            header[88..96].copy_from_slice(&owner.get().to_le_bytes());
        });
    }

    /// Changes the header of the leaf of `tree` at `key`.
    ///
    /// # Panics
    /// There is no such leaf.
    pub fn header(&mut self, tree: TreeId, key: &Key, change: impl FnOnce(&mut [u8])) {
        let filesystem = self.open();
        let mut cursor = filesystem
            .tree(tree)
            .expect("the tree is there")
            .cursor(ReadAhead::None);
        assert!(
            cursor.seek(key).expect("the tree can be read"),
            "there is no {key}"
        );
        let block = cursor.current_leaf().expect("the tree has a leaf");
        let mut bytes = block.bytes().to_vec();
        change(&mut bytes[..HEADER_BYTES]);
        mend_checksum(&mut bytes, self.checksum_type);
        self.write(&filesystem, block.logical(), &bytes, None);
    }

    /// Changes a tree block in all its copies.
    fn block(&mut self, filesystem: &Filesystem, mut block: TreeBlock, change: impl FnOnce(&mut TreeBlock)) {
        let logical = block.logical();
        change(&mut block);
        // Until it is sealed, an edited block keeps the number of items beside the bytes.
        let mut bytes = block.bytes().to_vec();
        bytes[96..100].copy_from_slice(&block.header().item_count.to_le_bytes());
        mend_checksum(&mut bytes, self.checksum_type);
        self.write(filesystem, logical, &bytes, None);
    }

    /// Writes bytes at an address: to all copies, or to one of them, counted from 0. The edit
    /// repairs no checksum.
    ///
    /// # Panics
    /// Panics if no chunk maps the address.
    pub fn write(&mut self, filesystem: &Filesystem, logical: Logical, bytes: &[u8], copy: Option<usize>) {
        let length = ByteCount::of(bytes.len());
        let mappings = filesystem.volume().map(logical, length).expect("it is mapped");
        let data = mappings
            .iter()
            .filter(|mapping| matches!(mapping.content, MappingContent::Data { .. }));
        for (number, mapping) in data.enumerate() {
            if copy.is_some_and(|copy| copy != number) {
                continue;
            }
            let from = usize::try_from(mapping.logical.get() - logical.get()).unwrap_or(0);
            let part = mapping.length.to_usize().unwrap_or(0);
            let device = usize::try_from(mapping.device.get() - 1).unwrap_or(0);
            self.devices[device].write(mapping.physical.get(), &bytes[from..from + part]);
        }
    }

    /// Changes superblocks of one device or of all devices, copies included unless `primary_only`.
    pub fn superblocks(
        &mut self,
        device: Option<usize>,
        which: impl Fn(u64) -> bool,
        change: impl Fn(&mut [u8]),
    ) {
        for (index, overlay) in self.devices.iter_mut().enumerate() {
            if device.is_some_and(|device| device != index) {
                continue;
            }
            for offset in SUPERBLOCK_OFFSETS.map(|offset| offset.get()) {
                if which(offset) && offset + SUPERBLOCK_BYTES as u64 <= overlay.size_bytes() {
                    let mut bytes = overlay.read(offset, SUPERBLOCK_BYTES);
                    change(&mut bytes);
                    mend_superblock(&mut bytes, offset);
                    overlay.write(offset, &bytes);
                }
            }
        }
    }

    /// Writes bytes to a device. Repairs no checksum.
    pub fn write_raw(&mut self, device: usize, offset: u64, bytes: &[u8]) {
        self.devices[device].write(offset, bytes);
    }

    /// Returns the keys of a tree with their data, in order.
    ///
    /// # Panics
    /// Panics if the tree cannot be read.
    #[must_use]
    pub fn items(&self, tree: TreeId) -> Vec<(Key, Vec<u8>)> {
        let tree = self.open().tree(tree).expect("the tree is there");
        tree.range(.., ReadAhead::None)
            .map(|item| {
                let item = item.expect("the tree can be read");
                (item.key(), item.data().to_vec())
            })
            .collect()
    }

    /// Returns the first item of a type that `wanted` accepts.
    ///
    /// # Panics
    /// There is no such item.
    #[must_use]
    pub fn find(
        &self,
        tree: TreeId,
        item_type: ItemType,
        wanted: impl Fn(&Key, &[u8]) -> bool,
    ) -> (Key, Vec<u8>) {
        self.items(tree)
            .into_iter()
            .find(|(key, data)| key.item_type == item_type && wanted(key, data))
            .unwrap_or_else(|| panic!("tree {tree} has no such {item_type}"))
    }

    /// Returns whether `key` is the first key of a leaf, which the parent names.
    ///
    /// # Panics
    /// The tree cannot be read.
    #[must_use]
    pub fn leads_a_leaf(&self, tree: TreeId, key: &Key) -> bool {
        let tree = self.open().tree(tree).expect("the tree is there");
        let mut cursor = tree.cursor(ReadAhead::None);
        cursor.seek_at_or_before(key).expect("the tree can be read");
        cursor.current_slot() == Some(0)
    }

    /// Returns the borders of neighbouring leaves: the last key of one leaf and the first key of
    /// the next.
    #[must_use]
    pub fn borders(&self, tree: TreeId) -> Vec<(Key, Key)> {
        let tree = self.open().tree(tree).expect("the tree is there");
        let mut leaves = tree.leaves(.., ReadAhead::None);
        let mut borders = Vec::new();
        let mut last: Option<Key> = None;
        while let Ok(Some(leaf)) = leaves.next() {
            let count = leaf.block.item_count();
            let first = leaf.block.key(0).expect("a leaf has items");
            borders.extend(last.map(|last| (last, first)));
            last = leaf.block.key(count - 1);
        }
        borders
    }

    /// Returns the size of a tree block.
    #[must_use]
    pub const fn node_bytes(&self) -> usize {
        self.node_bytes
    }
}

/// Adds to a number in an item.
pub fn add(data: &mut [u8], at: usize, more: i64) {
    let mut number = [0; 8];
    number.copy_from_slice(&data[at..at + 8]);
    let number = u64::from_le_bytes(number).wrapping_add_signed(more);
    data[at..at + 8].copy_from_slice(&number.to_le_bytes());
}

/// Makes a key from its numbers.
#[must_use]
pub const fn key(objectid: u64, item_type: ItemType, offset: u64) -> Key {
    Key::new(ObjectId::new(objectid), item_type, offset)
}
