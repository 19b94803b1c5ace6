//! Options of a scrub.

use crate::position::Position;
use buttress_format::ByteCount;

/// The size of a scrub's groups, and how they are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// The number of stripes of 64 KiB of each device in a group.
    pub stripes: u64,
    /// The number of groups in flight in a stream.
    pub groups: usize,
    /// Whether the stripes of a group are submitted in one plug, so that neighbours merge.
    pub plugged: bool,
}

impl Default for Shape {
    fn default() -> Self {
        Self {
            stripes: 8,
            groups: 16,
            plugged: true,
        }
    }
}

/// Options of a scrub.
#[derive(Clone, Debug)]
pub struct Options {
    /// Whether the scrub only reads and repairs nothing.
    pub read_only: bool,
    /// The limit of read bytes per second on each device.
    pub limit: Option<ByteCount>,
    /// The size of groups, and how they are read.
    pub shape: Shape,
    /// The most damages that are listed; all are counted.
    pub damages_max: usize,
    /// The position from which to continue.
    pub resume: Position,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            read_only: false,
            limit: None,
            shape: Shape::default(),
            damages_max: 10_000,
            resume: Position::default(),
        }
    }
}
