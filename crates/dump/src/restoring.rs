//! Restoring dumps to devices.
//!
//! Three passes over the dump: the first reads the superblock and the chunk tree, and the second
//! checks the place of each item. The target is unchanged until then. The third pass writes each item
//! to all places that the chunk tree names. The old superblocks are zeroed durably before
//! the first block, and the new superblocks follow after a flush, so a cut restore is no volume.
//!
//! A restored volume has the flag of metadata images, because its data is missing. Linux mounts it;
//! Buttress only reads it.

use crate::chunk_tree::{Gathering, Geometry};
use crate::error::{Error, Result};
use crate::one_device::{flattened, rewrite};
use crate::reading::{DumpItem, DumpReader};
use buttress_device::Device;
use buttress_exact::{Exact as _, usize_of};
use buttress_format::Logical;
use buttress_format::superblock::{SUPERBLOCK_BYTES, SUPERBLOCK_OFFSETS, SuperblockFlags};
use buttress_fs::Progress;
use buttress_volume::Volume;
use buttress_volume::write::ExtentWrite;
use std::collections::BTreeMap;
use std::io::{Read, Seek, SeekFrom};

/// The result of a restore.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Restored {
    /// The number of bytes of tree blocks.
    pub bytes: u64,
    /// Whether a volume of several devices was restored to one device.
    pub is_flattened: bool,
}

/// Restores a dump to devices, in the order of their ids in the volume. A dump of a volume with
/// several devices can also be restored to one device, which then has all metadata at its logical
/// addresses. Devices that are too short grow, if they are files.
///
/// # Errors
/// Fails with [`Error::Damaged`] or [`Error::Unusable`] for a damaged dump, with [`Error::Devices`]
/// for another number of devices, or with an error of a device.
pub fn restore<R: Read + Seek>(input: &mut R, devices: &[Device], progress: &Progress) -> Result<Restored> {
    input.seek(SeekFrom::Start(0))?;
    let mut gathering = Gathering::default();
    let mut reader = DumpReader::new(&mut *input);
    while let Some(item) = reader.next_item()? {
        progress.check()?;
        gathering.add(&item)?;
    }
    let geometry = gathering.finish()?;
    let mut reader = blocks_of(input)?;
    while let Some(item) = reader.next_item()? {
        progress.check()?;
        geometry.require_place(&item)?;
    }
    let is_flattened = devices.len() == 1 && geometry.superblock.num_devices > 1;
    let geometry = match is_flattened {
        true => flattened(geometry)?,
        false => geometry,
    };
    let target = Target::new(geometry, devices, is_flattened)?;
    let mut reader = blocks_of(input)?;
    let mut restored = Restored {
        bytes: 0,
        is_flattened,
    };
    let mut over_copies = OverCopies::default();
    while let Some(mut item) = reader.next_item()? {
        progress.check()?;
        // The file of the dump may have changed since the check.
        target.geometry.require_place(&item)?;
        if is_flattened {
            target.flatten(&mut item);
        }
        restored.bytes = restored.bytes.exact_add(item.bytes.len() as u64);
        if is_flattened {
            over_copies.keep(&item);
        }
        target.put(item)?;
    }
    target.finish(over_copies)?;
    Ok(restored)
}

/// Returns a reader behind the superblock, which is the first item of a dump.
fn blocks_of<R: Read + Seek>(input: &mut R) -> Result<DumpReader<&mut R>> {
    input.seek(SeekFrom::Start(0))?;
    let mut reader = DumpReader::new(input);
    reader.next_item()?;
    Ok(reader)
}

/// The items of a flattened volume that cover places of superblocks, by address. A repeated item
/// replaces the earlier item. Item starts are whole sectors and items have at most 256 KiB, so the
/// number of items is bounded.
#[derive(Debug, Default)]
pub(crate) struct OverCopies(pub(crate) BTreeMap<u64, DumpItem>);

impl OverCopies {
    /// Keeps a copy of the item if the item covers the place of a superblock.
    pub(crate) fn keep(&mut self, item: &DumpItem) {
        if is_over_superblock(item) {
            self.0.insert(item.logical, item.clone());
        }
    }
}

/// Returns whether an item at its logical address covers the place of a superblock.
fn is_over_superblock(item: &DumpItem) -> bool {
    // Clamp: an item past the last address covers no superblock.
    let end = item.logical.saturating_add(item.bytes.len() as u64);
    SUPERBLOCK_OFFSETS.iter().any(|at| {
        let superblock_end = at.get().exact_add(SUPERBLOCK_BYTES as u64);
        item.logical < superblock_end && at.get() < end
    })
}

/// Zeroes all superblocks of the device's old content, durably. The superblocks of most other file
/// systems are before the primary.
fn zero_superblocks(device: &Device) -> Result<()> {
    const FRONT_BYTES: usize = 64 << 10;
    let copies = SUPERBLOCK_OFFSETS.map(|at| (at.get(), SUPERBLOCK_BYTES));
    for (start, length) in core::iter::once((0, FRONT_BYTES)).chain(copies) {
        if start.exact_add(length as u64) <= device.size_bytes() {
            device.write(start, &vec![0; length])?;
        }
    }
    Ok(device.flush()?)
}

/// The volume that is being restored.
struct Target {
    geometry: Geometry,
    volume: Volume,
    is_flattened: bool,
}

impl Target {
    fn new(mut geometry: Geometry, devices: &[Device], is_flattened: bool) -> Result<Self> {
        if devices.len() != geometry.devices.len() {
            return Err(Error::Devices {
                found: devices.len(),
                expected: geometry.devices.len() as u64,
            });
        }
        for (device, item) in devices.iter().zip(&geometry.devices) {
            if device.size_bytes() < item.total_bytes.get() {
                device.set_size(item.total_bytes.get())?;
            }
        }
        geometry.superblock.flags.insert(SuperblockFlags::METADUMP_V2);
        let items = geometry.devices.iter().copied();
        let given = devices.iter().cloned().zip(items).collect();
        let volume = Volume::create(given, geometry.superblock.clone())?;
        for (start, chunk) in &geometry.chunks {
            volume.add_chunk(Logical::new(*start), chunk.clone())?;
        }
        devices.iter().try_for_each(zero_superblocks)?;
        Ok(Self {
            geometry,
            volume,
            is_flattened,
        })
    }

    /// Changes the blocks of an item to those of one device.
    fn flatten(&self, item: &mut DumpItem) {
        let node_bytes = usize_of(self.geometry.superblock.block_format().node_bytes);
        let mut at = item.logical;
        for block in item.bytes.chunks_mut(node_bytes) {
            let length = block.len() as u64;
            rewrite(block, at, &self.geometry);
            // Chunks map the whole item, so its addresses do not overflow.
            at = at.exact_add(length);
        }
    }

    fn put(&self, item: DumpItem) -> Result<()> {
        let extent = ExtentWrite {
            logical: Logical::new(item.logical),
            bytes: item.bytes.into(),
        };
        Ok(self.volume.write(core::slice::from_ref(&extent))?)
    }

    /// Writes the superblocks. Metadata at the place of a superblock copy counts more than the copy.
    fn finish(&self, over_copies: OverCopies) -> Result<()> {
        self.volume.flush()?;
        self.volume
            .write_superblocks(&self.geometry.superblock, &self.geometry.devices)?;
        if self.is_flattened && !over_copies.0.is_empty() {
            over_copies.0.into_values().try_for_each(|item| self.put(item))?;
            self.volume.flush()?;
        }
        Ok(())
    }
}
