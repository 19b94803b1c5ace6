//! Schedules: the hook by which a simulated disk replaces an engine and chooses the times of
//! requests.
//!
//! Each plugged batch goes to a [`Schedule`]. A simulated disk's schedule decides when each request
//! begins and completes, on a [`VirtualClock`](crate::VirtualClock). The bytes come from the
//! device's backend, like those of any other device. The crate `buttress-lab` has schedules that
//! behave like drives.

use std::fmt;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use crate::engine::{Engine, RunRequests};
use crate::error::Operation;
use crate::queue::request::Dispatch;
use crate::queue::{Core, uncleared_buffers};

/// Decides when the requests of a device are served. All calls run on the threads that call the
/// device.
///
/// A schedule starts each request ([`QueuedRequest::start`]) and completes it
/// ([`StartedRequest::complete`]). When [`wait_for`](Self::wait_for) returns, the awaited request
/// must be complete.
pub trait Schedule: Send + Sync + fmt::Debug {
    /// Returns true if the medium is rotational, so that a seek costs milliseconds.
    fn is_rotational(&self) -> bool {
        false
    }

    /// Queues a batch, in ascending order of offset.
    fn submit(&self, requests: Vec<QueuedRequest>);

    /// Advances the virtual time until `request` is complete.
    fn wait_for(&self, request: &QueuedRequest);

    /// Removes a request that no caller needs any more. The request was not started, and a later
    /// attempt to start it fails.
    fn cancel(&self, request: &QueuedRequest);

    /// Completes all requests whose time has come on the clock.
    fn catch_up(&self);

    /// Lets time pass until the queue is empty, as a flush does.
    fn drain(&self);

    /// Lets the duration of a single write pass. The device writes the bytes only after this
    /// duration.
    fn wait_for_write(&self, offset_bytes: u64, length_bytes: u64);
}

/// A request in the queue: merged neighbours of one batch.
#[derive(Clone)]
pub struct QueuedRequest {
    core: Arc<Core>,
    dispatch: Arc<Dispatch>,
}

impl QueuedRequest {
    /// Returns true if the request writes.
    #[must_use]
    pub fn is_write(&self) -> bool {
        self.dispatch.is_write()
    }

    /// Returns the first byte of the request.
    #[must_use]
    pub fn offset_bytes(&self) -> u64 {
        self.dispatch.offset_bytes
    }

    /// Returns the length of the request in bytes.
    #[must_use]
    pub fn length_bytes(&self) -> u64 {
        self.dispatch.length_bytes
    }

    /// Returns true if both values stand for the same request, not only for the same range.
    #[must_use]
    pub fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.dispatch, &other.dispatch)
    }

    /// Starts the request. Returns `None` if the request was cancelled or already started.
    #[must_use = "a request that is started must be completed"]
    pub fn start(&self) -> Option<StartedRequest> {
        self.dispatch.start().then(|| StartedRequest {
            request: self.clone(),
            is_complete: false,
        })
    }
}

impl fmt::Debug for QueuedRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("QueuedRequest")
            .field("is_write", &self.is_write())
            .field("offset_bytes", &self.offset_bytes())
            .field("length_bytes", &self.length_bytes())
            .finish_non_exhaustive()
    }
}

/// A started request. If the request is dropped before it completes, its callers receive an error.
#[derive(Debug)]
pub struct StartedRequest {
    request: QueuedRequest,
    is_complete: bool,
}

impl StartedRequest {
    /// Returns the request.
    #[must_use]
    pub const fn request(&self) -> &QueuedRequest {
        &self.request
    }

    /// Reads or writes the bytes, and delivers the outcome to the request's callers. The statistics
    /// count the request as completed at `now`.
    pub fn complete(mut self, now: Duration) {
        self.is_complete = true;
        let QueuedRequest { core, dispatch } = &self.request;
        if dispatch.is_write() {
            let result = core.write_all(dispatch);
            core.finish_write(dispatch, result, now);
            return;
        }
        let mut buffers = uncleared_buffers(dispatch);
        let mut slices: Vec<&mut [u8]> = buffers.iter_mut().map(|buffer| &mut buffer[..]).collect();
        let result = core.backend.read_vectored_at(dispatch.offset_bytes, &mut slices);
        core.finish(dispatch, buffers, result, now);
    }
}

impl Drop for StartedRequest {
    fn drop(&mut self) {
        if self.is_complete {
            return;
        }
        let QueuedRequest { core, dispatch } = &self.request;
        let operation = match dispatch.is_write() {
            true => Operation::Write,
            false => Operation::Read,
        };
        let cause = io::Error::other("the schedule gave the request up");
        core.fail_rest(dispatch, operation, &cause);
    }
}

/// The engine of a simulated device, which requests times from a schedule.
#[derive(Debug)]
pub(crate) struct ScheduledEngine {
    core: Arc<Core>,
    schedule: Box<dyn Schedule>,
}

impl ScheduledEngine {
    pub(crate) fn new(core: Arc<Core>, schedule: Box<dyn Schedule>) -> Self {
        Self { core, schedule }
    }

    fn request(&self, dispatch: &Arc<Dispatch>) -> QueuedRequest {
        QueuedRequest {
            core: Arc::clone(&self.core),
            dispatch: Arc::clone(dispatch),
        }
    }
}

impl RunRequests for ScheduledEngine {
    fn kind(&self) -> Engine {
        Engine::Simulated
    }

    fn submit(&self, dispatches: &[Arc<Dispatch>]) {
        let requests = dispatches.iter().map(|dispatch| self.request(dispatch));
        self.schedule.submit(requests.collect());
    }

    fn help(&self, dispatch: &Arc<Dispatch>) {
        self.schedule.wait_for(&self.request(dispatch));
    }

    fn forget(&self, dispatch: &Arc<Dispatch>) {
        self.schedule.cancel(&self.request(dispatch));
    }

    fn catch_up(&self) {
        self.schedule.catch_up();
    }

    fn flush(&self) {
        self.schedule.drain();
    }

    fn write(&self, core: &Core, offset_bytes: u64, bytes: &[u8]) -> io::Result<()> {
        let length_bytes = crate::error::byte_length(bytes.len());
        self.schedule.wait_for_write(offset_bytes, length_bytes);
        core.backend.write_at(offset_bytes, bytes)
    }
}
