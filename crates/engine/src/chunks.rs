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
use super::running::Running;
use crate::device_space::stripe_bytes;
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

impl Running {
    /// Makes a chunk for a purpose. Returns false if the devices have no space for a chunk. A
    /// missing tree block ends the call before any change.
    pub fn allocate_chunk(&mut self, purpose: Purpose) -> Result<bool> {
        if purpose != Purpose::System {
            self.ensure_converted_system_room()?;
            self.ensure_system_room()?;
        }
        let Some(mut plan) = self.plan_chunk(purpose) else {
            return Ok(false);
        };
        let start = self.core.next_chunk_start();
        let mut places: Vec<(DeviceId, u64)> = Vec::with_capacity(plan.stripes.len());
        for (device, physical, _) in &mut plan.stripes {
            let Some(start) = self.core.devices.take(*device, plan.stripe_length) else {
                break;
            };
            *physical = start;
            places.push((*device, start));
        }
        let is_placed = places.len() == plan.stripes.len();
        let reached = self.reach_items_of_chunk(start, places.iter().copied());
        if !is_placed || reached.is_err() {
            let freed: Vec<_> = places
                .iter()
                .map(|(device, physical)| (*device, *physical, plan.stripe_length))
                .collect();
            self.core.devices.release(&freed);
            return reached.map(|()| false);
        }
        let (types, _) = self.profile_for(purpose);
        if let Some(feature) = feature_of(plan.profile) {
            self.use_feature(feature);
        }
        let chunk = self.chunk_of(types | plan.profile.flag(), &plan);
        NonBlocking::lifted(|| self.insert_chunk(Logical::new(start), &chunk, plan.stripe_length))?;
        Ok(true)
    }

    /// Makes a chunk at the places of a plan. Returns the chunk's address, or `None` if one of the
    /// places is not free. A missing tree block ends the call before any change.
    pub(crate) fn make_chunk_at(&mut self, flags: BlockGroupFlags, plan: &Plan) -> Result<Option<Logical>> {
        let is_system = flags.contains(BlockGroupFlags::SYSTEM);
        if is_system && !self.core.system_array_has_space() {
            return Ok(None);
        }
        let places = || plan.stripes.iter().map(|(device, at, _)| (*device, *at));
        let start = self.core.next_chunk_start();
        self.reach_items_of_chunk(start, places())?;
        let mut taken = Vec::with_capacity(plan.stripes.len());
        for (device, at) in places() {
            if !self.core.devices.take_at(device, at, plan.stripe_length) {
                self.core.devices.release(&taken);
                return Ok(None);
            }
            taken.push((device, at, plan.stripe_length));
        }
        let chunk = self.chunk_of(flags, plan);
        NonBlocking::lifted(|| self.insert_chunk(Logical::new(start), &chunk, plan.stripe_length))?;
        Ok(Some(Logical::new(start)))
    }

    /// Returns the item of a planned chunk.
    fn chunk_of(&self, flags: BlockGroupFlags, plan: &Plan) -> Chunk {
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

    /// Records a new chunk: its chunk item, device extents, device items, block group, and the live
    /// chunk map.
    fn insert_chunk(&mut self, start: Logical, chunk: &Chunk, stripe_length: u64) -> Result<()> {
        // A log cannot use a new chunk: a replay starts from the last commit, which does not have
        // that chunk.
        self.core.has_new_chunk = !buttress_faults::on("log-in-new-chunk");
        let key = Key::new(ObjectId::FIRST_CHUNK_TREE, ItemType::CHUNK_ITEM, start.get());
        self.insert(TreeId::CHUNK, &key, &chunk.encode())?;
        for stripe in &chunk.stripes {
            let extent = DeviceExtent {
                device: stripe.device,
                physical: stripe.physical,
                chunk_tree: TreeId::CHUNK,
                chunk_objectid: ObjectId::FIRST_CHUNK_TREE,
                chunk: start,
                length: ByteCount::new(stripe_length),
                chunk_tree_uuid: self.core.chunk_tree_uuid,
            };
            let key = Key::new(
                stripe.device.object_id(),
                ItemType::DEV_EXTENT,
                stripe.physical.get(),
            );
            self.insert(TreeId::DEVICE, &key, &extent.to_bytes())?;
            if buttress_faults::on("ledger-device-bytes-never-rise") {
                continue;
            }
            self.change_device_used(stripe.device, stripe_bytes(stripe_length)?)?;
        }
        self.core.forest.volume().add_chunk(start, chunk.clone())?;
        let mut group = Group::new(start, chunk.length, chunk.profile, ObjectId::FIRST_CHUNK_TREE);
        group.needs_free_space_info = true;
        group.is_backed = self.core.forest.volume().may_run_out() && wants_backing(group.flags);
        if let Some(mapped) = self.core.forest.volume().chunk_map().find(start) {
            group.excluded_ranges = buttress_volume::excluded_ranges::of_chunk(mapped);
        }
        if chunk.profile.contains(BlockGroupFlags::SYSTEM) {
            self.core.system_chunks.push((key, chunk.clone()));
        }
        self.core.groups.insert(group);
        self.load_group(start.get())
    }

    /// Returns whether a balance converts system block groups, and none of the target profile has
    /// space for the chunk tree.
    pub(crate) fn lacks_converted_system_room(&self) -> bool {
        let needed = self.core.node_bytes().get().exact_mul(SYSTEM_NODES);
        let groups = &self.core.groups;
        groups.targets().system.is_some()
            && groups.preferred_free_bytes(Purpose::System) < needed
            && self.core.system_array_has_space()
            && !buttress_faults::on("chunk-converted-system-late")
    }

    /// Makes a system chunk of a balance's target profile before other new chunks use the space. A
    /// profile on all devices finds no space later if a data chunk fills one device.
    fn ensure_converted_system_room(&mut self) -> Result<()> {
        match self.lacks_converted_system_room() {
            true => self.allocate_chunk(Purpose::System).map(drop),
            false => Ok(()),
        }
    }

    /// Makes sure that system block groups have space for some more nodes of the chunk tree.
    fn ensure_system_room(&mut self) -> Result<()> {
        let needed = self.core.node_bytes().get().exact_mul(SYSTEM_NODES);
        loop {
            let free = self.core.groups.room(Purpose::System).free_bytes;
            let Some(lacking) = needed.checked_sub(free).filter(|lacking| *lacking > 0) else {
                return Ok(());
            };
            match self.back_more(Purpose::System, lacking)? {
                Backing::More => {}
                Backing::AllBacked if self.core.system_array_has_space() => {
                    if !self.allocate_chunk(Purpose::System)? {
                        return Ok(());
                    }
                }
                Backing::AllBacked | Backing::HostFull => return Ok(()),
            }
        }
    }

    /// Loads the paths to all items of chunk and device tree that making or removing a chunk edits.
    fn reach_items_of_chunk(
        &mut self,
        start: u64,
        places: impl IntoIterator<Item = (DeviceId, u64)>,
    ) -> Result<()> {
        let key = Key::new(ObjectId::FIRST_CHUNK_TREE, ItemType::CHUNK_ITEM, start);
        self.reach(TreeId::CHUNK, &key)?;
        for (device, physical) in places {
            let key = Key::new(device.object_id(), ItemType::DEV_EXTENT, physical);
            self.reach(TreeId::DEVICE, &key)?;
            let key = Key::new(ObjectId::DEVICE_ITEMS, ItemType::DEV_ITEM, device.get());
            self.reach(TreeId::CHUNK, &key)?;
        }
        Ok(())
    }
}
