//! The life of one request in the queue: requested, queued and possibly merged, started, completed.
//!
//! A [`Dispatch`] is submitted to the device. A dispatch is one run of bytes for one or more
//! adjacent requests, all reads or all writes. Each request has a [`Completion`], for which its
//! [`PendingRead`](crate::PendingRead) or [`PendingWrite`](crate::PendingWrite) waits.
//!
//! Invariants:
//! - a dispatch is started at most once, because [`Dispatch::start`] returns true to one caller
//!   only. A started dispatch always completes: every completion receives exactly one result;
//! - a dispatch whose requests are all cancelled before the start is never started.

use buttress_exact::Exact as _;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicUsize, Ordering};
use std::time::Duration;

use buttress_locks::unscheduled::{Condvar, Mutex};
use buttress_locks::{Rank, lock_class};
use bytes::Bytes;

use crate::buffer::Buffer;
use crate::error::{IoError, byte_length};
use crate::queue::statistics::Direction;

lock_class!(ResultLock, "result", Rank::LEAF);

/// A request to read the bytes `[offset_bytes, offset_bytes + length)`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadRequest {
    /// The offset of the first byte.
    pub offset_bytes: u64,
    /// The number of bytes.
    pub length: usize,
}

/// A request to write bytes from `offset_bytes` on.
///
/// The bytes are reference-counted and not copied on the path to the device, so a slice of a larger
/// [`Bytes`] costs nothing. Memory from a [`Buffer`] suits `O_DIRECT`; other memory is copied.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WriteRequest {
    /// The offset of the first byte.
    pub offset_bytes: u64,
    /// The bytes to write.
    pub bytes: Bytes,
}

/// The place at which the result of one request arrives.
#[derive(Debug, Default)]
pub(crate) struct Completion {
    result: Mutex<Arrival, ResultLock>,
    arrived: Condvar,
}

#[derive(Debug, Default)]
enum Arrival {
    #[default]
    Awaited,
    Here(Result<Buffer, IoError>),
    Taken,
}

impl Completion {
    pub(crate) fn complete(&self, result: Result<Buffer, IoError>) {
        *self.result.lock() = Arrival::Here(result);
        self.arrived.notify_all();
    }

    pub(crate) fn is_complete(&self) -> bool {
        !matches!(*self.result.lock(), Arrival::Awaited)
    }

    /// Returns the result, if it has arrived and was not taken before.
    pub(crate) fn take(&self) -> Option<Result<Buffer, IoError>> {
        Self::take_from(&mut self.result.lock())
    }

    /// Waits for the result. Returns `None` only if the result was taken before.
    pub(crate) fn wait(&self) -> Option<Result<Buffer, IoError>> {
        let mut result = self.result.lock();
        while matches!(*result, Arrival::Awaited) {
            self.arrived.wait(&mut result);
        }
        Self::take_from(&mut result)
    }

    fn take_from(arrival: &mut Arrival) -> Option<Result<Buffer, IoError>> {
        match std::mem::replace(arrival, Arrival::Taken) {
            Arrival::Here(result) => Some(result),
            Arrival::Taken => None,
            Arrival::Awaited => {
                *arrival = Arrival::Awaited;
                None
            }
        }
    }
}

/// A request inside a dispatch.
#[derive(Debug)]
pub(crate) struct Segment {
    pub(crate) length: usize,
    /// The payload of a write; empty for a read. A write completes with an empty buffer.
    pub(crate) payload: Bytes,
    pub(crate) completion: Completion,
}

const QUEUED: u8 = 0;
const STARTED: u8 = 1;
const CANCELLED: u8 = 2;

/// A run of bytes to read or write at once, and the requests that it serves, in order of their
/// offsets.
#[derive(Debug)]
pub(crate) struct Dispatch {
    pub(crate) direction: Direction,
    pub(crate) offset_bytes: u64,
    pub(crate) length_bytes: u64,
    pub(crate) segments: Vec<Segment>,
    /// The time of queueing, on the device's clock.
    pub(crate) queued: Duration,
    state: AtomicU8,
    /// The number of requests that are still wanted.
    wanted: AtomicUsize,
    /// True if an attempt to read the dispatch from memory failed. The attempt may have made the
    /// kernel read the medium.
    missed: AtomicBool,
}

impl Dispatch {
    /// Records that not all of the bytes were in memory at an attempt.
    pub(crate) fn note_missed(&self) {
        self.missed.store(true, Ordering::Relaxed);
    }

    pub(crate) fn was_missed(&self) -> bool {
        self.missed.load(Ordering::Relaxed)
    }

    pub(crate) fn read(offset_bytes: u64, lengths: impl Iterator<Item = usize>, queued: Duration) -> Self {
        let segments = lengths.map(|length| Segment {
            length,
            payload: Bytes::new(),
            completion: Completion::default(),
        });
        Self::new(Direction::Read, offset_bytes, segments.collect(), queued)
    }

    pub(crate) fn write(offset_bytes: u64, payloads: impl Iterator<Item = Bytes>, queued: Duration) -> Self {
        let segments = payloads.map(|payload| Segment {
            length: payload.len(),
            payload,
            completion: Completion::default(),
        });
        Self::new(Direction::Write, offset_bytes, segments.collect(), queued)
    }

    fn new(direction: Direction, offset_bytes: u64, segments: Vec<Segment>, queued: Duration) -> Self {
        let length_bytes = segments
            .iter()
            .fold(0_u64, |sum, segment| sum.exact_add(byte_length(segment.length)));
        let wanted = AtomicUsize::new(segments.len());
        Self {
            direction,
            offset_bytes,
            length_bytes,
            segments,
            queued,
            state: AtomicU8::new(QUEUED),
            missed: AtomicBool::new(false),
            wanted,
        }
    }

    /// Returns true if the dispatch writes.
    pub(crate) fn is_write(&self) -> bool {
        self.direction == Direction::Write
    }

    /// Returns the number of requests that merging saved.
    pub(crate) fn merged(&self) -> usize {
        self.segments.len().exact_sub(1)
    }

    /// Claims the dispatch. Returns true to exactly one caller, which must then complete the
    /// dispatch.
    pub(crate) fn start(&self) -> bool {
        self.state
            .compare_exchange(QUEUED, STARTED, Ordering::AcqRel, Ordering::Acquire)
            .is_ok()
    }

    /// Records that one of the requests is no longer wanted. Returns true if no request of the
    /// dispatch is wanted any more and the dispatch was not started. The caller must then remove
    /// the dispatch from its queue.
    pub(crate) fn unwant(&self) -> bool {
        let last = self.wanted.fetch_sub(1, Ordering::AcqRel) == 1;
        last && self
            .state
            .compare_exchange(QUEUED, CANCELLED, Ordering::AcqRel, Ordering::Acquire)
            .is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dispatch_starts_once_and_never_after_cancellation() {
        let dispatch = Dispatch::read(0, [1, 2].into_iter(), Duration::ZERO);
        assert_eq!((dispatch.length_bytes, dispatch.merged()), (3, 1));
        assert!(!dispatch.unwant(), "one request is still wanted");
        assert!(dispatch.start());
        assert!(!dispatch.start());
        assert!(!dispatch.unwant(), "already started");

        let dispatch = Dispatch::read(0, [1].into_iter(), Duration::ZERO);
        assert!(dispatch.unwant());
        assert!(!dispatch.start());
    }

    #[test]
    fn a_result_is_taken_once() {
        let completion = Completion::default();
        assert!(completion.take().is_none());
        assert!(!completion.is_complete());
        completion.complete(Ok(Buffer::from(&b"x"[..])));
        assert!(completion.is_complete());
        assert_eq!(&completion.wait().unwrap().unwrap()[..], b"x");
        assert!(completion.take().is_none());
    }
}
