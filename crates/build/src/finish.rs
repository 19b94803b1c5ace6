//! The trees that describe the volume: checksums, extents, free space, block groups, devices,
//! chunks, roots.
//!
//! These trees describe the blocks that hold the trees. The addresses depend only on the number of
//! blocks in each tree, because the trees' blocks are adjacent. The builder guesses the numbers of
//! blocks, lists and counts the trees, and repeats until the count equals the guess. The repetition
//! ends after a few rounds, because more blocks can only mean more items. The trees are packed only
//! when the numbers of blocks stay unchanged.

use crate::blocks::{BlockLog, tree_of};
use crate::error::{Error, Result};
use crate::layout::{GENERATION, Layout};
use crate::space::{Placer, UsedChunk};
use buttress_format::{
    BlockGroupFlags, ByteCount, Chunk, CompatRo, DeviceItem, Incompat, InodeNumber, Key, Logical, Superblock,
    TreeId,
};
use buttress_mkfs::parts::{
    Item, Settings, block_group_item, chunk_tree, complete_superblock, device_items, device_tree, directory,
    directory_inode, empty_superblock, free_space, in_order,
};
use buttress_mkfs::{Identity, PlannedChunk};
use buttress_packing::Sorted;
use buttress_packing::{PackedRoot, Packer, Shape};
use buttress_packing::{SpoolFolder, Spooled};

mod checksums;
mod extents;
mod quotas;
mod roots;

pub use roots::derived_uuid;

/// The maximum number of rounds in which the trees of the volume describe each other.
const ROUNDS: usize = 32;

/// The facts that are known after contents are written.
pub(crate) struct Finish<'a> {
    pub(crate) settings: &'a Settings,
    pub(crate) identity: &'a Identity,
    pub(crate) layout: &'a Layout,
    pub(crate) roots: Vec<PackedRoot>,
    pub(crate) references: Sorted,
    pub(crate) checksums: Spooled,
    pub(crate) data: Vec<UsedChunk>,
    pub(crate) system: PlannedChunk,
    pub(crate) placer: Placer,
    pub(crate) sizes: Sizes,
    pub(crate) folder: &'a SpoolFolder,
    /// The minimum number of free bytes in metadata block groups.
    pub(crate) headroom: u64,
}

/// The number of bytes of each device that the volume uses.
#[derive(Clone, Debug)]
pub(crate) enum Sizes {
    /// A given number of bytes for each device.
    Given(Vec<u64>),
    /// The image takes as few bytes as possible, plus this number.
    Least(u64),
}

/// The data that the build must still write at its end.
pub(crate) struct Finished {
    pub(crate) superblock: Superblock,
    pub(crate) devices: Vec<DeviceItem>,
    pub(crate) chunks: Vec<PlannedChunk>,
    /// The chunks that the finish planned and that the volume does not know yet.
    pub(crate) new_chunks: Vec<PlannedChunk>,
    /// The blocks of the chunk tree.
    pub(crate) chunk_blocks: BlockLog,
}

/// A guess of the final trees: levels and first keys of their blocks, in address order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Guess {
    extent: Vec<(u8, Key)>,
    free_space: Vec<(u8, Key)>,
    block_group: Vec<(u8, Key)>,
    device: Vec<(u8, Key)>,
    root: Vec<(u8, Key)>,
    chunk: Vec<(u8, Key)>,
}

impl Guess {
    /// Returns the trees in metadata chunks, in the order of their addresses.
    fn trees(&self) -> [(TreeId, &[(u8, Key)]); 5] {
        [
            (TreeId::EXTENT, &self.extent),
            (TreeId::FREE_SPACE, &self.free_space),
            (TreeId::BLOCK_GROUP, &self.block_group),
            (TreeId::DEVICE, &self.device),
            (TreeId::ROOT, &self.root),
        ]
    }

    fn blocks(&self) -> usize {
        self.trees()
            .iter()
            .fold(0, |sum, (_, blocks)| sum.saturating_add(blocks.len()))
    }
}

/// The chunks that a guess implies.
struct Plan {
    chunks: Vec<UsedChunk>,
    devices: Vec<DeviceItem>,
}

impl Finish<'_> {
    pub(crate) fn run(mut self, log: &mut BlockLog) -> Result<Finished> {
        self.pack_checksums(log)?;
        self.pack_items(log, TreeId::UUID, self.uuid_items())?;
        let inode = directory_inode(self.settings, self.identity.time, GENERATION);
        let relocation = directory(InodeNumber::ROOT_DIRECTORY, &inode)?;
        self.pack_items(log, TreeId::DATA_RELOCATION, relocation)?;
        if let Some(quotas) = self.settings.quotas {
            let items = self.quota_items(log.listing(), quotas)?;
            self.pack_items(log, TreeId::QUOTA, items)?;
        }
        let mut guess = Guess::default();
        for _ in 0..ROUNDS {
            let plan = self.plan(log, &guess)?;
            let counted = self.count(log, &guess, &plan)?;
            if counted == guess {
                return self.settle(log, &guess, plan);
            }
            guess = counted;
        }
        Err(Error::Defect {
            what: "trees that do not settle",
        })
    }

    /// Returns the chunks that can hold the written blocks and the blocks of the trees in `guess`.
    fn plan(&self, log: &BlockLog, guess: &Guess) -> Result<Plan> {
        let node_bytes = u64::from(self.settings.node_bytes);
        let blocks = log.notes().len().saturating_add(guess.blocks()) as u64;
        let used = blocks.saturating_mul(node_bytes);
        let mut placer = self.placer.clone();
        let kind = if self.settings.mixed {
            BlockGroupFlags::METADATA | BlockGroupFlags::DATA
        } else {
            BlockGroupFlags::METADATA
        };
        let system = UsedChunk {
            chunk: self.system.clone(),
            used: (guess.chunk.len() as u64).saturating_mul(node_bytes),
        };
        if system.used > system.chunk.length.get() {
            return Err(Error::NoRoom {
                what: "the chunk tree",
                needed: ByteCount::new(system.used),
            });
        }
        let mut chunks = vec![system];
        chunks.extend(self.data.iter().cloned());
        let mut logical = log.base();
        let mut left = used;
        let mut wanted = used.saturating_add(self.headroom);
        while wanted > 0 {
            let chunk = placer.chunk(logical, kind, self.settings.metadata, wanted);
            let Some(chunk) = chunk else {
                // The space reserved for further items is optional.
                if left == 0 {
                    break;
                }
                return Err(Error::NoRoom {
                    what: "metadata",
                    needed: ByteCount::new(left),
                });
            };
            let length = chunk.length.get();
            let own = left.min(length);
            left = left.saturating_sub(own);
            wanted = wanted.saturating_sub(length);
            logical = logical.saturating_add(chunk.length);
            chunks.push(UsedChunk { chunk, used: own });
        }
        let devices = self.device_items(&chunks, &placer);
        Ok(Plan { chunks, devices })
    }

    fn device_items(&self, chunks: &[UsedChunk], placer: &Placer) -> Vec<DeviceItem> {
        let sector_bytes = u64::from(self.settings.sector_bytes);
        let sizes = match &self.sizes {
            Sizes::Given(sizes) => sizes.clone(),
            Sizes::Least(slack) => {
                let size = |end: &u64| end.saturating_add(*slack).checked_next_multiple_of(sector_bytes);
                placer.ends().iter().filter_map(size).collect()
            }
        };
        let planned: Vec<PlannedChunk> = chunks.iter().map(|used| used.chunk.clone()).collect();
        device_items(self.settings, self.identity, &sizes, &planned)
    }

    fn count(&self, log: &BlockLog, guess: &Guess, plan: &Plan) -> Result<Guess> {
        let format = &log.format;
        let has = |feature| self.settings.compat_ro.contains(feature);
        let mut extent = Shape::new(format);
        self.extent_items(log.listing(), guess, plan, &mut |key, data| {
            extent.push(&key, data.len());
            Ok(())
        })?;
        let empty_root = |id| PackedRoot {
            generation: GENERATION,
            id,
            logical: Logical::MIN,
            level: 0,
            blocks: 0,
        };
        let roots: Vec<PackedRoot> = self.all_trees().into_iter().map(empty_root).collect();
        Ok(Guess {
            extent: extent.finish(),
            free_space: match has(CompatRo::FREE_SPACE_TREE) {
                true => Shape::of_items(format, &plan.free_space_items()),
                false => Vec::new(),
            },
            block_group: match has(CompatRo::BLOCK_GROUP_TREE) {
                true => Shape::of_items(format, &plan.block_group_items()),
                false => Vec::new(),
            },
            device: Shape::of_items(format, &plan.device_tree_items(self.identity)),
            root: Shape::of_items(format, &self.root_items(&roots)?),
            chunk: Shape::of_items(format, &plan.chunk_items(self.settings, self.identity)),
        })
    }

    /// Packs the items of the counted trees into blocks.
    fn settle(mut self, log: &mut BlockLog, guess: &Guess, plan: Plan) -> Result<Finished> {
        let mut chunk_blocks = BlockLog::new(log.format, self.system.logical, self.folder, 64 << 20);
        let before = log.notes().len();
        let mut extents = Packer::new(TreeId::EXTENT, log.format);
        // The guess describes the tree blocks that are not packed yet.
        let known = log.listing().clone();
        self.extent_items(&known, guess, &plan, &mut |key, data| {
            Ok(extents.push(log, &key, &data)?)
        })?;
        self.roots.push(extents.finish(log)?.0);
        if self.settings.compat_ro.contains(CompatRo::FREE_SPACE_TREE) {
            self.pack_items(log, TreeId::FREE_SPACE, plan.free_space_items())?;
        }
        if self.settings.compat_ro.contains(CompatRo::BLOCK_GROUP_TREE) {
            self.pack_items(log, TreeId::BLOCK_GROUP, plan.block_group_items())?;
        }
        self.pack_items(log, TreeId::DEVICE, plan.device_tree_items(self.identity))?;
        let root = pack(log, TreeId::ROOT, self.root_items(&self.roots)?)?;
        let chunk_root = pack(
            &mut chunk_blocks,
            TreeId::CHUNK,
            plan.chunk_items(self.settings, self.identity),
        )?;
        if log.notes().len() != before.saturating_add(guess.blocks())
            || chunk_blocks.notes().len() != guess.chunk.len()
        {
            return Err(Error::Defect {
                what: "trees that are not as they were counted",
            });
        }
        let superblock = self.superblock(&plan, &root, &chunk_root);
        let new_chunks = plan.chunks.iter().filter(|used| used.chunk.logical >= log.base());
        Ok(Finished {
            superblock,
            new_chunks: new_chunks.map(|used| used.chunk.clone()).collect(),
            chunks: plan.chunks.into_iter().map(|used| used.chunk).collect(),
            devices: plan.devices,
            chunk_blocks,
        })
    }

    fn pack_items(&mut self, log: &mut BlockLog, id: TreeId, items: Vec<Item>) -> Result<()> {
        self.roots.push(pack(log, id, items)?);
        Ok(())
    }

    fn superblock(&self, plan: &Plan, root: &PackedRoot, chunk_root: &PackedRoot) -> Superblock {
        let empty = empty_superblock(self.settings, self.identity, &plan.devices);
        let used = plan
            .chunks
            .iter()
            .fold(0_u64, |sum, chunk| sum.saturating_add(chunk.used));
        let root_of = |id| match id {
            TreeId::ROOT => Some(tree_of(root)),
            TreeId::CHUNK => Some(tree_of(chunk_root)),
            _ => self.roots.iter().find(|root| root.id == id).map(tree_of),
        };
        let system = self
            .system
            .item(&self.identity.devices, self.settings.sector_bytes);
        let system = vec![(Chunk::key(self.system.logical), system)];
        let complete = complete_superblock(&empty, &root_of, system, ByteCount::new(used));
        let mut incompat = self.settings.incompat;
        incompat.set(
            Incompat::DEFAULT_SUBVOL,
            self.layout.default_subvolume != TreeId::FS,
        );
        Superblock { incompat, ..complete }
    }
}

impl Plan {
    fn chunks(&self) -> impl Iterator<Item = &PlannedChunk> + '_ {
        self.chunks.iter().map(|used| &used.chunk)
    }

    fn block_group_items(&self) -> Vec<Item> {
        let item = |used: &UsedChunk| block_group_item(&used.chunk, ByteCount::new(used.used));
        in_order(self.chunks.iter().map(item).collect())
    }

    fn free_space_items(&self) -> Vec<Item> {
        let items = self.chunks.iter().flat_map(|UsedChunk { chunk, used }| {
            let start = chunk.logical.saturating_add(ByteCount::new(*used));
            let end = chunk.logical.saturating_add(chunk.length);
            let free = (start < end).then_some(start..end);
            free_space(chunk, free.as_slice())
        });
        in_order(items.collect())
    }

    fn device_tree_items(&self, identity: &Identity) -> Vec<Item> {
        in_order(device_tree(identity, self.devices.iter(), self.chunks()))
    }

    fn chunk_items(&self, settings: &Settings, identity: &Identity) -> Vec<Item> {
        in_order(chunk_tree(settings, identity, &self.devices, self.chunks()))
    }
}

fn pack(log: &mut BlockLog, id: TreeId, items: Vec<Item>) -> Result<PackedRoot> {
    let mut packer = Packer::new(id, log.format);
    for (key, data) in items {
        packer.push(log, &key, &data)?;
    }
    Ok(packer.finish(log)?.0)
}
