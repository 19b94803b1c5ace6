//! A scan: the blocks of many trees, in no order, on all cores. A scan serves jobs that apply the
//! same test to every block and sum up the results.
//!
//! Each scanning thread takes batches of pointers. Each thread starts reads of some batches in
//! address order while it processes the batch before. The thread checks the read blocks and passes
//! them to the [`Scanner`]. The scanner also decides for every child block if the scan should visit
//! it. A job that records addresses can thus visit shared blocks once. The scanner chooses a tag
//! for each block, which leads from the block to its children. A thread starts no reads for batches
//! that seem to be in the page cache. The thread copies each of these cached blocks just before it
//! processes the block.
//!
//! # Bounds
//!
//! In each tree, a child's level is one less than its parent's, and its keys must lie between its
//! neighbours'. A walk therefore ends for every tree, and visits no block twice from one root. Once
//! [`LEAVES_MAX`] leaves are known, the scan reads these leaves before more nodes. The queue of a
//! scan is therefore bounded, whatever the size of the volume. Blocks come from the devices and
//! bypass the cache, so a scan sees the current bytes on the devices.

use crate::error::Error;
use crate::forest::Forest;
use crate::pointer::{BlockPointer, RootPointer};
use crate::reader::BlockReader;
use buttress_exact::Exact as _;
use buttress_format::node::TreeBlock;
use buttress_locks::{Condvar, Mutex, Rank, lock_class};
use buttress_volume::PendingExtent;
use std::collections::VecDeque;
use std::sync::Arc;

lock_class!(ScanLock, "waiting", Rank::LEAF);

/// The number of known leaves above which a scan reads leaves before more nodes.
pub const LEAVES_MAX: usize = 1 << 16;

/// The number of bytes of blocks that are read at once.
const BATCH_BYTES: u32 = 1 << 20;

/// The number of batches in flight while a thread processes another batch. This number of batches
/// keeps the devices busy even while all threads process blocks.
const BATCHES_AHEAD: usize = 4;

/// The operations of a scan on its blocks.
pub trait Scanner: Sync {
    /// The sums that one thread collects.
    type Tally: Send;

    /// The tag of a block, from which a scan derives the tags of the block's children.
    type Tag: Copy + Send;

    /// Begins the work of one thread.
    fn begin(&self) -> Self::Tally;

    /// Decides whether the scan wants the block at `pointer`, a child of a block with tag `parent`.
    /// Returns its tag.
    fn wants(&self, tally: &mut Self::Tally, pointer: &BlockPointer, parent: Self::Tag) -> Option<Self::Tag>;

    /// Processes one block of the scan.
    fn visit(&self, tally: &mut Self::Tally, pointer: &BlockPointer, block: &TreeBlock, tag: Self::Tag);

    /// Records a block that cannot be read. The scan skips all blocks below the unreadable block.
    fn failed(&self, tally: &mut Self::Tally, error: Error, tag: Self::Tag);

    /// Returns true if the scan is to stop. The scan calls this method before each batch.
    fn is_cancelled(&self) -> bool;
}

/// A wanted block and its tag.
type Wanted<Tag> = (BlockPointer, Tag);

/// The queue of blocks to process.
struct Waiting<Tag> {
    nodes: Vec<Wanted<Tag>>,
    /// Leaves in descending order of address. The leaves to process next are at the end of the
    /// list.
    ordered: Vec<Wanted<Tag>>,
    /// Leaves that were added since the last sort.
    fresh: Vec<Wanted<Tag>>,
    /// The number of blocks that a thread has taken and not finished.
    taken: usize,
}

struct Survey<'a, S: Scanner> {
    reader: &'a BlockReader,
    surveyor: &'a S,
    waiting: Mutex<Waiting<S::Tag>, ScanLock>,
    changed: Condvar,
    batch_blocks: usize,
}

/// A batch of blocks for one thread to process.
enum Batch<Tag> {
    /// Blocks whose reads are in flight.
    Asked(Vec<(Wanted<Tag>, PendingExtent)>),
    /// Blocks that seem to be in the page cache.
    Cached(Vec<Wanted<Tag>>),
}

impl Forest {
    /// Scans the trees at `roots`, each with the tag of its root, with one thread for each core. On
    /// a simulated device, the scan runs on the calling thread. Returns each thread's sums.
    pub fn survey<S: Scanner>(
        self: &Arc<Self>,
        roots: impl IntoIterator<Item = (RootPointer, S::Tag)>,
        surveyor: &S,
    ) -> Vec<S::Tally> {
        let pointers = roots.into_iter();
        self.survey_blocks(
            pointers.map(|(root, tag)| (BlockPointer::root(&root), tag)),
            surveyor,
        )
    }

    /// Scans like [`Forest::survey`], but begins at any blocks.
    pub fn survey_blocks<S: Scanner>(
        self: &Arc<Self>,
        blocks: impl IntoIterator<Item = (BlockPointer, S::Tag)>,
        surveyor: &S,
    ) -> Vec<S::Tally> {
        let reader = self.reader();
        let (nodes, fresh) = blocks.into_iter().partition(|(pointer, _)| pointer.level > 0);
        let survey = Survey {
            reader,
            surveyor,
            waiting: Mutex::new(Waiting {
                nodes,
                ordered: Vec::new(),
                fresh,
                taken: 0,
            }),
            changed: Condvar::new(),
            batch_blocks: BATCH_BYTES.quotient(reader.node_bytes()).narrow::<usize>().max(1),
        };
        let others = if reader.is_simulated() {
            0
        } else {
            std::thread::available_parallelism().map_or(0, |cores| cores.get().exact_sub(1))
        };
        std::thread::scope(|scope| {
            let helpers: Vec<_> = (0..others)
                .filter_map(|number| {
                    std::thread::Builder::new()
                        .name(format!("buttress-survey-{number}"))
                        .spawn_scoped(scope, || survey.work())
                        .ok()
                })
                .collect();
            let mut tallies = vec![survey.work()];
            for helper in helpers {
                match helper.join() {
                    Ok(tally) => tallies.push(tally),
                    Err(panic) => std::panic::resume_unwind(panic),
                }
            }
            tallies
        })
    }
}

impl<S: Scanner> Survey<'_, S> {
    fn work(&self) -> S::Tally {
        let mut tally = self.surveyor.begin();
        let mut ahead: VecDeque<Batch<S::Tag>> = VecDeque::new();
        loop {
            // Blocks in the page cache need no read before the scan processes them.
            while ahead.len() <= BATCHES_AHEAD && !matches!(ahead.back(), Some(Batch::Cached(_))) {
                // While a thread has a batch of its own, it does not wait for a batch of another
                // thread.
                match self.take(ahead.is_empty()) {
                    Some(batch) => ahead.push_back(batch),
                    None => break,
                }
            }
            match ahead.pop_front() {
                Some(Batch::Asked(batch)) => self.look_at(&mut tally, batch),
                Some(Batch::Cached(batch)) => self.look_at_cached(&mut tally, batch),
                None => return tally,
            }
        }
    }

    /// Takes the next batch and starts its reads. Returns `None` if the queue is currently empty.
    /// With `wait`, returns `None` only at the end of the scan.
    fn take(&self, wait: bool) -> Option<Batch<S::Tag>> {
        let mut waiting = self.waiting.lock();
        let taken = loop {
            if self.surveyor.is_cancelled() {
                waiting.nodes.clear();
                waiting.ordered.clear();
                waiting.fresh.clear();
            }
            let taken = waiting.take(self.batch_blocks);
            if !taken.is_empty() {
                break taken;
            }
            if !wait {
                return None;
            }
            if waiting.taken == 0 {
                self.changed.notify_all();
                return None;
            }
            self.changed.wait(&mut waiting);
        };
        drop(waiting);
        if self.reader.seem_cached(taken.iter().map(|(pointer, _)| pointer)) {
            return Some(Batch::Cached(taken));
        }
        let reads = self.reader.start(taken.iter().map(|(pointer, _)| pointer));
        Some(Batch::Asked(taken.into_iter().zip(reads).collect()))
    }

    /// Processes blocks of the scan while they are copied from the page cache. Blocks that are not
    /// in the page cache are read together afterwards.
    fn look_at_cached(&self, tally: &mut S::Tally, batch: Vec<Wanted<S::Tag>>) {
        let mut children = Children::default();
        let mut missing = Vec::new();
        let count = batch.len();
        for (pointer, tag) in batch {
            match self.reader.read_cached(&pointer) {
                Some(block) => self.visit(tally, &mut children, &pointer, &block, tag),
                None => missing.push((pointer, tag)),
            }
        }
        let left = missing.len();
        self.hand_on(children, count.exact_sub(left));
        if left > 0 {
            let reads = self.reader.start(missing.iter().map(|(pointer, _)| pointer));
            self.look_at(tally, missing.into_iter().zip(reads).collect());
        }
    }

    fn look_at(&self, tally: &mut S::Tally, batch: Vec<(Wanted<S::Tag>, PendingExtent)>) {
        let count = batch.len();
        let mut children = Children::default();
        for ((pointer, tag), read) in batch {
            match self.reader.finish(read, &pointer) {
                Ok(block) => self.visit(tally, &mut children, &pointer, &block, tag),
                Err(error) => self.surveyor.failed(tally, error, tag),
            }
        }
        self.hand_on(children, count);
    }

    fn visit(
        &self,
        tally: &mut S::Tally,
        children: &mut Children<S::Tag>,
        pointer: &BlockPointer,
        block: &TreeBlock,
        tag: S::Tag,
    ) {
        self.surveyor.visit(tally, pointer, block, tag);
        let children = if pointer.level == 1 {
            &mut children.leaves
        } else {
            &mut children.nodes
        };
        for slot in 0..if pointer.level > 0 { block.item_count() } else { 0 } {
            let Some(child) = pointer.child(block, slot) else {
                continue;
            };
            if let Some(tag) = self.surveyor.wants(tally, &child, tag) {
                children.push((child, tag));
            }
        }
    }

    /// Records that `count` blocks are processed, and queues the children that the scan wants.
    fn hand_on(&self, mut children: Children<S::Tag>, count: usize) {
        let mut waiting = self.waiting.lock();
        waiting.nodes.append(&mut children.nodes);
        waiting.fresh.append(&mut children.leaves);
        waiting.taken = waiting.taken.exact_sub(count);
        drop(waiting);
        self.changed.notify_all();
    }
}

/// The wanted children of processed blocks.
struct Children<Tag> {
    nodes: Vec<Wanted<Tag>>,
    leaves: Vec<Wanted<Tag>>,
}

impl<Tag> Default for Children<Tag> {
    fn default() -> Self {
        Self {
            nodes: Vec::new(),
            leaves: Vec::new(),
        }
    }
}

impl<Tag: Copy> Waiting<Tag> {
    /// Takes up to `count` blocks: nodes until enough leaves are known, then leaves in address
    /// order.
    fn take(&mut self, count: usize) -> Vec<Wanted<Tag>> {
        let leaves = self.ordered.len().exact_add(self.fresh.len());
        if !self.nodes.is_empty() && leaves < LEAVES_MAX {
            // The nodes at the end of the list usually have the lowest levels, and lead to leaves
            // soonest.
            // Clamp: the scan takes at most all nodes.
            let from = self.nodes.len().saturating_sub(count);
            let mut taken = self.nodes.split_off(from);
            taken.sort_unstable_by_key(|(pointer, _)| pointer.logical);
            self.taken = self.taken.exact_add(taken.len());
            return taken;
        }
        if self.ordered.is_empty() {
            core::mem::swap(&mut self.ordered, &mut self.fresh);
            self.ordered
                .sort_unstable_by_key(|(pointer, _)| core::cmp::Reverse(pointer.logical));
        }
        // Clamp: takes at most all leaves.
        let from = self.ordered.len().saturating_sub(count);
        let mut taken = self.ordered.split_off(from);
        taken.reverse();
        self.taken = self.taken.exact_add(taken.len());
        taken
    }
}
