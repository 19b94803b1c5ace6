//! Volumes of several devices with a RAID stripe tree, made in memory.
//!
//! The chunk of [`World`] holds the metadata of the test volume on device 1. A separate data chunk
//! holds the data, from the ends of its stripes downwards, as a device that chooses the places
//! might do. In these test volumes, data is never located where the chunk's layout would place it.
//! The stripe tree holds the places, and the rest of the devices is noise.

use super::{World, edit_superblock, key};
use crate::open::OpenOptions;
use buttress_device::Device;
use buttress_format::block_group::BlockGroupFlags;
use buttress_format::chunk::{RawChunk, RawStripe};
use buttress_format::device_item::RawDeviceItem;
use buttress_format::superblock::Incompat;
use buttress_format::{
    ByteCount, ChecksumType, ItemType, Key, Logical, ObjectId, SUPERBLOCK_OFFSETS, TreeId,
};
use zerocopy::{FromZeros, IntoBytes};

/// The logical address of the data chunk.
pub(crate) const DATA_LOGICAL: u64 = 1 << 30;

/// The unit of striping.
pub(crate) const UNIT: u64 = 64 << 10;

/// The size of every device.
pub(crate) const DEVICE_BYTES: u64 = 16 << 20;

/// The file that holds all of the chunk's data.
pub(crate) const FILE: u64 = 257;

const SECTOR: usize = 4096;
const STRIPE_BYTES: u64 = 2 << 20;
const FIRST_STRIPE: u64 = 10 << 20;
const CHUNK_BYTES: u64 = 1 << 20;

/// A profile and its number of devices, with one stripe on each. DUP has both stripes on device 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Shape {
    pub(crate) profile: BlockGroupFlags,
    pub(crate) stripes: u64,
}

impl Shape {
    pub(crate) const DUP: Self = Self::of(BlockGroupFlags::DUP, 2);
    pub(crate) const RAID1: Self = Self::of(BlockGroupFlags::RAID1, 2);
    pub(crate) const RAID1C3: Self = Self::of(BlockGroupFlags::RAID1C3, 3);
    pub(crate) const RAID1C4: Self = Self::of(BlockGroupFlags::RAID1C4, 4);
    pub(crate) const RAID0: Self = Self::of(BlockGroupFlags::RAID0, 3);
    pub(crate) const RAID10: Self = Self::of(BlockGroupFlags::RAID10, 4);
    pub(crate) const ALL: [Self; 6] = [
        Self::DUP,
        Self::RAID1,
        Self::RAID1C3,
        Self::RAID1C4,
        Self::RAID0,
        Self::RAID10,
    ];
    /// The profiles with more than one copy.
    pub(crate) const MIRRORED: [Self; 5] =
        [Self::DUP, Self::RAID1, Self::RAID1C3, Self::RAID1C4, Self::RAID10];

    const fn of(profile: BlockGroupFlags, stripes: u64) -> Self {
        Self { profile, stripes }
    }

    pub(crate) fn devices(self) -> u64 {
        if self == Self::DUP { 1 } else { self.stripes }
    }

    pub(crate) fn is_striped(self) -> bool {
        self == Self::RAID0 || self == Self::RAID10
    }

    pub(crate) fn device_of(self, stripe: u64) -> u64 {
        if self == Self::DUP { 1 } else { stripe + 1 }
    }

    /// Returns the stripes that hold the byte at `offset` of the chunk.
    pub(crate) fn stripes_at(self, offset: u64) -> Vec<u64> {
        match (offset / UNIT, self) {
            (unit, Self::RAID0) => vec![unit % self.stripes],
            (unit, Self::RAID10) => {
                let first = unit % (self.stripes / 2) * 2;
                vec![first, first + 1]
            }
            _ => (0..self.stripes).collect(),
        }
    }
}

/// An entry of the stripe tree and the places of its copies: `(stripe, physical)` each.
#[derive(Clone, Debug)]
pub(crate) struct Entry {
    pub(crate) offset: u64,
    pub(crate) length: u64,
    pub(crate) copies: Vec<(u64, u64)>,
}

/// A volume under construction.
pub(crate) struct Striped {
    pub(crate) shape: Shape,
    pub(crate) world: World,
    pub(crate) content: Vec<u8>,
    pub(crate) entries: Vec<Entry>,
    /// The devices, device 1 first. The metadata is added when the volume is finished.
    pub(crate) devices: Vec<Vec<u8>>,
}

impl Striped {
    /// Makes a volume whose file [`FILE`] is one extent of `content`. On the devices, the extent
    /// consists of runs; `runs` lists their lengths in sectors, repeated as needed. Striped
    /// profiles also end runs at the units.
    pub(crate) fn new(shape: Shape, content: Vec<u8>, runs: &[u64]) -> Self {
        let mut world = World::new();
        let size = content.len() as u64;
        world.file(256, b"file", FILE, size);
        world.range(FILE, 0, (Logical::new(DATA_LOGICAL), size), 0, size);
        let mut sums = Vec::new();
        ChecksumType::Crc32c.compute_sectors(&content, SECTOR, &mut sums);
        let place = Key::new(ObjectId::EXTENT_CHECKSUM, ItemType::EXTENT_CSUM, DATA_LOGICAL);
        world.items(TreeId::CHECKSUM.get()).insert(place, sums);
        let noise = (0..DEVICE_BYTES).map(|at| (at % 253).to_le_bytes()[0]).collect();
        let mut striped = Self {
            shape,
            world,
            content,
            entries: Vec::new(),
            devices: vec![noise; usize::try_from(shape.devices()).unwrap()],
        };
        striped.store(runs);
        striped
    }

    fn stripe_start(&self, stripe: u64) -> u64 {
        FIRST_STRIPE
            + if self.shape == Shape::DUP {
                stripe * STRIPE_BYTES
            } else {
                0
            }
    }

    fn store(&mut self, runs: &[u64]) {
        let size = self.content.len() as u64;
        // The tops differ, so that one copy's place is wrong for another copy.
        let mut tops: Vec<u64> = (0..self.shape.stripes)
            .map(|stripe| self.stripe_start(stripe) + STRIPE_BYTES - stripe * 12_288)
            .collect();
        let mut runs = runs.iter().cycle();
        let mut offset = 0;
        while offset < size {
            let mut length = (runs.next().unwrap() * SECTOR as u64).min(size - offset);
            if self.shape.is_striped() {
                length = length.min(UNIT - offset % UNIT);
            }
            let mut copies = Vec::new();
            for stripe in self.shape.stripes_at(offset) {
                let top = &mut tops[usize::try_from(stripe).unwrap()];
                *top -= length;
                copies.push((stripe, *top));
                *top -= SECTOR as u64;
            }
            self.put(Entry {
                offset,
                length,
                copies,
            });
            offset += length;
        }
    }

    /// Stores a stripe tree entry and its bytes. If the order of copies has no meaning, the test
    /// lists the copies in reverse.
    pub(crate) fn put(&mut self, entry: Entry) {
        let from = usize::try_from(entry.offset).unwrap();
        let length = usize::try_from(entry.length).unwrap();
        for (stripe, physical) in &entry.copies {
            let device = usize::try_from(self.shape.device_of(*stripe) - 1).unwrap();
            let at = usize::try_from(*physical).unwrap();
            self.devices[device][at..at + length].copy_from_slice(&self.content[from..from + length]);
        }
        let mut listed: Vec<(u64, u64)> = entry
            .copies
            .iter()
            .map(|(stripe, physical)| (self.shape.device_of(*stripe), *physical))
            .collect();
        if self.shape != Shape::DUP {
            listed.reverse();
        }
        self.list(entry.offset, entry.length, &listed);
        self.entries.push(entry);
    }

    /// Replaces the stripe tree's item of an extent. The strides are `(device, physical)` each.
    pub(crate) fn list(&mut self, offset: u64, length: u64, strides: &[(u64, u64)]) {
        let bytes = strides
            .iter()
            .flat_map(|(device, physical)| [device.to_le_bytes(), physical.to_le_bytes()].concat())
            .collect();
        self.items().insert(Self::key_of(offset, length), bytes);
    }

    pub(crate) fn items(&mut self) -> &mut std::collections::BTreeMap<Key, Vec<u8>> {
        self.world.items(TreeId::RAID_STRIPE.get())
    }

    pub(crate) fn key_of(offset: u64, length: u64) -> Key {
        key(DATA_LOGICAL + offset, ItemType::RAID_STRIPE, length)
    }

    /// Returns the volume's devices, device 1 first.
    pub(crate) fn finish(mut self) -> Vec<Vec<u8>> {
        let shape = self.shape;
        let count = shape.devices();
        let chunk = self.chunk_item();
        let chunk_items = self.world.items(TreeId::CHUNK.get());
        for id in 1..=count {
            let place = Key::new(ObjectId::DEVICE_ITEMS, ItemType::DEV_ITEM, id);
            chunk_items.insert(place, device_item(id).as_bytes().to_vec());
        }
        let place = Key::new(ObjectId::FIRST_CHUNK_TREE, ItemType::CHUNK_ITEM, DATA_LOGICAL);
        chunk_items.insert(place, chunk);
        let metadata = self.world.image();
        let start = usize::try_from(SUPERBLOCK_OFFSETS[0].get()).unwrap();
        for (id, device) in (1..).zip(&mut self.devices) {
            if id == 1 {
                device[..metadata.len()].copy_from_slice(&metadata);
            } else {
                device[start..start + SECTOR].copy_from_slice(&metadata[start..start + SECTOR]);
            }
            edit_superblock(device, |raw| {
                raw.num_devices = count.into();
                raw.total_bytes = (count * DEVICE_BYTES).into();
                raw.incompat_flags |= Incompat::RAID_STRIPE_TREE.bits();
                raw.dev_item = device_item(id);
            });
        }
        self.devices
    }

    fn chunk_item(&self) -> Vec<u8> {
        let chunk = RawChunk {
            length: CHUNK_BYTES.into(),
            owner: TreeId::EXTENT.get().into(),
            stripe_len: UNIT.into(),
            chunk_type: (BlockGroupFlags::DATA | self.shape.profile).bits().into(),
            io_align: 65536.into(),
            io_width: 65536.into(),
            sector_size: 4096.into(),
            num_stripes: u16::try_from(self.shape.stripes).unwrap().into(),
            sub_stripes: if self.shape == Shape::RAID10 { 2 } else { 1 }.into(),
        };
        let mut bytes = chunk.as_bytes().to_vec();
        for stripe in 0..self.shape.stripes {
            let device = self.shape.device_of(stripe);
            let raw = RawStripe {
                devid: device.into(),
                offset: self.stripe_start(stripe).into(),
                dev_uuid: device_uuid(device),
            };
            bytes.extend_from_slice(raw.as_bytes());
        }
        bytes
    }
}

fn device_uuid(id: u64) -> [u8; 16] {
    // The first device holds the metadata, which the image's builder made.
    if id == 1 {
        *b"test-device-uuid"
    } else {
        [id.to_le_bytes()[0]; 16]
    }
}

fn device_item(id: u64) -> RawDeviceItem {
    let mut item = RawDeviceItem::new_zeroed();
    item.devid = id.into();
    item.total_bytes = DEVICE_BYTES.into();
    item.bytes_used = STRIPE_BYTES.into();
    item.io_align = 4096.into();
    item.io_width = 4096.into();
    item.sector_size = 4096.into();
    item.uuid = device_uuid(id);
    item.fsid = *b"test-volume-fsid";
    item
}

/// Returns the options for opening the test's devices.
pub(crate) fn opening(devices: Vec<Vec<u8>>) -> OpenOptions {
    let devices = devices.into_iter().map(Device::memory).collect();
    OpenOptions::new(devices).cache(ByteCount::new(4 << 20))
}
