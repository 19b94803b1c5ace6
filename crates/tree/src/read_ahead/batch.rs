//! Batches: neighbouring blocks of a sweep that are checked together.
//!
//! The first thread that needs a batch waits for its blocks and checks them. This thread is a
//! checking thread, or the walk's own thread if no thread has begun its batch. Batches of sixteen
//! blocks keep the cost of passing work between threads small compared with the checks.
//!
//! The thread that checks a block also reads it if it seems to be in the page cache. Copying a
//! block costs as much as checking it. After copying a block, the same thread checks it from its
//! processor cache, without queueing a request.

use crate::error::Result;
use crate::pointer::BlockPointer;
use crate::reader::BlockReader;
use buttress_format::node::TreeBlock;
use buttress_locks::{Condvar, Mutex, Rank, lock_class};
use buttress_volume::PendingExtent;
use std::sync::Arc;

lock_class!(BatchLock, "state", Rank::LEAF);

/// The maximum number of blocks in a batch.
pub(crate) const BATCH_BLOCKS_MAX: usize = 16;

/// A batch of blocks in flight.
#[derive(Debug)]
pub(crate) struct Batch {
    state: Mutex<State, BatchLock>,
    done: Condvar,
}

#[derive(Debug)]
enum State {
    /// The reads have started, and no thread waits for them yet.
    Pending(Vec<(BlockPointer, PendingExtent)>),
    /// The reads have not started, because the blocks seem to be in the page cache.
    Cached(Vec<BlockPointer>),
    /// A thread waits for the blocks and checks them.
    Working,
    /// The blocks are checked. Each block of a checked batch can be taken out once.
    Done(Vec<Option<Result<TreeBlock>>>),
    /// No reader needs the blocks any more.
    Dropped,
}

impl Batch {
    pub(crate) const fn new(reads: Vec<(BlockPointer, PendingExtent)>) -> Self {
        Self {
            state: Mutex::new(State::Pending(reads)),
            done: Condvar::new(),
        }
    }

    /// Makes a batch of blocks that seem to be in the page cache. The check reads them.
    pub(crate) const fn cached(pointers: Vec<BlockPointer>) -> Self {
        Self {
            state: Mutex::new(State::Cached(pointers)),
            done: Condvar::new(),
        }
    }

    /// Waits for the blocks and checks them, unless another thread does.
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

    /// Waits for block number `index` and returns it. Returns `None` if the block was taken before,
    /// or if the batch was dropped.
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

    /// Drops blocks of the batch that no reader will request.
    pub(crate) fn give_up(&self) {
        let before = core::mem::replace(&mut *self.state.lock(), State::Dropped);
        drop(before);
    }
}

/// Reads and checks blocks that seem to be in the page cache. Reads blocks that are not there in
/// one plug.
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

/// Blocks that a worker has checked; delivers them when dropped, even if a check panics. Otherwise,
/// threads that wait for the batch would never wake.
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

/// A block of a sweep, available or in flight.
#[derive(Debug)]
pub(crate) enum Arriving {
    Here(TreeBlock),
    InBatch(Arc<Batch>, usize),
}

impl Arriving {
    /// Waits for the block and returns it.
    pub(crate) fn wait(self, reader: &BlockReader, pointer: &BlockPointer) -> Result<TreeBlock> {
        match self {
            Self::Here(block) => Ok(block),
            // A batch returns each block once. In every other case, the block is read again.
            Self::InBatch(batch, index) => batch.take(index, reader).unwrap_or_else(|| reader.read(pointer)),
        }
    }
}
