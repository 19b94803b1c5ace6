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
mod mode;
pub(crate) mod near;
mod packed;
mod pass;
pub(crate) mod queue;
pub(crate) mod sweep;

use crate::error::Result;
use crate::forest::Forest;
use crate::pointer::BlockPointer;
use crate::scope::Scope;
use crate::step::Step;
use buttress_format::node::TreeBlock;
pub use mode::{ReadAhead, SWEEP_WINDOW};
pub(crate) use mode::{Toward, next_window};
use near::Near;
use sweep::Sweep;

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
