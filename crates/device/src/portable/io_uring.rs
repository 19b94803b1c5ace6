//! A replacement for the io_uring engine on systems without io_uring, and on processors that the
//! crate `io-uring` does not support.
//!
//! The replacement engine refuses to start, like io_uring on a kernel without io_uring. If io_uring
//! does not start, the thread engine serves the device.

use std::io;
use std::sync::Arc;

use crate::engine::{Engine, RunRequests};
use crate::queue::Core;
use crate::queue::request::Dispatch;

/// An engine that never exists.
#[derive(Debug)]
pub(crate) enum IoUringEngine {}

impl IoUringEngine {
    /// Returns an error of kind [`io::ErrorKind::Unsupported`].
    pub(crate) fn new(_core: Arc<Core>, _depth: u32) -> io::Result<Self> {
        let what = "this build has no io_uring for its system and processor";
        Err(io::Error::new(io::ErrorKind::Unsupported, what))
    }
}

impl RunRequests for IoUringEngine {
    fn kind(&self) -> Engine {
        match *self {}
    }

    fn submit(&self, _dispatches: &[Arc<Dispatch>]) {
        match *self {}
    }

    fn help(&self, _dispatch: &Arc<Dispatch>) {
        match *self {}
    }

    fn forget(&self, _dispatch: &Arc<Dispatch>) {
        match *self {}
    }
}
