//! The result of a layout.

use super::free::Placed;
use buttress_format::Physical;
use core::ops::Range;

/// A unit of a reserved range, and the place of its copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Moved {
    /// The first byte of the unit.
    pub from: Physical,
    /// The first byte of the copy.
    pub to: Physical,
}

/// The places of all chunks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layout {
    /// The system chunk.
    pub system: Placed,
    /// The metadata chunks.
    pub metadata: Vec<Placed>,
    /// The data chunks in order, as ranges of bytes of the device and of logical addresses.
    pub data: Vec<Range<u64>>,
    /// The used units of reserved ranges, in order.
    pub moved: Vec<Moved>,
}
