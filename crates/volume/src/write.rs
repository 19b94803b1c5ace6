//! Writes of logical extents: to every copy, every stripe, and their parity.
//!
//! [`Volume::write`] takes a batch. The call splits each extent at stripe and chunk ends, and
//! writes each run to all stripes that hold it. For RAID5 and RAID6, the rows that the batch
//! touches get new parity (`rows`). The call submits all requests of a device in one plug, so that
//! neighbours merge, and all devices work in parallel. The write returns when all devices have the
//! bytes. After a [`Volume::flush`], the written bytes are durable.
//!
//! Degraded writes: a write leaves out a device that is missing, or that missed commits
//! ([`Stale`]). If the profile cannot recover the bytes of a left-out device, the write writes
//! nothing ([`WriteRefusal::OutOfReach`]). A stale device keeps its old superblock until it is
//! brought up to date ([`crate::returning`]) or replaced. A commit does not write the superblock of
//! a stale device, so that no opening uses the device as current.
//!
//! Lack of space: writes to a sparse image file fail when the file system that holds it is full.
//! Space for metadata is reserved in advance ([`Volume::reserve`]). If data finds no space on the
//! host, only that write fails ([`Volume::write_data`]). No item refers to the range of a failed
//! data write, and the bytes on the device are known.
//!
//! Failures: if all chunks can do without a device that fails a write or flush, it is left out like
//! a missing device (`failures`). Otherwise its failure *stops writing for good*
//! ([`Volume::stop_writing`]), and the cause is kept. Each later write, flush or commit is refused.
//! No failure of a device is retried.
//!
//! While a device is replaced, its writes also go to the replacement's target
//! ([`crate::replacement`]).
//!
//! Left out: the choice of addresses. The allocator above passes only ranges that no committed
//! state uses. No two calls write the same bytes at the same time, and no reader reads them during
//! the write.
//!
//! [`Stale`]: crate::error::Stale

mod beside;
mod discard;
mod failures;
mod parts;
mod reserve;
mod rows;
mod stop;
mod superblocks;

pub use beside::VerifyBeside;
use buttress_exact::Exact as _;
pub use failures::NeededDevice;
pub(crate) use rows::RowLocks;
pub use rows::RowsLocked;
pub(crate) use stop::ErrorState;
pub use stop::WriteRefusal;

use crate::Volume;
use crate::chunk_map::MappedChunk;
use crate::devices::DeviceSlot;
use crate::error::{Corruption, Error};
use crate::replacement::Replacement;
use crate::stripe_tree::needs_resolver;
use buttress_device::{Device, IoError, PendingWrite, WriteRequest};
use buttress_format::{ByteCount, Logical, Physical};
use bytes::Bytes;
use failures::Failures;
use rows::Rows;
use smallvec::SmallVec;
use std::sync::Arc;

/// The bytes for a range of logical addresses, `[logical, logical + bytes.len())`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExtentWrite {
    /// The first address.
    pub logical: Logical,
    /// The bytes to write. The bytes are reference-counted, so the path to the devices does not
    /// copy them.
    pub bytes: Bytes,
}

impl Volume {
    /// Writes extents to all their copies and stripes, including parity, and waits until the
    /// devices have the bytes. The bytes are durable after a [`flush`](Self::flush). Extents of one
    /// batch must not overlap.
    ///
    /// # Errors
    /// Returns [`Corruption::Unmapped`] for an address without a chunk. Returns [`Error::Write`] if
    /// writing is not possible or has stopped; nothing is written then. Returns
    /// [`WriteRefusal::Needed`] if a device fails that the volume needs. Any part of the batch may
    /// then be written, and writing stops. Failures of devices that the volume does not need are no
    /// errors, but [notices](Volume::notices).
    pub fn write(&self, extents: &[ExtentWrite]) -> Result<(), Error> {
        self.write_batch(extents, false, None)
    }

    /// Writes extents of data like [`write`](Self::write), with one difference: if a device has no
    /// space for them, the device stays in use and writing continues. Any part of the batch may
    /// then be written. After a failure, no item may refer to the batch, or the caller must write
    /// the batch again.
    ///
    /// `beside` verifies the data that shares rows with the extents ([`Volume::data_beside`]). The
    /// old parity replaces sectors that fail, before new parity is computed.
    ///
    /// # Errors
    /// [`Error::Io`] that [is for lack of space](buttress_device::IoError::is_out_of_space). Other
    /// errors as for [`write`](Self::write).
    pub fn write_data(
        &self,
        extents: &[ExtentWrite],
        beside: Option<&VerifyBeside<'_>>,
    ) -> Result<(), Error> {
        self.write_batch(extents, true, beside)
    }

    fn write_batch(
        &self,
        extents: &[ExtentWrite],
        may_lack_space: bool,
        beside: Option<&VerifyBeside<'_>>,
    ) -> Result<(), Error> {
        self.require_writing()?;
        let _writes = self.writes().read();
        let mut batch = Batch {
            replacement: self.replacement(),
            ..Batch::default()
        };
        let mut rows = Rows::default();
        if batch.replacement.is_some() || self.guards().are_there() {
            rows.lock_all();
        }
        for extent in extents {
            self.plan_write(extent, &mut batch, &mut rows)?;
        }
        // The locks are held until the rows are written. If two write calls change parts of the
        // same row, they read and write the row one after the other. The second call knows which
        // devices the first did not reach.
        let _locks = rows.lock(self.row_locks());
        // The batch always writes a row of parity completely. If data were written without its
        // parity, other columns of the row would lose their redundancy.
        let writes_rows = !rows.is_empty();
        rows.add_to(self, &mut batch, beside)?;
        if may_lack_space && writes_rows {
            batch.reserve()?;
        }
        let target = batch
            .replacement
            .as_ref()
            .map(|replacement| Arc::clone(replacement.target()));
        let failures = batch.write();
        if !may_lack_space || writes_rows {
            return self.go_on_without(failures);
        }
        let is_target =
            |slot: &Arc<DeviceSlot>| target.as_ref().is_some_and(|target| Arc::ptr_eq(target, slot));
        let (full, failures): (Failures, Failures) = failures
            .into_iter()
            .partition(|(slot, failure)| failure.is_out_of_space() && !is_target(slot));
        self.go_on_without(failures)?;
        match full.into_iter().next() {
            Some((_, failure)) => Err(failure.into()),
            None => Ok(()),
        }
    }

    fn plan_write(&self, extent: &ExtentWrite, batch: &mut Batch, rows: &mut Rows) -> Result<(), Error> {
        let map = self.chunk_map();
        let mut position = 0;
        while let Some(rest) = extent.bytes.get(position..).filter(|rest| !rest.is_empty()) {
            let unmapped = |logical| Corruption::Unmapped {
                logical,
                length: ByteCount::of(rest.len()),
            };
            let at = extent.logical.checked_add(ByteCount::of(position));
            let at = at.ok_or_else(|| unmapped(extent.logical))?;
            let chunk = map.find(at).ok_or_else(|| unmapped(at))?;
            let place = chunk
                .offset_of(at)
                .and_then(|offset| chunk.layout().place(offset));
            let place = place.ok_or_else(|| unmapped(at))?;
            let length = place.length.at_most(rest.len());
            let end = position.exact_add(length);
            let bytes = extent.bytes.slice(position..end);
            position = end;
            if self.resolver().is_some() && needs_resolver(chunk.flags()) {
                return Err(WriteRefusal::StripeTree { logical: at }.into());
            }
            match place.parity {
                Some(column) => rows.add(chunk, column, place.stripe_offset, bytes),
                None => {
                    rows.touch(chunk, place.stripe_offset, bytes.len());
                    let written = if buttress_faults::on("volume-one-copy-written") {
                        1
                    } else {
                        place.copies
                    };
                    let copies = (0..written).map(|copy| place.stripe_index.exact_add(copy));
                    let mut reached = false;
                    for stripe_index in copies {
                        let physical = chunk.physical(stripe_index, place.stripe_offset)?;
                        reached |= batch.add(self, chunk, stripe_index, physical, &bytes)?;
                    }
                    if !reached {
                        let length = ByteCount::of(bytes.len());
                        return Err(WriteRefusal::OutOfReach { logical: at, length }.into());
                    }
                }
            }
        }
        Ok(())
    }

    /// Returns the device of a stripe if it is present and its content is trusted; `None` if the
    /// write skips it.
    pub(crate) fn stripe_to_write<'a>(
        &self,
        chunk: &'a MappedChunk,
        stripe_index: usize,
    ) -> Result<Option<&'a Device>, Error> {
        let Some(slot) = chunk.devices().get(stripe_index) else {
            return Ok(None);
        };
        let Some(device) = slot.device().filter(|_| slot.is_written()) else {
            return Ok(None);
        };
        self.require_own(slot)?;
        Ok(Some(device))
    }
}

/// The requests of a batch for each device.
#[derive(Debug, Default)]
pub(crate) struct Batch {
    plugs: SmallVec<[Plug; 4]>,
    /// The replacement that was in progress when the batch began.
    replacement: Option<Arc<Replacement>>,
}

#[derive(Debug)]
struct Plug {
    slot: Arc<DeviceSlot>,
    device: Device,
    requests: Vec<WriteRequest>,
}

impl Batch {
    /// Adds a write to a stripe of the batch. Returns false and adds nothing if its device is out
    /// of reach.
    pub(crate) fn add(
        &mut self,
        volume: &Volume,
        chunk: &MappedChunk,
        stripe_index: usize,
        physical: Physical,
        bytes: &Bytes,
    ) -> Result<bool, Error> {
        let Some(slot) = chunk.devices().get(stripe_index) else {
            return Ok(false);
        };
        let request = WriteRequest {
            offset_bytes: physical.get(),
            bytes: bytes.clone(),
        };
        self.add_to_target(chunk, stripe_index, physical, bytes)?;
        let Some(device) = volume.stripe_to_write(chunk, stripe_index)? else {
            return Ok(false);
        };
        self.push(slot, device, request);
        Ok(true)
    }

    /// Adds a write to the target that will replace a stripe's device, if there is one.
    pub(crate) fn add_to_target(
        &mut self,
        chunk: &MappedChunk,
        stripe_index: usize,
        physical: Physical,
        bytes: &Bytes,
    ) -> Result<(), Error> {
        let slot = chunk.devices().get(stripe_index);
        let Some(replacement) = self.replacement.clone() else {
            return Ok(());
        };
        let target = slot.and_then(|slot| replacement.target_of(slot));
        if let Some(target) = target
            && let Some(device) = target.device()
        {
            let place = replacement.place_on_target(chunk, stripe_index, physical);
            let place = place.ok_or_else(|| Corruption::Unmapped {
                logical: chunk.start(),
                length: ByteCount::of(bytes.len()),
            })?;
            let request = WriteRequest {
                offset_bytes: place.get(),
                bytes: bytes.clone(),
            };
            self.push(target, device, request);
        }
        Ok(())
    }

    fn push(&mut self, slot: &Arc<DeviceSlot>, device: &Device, request: WriteRequest) {
        match self.plugs.iter_mut().find(|plug| Arc::ptr_eq(&plug.slot, slot)) {
            Some(plug) => plug.requests.push(request),
            None => self.plugs.push(Plug {
                slot: Arc::clone(slot),
                device: device.clone(),
                requests: vec![request],
            }),
        }
    }

    /// Reserves space on the host for the batch, on all devices.
    fn reserve(&self) -> Result<(), Error> {
        for plug in self.plugs.iter().filter(|plug| plug.device.may_run_out()) {
            for request in &plug.requests {
                plug.device
                    .reserve(request.offset_bytes, ByteCount::of(request.bytes.len()).get())?;
            }
        }
        Ok(())
    }

    /// Starts the batch on all devices, waits for it, and returns the failures. A device that was
    /// left out since the batch was planned gets no more requests.
    fn write(self) -> Failures {
        let plugs = self.plugs.iter().filter(|plug| plug.slot.is_written());
        write_all(plugs.map(|plug| (&plug.slot, &plug.device, &plug.requests[..])))
    }
}

/// Starts writes on all devices in parallel, and waits for all. Counts each failure, and returns
/// the first failure of each device.
fn write_all<'a>(
    devices: impl Iterator<Item = (&'a Arc<DeviceSlot>, &'a Device, &'a [WriteRequest])>,
) -> Failures {
    let mut failures = Failures::new();
    let mut fail = |slot: &Arc<DeviceSlot>, errors: &mut dyn Iterator<Item = IoError>| {
        let mut first: Option<IoError> = None;
        for error in errors {
            // A full file system of the host is no failure of the device.
            if !error.is_out_of_space() {
                slot.count_error(error.operation);
            }
            first.get_or_insert(error);
        }
        failures.extend(first.map(|error| (Arc::clone(slot), error)));
    };
    let mut started: SmallVec<[(&Arc<DeviceSlot>, Vec<PendingWrite>); 4]> = SmallVec::new();
    for (slot, device, requests) in devices {
        match device.copy_writes(requests) {
            Some(errors) => fail(slot, &mut errors.into_iter()),
            None => started.push((slot, device.start_writes(requests))),
        }
    }
    for (slot, pending) in started {
        // All writes are awaited: none may reach its device after this function has returned.
        fail(
            slot,
            &mut pending.into_iter().filter_map(|write| write.wait().err()),
        );
    }
    failures
}
