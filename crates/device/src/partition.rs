//! Partitions inside an image or a device: where a volume's byte 0 lies.

/// Where on a file or block device the volume starts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Offset {
    /// At its first byte; the volume may use all of it.
    #[default]
    Whole,
    /// At this byte; the volume may use all that follows.
    Bytes(u64),
    /// At the start of the partition with this number, counted from 1 as `sda1` is; it ends where that ends.
    Partition(u32),
}

use std::io;
use std::sync::Arc;

use crate::backend::Backend;

pub(crate) fn window(_whole: Arc<dyn Backend>, _offset: Offset) -> io::Result<Arc<dyn Backend>> {
    Err(io::ErrorKind::Unsupported.into())
}
