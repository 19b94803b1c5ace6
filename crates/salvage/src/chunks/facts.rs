//! The records about chunks in all trees except the chunk tree, and the chunk items that survive.

use crate::error::Result;
use crate::geometry::{CHUNKS_MAX, chunk_pointer};
use crate::identity::Identity;
use crate::indexed::{IndexedTrees, Walked};
use crate::states::{State, superblocks};
use buttress_device::Device;
use buttress_format::chunk::Stripe;
use buttress_format::{
    BackupTree, BlockGroupItem, Chunk, DeviceExtent, DeviceId, DeviceItem, Generation, ItemType, Key,
    Logical, ObjectId, RootItem, Superblock, TreeId, Uuid,
};
use buttress_fs::Progress;
use buttress_fs::filesystem::root_pointer;
use buttress_tree::RootPointer;
use core::ops::{ControlFlow, Range};
use std::collections::BTreeMap;

/// The devices that were given, by their ids.
pub(super) type Given = BTreeMap<DeviceId, Device>;

/// The facts about the chunks of a state.
pub(super) struct Facts<'a> {
    pub(super) trees: IndexedTrees<'a>,
    pub(super) sector_bytes: u32,
    pub(super) given: Given,
    /// The device numbers of the index, as device ids.
    pub(super) ids: Vec<Option<DeviceId>>,
    /// The device extents by the addresses of their chunks.
    pub(super) extents: BTreeMap<Logical, Vec<DeviceExtent>>,
    /// True if every block of the device tree was found.
    pub(super) is_whole: bool,
    pub(super) devices: BTreeMap<DeviceId, DeviceItem>,
    pub(super) chunk_tree_uuid: Option<Uuid>,
    pub(super) extent_tree: Option<RootPointer>,
    pub(super) checksum_tree: Option<RootPointer>,
    /// The items of the state's own chunk tree.
    pub(super) readable: BTreeMap<Logical, Chunk>,
    /// True if every block of the state's own chunk tree was found.
    pub(super) has_chunk_tree: bool,
    group_tree: Option<RootPointer>,
    /// The chunk items that survive, with the generations of their blocks.
    chunk_items: BTreeMap<Logical, Vec<(Generation, Chunk)>>,
}

/// The largest number of extents of one chunk.
const EXTENTS_MAX: usize = 1 << 20;

/// The largest number of different chunk items of one address.
const VERSIONS_MAX: usize = 16;

impl<'a> Facts<'a> {
    /// Collects the facts about a state. `scanned` has the devices of the index. Block groups are read
    /// when they are needed.
    pub(super) fn collect(
        trees: IndexedTrees<'a>,
        devices: &[Device],
        scanned: &Identity,
        state: &State,
        progress: &Progress,
    ) -> Result<Self> {
        let ids = scanned.devices.iter();
        let ids = ids.map(|found| found.member.map(|(_, id, _)| id)).collect();
        let mut facts = Self {
            trees,
            sector_bytes: scanned.sector_bytes,
            given: BTreeMap::new(),
            ids,
            extents: BTreeMap::new(),
            is_whole: false,
            devices: BTreeMap::new(),
            chunk_tree_uuid: None,
            extent_tree: None,
            checksum_tree: None,
            readable: BTreeMap::new(),
            has_chunk_tree: false,
            group_tree: None,
            chunk_items: BTreeMap::new(),
        };
        facts.items_that_survive(progress)?;
        for device in devices {
            let own = superblocks(core::slice::from_ref(device), scanned.fsid);
            let newest = own
                .into_iter()
                .max_by_key(|(_, superblock)| superblock.generation);
            if let Some((_, superblock)) = newest {
                let item = superblock.device_item;
                facts.given.insert(item.device, device.clone());
                facts.devices.insert(item.device, item);
                facts.system_chunks(&superblock);
            }
        }
        let backups = superblocks(devices, scanned.fsid);
        let backups = backups.iter().flat_map(|(_, found)| &found.backup_roots);
        let backup = backups.copied().find(|backup| backup.tree_root == state.root);
        let of_backup = |tree, root: BackupTree| RootPointer {
            tree,
            logical: root.logical,
            generation: root.generation,
            level: root.level,
        };
        let root = of_backup(TreeId::ROOT, state.root);
        let mut find = |tree, backup: Option<BackupTree>| {
            let found = facts.tree_root(&root, tree)?;
            Ok::<_, crate::Error>(found.or_else(|| backup.map(|root| of_backup(tree, root))))
        };
        let device_tree = find(TreeId::DEVICE, backup.map(|backup| backup.dev_root))?;
        let extent_tree = find(TreeId::EXTENT, backup.map(|backup| backup.extent_root))?;
        let checksum_tree = find(TreeId::CHECKSUM, backup.map(|backup| backup.csum_root))?;
        let group_tree = find(TreeId::BLOCK_GROUP, None)?;
        facts.group_tree = group_tree.or(extent_tree);
        (facts.extent_tree, facts.checksum_tree) = (extent_tree, checksum_tree);
        if let Some(root) = device_tree {
            facts.device_extents(&root)?;
        }
        if let Some(root) = &state.chunk_root {
            facts.chunk_tree(root)?;
        }
        Ok(facts)
    }

    /// Collects the items of the state's own chunk tree.
    fn chunk_tree(&mut self, root: &BackupTree) -> Result<()> {
        let sector_bytes = self.sector_bytes;
        let readable = &mut self.readable;
        let mut take = |key: &Key, data: &[u8]| {
            if key.item_type == ItemType::CHUNK_ITEM
                && let Ok(chunk) = Chunk::parse(key, data, sector_bytes)
            {
                readable.insert(Logical::new(key.offset), chunk);
            }
            match readable.len() < CHUNKS_MAX {
                true => ControlFlow::Continue(()),
                false => ControlFlow::Break(()),
            }
        };
        let walked = self
            .trees
            .items(&chunk_pointer(root), &(Key::MIN..=Key::MAX), &mut take)?;
        self.has_chunk_tree = walked == Walked::Whole;
        Ok(())
    }

    /// Returns the root of a tree, from its root item.
    fn tree_root(&mut self, root_tree: &RootPointer, tree: TreeId) -> Result<Option<RootPointer>> {
        let key = |offset| Key::new(tree.object_id(), ItemType::ROOT_ITEM, offset);
        let sector_bytes = self.sector_bytes;
        let mut found = None;
        let mut take = |key: &Key, data: &[u8]| {
            let item = RootItem::parse(key, data, sector_bytes).ok();
            found = item.map(|item| root_pointer(tree, &item));
            ControlFlow::Break(())
        };
        self.trees
            .items(root_tree, &(key(0)..=key(u64::MAX)), &mut take)?;
        Ok(found)
    }

    /// Collects the device extents.
    fn device_extents(&mut self, root: &RootPointer) -> Result<()> {
        let sector_bytes = self.sector_bytes;
        let (extents, uuid) = (&mut self.extents, &mut self.chunk_tree_uuid);
        let mut count = 0_usize;
        let mut take = |key: &Key, data: &[u8]| {
            if key.item_type == ItemType::DEV_EXTENT
                && let Ok(extent) = DeviceExtent::parse(key, data, sector_bytes)
            {
                uuid.get_or_insert(extent.chunk_tree_uuid);
                extents.entry(extent.chunk).or_default().push(extent);
                count = count.saturating_add(1); // Clamp: a bound follows.
            }
            match count < CHUNKS_MAX {
                true => ControlFlow::Continue(()),
                false => ControlFlow::Break(()),
            }
        };
        let walked = self.trees.items(root, &(Key::MIN..=Key::MAX), &mut take)?;
        self.is_whole = walked == Walked::Whole;
        Ok(())
    }

    /// Keeps the system chunks of a superblock.
    fn system_chunks(&mut self, superblock: &Superblock) {
        for (key, chunk) in &superblock.system_chunks {
            self.keep(Logical::new(key.offset), superblock.generation, chunk.clone());
        }
    }

    /// Keeps the chunk items and device items in all leaves of chunk trees.
    fn items_that_survive(&mut self, progress: &Progress) -> Result<()> {
        let positions = self.trees.reader().of_tree(TreeId::CHUNK, 0..1)?;
        let mut newest: BTreeMap<DeviceId, Generation> = BTreeMap::new();
        for position in positions {
            progress.check()?;
            let record = self.trees.reader().ordered(position)?;
            let Some(leaf) = self.trees.block_of(&record) else {
                continue;
            };
            for item in (0..leaf.item_count()).filter_map(|slot| leaf.item(slot)) {
                match item.key.item_type {
                    ItemType::CHUNK_ITEM => {
                        if let Ok(chunk) = Chunk::parse(&item.key, item.data, self.sector_bytes) {
                            self.keep(Logical::new(item.key.offset), record.generation, chunk);
                        }
                    }
                    ItemType::DEV_ITEM => {
                        let Ok(device) = DeviceItem::parse(&item.key, item.data) else {
                            continue;
                        };
                        let known = newest.entry(device.device).or_insert(Generation::MIN);
                        if *known <= record.generation && self.devices.len() < CHUNKS_MAX {
                            *known = record.generation;
                            self.devices.insert(device.device, device);
                        }
                    }
                    _ => {}
                }
            }
        }
        Ok(())
    }

    fn keep(&mut self, start: Logical, generation: Generation, chunk: Chunk) {
        if self.chunk_items.len() >= CHUNKS_MAX && !self.chunk_items.contains_key(&start) {
            return;
        }
        let versions = self.chunk_items.entry(start).or_default();
        if let Some((known, _)) = versions.iter_mut().find(|(_, known)| *known == chunk) {
            *known = generation.max(*known);
        } else if versions.len() < VERSIONS_MAX {
            versions.push((generation, chunk));
        }
    }

    /// Returns the newest chunk item whose stripes are exactly the device extents. `stripes` has the
    /// current uuid of each device.
    pub(super) fn chunk_item(
        &self,
        start: Logical,
        extents: &[DeviceExtent],
        stripes: &[Stripe],
    ) -> Option<Chunk> {
        let place = |stripe: &Stripe| (stripe.device, stripe.physical);
        let mut wanted: Vec<_> = stripes.iter().map(place).collect();
        wanted.sort_unstable();
        let fits = |chunk: &Chunk| {
            let mut places: Vec<_> = chunk.stripes.iter().map(place).collect();
            places.sort_unstable();
            places == wanted && super::evidence::layout_of(chunk, extents).is_some()
        };
        let versions = self.chunk_items.get(&start)?.iter();
        let fitting = versions.filter(|(_, chunk)| fits(chunk));
        let (_, chunk) = fitting.max_by_key(|(generation, _)| *generation)?;
        let mut chunk = chunk.clone();
        for stripe in &mut chunk.stripes {
            // A replaced device keeps the places of its stripes.
            if let Some(known) = stripes.iter().find(|known| place(known) == place(stripe)) {
                stripe.device_uuid = known.device_uuid;
            }
        }
        Some(chunk)
    }

    /// Returns the block group item of a chunk.
    pub(super) fn block_group(&mut self, start: Logical) -> Result<Option<BlockGroupItem>> {
        let Some(root) = self.group_tree else {
            return Ok(None);
        };
        let key = |offset| {
            let objectid = ObjectId::new(start.get());
            Key::new(objectid, ItemType::BLOCK_GROUP_ITEM, offset)
        };
        let mut found = None;
        let mut take = |key: &Key, data: &[u8]| {
            found = BlockGroupItem::parse(key, data).ok();
            ControlFlow::Break(())
        };
        self.trees.items(&root, &(key(0)..=key(u64::MAX)), &mut take)?;
        Ok(found)
    }

    /// Returns the ranges of all extents between two addresses. Returns `None` if they are not all
    /// known, or if there are too many.
    pub(super) fn used(&mut self, range: &Range<Logical>) -> Result<Option<Vec<Range<u64>>>> {
        let Some(root) = self.extent_tree else {
            return Ok(None);
        };
        let node_bytes = u64::from(self.trees.format().node_bytes);
        let (mut found, end) = (Vec::new(), range.end.get());
        let mut take = |key: &Key, _: &[u8]| {
            let at = key.objectid.get();
            let length = match key.item_type {
                ItemType::EXTENT_ITEM => key.offset,
                ItemType::METADATA_ITEM => node_bytes,
                _ => return ControlFlow::Continue(()),
            };
            // Clamp: an extent that exceeds its chunk is damaged, and uses the rest.
            found.push(at..at.saturating_add(length).min(end));
            match found.len() < EXTENTS_MAX {
                true => ControlFlow::Continue(()),
                false => ControlFlow::Break(()),
            }
        };
        let key = |at: u64| Key::new(ObjectId::new(at), ItemType(0), 0);
        let last = key(end.saturating_sub(1)); // Clamp: a chunk ends after its start.
        let last = Key::new(last.objectid, ItemType(u8::MAX), u64::MAX);
        let keys = key(range.start.get())..=last;
        let walked = self.trees.items(&root, &keys, &mut take)?;
        Ok((walked == Walked::Whole).then_some(found))
    }
}
