//! How to scrub.

use crate::position::Position;
use buttress_format::ByteCount;

/// How groups are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Stripes of 64 KiB of each device in a group.
    pub stripes: u64,
    /// Groups under way in a stream.
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

/// How to scrub.
#[derive(Clone, Debug)]
pub struct Options {
    /// Only read: nothing is mended.
    pub read_only: bool,
    /// So many bytes in a second of each device at the most.
    pub limit: Option<ByteCount>,
    /// How groups are read.
    pub shape: Shape,
    /// How many damages are kept; all are counted.
    pub damages_max: usize,
    /// Where to go on.
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
