//! Reads of logical extents: started in batches, awaited with a verifier.
//!
//! [`Volume::start_reads`] plans every extent: it splits the extent into segments at stripe and
//! chunk ends, and picks the first way of each. The read submits all requests to one device in one
//! plug, so that neighbouring requests merge. The caller then awaits a [`PendingExtent`] in one of
//! two ways:
//!
//! - [`PendingExtent::wait_verified`], for tree blocks: the verifier receives the whole extent and
//!   accepts or rejects it. After a rejection, the other ways are tried for the whole extent;
//! - [`PendingExtent::wait_data`], for file data: the verifier names the sectors that do not match.
//!   Only these sectors are read again, each from any good copy.
//!
//! The fault log records skipped copies. The error also lists bytes that no copy could provide.
//! Reads never write; the crate that repairs a volume receives its faults
//! ([`Volume::tell_faults`]).

mod data;
mod verified;

use crate::Volume;
use crate::error::{Attempt, Corruption, Error};
use crate::faults::{Fault, FaultReason, HearsFaults, Rejection};
use crate::fetch::{fetch, reachable};
use crate::mirror::{Segment, Source, Way};
use crate::write::RowLocks;
use buttress_device::{Buffer, Device, PendingRead, ReadRequest};
use buttress_exact::Exact as _;
use buttress_format::{ByteCount, Logical, Physical};
use bytes::Bytes;
use smallvec::SmallVec;
use std::ops::Range;

pub use data::LostRange;

/// The maximum length of one read: twice the longest data extent.
pub const MAXIMUM_READ_BYTES: usize = 256 << 20;

/// A verifier that finds the sectors of an extent that do not match their checksums. The verifier
/// appends their ranges, in order.
pub type VerifySectors<'a> = dyn Fn(&[u8], &mut Vec<Range<usize>>) + 'a;

/// A range of logical addresses to read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ExtentRead {
    /// The first logical address to read.
    pub logical: Logical,
    /// The number of bytes, from 1 to [`MAXIMUM_READ_BYTES`].
    pub length: usize,
}

/// An extent whose first read is in flight. If the pending extent is dropped, its read finishes
/// unused.
#[derive(Debug)]
#[must_use = "the bytes come with `wait_verified` or `wait_data`"]
pub struct PendingExtent {
    read: ExtentRead,
    plan: Result<SmallVec<[PendingSegment; 1]>, Error>,
}

/// A segment, and the read of its first way if it was started.
#[derive(Debug)]
pub(crate) struct PendingSegment {
    pub(crate) segment: Segment,
    started: Option<PendingRead>,
}

impl PendingSegment {
    /// Waits for the read by the first way. Reads it now if it was not started.
    fn first(&mut self, locks: &RowLocks) -> Option<(Way, Result<Buffer, Attempt>)> {
        let way = *self.segment.ways.first()?;
        let result = match self.started.take() {
            Some(read) => read.wait().map_err(|error| {
                self.segment
                    .attempt(way, self.segment.stripe_of(way), FaultReason::Io(error))
            }),
            None => fetch(locks, &self.segment, way, 0..self.segment.length()),
        };
        Some((way, result))
    }
}

impl Volume {
    /// Plans an extent: its segments in order, none empty, which together cover exactly the extent.
    pub(crate) fn plan(&self, read: ExtentRead) -> Result<SmallVec<[PendingSegment; 1]>, Error> {
        let ExtentRead { logical, length } = read;
        if length == 0 || length > MAXIMUM_READ_BYTES {
            return Err(Error::ReadLength {
                logical,
                length_bytes: length,
                maximum_bytes: MAXIMUM_READ_BYTES,
            });
        }
        let map = self.chunk_map();
        let resolver = self.resolver();
        let mut segments: SmallVec<[PendingSegment; 1]> = SmallVec::new();
        let mut position = 0;
        while position < length {
            let rest = ByteCount::of(length.exact_sub(position));
            let unmapped = |logical| Corruption::Unmapped {
                logical,
                length: rest,
            };
            let at = logical
                .checked_add(ByteCount::of(position))
                .ok_or(unmapped(logical))?;
            let chunk = map.find(at).ok_or(unmapped(at))?;
            let segment = Segment::plan(chunk, at, position..length, resolver)?;
            position = segment.range.end;
            match segments.last_mut() {
                Some(PendingSegment { segment: last, .. }) if last.is_unmapped_like(&segment) => {
                    last.range.end = position;
                }
                _ => segments.push(PendingSegment {
                    segment,
                    started: None,
                }),
            }
        }
        Ok(segments)
    }

    /// Starts reads of extents, in one plug on every device. The results are in the order of the
    /// requests. If an extent cannot be mapped, waiting for its read returns the error.
    pub fn start_reads(&self, reads: &[ExtentRead]) -> Vec<PendingExtent> {
        let mut extents: Vec<_> = reads
            .iter()
            .map(|read| PendingExtent {
                read: *read,
                plan: self.plan(*read),
            })
            .collect();
        start_first_ways(&mut extents);
        extents
    }

    /// Reads one extent and waits: see [`PendingExtent::wait_verified`].
    ///
    /// # Errors
    /// Fails as [`PendingExtent::wait_verified`] does.
    pub fn read_verified<T>(
        &self,
        read: ExtentRead,
        verify: &mut dyn FnMut(Bytes) -> Result<T, Rejection>,
    ) -> Result<T, Error> {
        self.prepare(read).wait_verified(self, verify)
    }

    /// Returns the unverified bytes of an extent's first copy, if they are in memory, for example
    /// in the page cache, and no read of them was started. Returns `None` if the bytes are not in
    /// memory, or if the extent is not contiguous on one device. The caller then reads the extent
    /// normally.
    #[must_use]
    pub fn read_cached(&self, read: ExtentRead) -> Option<Buffer> {
        let (device, physical) = self.first_copy(read)?;
        device.read_cached(physical.get(), read.length)
    }

    /// Returns true if the first byte of an extent is in memory. Unlike
    /// [`read_cached`](Self::read_cached), counts no read.
    #[must_use]
    pub fn seems_cached(&self, read: ExtentRead) -> bool {
        self.first_copy(read)
            .is_some_and(|(device, physical)| device.is_cached(physical.get()))
    }

    /// Returns the location of an extent's first copy, if it is one run of bytes.
    fn first_copy(&self, read: ExtentRead) -> Option<(Device, Physical)> {
        let plan = self.plan(read).ok()?;
        let [PendingSegment { segment, .. }] = plan.as_slice() else {
            return None;
        };
        let Source::Direct {
            stripe_index,
            physical,
        } = segment.ways.first()?.source
        else {
            return None;
        };
        let device = reachable(&segment.chunk, stripe_index, physical, read.length).ok()?;
        Some((device.clone(), physical))
    }

    /// Reads one extent of file data and waits: see [`PendingExtent::wait_data`].
    ///
    /// # Errors
    /// Fails as [`PendingExtent::wait_data`] does.
    pub fn read_data(
        &self,
        read: ExtentRead,
        verify: &VerifySectors<'_>,
    ) -> Result<(Buffer, Vec<LostRange>), Error> {
        self.prepare(read).wait_data(self, verify)
    }

    /// Reads one extent of file data without checksums and waits: see
    /// [`PendingExtent::unverified`].
    ///
    /// # Errors
    /// Fails as [`PendingExtent::wait_data`] does.
    pub fn read_unverified(&self, read: ExtentRead) -> Result<(Buffer, Vec<LostRange>), Error> {
        self.prepare(read).unverified().wait_data(self, &|_, _| {})
    }

    /// Prepares the read of one extent. If an extent has only one segment, the waiting thread reads
    /// it itself, without a queue.
    fn prepare(&self, read: ExtentRead) -> PendingExtent {
        let mut extent = PendingExtent {
            read,
            plan: self.plan(read),
        };
        if extent.plan.as_ref().is_ok_and(|plan| plan.len() > 1) {
            start_first_ways(core::slice::from_mut(&mut extent));
        }
        extent
    }

    /// Records in the fault log that `part` of a segment failed. `part` counts from the segment's
    /// start.
    fn record_fault(&self, segment: &Segment, attempt: &Attempt, part: Range<usize>) {
        let slots = segment.chunk.devices();
        let name = slots.iter().find(|slot| slot.id() == attempt.device);
        if let (Some(slot), FaultReason::Io(error)) = (name, &attempt.reason) {
            slot.count_error(error.operation);
        }
        let fault = Fault {
            device: attempt.device,
            device_name: name.map_or_else(|| "unknown".into(), |slot| slot.name().clone()),
            // Clamp: the address comes from disk, and only appears in a message.
            physical: attempt.physical.saturating_add(ByteCount::of(part.start)),
            logical: segment.logical.exact_add(ByteCount::of(part.start)),
            length: ByteCount::of(part.len()),
            copy: attempt.copy,
            reason: attempt.reason.clone(),
        };
        let hears = self.hears_faults().read().clone();
        if let Some(HearsFaults(hears)) = hears {
            hears(&fault);
        }
        self.recorder().record(fault);
    }
}

/// Starts the first way of every segment that reads one stripe, device by device.
fn start_first_ways(extents: &mut [PendingExtent]) {
    struct Plug<'a> {
        device: Device,
        requests: Vec<ReadRequest>,
        slots: Vec<&'a mut Option<PendingRead>>,
    }
    let mut plugs: SmallVec<[(usize, Plug<'_>); 4]> = SmallVec::new();
    let segments = extents
        .iter_mut()
        .filter_map(|extent| extent.plan.as_mut().ok())
        .flatten();
    for PendingSegment { segment, started } in segments {
        let Some(Way {
            source: Source::Direct {
                stripe_index,
                physical,
            },
            ..
        }) = segment.ways.first()
        else {
            continue;
        };
        // The wait reports unreachable segments, with their location.
        let Ok(device) = reachable(&segment.chunk, *stripe_index, *physical, segment.length()) else {
            continue;
        };
        let Some(slot) = segment.chunk.devices().get(*stripe_index) else {
            continue;
        };
        let identity = std::sync::Arc::as_ptr(slot).addr();
        let request = ReadRequest {
            offset_bytes: physical.get(),
            length: segment.length(),
        };
        let plug = match plugs.iter_mut().position(|(other, _)| *other == identity) {
            Some(position) => plugs.get_mut(position),
            None => {
                plugs.push((
                    identity,
                    Plug {
                        device: device.clone(),
                        requests: Vec::new(),
                        slots: Vec::new(),
                    },
                ));
                plugs.last_mut()
            }
        };
        if let Some((_, plug)) = plug {
            plug.requests.push(request);
            plug.slots.push(started);
        }
    }
    for (_, plug) in plugs {
        for (slot, read) in plug.slots.into_iter().zip(plug.device.start_reads(plug.requests)) {
            *slot = Some(read);
        }
    }
}

impl PendingExtent {
    /// Marks the extent as unverified. Reads then use no device that missed commits.
    pub fn unverified(mut self) -> Self {
        for pending in self.plan.iter_mut().flatten() {
            let first = pending.segment.ways.first().copied();
            pending.segment.distrust_stale();
            if pending.segment.ways.first().copied() != first {
                pending.started = None;
            }
        }
        self
    }

    /// Returns the range that this read of an extent covers.
    #[must_use]
    pub const fn read(&self) -> ExtentRead {
        self.read
    }

    /// Returns true if a wait would return at once, provided that the first copies pass their
    /// checks.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        match &self.plan {
            Ok(plan) => plan
                .iter()
                .all(|pending| pending.started.as_ref().is_some_and(PendingRead::is_ready)),
            Err(_) => true,
        }
    }
}
