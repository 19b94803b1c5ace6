//! Superblocks: compares every copy on every device with the superblock in use and with the chunk
//! tree.

use crate::context::Check;
use crate::finding::Finding;
use crate::report::Note;
use buttress_format::{
    BlockGroupFlags, ByteCount, Chunk, DeviceItem, Incompat, ItemType, Key, Physical, SUPERBLOCK_BYTES,
    SUPERBLOCK_OFFSETS, Superblock,
};
use buttress_fs::Result;
use buttress_tree::ReadAhead;
use buttress_volume::DeviceSlot;
use std::collections::BTreeMap;

/// The items of the chunk tree.
#[derive(Debug, Default)]
pub(crate) struct ChunkItems {
    /// Chunks by their first address.
    pub(crate) chunks: BTreeMap<u64, Chunk>,
    /// Devices by their ids.
    pub(crate) devices: BTreeMap<u64, DeviceItem>,
}

/// Reads the chunk tree, without the chunks in unreadable leaves.
pub(crate) fn read_chunk_tree(check: &Check<'_>) -> Result<ChunkItems> {
    let mut items = ChunkItems::default();
    let tree = check.forest.tree(crate::roots::chunk_root(check));
    for item in tree.range(Key::MIN..=Key::MAX, ReadAhead::sweep()) {
        check.progress.check()?;
        let Ok(item) = item else { continue };
        let key = item.key();
        match key.item_type {
            ItemType::CHUNK_ITEM => {
                if let Ok(chunk) = Chunk::parse(&key, item.data(), check.sector_bytes) {
                    items.chunks.insert(key.offset, chunk);
                }
            }
            ItemType::DEV_ITEM => {
                if let Ok(device) = DeviceItem::parse(&key, item.data()) {
                    items.devices.insert(key.offset, device);
                }
            }
            _ => {}
        }
    }
    Ok(items)
}

/// Checks all superblocks.
pub(crate) fn check(check: &Check<'_>, items: &ChunkItems) {
    let superblock = check.superblock();
    for slot in check.volume().devices() {
        if is_unlisted(&slot, items) {
            continue;
        }
        // A device that failed while the volume was open is no longer read.
        match slot.device().filter(|_| slot.failure().is_none()) {
            Some(_) => check_device(check, &slot, items),
            None => check.find(Finding::DeviceMissing {
                device: slot.id(),
                uuid: slot.uuid(),
            }),
        }
    }
    let counted = ByteCount::of(items.devices.len()).get();
    if superblock.num_devices != counted {
        check.find(Finding::DeviceCount {
            stored: superblock.num_devices,
            counted,
        });
    }
    let sizes = items.devices.values().map(|device| device.total_bytes);
    let counted = sizes.fold(ByteCount::ZERO, ByteCount::saturating_add);
    if superblock.total_bytes != counted && !check.is_older_state() {
        check.find(Finding::TotalBytes {
            stored: superblock.total_bytes,
            counted,
        });
    }
    check_system_chunks(check, items);
}

/// Returns whether the volume does not list a device: a device that is about to join the volume, or
/// has left it. The notice at opening reports such a device.
fn is_unlisted(slot: &DeviceSlot, items: &ChunkItems) -> bool {
    let is_listed = items.devices.values().any(|item| item.uuid == slot.uuid());
    // An unreadable chunk tree lists no devices.
    slot.item().is_none() && !is_listed && !items.devices.is_empty()
}

fn check_device(check: &Check<'_>, slot: &DeviceSlot, items: &ChunkItems) {
    let Some(device) = slot.device() else { return };
    let size = device.size_bytes();
    let item = items.devices.get(&slot.id().get());
    if let Some(expected) = item.map(|item| item.total_bytes)
        && expected.get() > size
    {
        check.find(Finding::DeviceTooSmall {
            device: slot.id(),
            size: ByteCount::new(size),
            expected,
        });
    }
    let own = check.superblock().fsid == slot.fsid();
    // A zoned device has a log of superblocks, and a seed's superblocks are no longer written.
    let has_superblocks = !check.superblock().incompat.contains(Incompat::ZONED) && own;
    if !has_superblocks || check.is_older_state() {
        return;
    }
    if let Some(stale) = slot.stale() {
        check.find(Finding::DeviceBehind {
            device: slot.id(),
            generation: stale.generation,
            expected: stale.newest,
        });
        return;
    }
    // A copy exists if it ends inside the size in the device item.
    let end = item.map_or(size, |item| item.total_bytes.get().min(size));
    for physical in SUPERBLOCK_OFFSETS {
        let copy_end = physical
            .get()
            .saturating_add(ByteCount::of(SUPERBLOCK_BYTES).get());
        if copy_end <= end {
            check_copy(check, slot, physical, item);
        }
    }
}

/// The consequence of a damaged primary superblock.
const PRIMARY_DAMAGED: &str = "; it is the primary superblock, so the kernel will refuse to mount the volume. To repair it, run `buttress filesystem sync` or `btrfs rescue super-recover`";

/// Reads and checks one superblock.
fn check_copy(check: &Check<'_>, slot: &DeviceSlot, physical: Physical, item: Option<&DeviceItem>) {
    let Some(device) = slot.device() else { return };
    let damaged = |mut reason: String| {
        if SUPERBLOCK_OFFSETS.first() == Some(&physical) {
            reason.push_str(PRIMARY_DAMAGED);
        }
        check.find(Finding::SuperblockDamaged {
            device: slot.id(),
            physical,
            reason,
        });
    };
    let bytes = match device.read(physical.get(), SUPERBLOCK_BYTES) {
        Ok(bytes) => bytes,
        Err(error) => return damaged(error.to_string()),
    };
    // A grown device, or the image of a part of a device, may never have had this superblock copy.
    // The primary superblock exists: the volume was opened by the primary, or by a copy that
    // records the problem.
    if physical != SUPERBLOCK_OFFSETS[0] && bytes.iter().all(|byte| *byte == 0) {
        let device = slot.id();
        check.note(Note::SuperblockNotWritten { device, physical });
        return;
    }
    let copy = match Superblock::check(&bytes, physical) {
        Ok(copy) => copy,
        Err(error) => return damaged(error.to_string()),
    };
    let expected = check.superblock();
    // A crash between the superblocks of several devices leaves such a primary.
    if copy.generation < expected.generation {
        check.note(Note::SuperblockBehind {
            physical,
            generation: copy.generation,
            expected: expected.generation,
        });
        return;
    }
    for (field, found, expected) in differences(&copy, expected) {
        check.find(Finding::SuperblockDiffers {
            device: slot.id(),
            physical,
            field,
            found,
            expected,
        });
    }
    if let Some(item) = item {
        compare_device_items(check, &copy.device_item, item);
    }
}

/// Returns the fields in which two superblocks of one commit differ. A log is only recorded in
/// primary superblocks.
fn differences(copy: &Superblock, expected: &Superblock) -> Vec<(&'static str, u64, u64)> {
    let fields = |superblock: &Superblock| {
        [
            ("generation", superblock.generation.get()),
            ("root", superblock.root.get()),
            ("root_level", superblock.root_level.into()),
            ("chunk_root", superblock.chunk_root.get()),
            ("chunk_root_level", superblock.chunk_root_level.into()),
            ("chunk_root_generation", superblock.chunk_root_generation.get()),
            ("total_bytes", superblock.total_bytes.get()),
            ("bytes_used", superblock.bytes_used.get()),
            ("num_devices", superblock.num_devices),
            ("compat_ro_flags", superblock.compat_ro.bits()),
            ("incompat_flags", superblock.incompat.bits()),
            ("sectorsize", superblock.sector_bytes.into()),
            ("nodesize", superblock.node_bytes.into()),
        ]
    };
    fields(copy)
        .into_iter()
        .zip(fields(expected))
        .filter(|((_, found), (_, expected))| found != expected)
        .map(|((field, found), (_, expected))| (field, found, expected))
        .collect()
}

/// The kernel writes the current use of a device into its superblocks, which may exceed the use in
/// the commit's device item. The check does not compare the field for the used bytes.
fn compare_device_items(check: &Check<'_>, superblock: &DeviceItem, item: &DeviceItem) {
    let fields = |item: &DeviceItem| {
        [
            ("total_bytes", item.total_bytes.to_string()),
            ("fsid", item.fsid.to_string()),
        ]
    };
    for ((field, superblock), (_, stored)) in fields(superblock).into_iter().zip(fields(item)) {
        if superblock != stored {
            check.find(Finding::DeviceItemDiffers {
                device: item.device,
                field,
                superblock,
                item: stored,
            });
        }
    }
}

/// Checks that the array of system chunks equals the system chunks of the chunk tree.
fn check_system_chunks(check: &Check<'_>, items: &ChunkItems) {
    let array = &check.superblock().system_chunks;
    for (key, chunk) in array {
        let problem = match items.chunks.get(&key.offset) {
            None => "it is missing in the chunk tree, but in the superblock",
            Some(other) if other != chunk => "it differs between the superblock and the chunk tree",
            Some(_) => continue,
        };
        check.find(Finding::SystemChunkDiffers {
            logical: buttress_format::Logical::new(key.offset),
            problem,
        });
    }
    for (start, chunk) in &items.chunks {
        let is_system = chunk.profile.contains(BlockGroupFlags::SYSTEM);
        if is_system && !array.iter().any(|(key, _)| key.offset == *start) {
            check.find(Finding::SystemChunkDiffers {
                logical: buttress_format::Logical::new(*start),
                problem: "it is missing in the superblock, but in the chunk tree",
            });
        }
    }
}
