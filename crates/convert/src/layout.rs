//! The places of chunks on a device that holds another file system: which bytes of the device
//! become which chunks.
//!
//! The old content stays where it is. Data chunks cover it, with logical addresses equal to
//! physical ones. New tree blocks go to free units only. Invariants, which property tests check:
//!
//! - Chunks do not overlap, and no chunk has bytes of a [reserved range](RESERVED).
//! - Every used byte outside of the reserved ranges is in a data chunk, and in no other chunk.
//! - Every used unit of a reserved range has a copy in free units of data chunks.
//! - A chunk begins at a multiple of 64 KiB and ends at one, or at the end of the device.
//!
//! btrfs-convert makes the same choices: single data chunks of at least 32 MiB, cut at reserved
//! ranges. Here metadata has two copies if the free space allows it.
//!
//! Left out: the old file system. The caller marks its used bytes.

mod chunks;
mod data;
mod free;
mod pieces;
mod reserved;
mod units;

pub use chunks::{Layout, Moved};
pub use free::Placed;
pub use pieces::{EXTENT_BYTES_MAX, Piece};
pub use reserved::RESERVED;
pub use units::{UNIT_BYTES, Units};

use buttress_exact::Exact as _;
use buttress_format::{ByteCount, Physical};
use free::FreeRuns;
use reserved::reserved_units;

/// The free space is too small, or too fragmented, for the new trees.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "free space is too small or too fragmented for the new trees (found {free} bytes in its longest \
     runs, expected {needed} bytes in runs of 1 MiB or more). Delete files or grow the volume first"
)]
pub struct NoSpace {
    /// The bytes that one copy of the new trees needs.
    pub needed: ByteCount,
    /// The bytes of the longest free runs.
    pub free: ByteCount,
}

/// The bytes of new chunks that a conversion needs, in one copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Needs {
    /// The size of the system chunk, which holds the chunk tree.
    pub system: ByteCount,
    /// The size of all metadata chunks.
    pub metadata: ByteCount,
}

impl Layout {
    /// Chooses the places of all chunks on a device with these `used` units.
    ///
    /// # Errors
    /// Fails if the free units are too few or too scattered.
    pub fn new(used: &Units, needs: Needs) -> Result<Self, NoSpace> {
        let mut taken = used.clone();
        for range in reserved_units() {
            taken.mark(range);
        }
        let (system, metadata) = place_metadata(&taken, needs)?;
        let mut placed = Units::new(used.device_bytes());
        for chunk in metadata.iter().chain([&system]) {
            for range in chunk.units() {
                taken.mark(range.clone());
                placed.mark(range);
            }
        }
        let moved = move_reserved(used, &taken)?;
        let mut content = used.clone();
        for unit in &moved {
            let start = unit.to.get();
            content.mark_bytes(start..start.exact_add(UNIT_BYTES));
        }
        Ok(Self {
            data: data::chunks(&content, &placed),
            system,
            metadata,
            moved,
        })
    }
}

/// Places the system chunk and the metadata chunks in free units: with two copies if they fit, else
/// with one.
fn place_metadata(taken: &Units, needs: Needs) -> Result<(Placed, Vec<Placed>), NoSpace> {
    let system = needs.system.get().div_ceil(UNIT_BYTES).max(1);
    let metadata = needs.metadata.get().div_ceil(UNIT_BYTES).max(1);
    for copies in [2, 1] {
        let mut runs = FreeRuns::new(taken);
        let placed = runs.chunks(metadata, copies);
        if let (Some(placed), Some(system)) = (placed, runs.chunk(system, copies)) {
            return Ok((system, placed));
        }
    }
    Err(NoSpace {
        needed: ByteCount::new(system.exact_add(metadata).exact_mul(UNIT_BYTES)),
        free: ByteCount::new(FreeRuns::new(taken).total().exact_mul(UNIT_BYTES)),
    })
}

/// Returns a free unit for each used unit of the reserved ranges.
fn move_reserved(used: &Units, taken: &Units) -> Result<Vec<Moved>, NoSpace> {
    let mut free = taken.runs(0..taken.complete(), false).flatten();
    let mut moved = Vec::new();
    for range in reserved_units() {
        for unit in range.filter(|unit| used.is_used(*unit)) {
            let Some(to) = free.next() else {
                return Err(NoSpace {
                    needed: ByteCount::new(UNIT_BYTES),
                    free: ByteCount::ZERO,
                });
            };
            moved.push(Moved {
                from: Physical::new(unit.exact_mul(UNIT_BYTES)),
                to: Physical::new(to.exact_mul(UNIT_BYTES)),
            });
        }
    }
    Ok(moved)
}

#[cfg(test)]
mod tests;
