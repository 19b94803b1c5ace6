//! One request's way through the queue: asked, queued (perhaps merged with neighbours), started, completed.
//!
//! A [`Dispatch`] is what goes down to the device: one run of bytes that serves one or more requests lying end
//! to end, all reads or all writes. Each request has a [`Completion`], which its [`PendingRead`](crate::PendingRead)
//! or [`PendingWrite`](crate::PendingWrite) waits on.
//!
//! Invariants:
//! - a dispatch is started at most once ([`Dispatch::start`] answers `true` to one caller only), and a started
//!   one always completes: every completion gets exactly one result;
//! - a dispatch whose requests are all cancelled before it is started is never started.

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

/// What a caller asks for: the bytes `[offset_bytes, offset_bytes + length)`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadRequest {
    /// First byte.
    pub offset_bytes: u64,
    /// How many bytes.
    pub length: usize,
}

/// Bytes to be written from `offset_bytes` on.
///
/// They are counted, not copied, on their way to the device: a slice of a larger [`Bytes`] costs nothing. Memory
/// from a [`Buffer`] suits `O_DIRECT`; other memory is copied there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WriteRequest {
    /// Where the first byte goes.
    pub offset_bytes: u64,
    /// What is written.
    pub bytes: Bytes,
}

/// Where the result of one request arrives.
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

    /// The result, if it is there and was not taken before.
    pub(crate) fn take(&self) -> Option<Result<Buffer, IoError>> {
        Self::take_from(&mut self.result.lock())
    }

    /// Blocks until the result is there. `None` only when it was taken before.
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

/// One request inside a dispatch.
#[derive(Debug)]
pub(crate) struct Segment {
    pub(crate) length: usize,
    /// What a write brings; empty for a read. A write completes with an empty buffer.
    pub(crate) payload: Bytes,
    pub(crate) completion: Completion,
}

const QUEUED: u8 = 0;
const STARTED: u8 = 1;
const CANCELLED: u8 = 2;

/// A run of bytes to read or write at once, and the requests that it serves, in order of their offsets.
#[derive(Debug)]
pub(crate) struct Dispatch {
    pub(crate) direction: Direction,
    pub(crate) offset_bytes: u64,
    pub(crate) length_bytes: u64,
    pub(crate) segments: Vec<Segment>,
    /// When it was queued, on the device's clock.
    pub(crate) queued: Duration,
    state: AtomicU8,
    /// Requests that somebody still waits for.
    wanted: AtomicUsize,
    /// It was tried from memory in vain. That attempt may have made the kernel ask the medium.
    missed: AtomicBool,
}

impl Dispatch {
    /// Not all of its bytes were in memory when somebody looked.
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

    /// Whether it writes.
    pub(crate) fn is_write(&self) -> bool {
        self.direction == Direction::Write
    }

    /// How many requests were saved by merging.
    pub(crate) fn merged(&self) -> usize {
        self.segments.len().exact_sub(1)
    }

    /// Claims the dispatch: `true` for exactly one caller, who must then complete it.
    pub(crate) fn start(&self) -> bool {
        self.state
            .compare_exchange(QUEUED, STARTED, Ordering::AcqRel, Ordering::Acquire)
            .is_ok()
    }

    /// One of its requests is no longer wanted. `true` if that was the last one and the dispatch had not been
    /// started: the caller must take it out of its queue.
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
    fn a_dispatch_is_started_once_and_not_after_all_its_requests_are_cancelled() {
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
