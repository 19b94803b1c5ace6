//! Devices that fail a write or a flush: the volume continues without them, or stops.
//!
//! After the failure, it is unknown which of the bytes since the last good flush the device holds.
//! No later result of the device can reveal which of these bytes it holds. The failed device is
//! therefore *left out*: while the volume is open, it is neither written, including its
//! superblocks, nor read. At the next open, a left-out device's older generation identifies it
//! ([`crate::open`]). The other stripes of a left-out device's chunks hold the bytes that it
//! missed, as copies or parity.
//!
//! The decision to continue without the device considers all chunks, not only those of the failed
//! batch. In each chunk with a stripe on the failed device, the lost stripes must not exceed the
//! profile's tolerance. Stripes on missing and stale devices also count as lost. The kernel uses
//! the same condition for degraded writable mounts. If the lost stripes exceed the tolerance, the
//! failure stops writing ([`Volume::stop_writing`]). The failed device then stays in use for
//! reading, because it may hold the only copy of data. If a chunk was added on a device that has
//! been left out since, the next commit finds that chunk.
//!
//! A volume that is being made ([`Volume::create`]) tolerates no failure.
//!
//! Decision 10 explains the difference from the kernel, which continues to write to a device that
//! fails.

use crate::Volume;
use crate::chunk_map::MappedChunk;
use crate::devices::DeviceSlot;
use crate::error::Error;
use crate::notice::Notice;
use crate::write::WriteRefusal;
use buttress_device::IoError;
use buttress_format::{ByteCount, DeviceId, Logical};
use std::sync::Arc;

/// The failures of one step: for each device, its first failure.
pub(super) type Failures = Vec<(Arc<DeviceSlot>, IoError)>;

/// A failed device that the volume needs.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{failure}; without device {device}, the {profile} chunk [{logical}, +{length}) lacks too many stripes (found {lost} missing, expected at most {tolerated})"
)]
pub struct NeededDevice {
    /// The device's id.
    pub device: DeviceId,
    /// The failure of the device.
    pub failure: IoError,
    /// The start of a chunk that needs the device.
    pub logical: Logical,
    /// The chunk's length.
    pub length: ByteCount,
    /// The name of the chunk's profile.
    pub profile: &'static str,
    /// The number of the chunk's stripes that would be lost.
    pub lost: usize,
    /// The number of lost stripes that the profile tolerates.
    pub tolerated: usize,
}

impl Volume {
    /// Continues without the failed devices, or stops writing with the first failure of a device
    /// that the volume needs.
    pub(super) fn go_on_without(&self, failures: Failures) -> Result<(), Error> {
        if failures.is_empty() {
            return Ok(());
        }
        // If two devices fail at the same time, the volume checks each failure with the other
        // device known to be lost.
        let _one_at_a_time = self.failing().lock();
        let result = failures
            .into_iter()
            .try_for_each(|(slot, failure)| self.leave_out(&slot, failure));
        self.stop_if_failed(result)
    }

    fn leave_out(&self, slot: &Arc<DeviceSlot>, failure: IoError) -> Result<(), Error> {
        if slot.failure().is_some() {
            // This request was in flight when another request failed.
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

/// Returns a chunk whose lost stripes exceed the profile's tolerance, and the number of these
/// stripes.
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
