//! The file system of given devices: its uuid, sizes and checksum type.
//!
//! Superblocks state all of these. If no superblock is left, or if another file system was made
//! over the wanted one, [`identify_by_blocks`] samples tree blocks. Sampling tries every block size and
//! checksum type on each plausible header, until enough checksums match.
//!
//! # Left out
//!
//! Superblocks in the log zones of zoned devices other than the newest one.

use crate::error::{Error, Result};
use crate::header::{self, NODE_BYTES_MAX, STEP_BYTES};
use buttress_device::Device;
use buttress_exact::{Exact as _, usize_of};
use buttress_format::superblock::{CompatRo, Incompat, Superblock};
use buttress_format::{ByteCount, ChecksumType, DeviceId, Generation};
use buttress_fs::Progress;
use buttress_volume::superblocks::choose;
use std::collections::BTreeMap;
use uuid::Uuid;

/// The number of matching checksums after which sampling stops.
const SAMPLES: u32 = 64;

/// The number of file systems that sampling distinguishes.
const FILE_SYSTEMS_MAX: usize = 16;

/// The bytes that sampling reads at once.
const READ_BYTES: usize = 1 << 20;

/// The facts about a file system that a scan needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// The uuid that users see.
    pub fsid: Uuid,
    /// The uuid that tree blocks carry.
    pub metadata_uuid: Uuid,
    /// The former uuid, which blocks may still carry while a change of the uuid is unfinished.
    pub former_uuid: Option<Uuid>,
    /// The size of tree blocks, in bytes.
    pub node_bytes: u32,
    /// The sector size, in bytes.
    pub sector_bytes: u32,
    /// The checksum type.
    pub checksum_type: ChecksumType,
    /// The incompatible features, which decide on the rules for items.
    pub incompat: Incompat,
    /// The read-only compatible features, which decide on the rules for items.
    pub compat_ro: CompatRo,
    /// The given devices, in their order.
    pub devices: Vec<FoundDevice>,
}

/// A given device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FoundDevice {
    /// The size in bytes.
    pub size: ByteCount,
    /// The time of the image file's last change, in seconds and nanoseconds since 1970.
    pub changed_at: Option<(i64, u32)>,
    /// The device's uuid and id, and the generation of its superblock. `None` if the device has no
    /// superblock of the file system.
    pub member: Option<(Uuid, DeviceId, Generation)>,
}

impl Identity {
    /// Returns the newest generation of the superblocks.
    #[must_use]
    pub fn generation(&self) -> Option<Generation> {
        let members = self.devices.iter().filter_map(|device| device.member);
        members.map(|(_, _, generation)| generation).max()
    }

    /// Returns whether the identity changes with the content of each device. The content of a device
    /// without a time of change and without a superblock can change, and size and uuid stay equal.
    #[must_use]
    pub fn shows_changes(&self) -> bool {
        let shows = |device: &FoundDevice| device.changed_at.is_some() || device.member.is_some();
        self.devices.iter().all(shows)
    }

    fn of_superblock(devices: &[Device], superblock: &Superblock, all: &[Option<Superblock>]) -> Self {
        Self {
            fsid: superblock.fsid,
            metadata_uuid: superblock.metadata_uuid,
            former_uuid: superblock.former_fsid(),
            node_bytes: superblock.node_bytes,
            sector_bytes: superblock.sector_bytes,
            checksum_type: superblock.checksum_type,
            incompat: superblock.incompat,
            compat_ro: superblock.compat_ro,
            devices: found_devices(devices, all, superblock.fsid),
        }
    }
}

fn found_devices(devices: &[Device], superblocks: &[Option<Superblock>], fsid: Uuid) -> Vec<FoundDevice> {
    let pairs = devices.iter().zip(superblocks);
    pairs
        .map(|(device, superblock)| FoundDevice {
            size: ByteCount::new(device.size_bytes()),
            changed_at: device.changed_at(),
            member: superblock
                .as_ref()
                .filter(|superblock| superblock.fsid == fsid)
                .map(|superblock| {
                    let item = &superblock.device_item;
                    (item.uuid, item.device, superblock.generation)
                }),
        })
        .collect()
}

/// Returns the superblocks of devices, as far as they are valid.
fn superblocks(devices: &[Device]) -> Vec<Option<Superblock>> {
    let chosen = devices.iter().map(|device| choose(device).ok());
    chosen
        .map(|chosen| chosen.map(|chosen| chosen.superblock))
        .collect()
}

/// Returns the file systems of the devices' superblocks, in the order of the devices. Without any
/// valid superblock, returns the file systems that samples of tree blocks show, the most frequent
/// first.
///
/// # Errors
/// Fails if a device fails, or if the devices hold no tree block.
pub fn identify(devices: &[Device], progress: &Progress) -> Result<Vec<Identity>> {
    let superblocks = superblocks(devices);
    let mut found: Vec<Identity> = Vec::new();
    for superblock in superblocks.iter().flatten() {
        if found.iter().any(|known| known.fsid == superblock.fsid) {
            continue;
        }
        let same = superblocks.iter().flatten();
        let newest = same
            .filter(|other| other.fsid == superblock.fsid)
            .max_by_key(|other| other.generation);
        let newest = newest.unwrap_or(superblock); // Clamp: `superblock` itself is among them.
        found.push(Identity::of_superblock(devices, newest, &superblocks));
    }
    if found.is_empty() {
        found = identify_by_blocks(devices, None, progress)?;
    }
    Ok(found)
}

/// The properties of a block that a sample proves.
type Sampled = (Uuid, u32, u16);

/// Returns the file systems that samples of tree blocks show, the most frequent first. With a
/// `wanted` uuid, returns this file system alone.
///
/// # Errors
/// Fails if a device cannot report its data, or if no sampled block is a tree block.
pub fn identify_by_blocks(
    devices: &[Device],
    wanted: Option<Uuid>,
    progress: &Progress,
) -> Result<Vec<Identity>> {
    let mut counts: BTreeMap<Sampled, u32> = BTreeMap::new();
    let mut bytes = 0_u64;
    for device in devices {
        bytes = bytes.exact_add(sample(device, wanted, &mut counts, progress)?);
    }
    let superblocks = superblocks(devices);
    let mut ranked: Vec<(Sampled, u32)> = counts.into_iter().collect();
    ranked.sort_by_key(|(sampled, count)| (core::cmp::Reverse(*count), *sampled));
    let mut found: Vec<Identity> = Vec::new();
    for ((uuid, node_bytes, checksum_type), _) in ranked {
        // Other sizes and types of one uuid match by chance at most.
        if found.iter().any(|known| known.metadata_uuid == uuid) {
            continue;
        }
        found.push(Identity {
            fsid: uuid,
            metadata_uuid: uuid,
            former_uuid: None,
            node_bytes,
            sector_bytes: 4096,
            checksum_type: ChecksumType::from_raw(checksum_type).unwrap_or(ChecksumType::Crc32c), // Clamp: `sample` stores known types.
            // The rules of items allow mixed chunks.
            incompat: Incompat::MIXED_BACKREF
                .union(Incompat::MIXED_GROUPS)
                .union(Incompat::EXTENDED_IREF)
                .union(Incompat::SKINNY_METADATA)
                .union(Incompat::NO_HOLES),
            compat_ro: CompatRo::empty(),
            devices: found_devices(devices, &superblocks, uuid),
        });
    }
    let names = || {
        let names: Vec<&str> = devices.iter().map(Device::name).collect();
        names.join(", ")
    };
    match (found.is_empty(), wanted) {
        (false, _) => Ok(found),
        (true, Some(fsid)) => Err(Error::NoSuchFileSystem {
            fsid,
            devices: names(),
        }),
        (true, None) => Err(Error::NoBlocks {
            devices: names(),
            bytes,
        }),
    }
}

/// Samples tree blocks of one device. Returns the number of bytes read.
fn sample(
    device: &Device,
    wanted: Option<Uuid>,
    counts: &mut BTreeMap<Sampled, u32>,
    progress: &Progress,
) -> Result<u64> {
    let (mut at, mut bytes, mut matches) = (0_u64, 0_u64, 0_u32);
    let size = device.size_bytes();
    while let Some(data) = device.next_data(at)? {
        at = data
            .start
            .quotient(STEP_BYTES as u64)
            .exact_mul(STEP_BYTES as u64);
        while at < data.end {
            progress.check()?;
            let rest = size.exact_sub(at);
            let length = buttress_exact::at_most(rest, READ_BYTES.exact_add(NODE_BYTES_MAX));
            let next = at.exact_add(READ_BYTES as u64);
            // Unreadable bytes hold no sample.
            if let Ok(buffer) = device.read(at, length) {
                bytes = bytes.exact_add(length as u64);
                for start in (0..length.min(READ_BYTES)).step_by(STEP_BYTES) {
                    let Some(block) = buffer.get(start..) else {
                        continue;
                    };
                    let is_wanted = wanted.is_none() || header::fsid(block) == wanted;
                    if !is_wanted || !header::is_plausible(block) {
                        continue;
                    }
                    let Some(sampled) = matching(block) else { continue };
                    if counts.len() < FILE_SYSTEMS_MAX || counts.contains_key(&sampled) {
                        let count = counts.entry(sampled).or_default();
                        *count = count.exact_add(1);
                        matches = matches.exact_add(1);
                    }
                }
            }
            if matches >= SAMPLES {
                return Ok(bytes);
            }
            at = next;
        }
    }
    Ok(bytes)
}

/// Returns the uuid, size and checksum type for which the block's checksum is correct.
fn matching(block: &[u8]) -> Option<Sampled> {
    const CHECKSUM_FIELD_BYTES: usize = 32;
    let uuid = header::fsid(block)?;
    // 16 KiB is the default of mkfs.btrfs.
    for node_bytes in [16_u32 << 10, 4 << 10, 8 << 10, 32 << 10, 64 << 10] {
        let Some(covered) = block.get(CHECKSUM_FIELD_BYTES..usize_of(node_bytes)) else {
            continue;
        };
        for checksum_type in ChecksumType::ALL {
            if block.starts_with(checksum_type.compute(covered).as_bytes()) {
                return Some((uuid, node_bytes, checksum_type.to_raw()));
            }
        }
    }
    None
}
