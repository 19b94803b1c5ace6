//! The trees that describe the new volume: extents, free space, block groups, devices, roots,
//! chunks.
//!
//! These trees describe the blocks that hold them. Their numbers of blocks are guessed, the trees
//! are counted, and the guess is replaced by the count until both are equal.

use crate::GENERATION;
use crate::SAVED_TREE;
use crate::chunks::{DataChunk, placed};
use crate::error::{Error, Result};
use crate::inodes::SAVED;
use crate::layout::Layout;
use crate::log::{Addresses, Log, bytes_of, tree_of};
use buttress_exact::{Defect, Exact as _};
use buttress_format::{
    BlockGroupFlags, ByteCount, Chunk, CompatRo, DeviceItem, InodeNumber, Key, Logical, RootFlags, RootItem,
    RootRef, Superblock, TreeId, Uuid,
};
use buttress_mkfs::parts::{
    BlockPlace, Item, Settings, block_group_item, block_items, chunk_tree, complete_superblock, device_items,
    device_tree, directory_inode, empty_superblock, free_space, in_order, root_directory, root_item,
};
use buttress_mkfs::{Identity, PlannedChunk};
use buttress_packing::{BlockNote, PackedRoot, Packer, Record, Shape, Sorted};

/// The largest number of rounds in which the trees describe each other.
const ROUNDS: usize = 32;

/// The facts that the trees describe.
pub(crate) struct Finish<'a> {
    pub(crate) settings: &'a Settings,
    pub(crate) identity: &'a Identity,
    pub(crate) layout: &'a Layout,
    pub(crate) device_bytes: u64,
    pub(crate) data: Vec<DataChunk>,
    /// The items of data extents, in the order of addresses.
    pub(crate) extents: &'a Sorted,
    pub(crate) roots: Vec<PackedRoot>,
    /// The index of the saved image's subvolume in the root directory.
    pub(crate) saved_index: u64,
    /// The uuid of the saved image's subvolume.
    pub(crate) saved_uuid: Uuid,
}

/// The levels and first keys of the blocks that are not packed yet, in the order of packing.
#[derive(Clone, Default, PartialEq, Eq)]
struct Guess {
    trees: Vec<(TreeId, Vec<(u8, Key)>)>,
    chunk: Vec<(u8, Key)>,
}

/// A chunk, its used bytes, and its free ranges.
struct Use<'a> {
    chunk: PlannedChunk,
    used: ByteCount,
    free: Vec<core::ops::Range<Logical>>,
    data: Option<&'a DataChunk>,
}

impl Finish<'_> {
    /// Packs all remaining trees, and returns the superblock and the device item. `system` receives
    /// the blocks of the chunk tree.
    pub(crate) fn run(
        mut self,
        log: &mut Log<'_>,
        system: &mut Log<'_>,
    ) -> Result<(Superblock, Vec<DeviceItem>)> {
        let mut guess = Guess::default();
        for _ in 0..ROUNDS {
            let counted = self.count(log, system, &guess)?;
            if counted == guess {
                return self.settle(log, system, &guess);
            }
            guess = counted;
        }
        Err(Defect::new("the trees of the new volume do not settle").into())
    }

    fn count(&self, log: &Log<'_>, system: &Log<'_>, guess: &Guess) -> Result<Guess> {
        let format = log.format();
        let uses = self.uses(log, system, guess);
        let mut extent = Shape::new(format);
        self.extent_items(log, system, guess, &uses, &mut |key, data| {
            extent.push(key, data.len());
            Ok(())
        })?;
        let mut trees = vec![(TreeId::EXTENT, extent.finish())];
        for (id, items) in self.small_trees(&uses) {
            trees.push((id, Shape::of_items(format, &items)));
        }
        let nowhere = |id| PackedRoot {
            id,
            generation: GENERATION,
            logical: Logical::MIN,
            level: 0,
            blocks: 0,
        };
        let others = trees.iter().map(|(id, _)| nowhere(*id));
        let roots: Vec<_> = self.roots.iter().copied().chain(others).collect();
        trees.push((TreeId::ROOT, Shape::of_items(format, &self.root_items(&roots)?)));
        let chunk = Shape::of_items(format, &self.chunk_items(&uses));
        Ok(Guess { trees, chunk })
    }

    fn settle(
        &mut self,
        log: &mut Log<'_>,
        system: &mut Log<'_>,
        guess: &Guess,
    ) -> Result<(Superblock, Vec<DeviceItem>)> {
        let before = log.notes().len();
        let uses = self.uses(log, system, guess);
        let mut extents = Packer::new(TreeId::EXTENT, *log.format());
        let mut all: Vec<Item> = Vec::new();
        // Packing changes the log, so the items of blocks are listed before it.
        self.block_and_group_items(log, system, guess, &uses, &mut all)?;
        self.merge(&all, &mut |key, data| Ok(extents.push(log, key, data)?))?;
        let mut roots = self.roots.clone();
        roots.push(extents.finish(log)?.0);
        for (id, items) in self.small_trees(&uses) {
            roots.push(log.pack(id, items)?);
        }
        let root = log.pack(TreeId::ROOT, self.root_items(&roots)?)?;
        let chunk_root = system.pack(TreeId::CHUNK, self.chunk_items(&uses))?;
        let packed = log.notes().len().exact_sub(before);
        let guessed = guess
            .trees
            .iter()
            .fold(0, |sum: usize, (_, blocks)| sum.exact_add(blocks.len()));
        if packed != guessed || system.notes().len() != guess.chunk.len() {
            return Err(Defect::new("the trees are not as they were counted").into());
        }
        log.flush()?;
        system.flush()?;
        Ok(self.superblock(&uses, &roots, &root, &chunk_root))
    }

    /// Returns all chunks with their use.
    fn uses(&self, log: &Log<'_>, system: &Log<'_>, guess: &Guess) -> Vec<Use<'_>> {
        let guessed = guess
            .trees
            .iter()
            .fold(0, |sum: usize, (_, blocks)| sum.exact_add(blocks.len()));
        let blocks = log.notes().len().exact_add(guessed);
        let metadata = self
            .layout
            .metadata
            .iter()
            .zip(log.addresses().used_bytes(blocks));
        let metadata =
            metadata.filter_map(|(chunk, used)| Some((placed(chunk, BlockGroupFlags::METADATA)?, used)));
        let used = bytes_of(guess.chunk.len(), self.settings.node_bytes).get();
        let system_chunk = placed(&self.layout.system, BlockGroupFlags::SYSTEM).map(|chunk| (chunk, used));
        debug_assert!(system.notes().is_empty());
        let from_start = metadata.chain(system_chunk).map(|(chunk, used)| {
            let used = ByteCount::new(used);
            let start = chunk.logical.get();
            let end = start.exact_add(chunk.length.get());
            let free = Logical::new(start.exact_add(used.get()))..Logical::new(end);
            let free = if free.start < free.end {
                vec![free]
            } else {
                Vec::new()
            };
            Use {
                chunk,
                used,
                free,
                data: None,
            }
        });
        let data = self.data.iter().map(|data| Use {
            chunk: data.chunk.clone(),
            used: ByteCount::new(data.used_bytes),
            free: Vec::new(),
            data: Some(data),
        });
        let mut uses: Vec<_> = from_start.chain(data).collect();
        uses.sort_by_key(|used| used.chunk.logical);
        uses
    }

    /// Returns the trees between the extent tree and the root tree.
    fn small_trees(&self, uses: &[Use<'_>]) -> Vec<(TreeId, Vec<Item>)> {
        let mut trees = Vec::new();
        if self.settings.compat_ro.contains(CompatRo::FREE_SPACE_TREE) {
            let items = uses.iter().flat_map(|used| {
                let free = used.data.map_or(&used.free, |data| &data.free);
                free_space(&used.chunk, free)
            });
            trees.push((TreeId::FREE_SPACE, in_order(items.collect())));
        }
        if self.settings.compat_ro.contains(CompatRo::BLOCK_GROUP_TREE) {
            trees.push((TreeId::BLOCK_GROUP, group_items(uses)));
        }
        let devices = self.device_items(uses);
        let chunks = uses.iter().map(|used| &used.chunk);
        trees.push((
            TreeId::DEVICE,
            in_order(device_tree(self.identity, devices.iter(), chunks)),
        ));
        trees
    }

    fn device_items(&self, uses: &[Use<'_>]) -> Vec<DeviceItem> {
        let chunks: Vec<_> = uses.iter().map(|used| used.chunk.clone()).collect();
        device_items(self.settings, self.identity, &[self.device_bytes], &chunks)
    }

    fn chunk_items(&self, uses: &[Use<'_>]) -> Vec<Item> {
        let devices = self.device_items(uses);
        let chunks = uses.iter().map(|used| &used.chunk);
        in_order(chunk_tree(self.settings, self.identity, &devices, chunks))
    }

    fn extent_items(
        &self,
        log: &Log<'_>,
        system: &Log<'_>,
        guess: &Guess,
        uses: &[Use<'_>],
        give: &mut dyn FnMut(&Key, &[u8]) -> Result<()>,
    ) -> Result<()> {
        let mut all = Vec::new();
        self.block_and_group_items(log, system, guess, uses, &mut all)?;
        self.merge(&all, give)
    }

    /// Lists the extent tree's items of tree blocks and block groups in order.
    fn block_and_group_items(
        &self,
        log: &Log<'_>,
        system: &Log<'_>,
        guess: &Guess,
        uses: &[Use<'_>],
        all: &mut Vec<Item>,
    ) -> Result<()> {
        if !self.settings.compat_ro.contains(CompatRo::BLOCK_GROUP_TREE) {
            all.extend(group_items(uses));
        }
        let guessed = guess.trees.iter().flat_map(|(owner, blocks)| {
            blocks.iter().map(|(level, first_key)| BlockNote {
                owner: *owner,
                level: *level,
                first_key: *first_key,
            })
        });
        let notes = log.notes().iter().copied().chain(guessed);
        self.blocks(log.addresses(), notes, all)?;
        let chunk = guess.chunk.iter().map(|(level, first_key)| BlockNote {
            owner: TreeId::CHUNK,
            level: *level,
            first_key: *first_key,
        });
        self.blocks(system.addresses(), chunk, all)?;
        all.sort_by_key(|(key, _)| *key);
        Ok(())
    }

    fn blocks(
        &self,
        addresses: &Addresses,
        notes: impl Iterator<Item = BlockNote>,
        all: &mut Vec<Item>,
    ) -> Result<()> {
        for (number, note) in notes.enumerate() {
            let logical = addresses
                .get(number)
                .ok_or_else(|| Defect::new("the trees need more blocks than the survey found"))?;
            let place = BlockPlace {
                logical,
                generation: GENERATION,
                level: note.level,
                first_key: note.first_key,
                trees: &[note.owner],
            };
            all.extend(block_items(self.settings, &place)?);
        }
        Ok(())
    }

    /// Passes on `items` and the items of data extents, both in order.
    fn merge(&self, items: &[Item], give: &mut dyn FnMut(&Key, &[u8]) -> Result<()>) -> Result<()> {
        let mut items = items.iter().peekable();
        let mut data = self.extents.reader()?;
        let mut record = Record::default();
        while data.next(&mut record)? {
            let (_, key) = crate::records::decode(&record.key)?;
            while let Some((before, item)) = items.next_if(|(other, _)| *other < key) {
                give(before, item)?;
            }
            give(&key, &record.payload)?;
        }
        items.try_for_each(|(key, item)| give(key, item))
    }

    fn root_items(&self, roots: &[PackedRoot]) -> Result<Vec<Item>> {
        let inode = directory_inode(self.settings, self.identity.time, GENERATION);
        let mut items = root_directory(&inode, TreeId::FS, GENERATION)?;
        for root in roots {
            let uuid = match root.id {
                TreeId::FS => Some(self.identity.top_level),
                SAVED_TREE => Some(self.saved_uuid),
                _ => None,
            };
            let mut item = root_item(self.settings, self.identity, &tree_of(root), uuid);
            if root.id == SAVED_TREE {
                item.flags = RootFlags::RDONLY;
                (item.ctransid, item.otransid) = (GENERATION, GENERATION);
            }
            items.push((RootItem::key(root.id, 0), item.to_bytes().to_vec()));
        }
        let reference = RootRef {
            directory: InodeNumber::ROOT_DIRECTORY,
            sequence: self.saved_index,
            name: SAVED,
        };
        let data = reference.encode().map_err(|problem| Error::of_item(0, problem))?;
        let ids = TreeId::FS.as_subvolume().zip(SAVED_TREE.as_subvolume());
        let (parent, child) = ids.ok_or_else(|| Defect::new("the saved image's tree is no subvolume"))?;
        items.extend(RootRef::keys(parent, child).map(|key| (key, data.clone())));
        Ok(in_order(items))
    }

    fn superblock(
        &self,
        uses: &[Use<'_>],
        roots: &[PackedRoot],
        root: &PackedRoot,
        chunk_root: &PackedRoot,
    ) -> (Superblock, Vec<DeviceItem>) {
        let devices = self.device_items(uses);
        let empty = empty_superblock(self.settings, self.identity, &devices);
        let used = uses
            .iter()
            .fold(0_u64, |sum, used| sum.exact_add(used.used.get()));
        let root_of = |id| match id {
            TreeId::ROOT => Some(tree_of(root)),
            TreeId::CHUNK => Some(tree_of(chunk_root)),
            _ => roots.iter().find(|root| root.id == id).map(tree_of),
        };
        let system = placed(&self.layout.system, BlockGroupFlags::SYSTEM).map(|chunk| {
            let item = chunk.item(&self.identity.devices, self.settings.sector_bytes);
            (Chunk::key(chunk.logical), item)
        });
        let system = system.into_iter().collect();
        (
            complete_superblock(&empty, &root_of, system, ByteCount::new(used)),
            devices,
        )
    }
}

fn group_items(uses: &[Use<'_>]) -> Vec<Item> {
    let items = uses.iter().map(|used| block_group_item(&used.chunk, used.used));
    in_order(items.collect())
}
