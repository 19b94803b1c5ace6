//! The items of each tree of a new volume.

use super::super::Error;
use super::super::chunks::PlannedChunk;
use super::super::items::{
    self, BlockPlace, Item, TreeRoot, block_group_item, block_items, directory, directory_inode, in_order,
};
use super::{Plan, Tree};
use buttress_format::root::RawRootItem;
use buttress_format::{
    ByteCount, CompatRo, Generation, InodeNumber, ItemType, Logical, RootItem, TreeId, UuidItem, uuid_key,
};
use core::ops::Range;

impl Plan {
    /// Returns the items of a tree with the blocks' current addresses, in key order.
    pub(super) fn items(&self, tree: TreeId) -> Result<Vec<Item>, Error> {
        let inode =
            |generation| directory_inode(&self.settings, self.identity.time, Generation::new(generation));
        let chunks = self.chunks.iter();
        let items = match tree {
            TreeId::ROOT => self.root_items()?,
            TreeId::EXTENT => self.extent_items()?,
            TreeId::CHUNK => items::chunk_tree(&self.settings, &self.identity, &self.devices, chunks),
            TreeId::DEVICE => {
                let missing = self.settings.missing.device_statistics;
                let counted = self.devices.iter().filter(|_| !missing);
                items::device_tree(&self.identity, counted, chunks)
            }
            TreeId::FS => {
                let inode = items::owned(&self.settings, inode(3));
                directory(InodeNumber::ROOT_DIRECTORY, &inode)?
            }
            TreeId::DATA_RELOCATION => directory(InodeNumber::ROOT_DIRECTORY, &inode(5))?,
            TreeId::UUID => {
                let mut subvolumes = Vec::new();
                UuidItem::push(&mut subvolumes, TreeId::FS);
                vec![(
                    uuid_key(self.identity.top_level, ItemType::UUID_KEY_SUBVOL),
                    subvolumes,
                )]
            }
            TreeId::FREE_SPACE => chunks
                .flat_map(|chunk| items::free_space(chunk, &self.free_ranges(chunk)))
                .collect(),
            TreeId::BLOCK_GROUP => self.block_group_items().collect(),
            _ => Vec::new(),
        };
        Ok(in_order(items))
    }

    /// Returns the root items of all trees, except the two that the superblock leads to, and the
    /// directory that names the default subvolume.
    fn root_items(&self) -> Result<Vec<Item>, Error> {
        let generation = Generation::new(3);
        let inode = directory_inode(&self.settings, self.identity.time, generation);
        let mut items = items::root_directory(&inode, TreeId::FS, generation)?;
        let others = self.trees.iter();
        let others = others.filter(|tree| !matches!(tree.id, TreeId::ROOT | TreeId::CHUNK));
        let bytes = if self.settings.missing.root_item_extensions {
            size_of::<RawRootItem>()
        } else {
            usize::MAX
        };
        items.extend(others.map(|tree| {
            let subvolume = (tree.id == TreeId::FS).then_some(self.identity.top_level);
            let item = items::root_item(&self.settings, &self.identity, &tree_root(tree), subvolume);
            let item = item.to_bytes().iter().copied().take(bytes).collect();
            (RootItem::key(tree.id, 0), item)
        }));
        Ok(items)
    }

    /// Returns an item for each block and, without a block group tree, the block groups.
    fn extent_items(&self) -> Result<Vec<Item>, Error> {
        let mut all = Vec::new();
        for (logical, shape, tree) in self.blocks_in_order() {
            let place = BlockPlace {
                logical,
                generation: tree.generation,
                level: shape.level,
                first_key: shape.first_key,
                trees: &[tree.id],
            };
            all.extend(block_items(&self.settings, &place)?);
        }
        let own_tree = self.settings.compat_ro.contains(CompatRo::BLOCK_GROUP_TREE);
        all.extend(self.block_group_items().filter(|_| !own_tree));
        Ok(all)
    }

    fn block_group_items(&self) -> impl Iterator<Item = Item> + '_ {
        let item = |chunk| block_group_item(chunk, self.used_bytes(chunk));
        self.chunks.iter().map(item)
    }

    /// Returns the ranges of a chunk that no block covers.
    fn free_ranges(&self, chunk: &PlannedChunk) -> Vec<Range<Logical>> {
        let node_bytes = ByteCount::new(u64::from(self.settings.node_bytes));
        let end = chunk.logical.saturating_add(chunk.length);
        let mut free = Vec::new();
        let mut position = chunk.logical;
        for (logical, ..) in self.blocks_in_order() {
            if (chunk.logical..end).contains(&logical) {
                free.push(position..logical);
                position = logical.saturating_add(node_bytes);
            }
        }
        free.push(position..end);
        free.retain(|range| range.start < range.end);
        free
    }
}

/// Returns a tree in the form of the items that lead to it.
pub(super) fn tree_root(tree: &Tree) -> TreeRoot {
    let (logical, level) = tree.root();
    TreeRoot {
        id: tree.id,
        generation: tree.generation,
        logical,
        level,
        blocks: ByteCount::of(tree.shapes.len()).get(),
    }
}
