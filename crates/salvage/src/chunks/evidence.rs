//! The evidence for a chunk, the reasons against it, and the layout that its device extents allow.

use buttress_exact::Exact as _;
use buttress_format::block_group::Profile;
use buttress_format::{ByteCount, Chunk, DeviceExtent, DeviceId, Logical};
use buttress_volume::layout::Layout;

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

/// Returns the layout of a chunk, if its device extents have the right number and length.
pub(super) fn layout_of(chunk: &Chunk, extents: &[DeviceExtent]) -> Option<Layout> {
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
pub(super) fn copies_of(layout: &Layout) -> usize {
    match layout.profile() {
        Profile::Raid10 => layout.stripe_count().quotient(layout.data_columns()),
        _ => 1,
    }
}
