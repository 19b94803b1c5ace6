//! The chunks of a volume without its chunk tree, from all other records.
//!
//! The evidence, in this order:
//!
//! 1. Device extents name the chunk, the device and the place of each stripe. The index locates the
//!    blocks of the device tree.
//! 2. Chunk items that survive, in the superblock or in any block of a chunk tree, count if their
//!    stripes are exactly the device extents.
//! 3. Without such an item, the block group item gives the type, the profile and the length.
//! 4. The order of stripes of RAID0, RAID10, RAID5 and RAID6 follows from content: a tree block
//!    states its address, and data matches its checksum at one place only.
//!
//! | module | holds |
//! |---|---|
//! | `facts` | the records that other trees keep about chunks |
//! | `evidence` | the kinds of evidence, and the layout that device extents allow |
//! | `order` | the order of stripes, from witnesses |
//! | `settling` | the order by exclusion and by trials |
//! | `witnesses` | tree blocks and checksums that name the stripe of their content |
//! | `trials` | the orders under which all content of a parity chunk is consistent |
//!
//! # Invariants
//!
//! - A chunk is recovered only if the evidence allows a single mapping of its content. Any other
//!   chunk is listed with the reason.
//! - Witnesses overrule a chunk item that contradicts them, because the item may be of an older
//!   chunk at the same address.
//! - The search writes nothing.
//!
//! # Left out
//!
//! Seed devices, and chunks whose device extents are lost.

mod evidence;
mod facts;
mod order;
mod settling;
mod trials;
mod witnesses;

use crate::error::{Error, Result};
use crate::geometry::ChunkItems;
use crate::identity::Identity;
use crate::index::BlockIndex;
use crate::indexed::IndexedTrees;
use crate::states::State;
use buttress_device::Device;
use buttress_format::block_group::Profile;
use buttress_format::chunk::{STRIPE_BYTES, Stripe};
use buttress_format::{
    BlockGroupItem, ByteCount, Chunk, DeviceExtent, DeviceId, DeviceItem, Logical, TreeId, Uuid,
};
use buttress_fs::Progress;
use evidence::layout_of;
use facts::Facts;
use order::Order;
use std::collections::BTreeMap;

pub use evidence::{ChunkEvidence, Unproven};

/// A recovered chunk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecoveredChunk {
    /// The logical address.
    pub start: Logical,
    /// The chunk.
    pub chunk: Chunk,
    /// The evidence for the order of its stripes.
    pub evidence: ChunkEvidence,
}

/// The chunks and devices of a volume, without its chunk tree.
#[derive(Clone, Debug)]
pub struct RecoveredChunks {
    /// The items of all known devices, with the used bytes of the device extents.
    pub devices: Vec<DeviceItem>,
    /// The uuid of the chunk tree.
    pub chunk_tree_uuid: Uuid,
    /// The recovered chunks, in order of address.
    pub chunks: Vec<RecoveredChunk>,
    /// The addresses of the other chunks, each with the reason.
    pub unproven: Vec<(Logical, Unproven)>,
    /// True if every block of the device tree was found.
    pub is_whole: bool,
    /// The items of the state's own chunk tree, as far as its blocks were found.
    pub readable: BTreeMap<Logical, Chunk>,
    /// True if every block of the state's own chunk tree was found.
    pub has_chunk_tree: bool,
}

impl RecoveredChunks {
    /// Returns the recovered chunks as the items of a chunk tree.
    pub(crate) fn items(&self) -> ChunkItems {
        let chunks = self.chunks.iter();
        ChunkItems {
            devices: self.devices.clone(),
            chunks: chunks.map(|found| (found.start, found.chunk.clone())).collect(),
        }
    }
}

/// Recovers the chunks of a state from all records except its chunk tree.
///
/// # Errors
/// Fails if no device extent is found, if the index cannot be read, or if `progress` was cancelled.
pub fn recover_chunks(
    devices: &[Device],
    identity: &Identity,
    index: &BlockIndex,
    state: &State,
    progress: &Progress,
) -> Result<RecoveredChunks> {
    let trees = IndexedTrees::new(devices, identity, index);
    let mut facts = Facts::collect(trees, devices, index.identity(), state, progress)?;
    let Some(chunk_tree_uuid) = facts.chunk_tree_uuid else {
        return Err(Error::NoDeviceExtents {
            generation: state.generation(),
        });
    };
    let mut recovered = RecoveredChunks {
        devices: device_items(&facts),
        chunk_tree_uuid,
        chunks: Vec::new(),
        unproven: Vec::new(),
        is_whole: facts.is_whole,
        readable: core::mem::take(&mut facts.readable),
        has_chunk_tree: facts.has_chunk_tree,
    };
    for (start, extents) in core::mem::take(&mut facts.extents) {
        progress.check()?;
        match recover_chunk(&mut facts, start, &extents, progress)? {
            Ok(found) => recovered.chunks.push(found),
            Err(reason) => recovered.unproven.push((start, reason)),
        }
    }
    Ok(recovered)
}

/// Returns the device items, with the used bytes of the device extents.
fn device_items(facts: &Facts<'_>) -> Vec<DeviceItem> {
    let mut used: BTreeMap<DeviceId, u64> = BTreeMap::new();
    for extent in facts.extents.values().flatten() {
        let sum = used.entry(extent.device).or_default();
        // Clamp: device extents of a hostile tree; the volume checks each stripe against its device.
        *sum = sum.saturating_add(extent.length.get());
    }
    let items = facts.devices.values().map(|item| DeviceItem {
        // Clamp: a device without extents uses nothing.
        bytes_used: ByteCount::new(used.get(&item.device).copied().unwrap_or(0)),
        ..*item
    });
    items.collect()
}

/// Recovers one chunk from its device extents.
fn recover_chunk(
    facts: &mut Facts<'_>,
    start: Logical,
    extents: &[DeviceExtent],
    progress: &Progress,
) -> Result<core::result::Result<RecoveredChunk, Unproven>> {
    let mut stripes = Vec::new();
    for extent in extents {
        let Some(device) = facts.devices.get(&extent.device) else {
            return Ok(Err(Unproven::Device {
                device: extent.device,
            }));
        };
        stripes.push(Stripe {
            device: extent.device,
            physical: extent.physical,
            device_uuid: device.uuid,
        });
    }
    let known = facts.chunk_item(start, extents, &stripes);
    let group = facts.block_group(start)?;
    let (chunk, used) = match (&known, group) {
        (Some(known), None) => (known.clone(), None),
        (_, Some(group)) => (chunk_of(facts, &group, stripes), Some(group.used)),
        (None, None) => return Ok(Err(Unproven::Profile)),
    };
    let known = known.filter(|known| (known.profile, known.length) == (chunk.profile, chunk.length));
    let shape = Unproven::Shape {
        extents: extents.len(),
        profile: chunk.replication(),
        length: chunk.length,
    };
    let Some(layout) = layout_of(&chunk, extents) else {
        return Ok(Err(shape));
    };
    let found = |chunk: Chunk, evidence| RecoveredChunk {
        start,
        chunk,
        evidence,
    };
    if layout.data_columns() <= 1 {
        return Ok(Ok(match known {
            Some(known) => found(known, ChunkEvidence::ChunkItem),
            None => found(chunk, ChunkEvidence::Copies),
        }));
    }
    let mut order = Order::new(start, layout, &chunk);
    witnesses::collect(facts, &mut order, chunk.profile, progress)?;
    if let Some(known) = known.filter(|known| order.agrees_with(&known.stripes)) {
        return Ok(Ok(found(known, ChunkEvidence::ChunkItem)));
    }
    let settled = order.settle(facts, used, progress)?;
    Ok(settled.map(|(stripes, evidence)| found(Chunk { stripes, ..chunk }, evidence)))
}

/// Returns the chunk of a block group, with its stripes in any order.
fn chunk_of(facts: &Facts<'_>, group: &BlockGroupItem, stripes: Vec<Stripe>) -> Chunk {
    const ALIGNMENT: u32 = 64 << 10;
    let copies = match group.flags.profile() {
        Some(Profile::Raid10) => 2,
        _ => 1,
    };
    Chunk {
        length: group.length,
        owner: TreeId::EXTENT,
        stripe_bytes: STRIPE_BYTES,
        profile: group.flags,
        io_align: ALIGNMENT,
        io_width: ALIGNMENT,
        sector_bytes: facts.sector_bytes,
        sub_stripes: copies,
        stripes,
    }
}
