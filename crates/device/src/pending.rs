//! Pending requests: handles that a caller holds until the bytes have arrived or are written.
//!
//! Dropping a read cancels it. A write is never cancelled: its bytes are written, or the write
//! fails.

use std::fmt;
use std::sync::Arc;

use crate::buffer::Buffer;
use crate::device::Device;
use crate::error::{IoError, Operation};
use crate::queue::request::Dispatch;

/// A started read. Dropping the pending read cancels it. If the callers of all merged requests drop
/// them before the device begins, nothing is read. Otherwise the bytes arrive unused.
#[must_use = "dropping a pending read cancels it"]
pub struct PendingRead {
    state: Pending,
}

enum Pending {
    Queued(Queued),
    Failed(IoError),
}

struct Queued {
    device: Device,
    dispatch: Arc<Dispatch>,
    segment: usize,
    taken: bool,
}

impl PendingRead {
    pub(crate) fn failed(error: IoError) -> Self {
        Self {
            state: Pending::Failed(error),
        }
    }

    pub(crate) fn queued(device: &Device, dispatch: &Arc<Dispatch>, segment: usize) -> Self {
        Self {
            state: Pending::Queued(Queued::new(device, dispatch, segment)),
        }
    }

    /// Waits for the bytes.
    ///
    /// # Errors
    /// Fails if the range is not on the device, or cannot be read completely.
    pub fn wait(self) -> Result<Buffer, IoError> {
        match self.state {
            Pending::Failed(error) => Err(error),
            Pending::Queued(queued) => queued.wait(),
        }
    }

    /// Returns true if [`wait`](Self::wait) would return at once.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        self.state.is_ready()
    }
}

impl fmt::Debug for PendingRead {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PendingRead")
            .field("ready", &self.is_ready())
            .finish_non_exhaustive()
    }
}

/// A started write. Dropping the handle waits for the write, and discards its result.
#[must_use = "what became of the write comes with `wait`"]
pub struct PendingWrite {
    state: Pending,
}

impl PendingWrite {
    pub(crate) fn failed(error: IoError) -> Self {
        Self {
            state: Pending::Failed(error),
        }
    }

    pub(crate) fn queued(device: &Device, dispatch: &Arc<Dispatch>, segment: usize) -> Self {
        Self {
            state: Pending::Queued(Queued::new(device, dispatch, segment)),
        }
    }

    /// Waits until the device has the bytes. The written bytes are durable only after a
    /// [`flush`](Device::flush).
    ///
    /// # Errors
    /// Fails if the device is read-only, if the range is not on it, or if any byte could not be
    /// written.
    pub fn wait(self) -> Result<(), IoError> {
        match self.state {
            Pending::Failed(error) => Err(error),
            Pending::Queued(queued) => queued.wait().map(|_empty| ()),
        }
    }

    /// Returns true if [`wait`](Self::wait) would return at once.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        self.state.is_ready()
    }
}

impl fmt::Debug for PendingWrite {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PendingWrite")
            .field("ready", &self.is_ready())
            .finish_non_exhaustive()
    }
}

impl Pending {
    fn is_ready(&self) -> bool {
        match self {
            Self::Failed(_) => true,
            Self::Queued(queued) => {
                queued.device.engine_of().catch_up();
                let segment = queued.dispatch.segments.get(queued.segment);
                segment.is_none_or(|segment| segment.completion.is_complete())
            }
        }
    }
}

impl Queued {
    fn new(device: &Device, dispatch: &Arc<Dispatch>, segment: usize) -> Self {
        Self {
            device: device.clone(),
            dispatch: Arc::clone(dispatch),
            segment,
            taken: false,
        }
    }

    fn wait(mut self) -> Result<Buffer, IoError> {
        self.take()
    }

    #[cfg_attr(debug_assertions, track_caller)]
    fn take(&mut self) -> Result<Buffer, IoError> {
        buttress_locks::waits_for_device();
        let dispatch = Arc::clone(&self.dispatch);
        let Some(segment) = dispatch.segments.get(self.segment) else {
            return Err(self.lost());
        };
        self.device.engine_of().catch_up();
        let mut result = segment.completion.take();
        if result.is_none() {
            self.device.engine_of().help(&dispatch);
            result = segment.completion.wait();
        }
        self.taken = true;
        result.unwrap_or_else(|| Err(self.lost()))
    }

    /// Returns the error for states that cannot occur, because no code in this crate may panic.
    fn lost(&self) -> IoError {
        let Dispatch {
            offset_bytes,
            length_bytes,
            ..
        } = *self.dispatch;
        let cause = std::io::Error::other("the answer was already taken");
        let operation = if self.dispatch.is_write() {
            Operation::Write
        } else {
            Operation::Read
        };
        self.device
            .core()
            .error(operation, offset_bytes, length_bytes, &cause)
    }
}

impl Drop for Queued {
    fn drop(&mut self) {
        if self.taken {
            return;
        }
        if self.dispatch.is_write() {
            let _unseen = self.take();
            return;
        }
        self.device.engine_of().catch_up();
        if self.dispatch.unwant() {
            self.device.engine_of().forget(&self.dispatch);
            let core = self.device.core();
            core.recorder.cancelled(core.clock.now());
        }
    }
}
