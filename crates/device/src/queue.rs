//! The request queue between a caller's batch of reads or writes and the device.
//!
//! A batch is sorted and merged ([`plug`]), passed to an engine ([`crate::engine`]), and completed
//! request by request ([`request`]). [`statistics`] counts the columns of iostat. The queue is the
//! same for real and simulated devices; only the engine and the clock differ.

pub(crate) mod plug;
pub(crate) mod request;
pub(crate) mod statistics;

use buttress_exact::Exact as _;
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::backend::{Backend, Source};
use crate::buffer::Buffer;
use crate::clock::VirtualClock;
use crate::error::{IoError, Operation, byte_length, check_range};
use crate::queue::request::Dispatch;
use crate::queue::statistics::Recorder;

/// The state that engines share with their device: the backend, the counters, and the clock that
/// times them.
#[derive(Debug)]
pub(crate) struct Core {
    pub(crate) name: Arc<str>,
    pub(crate) backend: Arc<dyn Backend>,
    pub(crate) recorder: Recorder,
    pub(crate) clock: Clock,
}

/// The clock of a device's statistics.
#[derive(Debug)]
pub(crate) enum Clock {
    /// Real time since the device was opened.
    Real(Instant),
    /// The virtual time of a simulated disk.
    Virtual(VirtualClock),
}

impl Clock {
    pub(crate) fn now(&self) -> Duration {
        match self {
            Self::Real(opened) => opened.elapsed(),
            Self::Virtual(clock) => clock.now(),
        }
    }
}

impl Core {
    pub(crate) fn error(&self, operation: Operation, offset: u64, length: u64, cause: &io::Error) -> IoError {
        let error = IoError::new(&self.name, operation, offset, length, cause);
        match error.is_out_of_space() {
            true => error.with_space(self.backend.describe_space()),
            false => error,
        }
    }

    pub(crate) fn check_range(&self, operation: Operation, offset: u64, length: u64) -> Result<(), IoError> {
        check_range(self.backend.size_bytes(), offset, length)
            .map_err(|cause| self.error(operation, offset, length, &cause))
    }

    /// Reads or writes all of a started dispatch on this thread, and completes it.
    pub(crate) fn execute(&self, dispatch: &Dispatch) {
        let _completes = Completes { core: self, dispatch };
        if dispatch.is_write() {
            let result = self.write_all(dispatch);
            self.finish_write(dispatch, result, self.clock.now());
            return;
        }
        let mut buffers = uncleared_buffers(dispatch);
        match self.read_into(dispatch.offset_bytes, &mut buffers) {
            Ok(Source::Memory) if !dispatch.was_missed() => self.finish_copied(dispatch, buffers),
            read => self.finish(dispatch, buffers, read.map(drop), self.clock.now()),
        }
    }

    /// Executes a read like [`execute`](Self::execute), but only if the bytes are in memory. If the
    /// bytes are not in memory, returns false and does nothing. No other thread may be able to
    /// start the dispatch.
    pub(crate) fn execute_if_cached(&self, dispatch: &Dispatch) -> bool {
        match self.read_if_cached(dispatch) {
            Some(buffers) if dispatch.start() => {
                self.finish_copied(dispatch, buffers);
                true
            }
            _ => false,
        }
    }

    /// Executes a started dispatch like `execute_if_cached`. Returns false for a dispatch of
    /// writes.
    pub(crate) fn execute_started_if_cached(&self, dispatch: &Dispatch) -> bool {
        let buffers = self.read_if_cached(dispatch);
        let is_cached = buffers.is_some();
        if let Some(buffers) = buffers {
            self.finish_copied(dispatch, buffers);
        }
        is_cached
    }

    /// Returns the bytes that a dispatch reads, if they are in memory.
    fn read_if_cached(&self, dispatch: &Dispatch) -> Option<Vec<Buffer>> {
        if dispatch.is_write() {
            return None;
        }
        let mut buffers = uncleared_buffers(dispatch);
        let mut slices: Vec<&mut [u8]> = buffers.iter_mut().map(|buffer| &mut buffer[..]).collect();
        let answer = self
            .backend
            .read_cached_vectored_at(dispatch.offset_bytes, &mut slices);
        // The ordinary path handles a failure, because it distinguishes good segments from bad
        // ones.
        let is_cached = matches!(answer, Ok(true));
        if !is_cached {
            dispatch.note_missed();
        }
        is_cached.then_some(buffers)
    }

    fn read_into(&self, offset: u64, buffers: &mut [Buffer]) -> io::Result<Source> {
        if let [buffer] = buffers {
            return self.backend.read_telling_at(offset, &mut [&mut buffer[..]]);
        }
        let mut slices: Vec<&mut [u8]> = buffers.iter_mut().map(|buffer| &mut buffer[..]).collect();
        self.backend.read_telling_at(offset, &mut slices)
    }

    /// Writes the payloads of a dispatch.
    pub(crate) fn write_all(&self, dispatch: &Dispatch) -> io::Result<()> {
        if let [segment] = dispatch.segments.as_slice() {
            return self.backend.write_at(dispatch.offset_bytes, &segment.payload);
        }
        let payloads: Vec<&[u8]> = dispatch
            .segments
            .iter()
            .map(|segment| &segment.payload[..])
            .collect();
        self.backend.write_vectored_at(dispatch.offset_bytes, &payloads)
    }

    /// Completes a started dispatch whose write ended with `result`. If a merged write failed, each
    /// request is written again by itself, so that only unwritable requests fail.
    pub(crate) fn finish_write(&self, dispatch: &Dispatch, result: io::Result<()>, now: Duration) {
        self.count(dispatch, now);
        let mut offset = dispatch.offset_bytes;
        for segment in &dispatch.segments {
            let outcome = match &result {
                Ok(()) => Ok(()),
                Err(_) if dispatch.segments.len() > 1 => self.backend.write_at(offset, &segment.payload),
                Err(cause) => Err(copy_of(cause)),
            };
            let length = byte_length(segment.length);
            segment.completion.complete(match outcome {
                Ok(()) => Ok(Buffer::uncleared(0)),
                Err(cause) => Err(self.error(Operation::Write, offset, length, &cause)),
            });
            offset = offset.exact_add(length);
        }
    }

    /// Counts a dispatch as completed. The dispatch is counted before its results are delivered, so
    /// a caller with a result also sees the dispatch counted.
    fn count(&self, dispatch: &Dispatch, now: Duration) {
        self.recorder.completed(
            dispatch.direction,
            dispatch.length_bytes,
            dispatch.merged(),
            dispatch.queued,
            now,
        );
    }

    /// Completes a started dispatch whose bytes were in memory.
    fn finish_copied(&self, dispatch: &Dispatch, buffers: Vec<Buffer>) {
        self.recorder
            .copied_from_queue(dispatch.length_bytes, self.clock.now());
        for (segment, buffer) in dispatch.segments.iter().zip(buffers) {
            segment.completion.complete(Ok(buffer));
        }
    }

    /// Completes a started dispatch whose read ended with `result`, at the time `now` on the
    /// device's clock.
    ///
    /// If a merged read failed, each request is read again by itself, so that one bad sector does
    /// not fail its neighbours' requests.
    pub(crate) fn finish(
        &self,
        dispatch: &Dispatch,
        buffers: Vec<Buffer>,
        result: io::Result<()>,
        now: Duration,
    ) {
        self.count(dispatch, now);
        let mut offset = dispatch.offset_bytes;
        for (segment, mut buffer) in dispatch.segments.iter().zip(buffers) {
            let outcome = match &result {
                Ok(()) => Ok(()),
                Err(_) if dispatch.segments.len() > 1 => {
                    self.backend.read_vectored_at(offset, &mut [&mut buffer[..]])
                }
                Err(cause) => Err(copy_of(cause)),
            };
            let length = byte_length(segment.length);
            segment.completion.complete(match outcome {
                Ok(()) => Ok(buffer),
                Err(cause) => Err(self.error(Operation::Read, offset, length, &cause)),
            });
            offset = offset.exact_add(length);
        }
    }
}

impl Core {
    /// Completes with an error all requests of a started dispatch that have no outcome yet, because
    /// callers wait for them.
    pub(crate) fn fail_rest(&self, dispatch: &Dispatch, operation: Operation, cause: &io::Error) {
        let mut offset = dispatch.offset_bytes;
        for segment in &dispatch.segments {
            let length = byte_length(segment.length);
            if !segment.completion.is_complete() {
                let error = self.error(operation, offset, length, cause);
                segment.completion.complete(Err(error));
            }
            offset = offset.saturating_add(length);
        }
    }
}

/// Completes the requests of a started dispatch after a panic, because callers wait for them.
struct Completes<'a> {
    core: &'a Core,
    dispatch: &'a Dispatch,
}

impl Drop for Completes<'_> {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            return;
        }
        let operation = match self.dispatch.is_write() {
            true => Operation::Write,
            false => Operation::Read,
        };
        let cause = io::Error::other("the thread that served the request panicked");
        self.core.fail_rest(self.dispatch, operation, &cause);
    }
}

/// Allocates buffers for all requests of a dispatch, for its read to fill.
pub(crate) fn uncleared_buffers(dispatch: &Dispatch) -> Vec<Buffer> {
    dispatch
        .segments
        .iter()
        .map(|segment| Buffer::uncleared(segment.length))
        .collect()
}

pub(crate) fn copy_of(cause: &io::Error) -> io::Error {
    match cause.raw_os_error() {
        Some(errno) => io::Error::from_raw_os_error(errno),
        None => io::Error::new(cause.kind(), cause.to_string()),
    }
}
