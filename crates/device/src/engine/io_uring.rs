//! The io_uring engine (its place).
use std::io;
use std::sync::Arc;

use crate::engine::threads::ThreadEngine;
use crate::queue::Core;

pub(crate) struct IoUringEngine;

impl IoUringEngine {
    pub(crate) fn new(_core: Arc<Core>, _depth: u32) -> io::Result<ThreadEngine> {
        Err(io::Error::from(io::ErrorKind::Unsupported))
    }
}
