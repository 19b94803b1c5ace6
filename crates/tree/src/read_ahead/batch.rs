//! A few neighbouring blocks of a sweep, checked together.
//!
//! A batch is waited for and checked by whoever comes first: a checking thread, or the walk itself when it needs
//! a block that nobody has begun with. Taking blocks sixteen at a time keeps the cost of handing work between
//! threads small beside that of checking.
//!
//! Blocks that seem to be in the page cache are read by the same thread that checks them: copying one out costs as
//! much as checking it, a thread that has just copied it has it in its processor's cache, and there is no request to
//! queue and hand over.

use crate::error::Result;
use crate::pointer::BlockPointer;
use crate::reader::BlockReader;
use buttress_format::node::TreeBlock;
use buttress_locks::{Condvar, Mutex, Rank, lock_class};
use buttress_volume::PendingExtent;
use std::sync::Arc;

lock_class!(BatchLock, "state", Rank::LEAF);

/// How many blocks are checked at a time.
pub(crate) const BATCH_BLOCKS_MAX: usize = 16;

/// Blocks on their way.
#[derive(Debug)]
pub(crate) struct Batch {
    state: Mutex<State, BatchLock>,
    done: Condvar,
}

#[derive(Debug)]
enum State {
    /// Asked for; nobody has begun to wait.
    Pending(Vec<(BlockPointer, PendingExtent)>),
    /// Not asked for, since they seem to be in the page cache.
    Cached(Vec<BlockPointer>),
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

    /// Blocks that seem to be in the page cache: they are read when they are checked.
    pub(crate) const fn cached(pointers: Vec<BlockPointer>) -> Self {
        Self {
            state: Mutex::new(State::Cached(pointers)),
            done: Condvar::new(),
        }
    }

    /// Waits for the blocks and checks them, unless somebody else does.
    pub(crate) fn check(&self, reader: &BlockReader) {
        let mut state = self.state.lock();
        if !matches!(*state, State::Pending(_) | State::Cached(_)) {
            return;
        }
        let work = core::mem::replace(&mut *state, State::Working);
        drop(state);
        let mut checked = Checked {
            batch: self,
            results: Vec::new(),
        };
        match work {
            State::Pending(reads) => {
                checked.results.reserve_exact(reads.len());
                checked.results.extend(
                    reads
                        .into_iter()
                        .map(|(pointer, read)| Some(reader.finish(read, &pointer))),
                );
            }
            State::Cached(pointers) => read_cached(reader, &pointers, &mut checked.results),
            State::Working | State::Done(_) | State::Dropped => {}
        }
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
            State::Pending(_) | State::Cached(_) | State::Working | State::Dropped => None,
        }
    }

    /// Lets go of blocks that nobody will ask for.
    pub(crate) fn give_up(&self) {
        let before = core::mem::replace(&mut *self.state.lock(), State::Dropped);
        drop(before);
    }
}

/// Reads and checks blocks that seem to be in the page cache; those that are not are read all at once, as any others.
fn read_cached(
    reader: &BlockReader,
    pointers: &[BlockPointer],
    results: &mut Vec<Option<Result<TreeBlock>>>,
) {
    results.reserve_exact(pointers.len());
    results.extend(pointers.iter().map(|pointer| reader.read_cached(pointer).map(Ok)));
    let found = results.iter().map(Option::is_some);
    let missing: Vec<(usize, &BlockPointer)> = found
        .zip(pointers)
        .enumerate()
        .filter_map(|(index, (found, pointer))| (!found).then_some((index, pointer)))
        .collect();
    let reads = reader.start(missing.iter().map(|(_, pointer)| *pointer));
    for ((index, pointer), read) in missing.into_iter().zip(reads) {
        if let Some(result) = results.get_mut(index) {
            *result = Some(reader.finish(read, pointer));
        }
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
