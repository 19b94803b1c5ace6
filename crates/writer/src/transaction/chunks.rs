//! Chunks: made when no block group has room, removed when a block group stays empty.
//!
//! A chunk takes one device extent on each of its devices (two for DUP). Devices with the largest unallocated ranges
//! come first; sizes are the kernel's: at most 1 GiB a device extent for data (10 GiB a chunk), 256 MiB for metadata
//! (1 GiB on volumes over 50 GiB), 32 MiB for system, and never more than a tenth of the volume.
//!
//! Invariants: device extents never overlap, the first MiB of a device is never used; a device extent that became free is
//! not given to another chunk before the transaction that freed it is durable.
//!
//! Source: on-disk format documentation, sections "Chunk item", "Device extent"; sizes from mkfs.btrfs(8) and btrfs(5).

use super::backing::{Backing, wants_backing};
use super::block_groups::{Group, Purpose};
use super::excluded_ranges;
use super::free_ranges::FreeRanges;
use super::reservation::Need;
use super::running::Running;
use buttress_format::DEVICE_RESERVED_BYTES;
use buttress_format::{
    BlockGroupFlags, ByteCount, Chunk, DeviceExtent, DeviceId, DeviceItem, ItemType, Key, Logical, ObjectId,
    Physical, Profile, STRIPE_BYTES, Stripe, TreeId, Uuid,
};
use buttress_fs::error::{Corruption, Result};
use buttress_tree::{NonBlocking, ReadAhead};
use buttress_volume::DeviceErrors;
use std::collections::BTreeMap;

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;

/// The most devices in one chunk, so that its item fits a leaf of the smallest size and the superblock's array.
const STRIPES_MAX: usize = 32;

/// A device and what chunks leave of it.
#[derive(Debug)]
pub(crate) struct DeviceSpaceLeft {
    pub(crate) item: DeviceItem,
    /// Ranges without a device extent.
    pub(crate) free: FreeRanges,
}

/// What the chunk tree and the device tree say of devices.
#[derive(Debug, Default)]
pub(crate) struct Devices {
    pub(crate) rooms: Vec<DeviceSpaceLeft>,
    /// Extents of removed chunks, by the transaction's end.
    pub(crate) freed: Vec<(DeviceId, u64, u64)>,
    /// What of the errors that were counted the statistics have.
    pub(crate) recorded: BTreeMap<Uuid, DeviceErrors>,
}

impl Devices {
    pub(crate) fn total_bytes(&self) -> u64 {
        self.rooms
            .iter()
            .fold(0, |sum, room| sum.saturating_add(room.item.total_bytes.get()))
    }

    /// Takes a place for each stripe of a plan. Gives for how many there was one.
    fn take(&mut self, plan: &mut Plan) -> usize {
        let length = plan.stripe_length;
        let mut taken = 0_usize;
        for (device, physical, _) in &mut plan.stripes {
            let room = self.rooms.iter_mut().find(|room| room.item.device == *device);
            let place = room.and_then(|room| room.free.allocate(length, length, STRIPE_BYTES, 0));
            let Some((start, _)) = place else {
                break;
            };
            *physical = start;
            taken = taken.saturating_add(1);
        }
        taken
    }

    /// Device extents of chunks removed in a transaction that is durable now. Old ones may begin where new ones may not.
    pub(crate) fn release(&mut self, freed: &[(DeviceId, u64, u64)]) {
        for (device, start, length) in freed {
            if let Some(room) = self.rooms.iter_mut().find(|room| room.item.device == *device) {
                let first = DEVICE_RESERVED_BYTES.max(*start);
                room.free
                    .add(first, start.saturating_add(*length).saturating_sub(first));
            }
        }
    }
}

/// A chunk that could be made.
#[derive(Debug)]
struct Plan {
    profile: Profile,
    /// Devices, and how much of each; one entry a stripe.
    stripes: Vec<(DeviceId, u64, Uuid)>,
    stripe_length: u64,
    length: u64,
}

/// How many copies stripes form, and which of them hold parity.
const fn data_stripes(profile: Profile, stripes: u64) -> u64 {
    match profile {
        Profile::Raid5 => stripes.saturating_sub(1),
        Profile::Raid6 => stripes.saturating_sub(2),
        Profile::Raid10 => stripes >> 1,
        Profile::Raid0 => stripes,
        Profile::Single | Profile::Dup | Profile::Raid1 | Profile::Raid1C3 | Profile::Raid1C4 => 1,
    }
}

/// How many devices a profile uses of `available`, and how many stripes it puts on each.
fn device_count(profile: Profile, available: usize) -> Option<(usize, usize)> {
    let available = available.min(STRIPES_MAX);
    let (wanted, each) = match profile {
        Profile::Single => (1, 1),
        Profile::Dup => (1, 2),
        Profile::Raid1 => (2, 1),
        Profile::Raid1C3 => (3, 1),
        Profile::Raid1C4 => (4, 1),
        Profile::Raid10 => (available & !1, 1),
        Profile::Raid0 | Profile::Raid5 | Profile::Raid6 => (available, 1),
    };
    let least = usize::from(profile.min_devices()).max(1);
    (wanted >= least.min(wanted.max(1)) && wanted >= least && wanted <= available).then_some((wanted, each))
}

impl Running {
    /// Reads devices and their extents from the chunk tree and the device tree.
    pub(crate) fn load_devices(&mut self) -> Result<()> {
        let chunk_tree = self.view(TreeId::CHUNK)?;
        let device_tree = self.view(TreeId::DEVICE)?;
        let mut rooms = Vec::new();
        let devices = Key::new(ObjectId::DEVICE_ITEMS, ItemType::DEV_ITEM, 0);
        let end = Key::new(ObjectId::DEVICE_ITEMS, ItemType::DEV_ITEM, u64::MAX);
        for found in chunk_tree.range(devices..=end, ReadAhead::None) {
            let found = found?;
            let item = DeviceItem::parse(&found.key(), found.data()).map_err(|error| Corruption::Item {
                tree: TreeId::CHUNK,
                error,
            })?;
            let mut free = FreeRanges::default();
            let usable = item.total_bytes.get().saturating_sub(DEVICE_RESERVED_BYTES);
            free.add(DEVICE_RESERVED_BYTES, usable);
            rooms.push(DeviceSpaceLeft { item, free });
        }
        for found in device_tree.range(Key::MIN..=Key::MAX, ReadAhead::Forward) {
            let found = found?;
            let key = found.key();
            if key.item_type != ItemType::DEV_EXTENT {
                continue;
            }
            let extent =
                DeviceExtent::parse(&key, found.data(), self.core.format.sector_bytes).map_err(|error| {
                    Corruption::Item {
                        tree: TreeId::DEVICE,
                        error,
                    }
                })?;
            let room = rooms
                .iter_mut()
                .find(|room| room.item.device.object_id() == key.objectid);
            if let Some(room) = room {
                room.free.remove(key.offset, extent.length.get());
            }
        }
        self.core.devices.rooms = rooms;
        Ok(())
    }

    /// The profile of new chunks for a purpose: the most redundant one that its chunks have.
    fn profile_for(&self, purpose: Purpose) -> (BlockGroupFlags, Profile) {
        const ORDER: [Profile; 9] = [
            Profile::Raid1C4,
            Profile::Raid6,
            Profile::Raid1C3,
            Profile::Raid5,
            Profile::Raid10,
            Profile::Raid1,
            Profile::Dup,
            Profile::Raid0,
            Profile::Single,
        ];
        let groups = || self.core.groups.iter().filter(|group| group.serves(purpose));
        let types = groups()
            .next()
            .map_or(purpose.flag(), |group| group.flags & BlockGroupFlags::TYPES);
        let profile = ORDER
            .into_iter()
            .find(|profile| groups().any(|group| group.flags.profile() == Some(*profile)))
            .unwrap_or(Profile::Single);
        (types, profile)
    }

    /// Whether devices have space for another chunk.
    pub(super) fn can_make_chunk(&self, purpose: Purpose) -> bool {
        self.plan_chunk(purpose).is_some()
    }

    fn plan_chunk(&self, purpose: Purpose) -> Option<Plan> {
        let (_, profile) = self.profile_for(purpose);
        let total = self.core.devices.total_bytes();
        let (stripe_limit, chunk_limit) = match purpose {
            Purpose::Data => (GIB, 10 * GIB),
            Purpose::Metadata if total > 50 * GIB => (GIB, GIB),
            Purpose::Metadata => (256 * MIB, 256 * MIB),
            Purpose::System => (32 * MIB, 64 * MIB),
        };
        let tenth = total.checked_div(10).unwrap_or(0).max(16 * STRIPE_BYTES);
        let chunk_limit = chunk_limit.min(tenth);
        let mut rooms: Vec<&DeviceSpaceLeft> = self
            .core
            .devices
            .rooms
            .iter()
            // Nothing new is put on a device that is missing, behind, read-only, or was left out meanwhile.
            .filter(|room| self.core.device_is_writable(room.item.uuid))
            .filter(|room| room.free.largest_bytes() >= STRIPE_BYTES)
            .collect();
        rooms.sort_by_key(|room| {
            (
                core::cmp::Reverse(room.free.largest_bytes().min(stripe_limit)),
                core::cmp::Reverse(room.free.total_bytes()),
                room.item.device,
            )
        });
        let (devices, each) = device_count(profile, rooms.len())?;
        rooms.truncate(devices);
        let each_bytes = ByteCount::of(each).get();
        let smallest = rooms.iter().map(|room| room.free.largest_bytes()).min()?;
        let stripes = ByteCount::of(devices.saturating_mul(each)).get();
        let columns = data_stripes(profile, stripes).max(1);
        let mut stripe_length = smallest.checked_div(each_bytes)?.min(stripe_limit);
        if stripe_length.saturating_mul(columns) > chunk_limit {
            stripe_length = chunk_limit.checked_div(columns)?;
        }
        stripe_length = stripe_length.saturating_sub(stripe_length.checked_rem(STRIPE_BYTES)?);
        if stripe_length == 0 {
            return None;
        }
        Some(Plan {
            profile,
            stripes: rooms
                .iter()
                .flat_map(|room| core::iter::repeat_n((room.item.device, 0, room.item.uuid), each))
                .collect(),
            stripe_length,
            length: stripe_length.saturating_mul(columns),
        })
    }

    /// Makes a chunk for a purpose. False when the devices have no space for one. A block that is missing ends it before
    /// anything changed.
    pub(crate) fn allocate_chunk(&mut self, purpose: Purpose) -> Result<bool> {
        if purpose != Purpose::System {
            self.ensure_system_room()?;
        }
        let Some(mut plan) = self.plan_chunk(purpose) else {
            return Ok(false);
        };
        let start = self
            .core
            .groups
            .iter()
            .map(Group::end)
            .max()
            .unwrap_or(DEVICE_RESERVED_BYTES);
        let taken = self.core.devices.take(&mut plan);
        let placed = plan.stripes.iter().take(taken);
        let places: Vec<(DeviceId, u64)> = placed.map(|(device, physical, _)| (*device, *physical)).collect();
        let is_placed = taken == plan.stripes.len();
        let reached = self.reach_items_of_chunk(start, places.iter().copied());
        if !is_placed || reached.is_err() {
            let freed: Vec<_> = places
                .iter()
                .map(|(device, physical)| (*device, *physical, plan.stripe_length))
                .collect();
            self.core.devices.release(&freed);
            return reached.map(|()| false);
        }
        // What is replayed on the last commit finds no such chunk.
        self.core.has_new_chunk = !buttress_faults::on("log-in-new-chunk");
        let (types, _) = self.profile_for(purpose);
        let flags = types | plan.profile.flag();
        let chunk = Chunk {
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
        };
        NonBlocking::lifted(|| self.insert_chunk(Logical::new(start), &chunk, plan.stripe_length))?;
        Ok(true)
    }

    /// Writes down a new chunk: chunk item, device extents, device items, block group, and the live map.
    fn insert_chunk(&mut self, start: Logical, chunk: &Chunk, stripe_length: u64) -> Result<()> {
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
            self.change_device_used(stripe.device, i64::try_from(stripe_length).unwrap_or(i64::MAX))?;
        }
        self.core.forest.volume().add_chunk(start, chunk.clone())?;
        let mut group = Group::new(start, chunk.length, chunk.profile, ObjectId::FIRST_CHUNK_TREE);
        group.needs_free_space_info = true;
        group.is_backed = self.core.forest.volume().may_run_out() && wants_backing(group.flags);
        if let Some(mapped) = self.core.forest.volume().chunk_map().find(start) {
            group.excluded_ranges = excluded_ranges::of_chunk(mapped);
        }
        if chunk.profile.contains(BlockGroupFlags::SYSTEM) {
            self.core.system_chunks.push((key, chunk.clone()));
        }
        self.core.groups.insert(group);
        self.load_group(start.get())
    }

    fn change_device_used(&mut self, device: DeviceId, by: i64) -> Result<()> {
        let Some(room) = self
            .core
            .devices
            .rooms
            .iter_mut()
            .find(|room| room.item.device == device)
        else {
            return Ok(());
        };
        let (used, total) = (room.item.bytes_used, room.item.total_bytes);
        let now = used
            .get()
            .checked_add_signed(by)
            .filter(|now| *now <= total.get());
        room.item.bytes_used = ByteCount::new(now.ok_or(Corruption::DeviceUsedWrong {
            device,
            used,
            total,
            change: by,
        })?);
        let item = room.item;
        let key = Key::new(ObjectId::DEVICE_ITEMS, ItemType::DEV_ITEM, device.get());
        self.put(TreeId::CHUNK, &key, &item.to_bytes())
    }

    /// Keeps room for some more nodes of the chunk tree.
    fn ensure_system_room(&mut self) -> Result<()> {
        let needed = self.core.node_bytes().get().saturating_mul(16);
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

    /// Removes block groups that were empty in the last durable state and still are; one of each kind stays.
    pub(crate) fn remove_empty_groups(&mut self) -> Result<()> {
        let mut empty: Vec<u64> = Vec::new();
        for purpose in [Purpose::Data, Purpose::Metadata] {
            let groups: Vec<&Group> = self
                .core
                .groups
                .iter()
                .filter(|group| group.serves(purpose))
                .collect();
            let unused = |group: &&&Group| {
                group.used == 0
                    && group.durable_used == 0
                    && group.written_used == Some(0)
                    && group.pinned_bytes == 0
                    && group.is_untouched()
            };
            let candidates: Vec<u64> = groups.iter().filter(unused).map(|group| group.start).collect();
            let spare = usize::from(candidates.len() == groups.len());
            // Mixed groups serve both purposes.
            empty.extend(
                candidates
                    .into_iter()
                    .skip(spare)
                    .filter(|start| !empty.contains(start))
                    .collect::<Vec<_>>(),
            );
        }
        // One free group is kept at hand, so that a workload at the edge does not make and remove chunks by turns.
        for start in empty.into_iter().skip(1) {
            if self.can_spare(start) {
                self.reach_items_of_group(start)?;
                NonBlocking::lifted(|| self.remove_group(start))?;
            }
        }
        Ok(())
    }

    /// Whether what was promised to edits and data still has room without a group.
    fn can_spare(&self, start: u64) -> bool {
        let Some(group) = self.core.groups.holding(start) else {
            return false;
        };
        let left = |purpose| {
            let here = if group.serves(purpose) {
                group.free_bytes().saturating_add(group.unbacked_bytes())
            } else {
                0
            };
            self.core
                .groups
                .room(purpose)
                .with_unbacked()
                .saturating_sub(here)
        };
        left(Purpose::Metadata) >= self.metadata_reservation_bytes(Need::items(64))
            && left(Purpose::Data) >= self.core.reserved_data_bytes
    }

    /// Goes to all that removing a group edits.
    fn reach_items_of_group(&mut self, start: u64) -> Result<()> {
        let volume = self.core.forest.volume().clone();
        let Some(group) = self.core.groups.holding(start) else {
            return Ok(());
        };
        let (group_key, end) = (group.item_key(), group.end());
        if self.has_free_space_tree() && !group.needs_free_space_info {
            let key = |at| Key::new(ObjectId::new(at), ItemType(0), 0);
            let tree = self.view(TreeId::FREE_SPACE)?;
            for item in tree.range(key(start)..key(end), ReadAhead::None) {
                item?;
            }
            self.reach(TreeId::FREE_SPACE, &key(end))?;
        }
        self.reach(self.block_group_tree(), &group_key)?;
        if let Some(mapped) = volume.chunk_map().find(Logical::new(start)) {
            let places = mapped.chunk().stripes.iter();
            let places: Vec<_> = places
                .map(|stripe| (stripe.device, stripe.physical.get()))
                .collect();
            self.reach_items_of_chunk(start, places)?;
        }
        Ok(())
    }

    /// Goes to all that making a chunk, or removing one, edits of the chunk tree and the device tree.
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

    fn remove_group(&mut self, start: u64) -> Result<()> {
        let logical = Logical::new(start);
        let volume = self.core.forest.volume().clone();
        let Some(chunk) = volume
            .chunk_map()
            .find(logical)
            .map(|mapped| (mapped.chunk().clone(), mapped.layout().device_extent_bytes()))
        else {
            return Ok(());
        };
        let Some(group) = self.core.groups.remove(start) else {
            return Ok(());
        };
        let (chunk, stripe_length) = chunk;
        self.drop_free_space_items(&group)?;
        let tree = self.block_group_tree();
        let key = Key::new(ObjectId::new(start), ItemType::BLOCK_GROUP_ITEM, group.length);
        self.remove(tree, &key)?;
        for stripe in &chunk.stripes {
            let key = Key::new(
                stripe.device.object_id(),
                ItemType::DEV_EXTENT,
                stripe.physical.get(),
            );
            self.remove(TreeId::DEVICE, &key)?;
            let length = stripe_length.get();
            self.change_device_used(
                stripe.device,
                i64::try_from(length).unwrap_or(i64::MAX).saturating_neg(),
            )?;
            self.core
                .devices
                .freed
                .push((stripe.device, stripe.physical.get(), length));
        }
        let key = Key::new(ObjectId::FIRST_CHUNK_TREE, ItemType::CHUNK_ITEM, start);
        self.remove(TreeId::CHUNK, &key)?;
        volume.remove_chunk(logical)?;
        Ok(())
    }
}
