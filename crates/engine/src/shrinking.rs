//! Shrinking: packs a volume into the smallest devices that hold it.
//!
//! The module `plan` decides every chunk and its place before anything changes, on the map of `places`.
//! `job` makes the chunks and moves the content by relocation, while `closing` keeps edits from making
//! chunks. `cutting` cuts the devices. An image file grows first if the content needs space beside
//! itself, and gets its final size last.
//!
//! # Invariants
//!
//! - A crash leaves a whole volume, perhaps in a larger image file than before. The next shrink
//!   continues: packed groups stay. After an error, a device is larger only if content needs it.
//! - No edit makes a chunk while content moves: every chunk is one of the plan. While the devices
//!   are cut, no edit makes a chunk past their new ends.
//! - A device is cut only if neither the running transaction nor the last durable state has a device
//!   extent past the new end.
//! - A dry run returns the size that the job reaches.
//!
//! Left out: packing of tree blocks, division of extents, and volumes in use by others. Content moves in
//! whole extents, so sharing, compression and preallocation stay.

mod closing;
mod cutting;
mod job;
mod places;
mod plan;

use crate::loading::block_groups_of;
use crate::membership::LEAST_DEVICE_BYTES;
use buttress_exact::Exact as _;
use buttress_format::{
    ByteCount, DEVICE_RESERVED_BYTES, DeviceId, ExtentItem, ItemType, Key, Logical, ObjectId, TreeId,
};
use buttress_fs::error::{Corruption, Defect, Result};
use buttress_fs::filesystem::Filesystem;
use buttress_tree::ReadAhead;
use places::Place;
use plan::{Facts, Plan, Source};

/// The free bytes for metadata while data moves, in an image file that can grow.
const SPARE_BYTES: u64 = 64 << 20;

/// The free bytes for metadata while data moves, on a device that cannot grow.
const LEAST_SPARE_BYTES: u64 = 24 << 20;

/// The addresses and sizes of a plan stay below this bound, so that their sums are exact.
const ADDRESS_MAX: u64 = 1 << 60;

/// The size of a device before and after a shrink.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShrunkDevice {
    /// The device's id.
    pub device: DeviceId,
    /// The size before, in bytes of the volume.
    pub before: ByteCount,
    /// The smallest size.
    pub after: ByteCount,
}

/// The result of a shrink, or of its plan.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ShrinkSummary {
    /// The devices, by id.
    pub devices: Vec<ShrunkDevice>,
    /// The bytes of extents that move, without copies. Extents that move twice count twice.
    pub moved_bytes: ByteCount,
    /// The largest sum of the sizes of all devices during the job.
    pub peak_bytes: ByteCount,
}

impl ShrinkSummary {
    /// Whether a device gets smaller.
    #[must_use]
    pub fn gains(&self) -> bool {
        self.devices.iter().any(|device| device.after < device.before)
    }
}

/// Returns the result that a shrink of this volume would have. Nothing changes.
///
/// # Errors
/// Fails if the block groups or extents cannot be read.
pub fn plan_shrink(filesystem: &Filesystem, slack: ByteCount) -> Result<ShrinkSummary> {
    let plan = plan_of(filesystem, SPARE_BYTES)?;
    Ok(summary_of(filesystem, &plan, slack))
}

fn plan_of(filesystem: &Filesystem, spare_bytes: u64) -> Result<Plan> {
    let facts = facts_of(filesystem, spare_bytes)?;
    plan::plan(&facts, &mut |group| lengths_of(filesystem, group))
}

/// Returns the sizes before and after the plan, with free space of `slack` bytes on each device.
fn summary_of(filesystem: &Filesystem, plan: &Plan, slack: ByteCount) -> ShrinkSummary {
    let slots = filesystem.volume().devices();
    let sector_bytes = u64::from(filesystem.sector_bytes());
    // A device without extents stays a device.
    let floor = match plan.ends.len() {
        0 | 1 => DEVICE_RESERVED_BYTES.exact_mul(2),
        _ => LEAST_DEVICE_BYTES.get(),
    };
    let mut summary = ShrinkSummary {
        moved_bytes: ByteCount::new(plan.moved_bytes),
        ..ShrinkSummary::default()
    };
    for slot in &slots {
        let (Some(before), Some(end)) = (slot.expected_bytes(), plan.ends.get(&slot.id())) else {
            continue;
        };
        // Clamp: a slack that no device has leaves the device as it is.
        let wanted = end.saturating_add(slack.get()).min(ADDRESS_MAX);
        let wanted = wanted.div_ceil(sector_bytes).exact_mul(sector_bytes).max(floor);
        let after = before.min(ByteCount::new(wanted));
        // Clamp: the peak of a plan without steps is below the size.
        let peak = plan.peaks.get(&slot.id()).copied().unwrap_or(0).max(before.get());
        summary.peak_bytes = ByteCount::new(summary.peak_bytes.get().exact_add(peak));
        summary.devices.push(ShrunkDevice {
            device: slot.id(),
            before,
            after,
        });
    }
    summary.devices.sort_unstable_by_key(|device| device.device);
    summary
}

fn facts_of(filesystem: &Filesystem, spare_bytes: u64) -> Result<Facts> {
    let volume = filesystem.volume();
    let groups = block_groups_of(filesystem)?;
    let map = volume.chunk_map();
    let mut sources = Vec::new();
    for group in groups.iter() {
        let start = Logical::new(group.start);
        let mapped = map.find(start).filter(|mapped| mapped.start() == start);
        let mapped =
            mapped.ok_or_else(|| Defect::new("a block group has no chunk").with("start", group.start))?;
        let stripes = mapped.chunk().stripes.iter();
        let place = Place {
            device_extent: mapped.layout().device_extent_bytes().get(),
            length: group.length,
            stripes: stripes
                .map(|stripe| (stripe.device, stripe.physical.get()))
                .collect(),
        };
        let highest = place.stripes.iter().map(|(_, at)| *at).max();
        // Clamp: a chunk without stripes is refused like one that is too far.
        let ends = [place.device_extent, place.length, highest.unwrap_or(ADDRESS_MAX)];
        if ends.into_iter().any(|end| end >= ADDRESS_MAX) {
            return Err(buttress_fs::error::Error::Invalid {
                what: "a volume with a chunk beyond 1 EiB is not shrunk",
            });
        }
        sources.push(Source {
            start,
            flags: group.flags,
            used: group.used,
            place,
        });
    }
    let slots = volume.devices();
    let devices = slots.iter().filter(|slot| slot.item().is_some());
    Ok(Facts {
        devices: devices.map(|slot| slot.id()).collect(),
        groups: sources,
        node_bytes: u64::from(volume.block_format().node_bytes),
        spare_bytes,
    })
}

/// Returns the lengths of the data extents of a block group, in order of address.
fn lengths_of(filesystem: &Filesystem, group: Logical) -> Result<Vec<u64>> {
    let volume = filesystem.volume();
    let end = volume.chunk_map().find(group).map(|chunk| chunk.end());
    let end = end.ok_or_else(|| Defect::new("a block group has no chunk").with("start", group.get()))?;
    let key = |at: Logical| Key::new(ObjectId::new(at.get()), ItemType(0), 0);
    let mut lengths = Vec::new();
    let tree = filesystem.tree(TreeId::EXTENT)?;
    for item in tree.range(key(group)..key(end), ReadAhead::Forward) {
        let item = item?;
        if item.key().item_type != ItemType::EXTENT_ITEM {
            continue;
        }
        let extent = ExtentItem::parse(&item.key(), item.data(), volume.block_format());
        let extent = extent.map_err(|error| Corruption::Item {
            tree: TreeId::EXTENT,
            error,
        })?;
        if extent.is_data() {
            lengths.push(extent.length.get());
        }
    }
    Ok(lengths)
}
