//! Chunks: made when no block group has enough space, removed when a block group stays empty.
//!
//! A chunk takes one device extent on each of its devices (two for DUP). `devices` keeps the
//! unallocated ranges, `planning` chooses devices and sizes, this module makes the chunk, and
//! `removing` removes it.
//!
//! Invariants:
//! - Device extents on one device never overlap. The first MiB of a device is never used.
//! - A freed device extent never goes to another chunk before the transaction that freed it is
//!   durable.
//!
//! Source: on-disk format documentation, sections "Chunk item" and "Device extent".

mod devices;
mod planning;
mod removing;

pub(crate) use planning::most_redundant;

use super::backing::{Backing, wants_backing};
use super::block_groups::{Group, Purpose};
use crate::device_space::stripe_bytes;
use crate::running_parts::ChunkPlanner;
use crate::running_parts::Chunks;
use buttress_exact::Exact as _;
use buttress_format::{
    BlockGroupFlags, ByteCount, Chunk, DeviceExtent, DeviceId, Incompat, ItemType, Key, Logical, ObjectId,
    Physical, Profile, STRIPE_BYTES, Stripe, TreeId,
};
use buttress_fs::error::Result;
use buttress_tree::NonBlocking;
pub(crate) use planning::Plan;

/// The number of nodes of the chunk tree that have space before a new chunk is made.
const SYSTEM_NODES: u64 = 16;

/// The feature that a volume with chunks of a profile has.
const fn feature_of(profile: Profile) -> Option<Incompat> {
    match profile {
        Profile::Raid5 | Profile::Raid6 => Some(Incompat::RAID56),
        Profile::Raid1C3 | Profile::Raid1C4 => Some(Incompat::RAID1C34),
        Profile::Single | Profile::Dup | Profile::Raid0 | Profile::Raid1 | Profile::Raid10 => None,
    }
}

impl Chunks<'_> {
    /// Makes a chunk for a purpose. Returns false if the devices have no space for a chunk. A
    /// missing tree block ends the call before any change.
    pub fn allocate(&mut self, purpose: Purpose) -> Result<bool> {
        if purpose != Purpose::System {
            self.ensure_converted_system_room()?;
            self.ensure_system_room()?;
        }
        let Some(mut plan) = self.running.core.chunk_planner().plan(purpose) else {
            return Ok(false);
        };
        let start = self.running.core.next_chunk_start();
        let mut places: Vec<(DeviceId, u64)> = Vec::with_capacity(plan.stripes.len());
        for (device, physical, _) in &mut plan.stripes {
            let Some(start) = self.running.core.devices.take(*device, plan.stripe_length) else {
                break;
            };
            *physical = start;
            places.push((*device, start));
        }
        let is_placed = places.len() == plan.stripes.len();
        let reached = self.reach_items(start, places.iter().copied());
        if !is_placed || reached.is_err() {
            let freed: Vec<_> = places
                .iter()
                .map(|(device, physical)| (*device, *physical, plan.stripe_length))
                .collect();
            self.running.core.devices.release(&freed);
            return reached.map(|()| false);
        }
        let (types, _) = self.running.core.chunk_planner().profile_for(purpose);
        if let Some(feature) = feature_of(plan.profile) {
            self.running.use_feature(feature);
        }
        let chunk = self
            .running
            .core
            .chunk_planner()
            .chunk(types | plan.profile.flag(), &plan);
        NonBlocking::lifted(|| self.insert(Logical::new(start), &chunk, plan.stripe_length))?;
        Ok(true)
    }

    /// Makes a chunk at the places of a plan. Returns the chunk's address, or `None` if one of the
    /// places is not free. A missing tree block ends the call before any change.
    pub(crate) fn make_at(&mut self, flags: BlockGroupFlags, plan: &Plan) -> Result<Option<Logical>> {
        let is_system = flags.contains(BlockGroupFlags::SYSTEM);
        let stripes_max = self.running.core.chunk_planner().system_stripes_max(0);
        if is_system && plan.stripes.len() > stripes_max {
            return Ok(None);
        }
        let places = || plan.stripes.iter().map(|(device, at, _)| (*device, *at));
        let start = self.running.core.next_chunk_start();
        self.reach_items(start, places())?;
        let mut taken = Vec::with_capacity(plan.stripes.len());
        for (device, at) in places() {
            if !self.running.core.devices.take_at(device, at, plan.stripe_length) {
                self.running.core.devices.release(&taken);
                return Ok(None);
            }
            taken.push((device, at, plan.stripe_length));
        }
        let chunk = self.running.core.chunk_planner().chunk(flags, plan);
        NonBlocking::lifted(|| self.insert(Logical::new(start), &chunk, plan.stripe_length))?;
        Ok(Some(Logical::new(start)))
    }

    /// Records a new chunk: its chunk item, device extents, device items, block group, and the live
    /// chunk map.
    fn insert(&mut self, start: Logical, chunk: &Chunk, stripe_length: u64) -> Result<()> {
        // A log cannot use a new chunk: a replay starts from the last commit, which does not have
        // that chunk.
        self.running.core.has_new_chunk = !buttress_faults::on("log-in-new-chunk");
        let key = Key::new(ObjectId::FIRST_CHUNK_TREE, ItemType::CHUNK_ITEM, start.get());
        self.running.insert(TreeId::CHUNK, &key, &chunk.encode())?;
        for stripe in &chunk.stripes {
            let extent = DeviceExtent {
                device: stripe.device,
                physical: stripe.physical,
                chunk_tree: TreeId::CHUNK,
                chunk_objectid: ObjectId::FIRST_CHUNK_TREE,
                chunk: start,
                length: ByteCount::new(stripe_length),
                chunk_tree_uuid: self.running.core.chunk_tree_uuid,
            };
            let key = Key::new(
                stripe.device.object_id(),
                ItemType::DEV_EXTENT,
                stripe.physical.get(),
            );
            self.running.insert(TreeId::DEVICE, &key, &extent.to_bytes())?;
            if buttress_faults::on("ledger-device-bytes-never-rise") {
                continue;
            }
            self.running
                .device_items()
                .change_used(stripe.device, stripe_bytes(stripe_length)?)?;
        }
        self.running
            .core
            .forest
            .volume()
            .add_chunk(start, chunk.clone())?;
        let mut group = Group::new(start, chunk.length, chunk.profile, ObjectId::FIRST_CHUNK_TREE);
        group.needs_free_space_info = true;
        group.is_backed = self.running.core.forest.volume().may_run_out() && wants_backing(group.flags);
        if let Some(mapped) = self.running.core.forest.volume().chunk_map().find(start) {
            group.excluded_ranges = buttress_volume::excluded_ranges::of_chunk(mapped);
        }
        if chunk.profile.contains(BlockGroupFlags::SYSTEM) {
            self.running.core.system_chunks.push((key, chunk.clone()));
        }
        self.running.core.groups.insert(group);
        self.running.load_group(start.get())
    }

    /// Makes a system chunk of a balance's target profile before other new chunks use the space. A
    /// profile on all devices finds no space later if a data chunk fills one device.
    fn ensure_converted_system_room(&mut self) -> Result<()> {
        match self.running.core.chunk_planner().lacks_converted_system_room() {
            true => self.allocate(Purpose::System).map(drop),
            false => Ok(()),
        }
    }

    /// Makes sure that system block groups have space for some more nodes of the chunk tree.
    fn ensure_system_room(&mut self) -> Result<()> {
        let needed = self.running.core.node_bytes().get().exact_mul(SYSTEM_NODES);
        loop {
            let free = self.running.core.groups.room(Purpose::System).free_bytes;
            let Some(lacking) = needed.checked_sub(free).filter(|lacking| *lacking > 0) else {
                return Ok(());
            };
            match self.running.host_space().back_more(Purpose::System, lacking)? {
                Backing::More => {}
                Backing::AllBacked => {
                    if !self.allocate(Purpose::System)? {
                        return Ok(());
                    }
                }
                Backing::HostFull => return Ok(()),
            }
        }
    }

    /// Loads the paths to all items of chunk and device tree that making or removing a chunk edits.
    fn reach_items(&mut self, start: u64, places: impl IntoIterator<Item = (DeviceId, u64)>) -> Result<()> {
        let key = Key::new(ObjectId::FIRST_CHUNK_TREE, ItemType::CHUNK_ITEM, start);
        self.running.reach(TreeId::CHUNK, &key)?;
        for (device, physical) in places {
            let key = Key::new(device.object_id(), ItemType::DEV_EXTENT, physical);
            self.running.reach(TreeId::DEVICE, &key)?;
            let key = Key::new(ObjectId::DEVICE_ITEMS, ItemType::DEV_ITEM, device.get());
            self.running.reach(TreeId::CHUNK, &key)?;
        }
        Ok(())
    }
}

impl ChunkPlanner<'_> {
    /// Returns the item of a planned chunk.
    fn chunk(&self, flags: BlockGroupFlags, plan: &Plan) -> Chunk {
        Chunk {
            length: ByteCount::new(plan.length),
            owner: TreeId::EXTENT,
            stripe_bytes: STRIPE_BYTES,
            profile: flags,
            io_align: u32::try_from(STRIPE_BYTES).unwrap_or(u32::MAX),
            io_width: u32::try_from(STRIPE_BYTES).unwrap_or(u32::MAX),
            sector_bytes: self.core.format.sector_bytes,
            sub_stripes: if plan.profile == Profile::Raid10 { 2 } else { 1 },
            stripes: plan
                .stripes
                .iter()
                .map(|(device, physical, uuid)| Stripe {
                    device: *device,
                    physical: Physical::new(*physical),
                    device_uuid: *uuid,
                })
                .collect(),
        }
    }

    /// Returns whether a balance converts system block groups, and none of the target profile has
    /// space for the chunk tree.
    pub(crate) fn lacks_converted_system_room(&self) -> bool {
        let needed = self.core.node_bytes().get().exact_mul(SYSTEM_NODES);
        let groups = &self.core.groups;
        groups.targets().system.is_some()
            && groups.preferred_free_bytes(Purpose::System) < needed
            && !buttress_faults::on("chunk-converted-system-late")
    }
}
