//! Compares chunks with block groups, device extents and device items.

use crate::context::Check;
use crate::finding::Finding;
use crate::report::Note;
use crate::roots::Root;
use crate::superblocks::ChunkItems;
use buttress_format::{
    BlockGroupFlags, BlockGroupItem, ByteCount, CompatRo, DeviceExtent, DeviceId, ItemType, Key, Logical,
    ObjectId, Physical, ReplaceItem, ReplaceState, TreeId,
};
use buttress_fs::Result;
use buttress_tree::{ReadAhead, Tree};
use std::collections::BTreeMap;

/// A block group.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Group {
    pub(crate) start: u64,
    pub(crate) end: u64,
    pub(crate) used: u64,
    pub(crate) flags: BlockGroupFlags,
}

/// Returns all block groups in order of address, each compared with its chunk.
pub(crate) fn groups(check: &Check<'_>, roots: &[Root], items: &ChunkItems) -> Result<Vec<Group>> {
    let own_tree = check.superblock().compat_ro.contains(CompatRo::BLOCK_GROUP_TREE);
    let id = if own_tree {
        TreeId::BLOCK_GROUP
    } else {
        TreeId::EXTENT
    };
    let Some(tree) = check.tree(id, roots) else {
        return Ok(Vec::new());
    };
    let mut groups = Vec::new();
    if own_tree {
        for item in tree.range(.., ReadAhead::sweep()) {
            check.progress.check()?;
            let Ok(item) = item else { continue };
            if let Ok(group) = BlockGroupItem::parse(&item.key(), item.data())
                && item.key().item_type == ItemType::BLOCK_GROUP_ITEM
            {
                match items.chunks.get(&group.start.get()) {
                    Some(chunk) if chunk.length == group.length => {}
                    _ => check.find(Finding::ChunkMissing {
                        logical: group.start,
                        length: group.length,
                    }),
                }
                groups.push(Group::of(&group));
            }
        }
    }
    for (start, chunk) in &items.chunks {
        check.progress.check()?;
        let logical = Logical::new(*start);
        let known = groups
            .binary_search_by_key(start, |group: &Group| group.start)
            .ok();
        let group = if own_tree {
            known.and_then(|index| groups.get(index)).copied()
        } else {
            find(&tree, *start, chunk.length)
        };
        let Some(group) = group.filter(|group| group.length() == chunk.length.get()) else {
            check.find(Finding::BlockGroupMissing {
                logical,
                length: chunk.length,
            });
            continue;
        };
        if group.flags != chunk.profile {
            check.find(Finding::BlockGroupFlagsDiffer {
                logical,
                group: group.flags.to_string(),
                chunk: chunk.profile.to_string(),
            });
        }
        if !own_tree {
            groups.push(group);
        }
    }
    // A volume with overlapping chunks does not open. Overlapping groups are cut, so that each
    // address belongs to one.
    groups.dedup_by(|next, previous| next.start < previous.end);
    Ok(groups)
}

impl Group {
    fn of(item: &BlockGroupItem) -> Self {
        Self {
            start: item.start.get(),
            end: item.start.saturating_add(item.length).get(),
            used: item.used.get(),
            flags: item.flags,
        }
    }

    pub(crate) const fn length(&self) -> u64 {
        self.end.saturating_sub(self.start)
    }
}

/// Returns the block group of a chunk in the extent tree.
fn find(tree: &Tree, start: u64, length: ByteCount) -> Option<Group> {
    let key = Key::new(ObjectId::new(start), ItemType::BLOCK_GROUP_ITEM, length.get());
    let item = tree.get(&key).ok()??;
    let item = BlockGroupItem::parse(&key, item.data()).ok()?;
    Some(Group::of(&item))
}

/// A stripe, as its device extent must record it.
#[derive(Clone, Copy)]
struct Stripe {
    chunk: Logical,
    length: ByteCount,
}

/// Compares device extents with the stripes of chunks and with the devices.
pub(crate) fn check_devices(check: &Check<'_>, roots: &[Root], items: &ChunkItems) -> Result<()> {
    let Some(tree) = check.tree(TreeId::DEVICE, roots) else {
        return Ok(());
    };
    let mut stripes: BTreeMap<(u64, u64), Stripe> = BTreeMap::new();
    for chunk in check.volume().chunk_map().chunks() {
        let length = chunk.layout().device_extent_bytes();
        for stripe in &chunk.chunk().stripes {
            let place = (stripe.device.get(), stripe.physical.get());
            let chunk = chunk.start();
            stripes.insert(place, Stripe { chunk, length });
        }
    }
    let mut used: BTreeMap<u64, u64> = BTreeMap::new();
    let mut previous = (0, 0);
    let mut complete = true;
    for item in tree.range(.., ReadAhead::sweep()) {
        check.progress.check()?;
        let Ok(item) = item else {
            complete = false;
            continue;
        };
        let key = item.key();
        if key.item_type == ItemType::DEV_REPLACE {
            note_replace(check, &key, item.data());
        }
        if key.item_type != ItemType::DEV_EXTENT {
            continue;
        }
        let Ok(extent) = DeviceExtent::parse(&key, item.data(), check.sector_bytes) else {
            continue;
        };
        let sum = used.entry(extent.device.get()).or_default();
        *sum = sum.saturating_add(extent.length.get());
        check_extent(check, &extent, &mut stripes, items, previous);
        previous = (extent.device.get(), extent.end().get());
    }
    if !complete {
        return Ok(());
    }
    for ((device, physical), stripe) in stripes {
        check.find(Finding::DeviceExtentMissing {
            chunk: stripe.chunk,
            device: DeviceId::new(device),
            physical: Physical::new(physical),
            length: stripe.length,
        });
    }
    for device in items.devices.values() {
        let counted = used.get(&device.device.get()).copied().unwrap_or(0);
        if counted != device.bytes_used.get() {
            check.find(Finding::DeviceBytesUsed {
                device: device.device,
                stored: device.bytes_used,
                counted: ByteCount::new(counted),
            });
        }
    }
    Ok(())
}

fn check_extent(
    check: &Check<'_>,
    extent: &DeviceExtent,
    stripes: &mut BTreeMap<(u64, u64), Stripe>,
    items: &ChunkItems,
    (previous_device, previous_end): (u64, u64),
) {
    let place = (extent.device.get(), extent.physical.get());
    let fits = stripes
        .get(&place)
        .is_some_and(|stripe| stripe.chunk == extent.chunk && stripe.length == extent.length);
    if fits {
        stripes.remove(&place);
    } else {
        check.find(Finding::StripeMissing {
            device: extent.device,
            physical: extent.physical,
            length: extent.length,
            chunk: extent.chunk,
        });
    }
    if previous_device == extent.device.get() && extent.physical.get() < previous_end {
        check.find(Finding::DeviceExtentsOverlap {
            device: extent.device,
            physical: extent.physical,
            previous_end: Physical::new(previous_end),
        });
    }
    match items.devices.get(&extent.device.get()) {
        None => check.find(Finding::DeviceUnknown {
            device: extent.device,
        }),
        Some(device) if extent.end().get() > device.total_bytes.get() => {
            check.find(Finding::DeviceExtentPastEnd {
                device: extent.device,
                end: extent.end(),
                size: device.total_bytes,
            });
        }
        Some(_) => {}
    }
}

fn note_replace(check: &Check<'_>, key: &Key, data: &[u8]) {
    let state = ReplaceItem::parse(key, data).map(|item| item.state);
    if matches!(state, Ok(ReplaceState::Started | ReplaceState::Suspended)) {
        check.note(Note::ReplaceInterrupted);
    }
}
