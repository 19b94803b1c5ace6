//! Read-ahead: which blocks are fetched before they are asked for.
//!
//! Read-ahead belongs to a cursor or a walk, and only ever makes it faster: which items and errors come, and in
//! which order, is the same in all modes. What was fetched and is not yet looked at counts against the
//! forest's budget; when that is used up, blocks are read when they are asked for.
//!
//! | mode | fetches | when |
//! |---|---|---|
//! | [`ReadAhead::None`] | nothing | |
//! | [`ReadAhead::Backward`], [`ReadAhead::Forward`] | leaves whose address is within 64 KiB | the leaf asked for is not in memory |
//! | [`ReadAhead::ForwardOnMiss`] | the next 128 KiB of leaves, two nodes | the block asked for is not in memory |
//! | [`ReadAhead::ForwardAlways`] | the same | always |
//! | [`ReadAhead::Sweep`] | a window of megabytes, in order of address, and the nodes above | always |
//!
//! The first ones are those of Linux's btrfs, kept to compare with and for short walks; `near` has them.
//! `sweep` is for walks that will see everything; on spinning disks it may become a `pass`.

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

/// The largest window of blocks that are in the page cache. No device waits there for more to do; what counts is that a
/// block which was copied out and checked is still in the processor's cache when the walk comes to it.
const CACHED_WINDOW_BYTES: u64 = 4 << 20;

/// The window after one of `window_bytes`, of whose blocks it is said whether they were in the page cache.
pub(crate) fn next_window(window_bytes: u64, largest_bytes: u64, cached: bool) -> u64 {
    let largest_bytes = if cached {
        largest_bytes.min(CACHED_WINDOW_BYTES)
    } else {
        largest_bytes
    };
    window_bytes.exact_mul(2).min(largest_bytes)
}

/// How a cursor or a walk reads ahead.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ReadAhead {
    /// Not at all: for single look-ups.
    #[default]
    None,
    /// When a leaf must be read: leaves before it of the same object that lie within 64 KiB of it, until more than
    /// 64 KiB of them or more than 32 slots were gone through.
    Backward,
    /// When a leaf must be read: leaves after it that lie within 64 KiB of it, until more than 64 KiB of them or more
    /// than 32 slots were gone through.
    Forward,
    /// When a leaf must be read: leaves after it, wherever they lie, until that is more than 128 KiB. When a node must
    /// be read: the two nodes after it. What `ForwardAlways` was when it was first proposed for the kernel, to compare.
    ForwardOnMiss,
    /// The same, whenever a leaf or a node is visited.
    ForwardAlways,
    /// For a walk to higher keys that will visit everything in its range.
    Sweep {
        /// How many bytes of leaves are fetched ahead.
        window_bytes: ByteCount,
    },
}

impl ReadAhead {
    /// A sweep with the usual window.
    #[must_use]
    pub const fn sweep() -> Self {
        Self::Sweep {
            window_bytes: SWEEP_WINDOW,
        }
    }
}

/// Which way a cursor moves.
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
    /// Read-ahead for a walk whose lowest blocks have level `floor`; nothing outside `scope` is fetched.
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

    /// Says that the walk will not come back to its leaves: a sweep does not keep them in the cache.
    pub(crate) fn pass_leaves(&mut self) {
        if let Self::Sweep(sweep) = self {
            sweep.pass_leaves();
        }
    }

    /// The block at `pointer`: the child in the last step's slot. `steps` lead to it from the root.
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
