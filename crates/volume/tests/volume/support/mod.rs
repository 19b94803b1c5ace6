//! Volumes in memory, written chunk by chunk without the library's own layout. The test image deals
//! units out to stripes one after another, and computes parity byte by byte by long multiplication.

#![allow(dead_code, unreachable_pub, reason = "each test file uses its part of this")]
#![allow(
    clippy::arithmetic_side_effects,
    clippy::cast_possible_truncation,
    clippy::panic,
    clippy::unreachable,
    clippy::too_many_lines,
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "test support"
)]

pub mod lab;

use buttress_device::Device;
use buttress_format::block_group::{BlockGroupFlags, Profile};
use buttress_format::checksum::ChecksumType;
use buttress_format::chunk::{Chunk, STRIPE_BYTES, Stripe};
use buttress_format::device_item::DeviceItem;
use buttress_format::superblock::{RawSuperblock, SUPERBLOCK_MAGIC, SUPERBLOCK_OFFSETS};
use buttress_format::{ByteCount, DeviceId, Logical, Physical, TreeId};
use buttress_volume::{OpenOptions, Volume};
use std::ops::Range;
use uuid::Uuid;
use zerocopy::{FromZeros, IntoBytes};

pub const UNIT: usize = STRIPE_BYTES as usize;
/// The offset of the stripes on every test device.
pub const STRIPE_AT: usize = 1 << 20;
/// The address of the chunk under test.
pub const CHUNK_AT: u64 = 64 << 20;
pub const FSID: Uuid = Uuid::from_bytes([0xf5; 16]);

pub fn device_uuid(id: u64) -> Uuid {
    Uuid::from_u128(0xd0_0000 + u128::from(id))
}

/// The fields of a superblock.
#[derive(Clone)]
pub struct Super {
    pub fsid: Uuid,
    pub device: u64,
    pub device_uuid: Uuid,
    pub devices: u64,
    pub generation: u64,
    pub flags: u64,
    pub incompat: u64,
    pub compat_ro: u64,
    pub device_bytes: u64,
}

impl Super {
    pub fn new(device: u64, devices: u64) -> Self {
        Self {
            fsid: FSID,
            device,
            device_uuid: device_uuid(device),
            devices,
            generation: 10,
            flags: 1,
            incompat: 0x1 | 0x40 | 0x100,
            compat_ro: 0,
            device_bytes: 32 << 20,
        }
    }

    /// Returns the superblock's 4096 bytes for the address `at`, including the checksum.
    pub fn bytes(&self, at: u64) -> Vec<u8> {
        let mut raw = RawSuperblock::new_zeroed();
        raw.fsid = self.fsid.into_bytes();
        raw.bytenr = at.into();
        raw.flags = self.flags.into();
        raw.magic = SUPERBLOCK_MAGIC;
        raw.generation = self.generation.into();
        raw.root = (30 << 20).into();
        raw.chunk_root = (22 << 20).into();
        raw.chunk_root_generation = 5.into();
        raw.total_bytes = (self.device_bytes * self.devices).into();
        raw.bytes_used = (1 << 20).into();
        raw.root_dir_objectid = 6.into();
        raw.num_devices = self.devices.into();
        raw.sectorsize = 4096.into();
        raw.nodesize = 16384.into();
        raw.leafsize = 16384.into();
        raw.stripesize = 4096.into();
        raw.compat_ro_flags = self.compat_ro.into();
        raw.incompat_flags = self.incompat.into();
        raw.dev_item.devid = self.device.into();
        raw.dev_item.total_bytes = self.device_bytes.into();
        // A device without device extents would lack nothing, whatever its generation.
        raw.dev_item.bytes_used = (4 << 20).into();
        raw.dev_item.sector_size = 4096.into();
        raw.dev_item.io_align = 4096.into();
        raw.dev_item.io_width = 4096.into();
        raw.dev_item.uuid = self.device_uuid.into_bytes();
        raw.dev_item.fsid = self.fsid.into_bytes();
        // The system chunk array holds one system chunk, single on device 1, which no test reads.
        let mut array = Vec::new();
        array.extend_from_slice(&256u64.to_le_bytes());
        array.push(228);
        array.extend_from_slice(&(20u64 << 20).to_le_bytes());
        for number in [4u64 << 20, 2, STRIPE_BYTES, 2] {
            array.extend_from_slice(&number.to_le_bytes());
        }
        for number in [65536u32, 65536, 4096] {
            array.extend_from_slice(&number.to_le_bytes());
        }
        for number in [1u16, 0] {
            array.extend_from_slice(&number.to_le_bytes());
        }
        array.extend_from_slice(&1u64.to_le_bytes());
        array.extend_from_slice(&(20u64 << 20).to_le_bytes());
        array.extend_from_slice(device_uuid(1).as_bytes());
        raw.sys_chunk_array[..array.len()].copy_from_slice(&array);
        raw.sys_chunk_array_size = u32::try_from(array.len()).unwrap().into();
        let mut bytes = raw.as_bytes().to_vec();
        let checksum = ChecksumType::Crc32c.compute(&bytes[32..]);
        bytes[..4].copy_from_slice(&checksum.as_bytes()[..4]);
        bytes
    }

    pub fn item(&self) -> DeviceItem {
        let raw = RawSuperblock::new_zeroed();
        DeviceItem {
            device: DeviceId::new(self.device),
            total_bytes: ByteCount::new(self.device_bytes),
            uuid: self.device_uuid,
            fsid: self.fsid,
            sector_bytes: 4096,
            ..DeviceItem::from_raw(&raw.dev_item)
        }
    }
}

/// Copies `bytes` into a device's image.
pub fn put(image: &mut [u8], at: usize, bytes: &[u8]) {
    image[at..at + bytes.len()].copy_from_slice(bytes);
}

/// Returns noise that is the same in every run.
pub fn noise(seed: u64, length: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 32) as u8
    };
    core::iter::repeat_with(next).take(length).collect()
}

/// Multiplies by long multiplication in GF(2^8) modulo 0x11d.
fn times(a: u8, b: u8) -> u8 {
    let mut product = (0..8)
        .filter(|bit| b >> bit & 1 == 1)
        .fold(0u32, |sum, bit| sum ^ (u32::from(a) << bit));
    for bit in (8..16).rev() {
        if product >> bit & 1 == 1 {
            product ^= 0x11d << (bit - 8);
        }
    }
    u8::try_from(product).unwrap()
}

fn power(exponent: usize) -> u8 {
    (0..exponent).fold(1, |value, _| times(value, 2))
}

/// Returns the contents of the stripes of a chunk that holds `data`.
pub fn stripes_of(profile: Profile, count: usize, data: &[u8]) -> Vec<Vec<u8>> {
    let mut stripes = vec![Vec::new(); count];
    let units: Vec<Vec<u8>> = data
        .chunks(UNIT)
        .map(|unit| {
            let mut unit = unit.to_vec();
            unit.resize(UNIT, 0);
            unit
        })
        .collect();
    match profile {
        Profile::Raid0 => {
            for (number, unit) in units.iter().enumerate() {
                stripes[number % count].extend_from_slice(unit);
            }
        }
        Profile::Raid10 => {
            for (number, unit) in units.iter().enumerate() {
                let first = number % (count / 2) * 2;
                stripes[first].extend_from_slice(unit);
                stripes[first + 1].extend_from_slice(unit);
            }
        }
        Profile::Raid5 | Profile::Raid6 => {
            let columns = count - usize::from(profile.parity_stripes());
            for (row, units) in units.chunks(columns).enumerate() {
                let mut all = units.to_vec();
                all.resize(columns, vec![0; UNIT]);
                let sum = |weights: &[u8]| -> Vec<u8> {
                    let mut total = vec![0; UNIT];
                    for (block, weight) in all.iter().zip(weights) {
                        let products: Vec<u8> = (0..=u8::MAX).map(|byte| times(*weight, byte)).collect();
                        for (total, byte) in total.iter_mut().zip(block) {
                            *total ^= products[usize::from(*byte)];
                        }
                    }
                    total
                };
                let p = sum(&vec![1; columns]);
                let q = sum(&(0..columns).map(power).collect::<Vec<_>>());
                all.push(p);
                if profile == Profile::Raid6 {
                    all.push(q);
                }
                for (column, unit) in all.iter().enumerate() {
                    stripes[(row + column) % count].extend_from_slice(unit);
                }
            }
        }
        _ => stripes.fill(data.to_vec()),
    }
    let longest = stripes.iter().map(Vec::len).max().unwrap();
    stripes.iter_mut().for_each(|stripe| stripe.resize(longest, 0));
    stripes
}

/// A volume with one data chunk at [`CHUNK_AT`], as images of its devices.
#[derive(Clone)]
pub struct Image {
    pub profile: Profile,
    pub data: Vec<u8>,
    pub stripes: usize,
    /// The images, one for each device. DUP has both stripes on one device.
    pub devices: Vec<Vec<u8>>,
    pub stripe_bytes: usize,
    pub flags: BlockGroupFlags,
}

/// The bit of the raid-stripe-tree feature.
pub const STRIPE_TREE: u64 = 1 << 14;

impl Image {
    pub fn new(profile: Profile, stripes: usize, data_bytes: usize) -> Self {
        let data = noise(7, data_bytes);
        let contents = stripes_of(profile, stripes, &data);
        let stripe_bytes = contents[0].len();
        let devices = if profile == Profile::Dup { 1 } else { stripes };
        let mut images = vec![vec![0; STRIPE_AT + 3 * stripe_bytes.next_multiple_of(1 << 20)]; devices];
        let count = images.len() as u64;
        for (index, image) in images.iter_mut().enumerate() {
            put(
                image,
                65536,
                &Self::superblock(index as u64 + 1, count).bytes(65536),
            );
        }
        let mut image = Self {
            profile,
            data,
            stripes,
            devices: images,
            stripe_bytes,
            flags: BlockGroupFlags::DATA | profile.flag(),
        };
        for (index, content) in contents.iter().enumerate() {
            let range = image.stripe_range(index);
            let device = image.device_of(index);
            image.devices[device][range].copy_from_slice(content);
        }
        image
    }

    pub fn superblock(id: u64, devices: u64) -> Super {
        Super {
            device_bytes: 65 << 20,
            ..Super::new(id, devices)
        }
    }

    pub fn device_of(&self, stripe: usize) -> usize {
        if self.devices.len() == 1 { 0 } else { stripe }
    }

    /// Returns the range of a stripe on its device. Each stripe is at a different place, so that
    /// confused stripes are detected.
    pub fn stripe_range(&self, stripe: usize) -> Range<usize> {
        let room = self.stripe_bytes.next_multiple_of(1 << 20);
        let start =
            STRIPE_AT + (stripe % 2) * room + (stripe % 3) * 4096 * usize::from(self.devices.len() > 1);
        start..start + self.stripe_bytes
    }

    /// Overwrites a whole stripe with noise.
    pub fn spoil(&mut self, stripe: usize) {
        let range = self.stripe_range(stripe);
        let device = self.device_of(stripe);
        let bytes = noise(stripe as u64 + 99, range.len());
        self.devices[device][range].copy_from_slice(&bytes);
    }

    pub fn chunk(&self) -> Chunk {
        let stripes = (0..self.stripes).map(|stripe| {
            let id = self.device_of(stripe) as u64 + 1;
            Stripe {
                device: DeviceId::new(id),
                physical: Physical::new(self.stripe_range(stripe).start as u64),
                device_uuid: device_uuid(id),
            }
        });
        Chunk {
            length: ByteCount::of(self.data.len()),
            owner: TreeId::EXTENT,
            stripe_bytes: STRIPE_BYTES,
            profile: self.flags,
            io_align: 65536,
            io_width: 65536,
            sector_bytes: 4096,
            sub_stripes: if self.profile == Profile::Raid10 { 2 } else { 1 },
            stripes: stripes.collect(),
        }
    }

    /// Opens the volume without the devices in `missing` (by index), degraded.
    pub fn open(&self, missing: &[usize]) -> Volume {
        let given = self
            .devices
            .iter()
            .enumerate()
            .filter(|(index, _)| !missing.contains(index));
        // The devices are passed in reverse, because their order must not matter.
        let devices = given
            .map(|(_, bytes)| Device::memory(bytes.clone()))
            .rev()
            .collect();
        let volume = Volume::open(
            devices,
            OpenOptions {
                degraded: true,
                ..OpenOptions::default()
            },
        )
        .unwrap();
        for id in 1..=self.devices.len() as u64 {
            volume
                .add_device(Self::superblock(id, self.devices.len() as u64).item())
                .unwrap();
        }
        volume.add_chunk(Logical::new(CHUNK_AT), self.chunk()).unwrap();
        volume.finish_bootstrap().unwrap();
        volume
    }
}

pub fn superblock_offset(copy: usize) -> usize {
    usize::try_from(SUPERBLOCK_OFFSETS[copy].get()).unwrap()
}
