//! Read-ahead: the choice of blocks to fetch before a reader requests them.
//!
//! Read-ahead belongs to a cursor or a walk, and only makes it faster. All modes return the same
//! items and errors in the same order. Read-ahead blocks that the reader has not used count against
//! the forest's budget. When that budget is used up, blocks are read when the reader requests them.
//!
//! | mode | fetches | when |
//! |---|---|---|
//! | [`ReadAhead::None`] | nothing | |
//! | [`ReadAhead::Backward`], [`ReadAhead::Forward`] | leaves whose address is within 64 KiB | the requested leaf is not in memory |
//! | [`ReadAhead::ForwardOnMiss`] | the next 128 KiB of leaves, two nodes | the requested block is not in memory |
//! | [`ReadAhead::ForwardAlways`] | the next 128 KiB of leaves, two nodes | always |
//! | [`ReadAhead::Sweep`] | a window of megabytes, in address order, and the nodes above | always |
//!
//! The first modes are those of Linux's btrfs. These modes of Linux serve for comparison and for
//! short walks; the module `near` holds them. The module `sweep` is for walks that will visit all
//! blocks. On spinning disks, a sweep may become a pass in disk order.

pub(crate) mod batch;
pub(crate) mod near;
mod packed;
mod pass;
pub(crate) mod queue;
pub(crate) mod sweep;

use crate::error::Result;
use crate::forest::Forest;
use crate::path::Step;
use crate::pointer::BlockPointer;
use crate::scope::Scope;
use buttress_exact::Exact as _;
use buttress_format::ByteCount;
use buttress_format::node::TreeBlock;
use near::Near;
use sweep::Sweep;

/// The window of [`ReadAhead::sweep`].
pub const SWEEP_WINDOW: ByteCount = ByteCount::new(16 << 20);

/// The largest window of read-ahead blocks that are in the page cache. On no measured device does a
/// larger window help. With a window of this size, a block that was copied and checked is still in
/// the processor's cache when the walk visits it.
const CACHED_WINDOW_BYTES: u64 = 4 << 20;

/// Returns the size of the window after one of `window_bytes`. `cached` is true if its blocks were
/// in the page cache.
pub(crate) fn next_window(window_bytes: u64, largest_bytes: u64, cached: bool) -> u64 {
    let largest_bytes = if cached {
        largest_bytes.min(CACHED_WINDOW_BYTES)
    } else {
        largest_bytes
    };
    window_bytes.exact_mul(2).min(largest_bytes)
}

/// The read-ahead mode of a cursor or a walk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ReadAhead {
    /// No read-ahead, for single lookups.
    #[default]
    None,
    /// When a leaf must be read, fetches preceding leaves of the same object within 64 KiB of its
    /// address. Stops after 64 KiB of leaves or 32 slots.
    Backward,
    /// When a leaf must be read, fetches following leaves within 64 KiB of its address. This
    /// read-ahead stops after 64 KiB of leaves or 32 slots.
    Forward,
    /// When a leaf must be read, fetches following leaves at any address, up to 128 KiB. When a
    /// node must be read, fetches the two nodes after it. `ForwardAlways` had this form when it was
    /// first proposed for the kernel; this mode serves for comparison.
    ForwardOnMiss,
    /// Fetches the same blocks as `ForwardOnMiss`, at every visit of a leaf or a node.
    ForwardAlways,
    /// For a walk to higher keys that visits its whole range, fetches a window of leaves.
    Sweep {
        /// The number of bytes of leaves to fetch ahead.
        window_bytes: ByteCount,
    },
}

impl ReadAhead {
    /// Returns a sweep with the default window.
    #[must_use]
    pub const fn sweep() -> Self {
        Self::Sweep {
            window_bytes: SWEEP_WINDOW,
        }
    }
}

/// The direction in which a cursor moves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Toward {
    Lower,
    Higher,
}

/// The state of one cursor's read-ahead.
#[derive(Debug)]
pub(crate) enum Ahead {
    None,
    Near(Near),
    Sweep(Box<Sweep>),
}

impl Ahead {
    /// Makes the read-ahead for a walk whose lowest blocks have level `floor`. Fetches nothing
    /// outside `scope`.
    pub(crate) fn new(mode: ReadAhead, floor: u8, scope: Scope) -> Self {
        let near = |reach| Self::Near(Near::new(reach, scope.clone()));
        match mode {
            ReadAhead::None => Self::None,
            ReadAhead::Backward => near(near::Reach::Backward),
            ReadAhead::Forward => near(near::Reach::Forward),
            ReadAhead::ForwardOnMiss => near(near::Reach::ForwardOnMiss),
            ReadAhead::ForwardAlways => near(near::Reach::ForwardAlways),
            ReadAhead::Sweep { window_bytes } => {
                Self::Sweep(Box::new(Sweep::new(window_bytes, floor, scope)))
            }
        }
    }

    /// Declares that the walk visits each leaf once. A sweep then does not put its leaves into the
    /// cache.
    pub(crate) fn pass_leaves(&mut self) {
        if let Self::Sweep(sweep) = self {
            sweep.pass_leaves();
        }
    }

    /// Returns the block at `pointer`, which is the child in the last step's slot. `steps` are the
    /// path from the root to the block.
    pub(crate) fn fetch(
        &mut self,
        forest: &Forest,
        steps: &[Step],
        pointer: &BlockPointer,
        toward: Toward,
    ) -> Result<TreeBlock> {
        match (self, steps.last()) {
            (Self::Near(near), Some(parent)) => near.fetch(forest, parent, pointer),
            (Self::Sweep(sweep), Some(_)) => sweep.fetch(forest, steps, pointer, toward),
            (Self::None, _) | (_, None) => forest.read_block(pointer),
        }
    }
}
