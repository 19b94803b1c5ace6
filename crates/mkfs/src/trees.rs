//! The trees of a new volume: their items, their blocks' addresses, and the superblock that leads
//! to them.
//!
//! [`Plan::new`] repeats one step until nothing changes. Each round assigns addresses to the blocks
//! of the last round, then lists and packs the items again. The repetition ends after a few rounds,
//! because more blocks only mean more items, never fewer.
//!
//! Trees whose items do not describe blocks have the generation in which mkfs.btrfs writes them, so
//! that the result can be compared with that of mkfs.btrfs.

mod items;

use super::blocks::{self, Shape};
use super::chunks::PlannedChunk;
use super::items::{Item, complete_superblock};
use super::options::Settings;
use super::{Error, GENERATION, Identity, device_id};
use buttress_device::Device;
use buttress_format::node::edit::NewBlock;
use buttress_format::{
    BlockGroupFlags, ByteCount, Chunk, CompatRo, DeviceItem, Generation, Logical, Physical, Profile,
    STRIPE_BYTES, SUPERBLOCK_OFFSETS, Superblock, TreeId, Uuid,
};
use buttress_volume::excluded_ranges::excluded_ranges;
use buttress_volume::layout::Layout;
use buttress_volume::{ExtentWrite, Volume};
use core::ops::Range;

/// The maximum number of rounds in which the plan lists and packs the items. The trees settle in
/// three or four rounds.
const ROUNDS: usize = 64;

/// A tree of the new volume.
#[derive(Clone, Debug)]
pub(super) struct Tree {
    pub(super) id: TreeId,
    pub(super) generation: Generation,
    pub(super) items: Vec<Item>,
    pub(super) shapes: Vec<Shape>,
    /// The addresses of the tree's blocks, one for each shape.
    pub(super) addresses: Vec<Logical>,
}

impl Tree {
    pub(super) fn root(&self) -> (Logical, u8) {
        let logical = self.addresses.last().copied().unwrap_or(Logical::MIN);
        (logical, self.shapes.last().map_or(0, |shape| shape.level))
    }
}

/// The plan of all blocks to write.
#[derive(Debug)]
pub(super) struct Plan {
    pub(super) settings: Settings,
    pub(super) identity: Identity,
    pub(super) chunks: Vec<PlannedChunk>,
    pub(super) devices: Vec<DeviceItem>,
    pub(super) trees: Vec<Tree>,
    pub(super) superblock: Superblock,
}

impl Plan {
    pub(super) fn new(
        settings: &Settings,
        identity: &Identity,
        sizes: &[u64],
        chunks: Vec<PlannedChunk>,
    ) -> Result<Self, Error> {
        let devices = device_items(settings, identity, sizes, &chunks);
        let tree = |id| Tree {
            id,
            generation: generation(id, settings),
            items: Vec::new(),
            shapes: blocks::shapes(&[], settings.node_bytes),
            addresses: Vec::new(),
        };
        let mut plan = Self {
            settings: settings.clone(),
            identity: identity.clone(),
            superblock: empty_superblock(settings, identity, &devices),
            chunks,
            devices,
            trees: tree_ids(settings).into_iter().map(tree).collect(),
        };
        for _ in 0..ROUNDS {
            plan.give_addresses()?;
            let mut settled = true;
            for place in 0..plan.trees.len() {
                let Some(id) = plan.trees.get(place).map(|tree| tree.id) else {
                    break;
                };
                let items = plan.items(id)?;
                let shapes = blocks::shapes(&items, plan.settings.node_bytes);
                if let Some(tree) = plan.trees.get_mut(place) {
                    settled &= tree.items == items && tree.shapes == shapes;
                    (tree.items, tree.shapes) = (items, shapes);
                }
            }
            if settled {
                plan.complete_superblock();
                return Ok(plan);
            }
        }
        Err(Error::NoRoom { what: "the trees" })
    }

    pub(super) fn tree(&self, id: TreeId) -> Option<&Tree> {
        self.trees.iter().find(|tree| tree.id == id)
    }

    /// Returns every block with its address, its shape, and its tree, in address order.
    pub(super) fn blocks_in_order(&self) -> Vec<(Logical, &Shape, &Tree)> {
        let blocks = self.trees.iter().flat_map(|tree| {
            let pairs = tree.addresses.iter().zip(&tree.shapes);
            pairs.map(move |(logical, shape)| (*logical, shape, tree))
        });
        let mut blocks: Vec<_> = blocks.collect();
        blocks.sort_by_key(|(logical, ..)| *logical);
        blocks
    }

    /// Returns the bytes of a chunk that blocks take.
    pub(super) fn used_bytes(&self, chunk: &PlannedChunk) -> ByteCount {
        let end = chunk.logical.saturating_add(chunk.length);
        let addresses = self.trees.iter().flat_map(|tree| &tree.addresses);
        let inside = addresses
            .filter(|logical| (chunk.logical..end).contains(*logical))
            .count();
        let node_bytes = u64::from(self.settings.node_bytes);
        ByteCount::new(ByteCount::of(inside).get().saturating_mul(node_bytes))
    }

    /// Assigns addresses to all blocks, tree by tree and one after another. The chunk tree's blocks
    /// go to the system chunk, all others to the metadata chunk.
    fn give_addresses(&mut self) -> Result<(), Error> {
        let node_bytes = u64::from(self.settings.node_bytes);
        let start = |wanted: BlockGroupFlags| {
            let chunk = self.chunks.iter().find(|chunk| chunk.flags.contains(wanted));
            chunk.and_then(Place::new)
        };
        let mut system = start(BlockGroupFlags::SYSTEM);
        let mut metadata = start(BlockGroupFlags::METADATA);
        for tree in &mut self.trees {
            let cursor = if tree.id == TreeId::CHUNK {
                &mut system
            } else {
                &mut metadata
            };
            tree.addresses.clear();
            for _ in &tree.shapes {
                let next = cursor.as_mut().and_then(|place| place.next_block(node_bytes));
                tree.addresses
                    .push(next.ok_or(Error::NoRoom { what: "tree blocks" })?);
            }
        }
        Ok(())
    }

    /// Returns all blocks in the form to be written.
    pub(super) fn blocks(&self) -> Result<Vec<ExtentWrite>, Error> {
        let mut writes = Vec::new();
        for tree in &self.trees {
            for (shape, logical) in tree.shapes.iter().zip(&tree.addresses) {
                let new = NewBlock {
                    fsid: self.superblock.metadata_uuid,
                    chunk_tree_uuid: self.identity.chunk_tree,
                    logical: *logical,
                    generation: tree.generation,
                    owner: tree.id,
                    level: shape.level,
                };
                let node_bytes = self.settings.node_bytes;
                let block = blocks::build(shape, &new, node_bytes, tree, self.settings.checksum);
                let block = block.ok_or(Error::NoRoom { what: "items" })?;
                writes.push(ExtentWrite {
                    logical: *logical,
                    bytes: block.bytes().clone(),
                });
            }
        }
        Ok(writes)
    }

    /// Returns the volume through which the blocks are written.
    pub(super) fn volume(&self, devices: &[Device]) -> Result<Volume, Error> {
        let devices = devices
            .iter()
            .cloned()
            .zip(self.devices.iter().copied())
            .collect();
        let volume = Volume::create(devices, self.superblock.clone())?;
        for (logical, chunk) in self.chunk_items() {
            volume.add_chunk(logical, chunk)?;
        }
        Ok(volume)
    }

    pub(super) fn chunk_items(&self) -> impl Iterator<Item = (Logical, Chunk)> + '_ {
        let item = |chunk: &PlannedChunk| chunk.item(&self.identity.devices, self.settings.sector_bytes);
        self.chunks.iter().map(move |chunk| (chunk.logical, item(chunk)))
    }

    fn complete_superblock(&mut self) {
        let blocks = self.trees.iter().map(|tree| tree.addresses.len()).sum();
        let node_bytes = u64::from(self.settings.node_bytes);
        let bytes_used = ByteCount::new(ByteCount::of(blocks).get().saturating_mul(node_bytes));
        let system = self
            .chunk_items()
            .filter(|(_, chunk)| chunk.profile.contains(BlockGroupFlags::SYSTEM));
        let system = system
            .map(|(logical, chunk)| (Chunk::key(logical), chunk))
            .collect();
        let root_of = |id| self.tree(id).map(items::tree_root);
        self.superblock = complete_superblock(&self.superblock, &root_of, system, bytes_used);
    }
}

/// Returns the generation of a tree's blocks. mkfs.btrfs makes trees one after another, and moves
/// the chunk and device trees again when it adds chunks of profiles other than single.
fn generation(tree: TreeId, settings: &Settings) -> Generation {
    let moved = settings.metadata != Profile::Single || settings.data != Profile::Single;
    match tree {
        TreeId::FS | TreeId::CHECKSUM | TreeId::DATA_RELOCATION => Generation::new(5),
        TreeId::CHUNK | TreeId::DEVICE if !moved => Generation::new(5),
        TreeId::UUID => Generation::new(7),
        _ => GENERATION,
    }
}

/// Returns the trees of a volume, in the order of their blocks.
fn tree_ids(settings: &Settings) -> Vec<TreeId> {
    let mut ids = vec![
        TreeId::ROOT,
        TreeId::EXTENT,
        TreeId::CHUNK,
        TreeId::DEVICE,
        TreeId::FS,
        TreeId::CHECKSUM,
        TreeId::UUID,
    ];
    if settings.compat_ro.contains(CompatRo::FREE_SPACE_TREE) {
        ids.push(TreeId::FREE_SPACE);
    }
    if settings.compat_ro.contains(CompatRo::BLOCK_GROUP_TREE) {
        ids.push(TreeId::BLOCK_GROUP);
    }
    ids.push(TreeId::DATA_RELOCATION);
    if settings.missing.uuid_tree {
        ids.retain(|id| *id != TreeId::UUID);
    }
    ids
}

/// A chunk of the new volume that receives tree blocks.
struct Place {
    chunk: PlannedChunk,
    /// The offset in the chunk up to which addresses were assigned or excluded.
    offset: u64,
    /// The ranges in which no block is placed. Like Linux, mkfs places no block at these excluded
    /// addresses.
    excluded_ranges: Vec<Range<u64>>,
}

impl Place {
    fn new(chunk: &PlannedChunk) -> Option<Self> {
        let stripes: Vec<Physical> = chunk.stripes.iter().map(|(_, physical)| *physical).collect();
        let sub_stripes = if chunk.profile() == Profile::Raid10 { 2 } else { 1 };
        let layout = Layout::new(
            chunk.profile(),
            chunk.length,
            stripes.len(),
            sub_stripes,
            STRIPE_BYTES,
        );
        let addresses = chunk.logical..chunk.logical.checked_add(chunk.length)?;
        Some(Self {
            chunk: chunk.clone(),
            offset: 0,
            excluded_ranges: excluded_ranges(addresses, &layout.ok()?, &stripes),
        })
    }

    /// Returns the address of the next block.
    fn next_block(&mut self, node_bytes: u64) -> Option<Logical> {
        loop {
            let at = self.chunk.logical.checked_add(ByteCount::new(self.offset))?;
            self.offset = self.offset.checked_add(node_bytes)?;
            if self.offset > self.chunk.length.get() {
                return None;
            }
            let end = at.get().saturating_add(node_bytes);
            let meets = |range: &Range<u64>| at.get() < range.end && range.start < end;
            if !self.excluded_ranges.iter().any(meets) {
                return Some(at);
            }
        }
    }
}

/// Returns the items of devices that hold these chunks.
#[must_use]
pub fn device_items(
    settings: &Settings,
    identity: &Identity,
    sizes: &[u64],
    chunks: &[PlannedChunk],
) -> Vec<DeviceItem> {
    let used = |index: usize| {
        let stripes = chunks
            .iter()
            .flat_map(|chunk| chunk.stripes.iter().map(move |stripe| (chunk, stripe)));
        let own = stripes.filter(|(_, (device, _))| *device == index);
        own.fold(0_u64, |sum, (chunk, _)| {
            sum.saturating_add(chunk.device_extent.get())
        })
    };
    let item = |(index, (size, uuid)): (usize, (&u64, &Uuid))| DeviceItem {
        device: device_id(index),
        total_bytes: ByteCount::new(*size),
        bytes_used: ByteCount::new(used(index)),
        io_align: settings.sector_bytes,
        io_width: settings.sector_bytes,
        sector_bytes: settings.sector_bytes,
        device_type: 0,
        generation: Generation::MIN,
        start_offset: 0,
        device_group: 0,
        seek_speed: 0,
        bandwidth: 0,
        uuid: *uuid,
        fsid: identity.fsid,
    };
    sizes
        .iter()
        .zip(&identity.devices)
        .enumerate()
        .map(item)
        .collect()
}

/// Returns a superblock without roots.
#[must_use]
pub fn empty_superblock(settings: &Settings, identity: &Identity, devices: &[DeviceItem]) -> Superblock {
    let total = devices
        .iter()
        .fold(0_u64, |sum, device| sum.saturating_add(device.total_bytes.get()));
    let [primary, ..] = SUPERBLOCK_OFFSETS;
    let has_free_space_tree = settings.compat_ro.contains(CompatRo::FREE_SPACE_TREE);
    let first = devices.first().copied();
    let device_item = first.unwrap_or_else(|| DeviceItem::empty(identity.fsid, settings.sector_bytes)); // Clamp: a volume has a device.
    Superblock {
        physical: primary,
        generation: GENERATION,
        total_bytes: ByteCount::new(total),
        num_devices: ByteCount::of(devices.len()).get(),
        compat_ro: settings.compat_ro,
        incompat: settings.incompat,
        label: settings.label.clone(),
        // Without a free-space tree, the volume has no cache of free space yet.
        cache_generation: if has_free_space_tree {
            Generation::MIN
        } else {
            Generation::MAX
        },
        // The uuid tree is complete, but mkfs.btrfs leaves its check to the first mount.
        uuid_tree_generation: Generation::MIN,
        ..Superblock::empty(device_item, settings.checksum, settings.node_bytes)
    }
}
