//! The chunks of a volume without its chunk tree, from all other records.
//!
//! The evidence, in this order:
//!
//! 1. Device extents name the chunk, the device and the place of each stripe. The index locates the
//!    blocks of the device tree.
//! 2. Chunk items that survive, in the superblock or in any block of a chunk tree, count if their
//!    stripes are exactly the device extents.
//! 3. Else, the block group item gives the type, the profile and the length.
//! 4. The order of stripes of RAID0, RAID10, RAID5 and RAID6 follows from content: a tree block
//!    states its address, and data matches its checksum at one place only.
//!
//! | module | holds |
//! |---|---|
//! | `facts` | the records that other trees keep about chunks |
//! | `order` | the order of stripes, from witnesses and by exclusion |
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

mod facts;
mod order;
mod trials;
mod witnesses;

use crate::error::{Error, Result};
use crate::geometry::ChunkItems;
use crate::identity::Identity;
use crate::index::BlockIndex;
use crate::indexed::IndexedTrees;
use crate::states::State;
use buttress_device::Device;
use buttress_exact::Exact as _;
use buttress_format::block_group::Profile;
use buttress_format::chunk::{STRIPE_BYTES, Stripe};
use buttress_format::{
    BlockGroupItem, ByteCount, Chunk, DeviceExtent, DeviceId, DeviceItem, Logical, TreeId, Uuid,
};
use buttress_fs::Progress;
use buttress_volume::layout::Layout;
use facts::Facts;
use order::Order;
use std::collections::BTreeMap;

/// The reason why a chunk could not be recovered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Unproven {
    /// No record names the type and the profile.
    #[error("its block group item is lost, and no chunk item is left")]
    Profile,
    /// The device extents do not form a chunk of this profile and length.
    #[error("{extents} device extents form no {profile} chunk of {length} bytes", profile = profile.name())]
    Shape {
        /// The number of device extents.
        extents: usize,
        /// The profile of the block group.
        profile: Profile,
        /// The length of the block group, in bytes.
        length: ByteCount,
    },
    /// A stripe is on a device whose item is unknown.
    #[error("device {device} is missing, and only the chunk tree had its uuid")]
    Device {
        /// The device.
        device: DeviceId,
    },
    /// The content does not show the order of the stripes.
    #[error("the order of {stripes} of its stripes is unknown: neither tree blocks nor checksums show it")]
    Order {
        /// The number of stripes without a known position.
        stripes: usize,
    },
    /// Witnesses contradict each other.
    #[error("its content contradicts every order of its {stripes} stripes")]
    Contradiction {
        /// The number of stripes.
        stripes: usize,
    },
}

/// The evidence for the mapping of a chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ChunkEvidence {
    /// A chunk item was left.
    ChunkItem,
    /// The profile has no order: each stripe holds the same content.
    Copies,
    /// Content shows the order of the stripes.
    Content,
    /// No order of the stripes changes the place of any used content.
    Unused,
}

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

/// Returns the layout of a chunk, if its device extents have the right number and length.
fn layout_of(chunk: &Chunk, extents: &[DeviceExtent]) -> Option<Layout> {
    let layout = Layout::new(
        chunk.replication(),
        chunk.length,
        extents.len(),
        chunk.sub_stripes,
        chunk.stripe_bytes,
    )
    .ok()?;
    let length = layout.device_extent_bytes();
    let fits = extents.iter().all(|extent| extent.length == length);
    let key = Chunk::key(chunk_start(extents)?);
    let is_valid = Chunk::parse(&key, &chunk.encode(), chunk.sector_bytes).is_ok();
    (fits && is_valid).then_some(layout)
}

/// Returns the address of the chunk that device extents name.
fn chunk_start(extents: &[DeviceExtent]) -> Option<Logical> {
    extents.first().map(|extent| extent.chunk)
}

/// Returns the copies of one unit of a layout: the number of stripes with the same content.
fn copies_of(layout: &Layout) -> usize {
    match layout.profile() {
        Profile::Raid10 => layout.stripe_count().quotient(layout.data_columns()),
        _ => 1,
    }
}
