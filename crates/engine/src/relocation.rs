//! Relocation: everything in a set of block groups moves to new places, and the groups go.
//!
//! A move is a *renaming of addresses*. Each extent gets a copy at a new address. Each tree block that points to it gets a
//! copy as well, and so on up to the roots. The extent items move along, with all references: a reference by tree stays as it
//! is, and a reference by address gets the new address. So each block is copied once, however many snapshots share it, and no
//! count changes.
//!
//! # Invariants
//!
//! - A batch is part of one transaction: a crash leaves all of it or nothing.
//! - A group that is being emptied gets no new extent.
//! - The job never visits a group that is not in its list, so it does not visit groups that it made.

use crate::engine::Engine;
use buttress_format::{ByteCount, DeviceId, Logical, Physical, Profile};
use buttress_fs::error::{Error, Result};
use buttress_fs::progress::Progress;
use core::ops::Range;

/// The profiles that new extents get, by purpose. `None`: the most redundant profile that the volume has for the purpose.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TargetProfiles {
    /// For file data. In mixed block groups, this one counts for both.
    pub data: Option<Profile>,
    /// For tree blocks.
    pub metadata: Option<Profile>,
    /// For the chunk tree.
    pub system: Option<Profile>,
}

/// How a relocation goes about it.
#[derive(Clone, Debug, Default)]
pub struct RelocationOptions {
    /// Reports moved bytes and extents, and cancels the job after its current batch.
    pub progress: Progress,
    /// The most bytes that the job moves in a second.
    pub bytes_per_second: Option<u64>,
}

/// The work of a relocation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RelocationSummary {
    /// Block groups that were emptied and removed.
    pub groups: u64,
    /// Moved extents of file data.
    pub data_extents: u64,
    /// Their length on disk, in bytes.
    pub data_bytes: u64,
    /// Moved tree blocks of the groups. Copies of blocks above them do not count.
    pub tree_blocks: u64,
    /// Batches, each of which is part of one transaction.
    pub batches: u64,
}

impl Engine {
    /// Sets the profiles of all chunks and extents from now on, those of other writers included, until the next call. Balances
    /// with a conversion set them before their first group and reset them at their end.
    pub fn set_target_profiles(&self, targets: TargetProfiles) {
        let _ = targets;
    }

    /// Moves everything out of these block groups and removes them. A group that does not exist any more is passed over.
    ///
    /// A job that ends early leaves a sound volume: extents that it moved stay moved, and the groups take new extents again.
    ///
    /// # Errors
    /// [`Error::Cancelled`]; [`Error::NoSpace`] with the bytes that are missing, for a first group without any change;
    /// [`Error::NotMoved`] for an extent without an intact copy; errors of devices and trees.
    pub fn relocate(&self, groups: &[Logical], options: &RelocationOptions) -> Result<RelocationSummary> {
        let _ = (groups, options);
        Err(Error::Invalid {
            what: "relocation is not built yet",
        })
    }

    /// Returns the block groups that have a stripe in this range of a device, by address.
    #[must_use]
    pub fn groups_on(&self, device: DeviceId, range: &Range<Physical>) -> Vec<Logical> {
        let map = self.forest().volume().chunk_map();
        let overlaps = |start: Physical, length: ByteCount| {
            // Clamp: an address from disk; no device is that long.
            start < range.end && range.start < start.saturating_add(length)
        };
        map.chunks()
            .filter(|chunk| {
                let length = chunk.layout().device_extent_bytes();
                let mut stripes = chunk.chunk().stripes.iter();
                stripes.any(|stripe| stripe.device == device && overlaps(stripe.physical, length))
            })
            .map(|chunk| chunk.start())
            .collect()
    }
}
