//! A device that fails a write or a flush: the volume goes on without it, or stops.
//!
//! Which of the bytes since the last good flush the device holds is not known any more, and nothing that it will say later
//! tells. So it is *left out*: nothing is written to it, its superblocks among that, and nothing is read from it, for as
//! long as the volume is open. Opened again it is behind in generation, and thus known for what it is
//! ([`crate::open`]). What it should have got is on the other stripes of its chunks, copies or parity.
//!
//! Whether the volume can do without it is asked of all chunks, not only of those that the failed batch wrote: in each that
//! has a stripe on the device, no more stripes may be lost than the profile tolerates, those on missing and stale devices
//! counted. That is the condition under which the kernel mounts a volume degraded and for writing. Where it does not hold,
//! the failure stops writing ([`Volume::stop_writing`]), and the device stays in use for reading: what was committed before
//! may lie nowhere else. A chunk that came since, on a device that was left out meanwhile, is found at the next commit.
//!
//! A volume that is being made ([`Volume::create`]) tolerates nothing.
//!
//! Decision 10 says why this differs from the kernel, which goes on to write to a device that fails.

use crate::Volume;
use crate::chunk_map::MappedChunk;
use crate::devices::DeviceSlot;
use crate::error::Error;
use crate::notice::Notice;
use crate::write::WriteRefusal;
use buttress_device::IoError;
use buttress_format::{ByteCount, DeviceId, Logical};
use std::sync::Arc;

/// What the devices of one step failed with: of each its first failure.
pub(super) type Failures = Vec<(Arc<DeviceSlot>, IoError)>;

/// A device that failed, and that the volume cannot do without.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{failure}; without device {device}, the {profile} chunk [{logical}, +{length}) lacks too many stripes (found {lost} missing, expected at most {tolerated})"
)]
pub struct NeededDevice {
    /// Its id.
    pub device: DeviceId,
    /// What it failed with.
    pub failure: IoError,
    /// Start of a chunk that needs it.
    pub logical: Logical,
    /// The chunk's length.
    pub length: ByteCount,
    /// The name of its profile.
    pub profile: &'static str,
    /// How many of its stripes would be lost.
    pub lost: usize,
    /// How many may be.
    pub tolerated: usize,
}

impl Volume {
    /// Leaves devices out that failed, or stops writing with the first that the volume cannot do without.
    pub(super) fn go_on_without(&self, failures: Failures) -> Result<(), Error> {
        if failures.is_empty() {
            return Ok(());
        }
        // Two devices that fail at once are each asked about with the other known to be lost.
        let _one_at_a_time = self.failing().lock();
        let result = failures
            .into_iter()
            .try_for_each(|(slot, failure)| self.leave_out(&slot, failure));
        self.stop_if_failed(result)
    }

    fn leave_out(&self, slot: &Arc<DeviceSlot>, failure: IoError) -> Result<(), Error> {
        if slot.failure().is_some() {
            // A request that was under way when another one failed.
            return Ok(());
        }
        if !self.tolerates_failures() {
            return Err(failure.into());
        }
        let map = self.chunk_map();
        let mut on_it = map.chunks().iter().filter(|chunk| is_on(chunk, slot));
        if let Some((chunk, lost)) = on_it.find_map(|chunk| beyond_tolerance(chunk, Some(slot))) {
            return Err(needed(slot, failure, chunk, lost));
        }
        self.notice(Notice::DeviceLeftOut {
            id: slot.id(),
            failure: failure.clone(),
        });
        slot.leave_out(failure);
        Ok(())
    }

    /// Stops writing if a chunk needs a device that was left out.
    pub(super) fn require_all_chunks(&self) -> Result<(), Error> {
        let slots = self.devices();
        let mut result = Ok(());
        for slot in &slots {
            let Some(failure) = slot.failure() else { continue };
            let map = self.chunk_map();
            let mut on_it = map.chunks().iter().filter(|chunk| is_on(chunk, slot));
            if let Some((chunk, lost)) = on_it.find_map(|chunk| beyond_tolerance(chunk, None)) {
                result = result.and(Err(needed(slot, failure.clone(), chunk, lost)));
            }
        }
        self.stop_if_failed(result)
    }
}

fn is_on(chunk: &MappedChunk, slot: &Arc<DeviceSlot>) -> bool {
    chunk.devices().iter().any(|other| Arc::ptr_eq(other, slot))
}

/// The chunk and how many of its stripes are lost, if that is more than its profile tolerates.
fn beyond_tolerance<'a>(
    chunk: &'a Arc<MappedChunk>,
    without: Option<&Arc<DeviceSlot>>,
) -> Option<(&'a MappedChunk, usize)> {
    let lost = chunk.lost_stripes(without);
    (lost > chunk.tolerated_stripes()).then_some((chunk, lost))
}

fn needed(slot: &DeviceSlot, failure: IoError, chunk: &MappedChunk, lost: usize) -> Error {
    let needed = NeededDevice {
        device: slot.id(),
        failure,
        logical: chunk.start(),
        length: chunk.length(),
        profile: chunk.layout().profile().name(),
        lost,
        tolerated: chunk.tolerated_stripes(),
    };
    WriteRefusal::Needed(Box::new(needed)).into()
}
