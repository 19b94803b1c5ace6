//! A few neighbouring blocks of a sweep, checked together.
//!
//! A batch is waited for and checked by whoever comes first: a checking thread, or the walk itself when it needs
//! a block that nobody has begun with. Taking blocks sixteen at a time keeps the cost of handing work between
//! threads small beside that of checking.

use crate::error::Result;
use crate::pointer::BlockPointer;
use crate::reader::BlockReader;
use buttress_format::node::TreeBlock;
use buttress_volume::PendingExtent;
use parking_lot::{Condvar, Mutex};
use std::sync::Arc;

/// How many blocks are checked at a time.
pub(crate) const BATCH_BLOCKS_MAX: usize = 16;

/// Blocks on their way.
#[derive(Debug)]
pub(crate) struct Batch {
    state: Mutex<State>,
    done: Condvar,
}

#[derive(Debug)]
enum State {
    /// Asked for; nobody has begun to wait.
    Pending(Vec<(BlockPointer, PendingExtent)>),
    /// Some thread waits for them and checks them.
    Working,
    /// Checked. Each result is taken once.
    Done(Vec<Option<Result<TreeBlock>>>),
    /// Nobody wants them any more.
    Dropped,
}

impl Batch {
    pub(crate) const fn new(reads: Vec<(BlockPointer, PendingExtent)>) -> Self {
        Self {
            state: Mutex::new(State::Pending(reads)),
            done: Condvar::new(),
        }
    }

    /// Waits for the blocks and checks them, unless somebody else does.
    pub(crate) fn check(&self, reader: &BlockReader) {
        let mut state = self.state.lock();
        let State::Pending(reads) = &mut *state else {
            return;
        };
        let reads = core::mem::take(reads);
        *state = State::Working;
        drop(state);
        let mut checked = Checked {
            batch: self,
            results: Vec::with_capacity(reads.len()),
        };
        checked.results.extend(
            reads
                .into_iter()
                .map(|(pointer, read)| Some(reader.finish(read, &pointer))),
        );
    }

    /// Block number `index`, waiting for it; `None` when it was taken before or the batch was dropped.
    pub(crate) fn take(&self, index: usize, reader: &BlockReader) -> Option<Result<TreeBlock>> {
        self.check(reader);
        let mut state = self.state.lock();
        while matches!(*state, State::Working) {
            self.done.wait(&mut state);
        }
        match &mut *state {
            State::Done(results) => results.get_mut(index).and_then(Option::take),
            State::Pending(_) | State::Working | State::Dropped => None,
        }
    }

    /// Lets go of blocks that nobody will ask for.
    pub(crate) fn give_up(&self) {
        let before = core::mem::replace(&mut *self.state.lock(), State::Dropped);
        drop(before);
    }
}

/// Hands over what was checked when it goes out of scope: also when a check panics, since otherwise whoever
/// waits for the batch would wait for ever.
struct Checked<'a> {
    batch: &'a Batch,
    results: Vec<Option<Result<TreeBlock>>>,
}

impl Drop for Checked<'_> {
    fn drop(&mut self) {
        let mut state = self.batch.state.lock();
        if matches!(*state, State::Working) {
            *state = State::Done(core::mem::take(&mut self.results));
        }
        drop(state);
        self.batch.done.notify_all();
    }
}

/// A block of a sweep that is here or on its way.
#[derive(Debug)]
pub(crate) enum Arriving {
    Here(TreeBlock),
    InBatch(Arc<Batch>, usize),
}

impl Arriving {
    /// The block, waiting for it.
    pub(crate) fn wait(self, reader: &BlockReader, pointer: &BlockPointer) -> Result<TreeBlock> {
        match self {
            Self::Here(block) => Ok(block),
            // A batch gives each of its blocks once; reading again is the answer to every other case.
            Self::InBatch(batch, index) => batch.take(index, reader).unwrap_or_else(|| reader.read(pointer)),
        }
    }
}
