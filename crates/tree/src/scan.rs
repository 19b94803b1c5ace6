//! A survey: the blocks of many trees, in no order, on all cores. For jobs that ask the same of every block, and
//! add up what they find.
//!
//! Each thread takes batches of pointers, has some of them read in order of address while it looks at the one before,
//! checks its blocks and hands them to the [`Scanner`], which is asked of every child whether it is wanted: a
//! job that keeps book of addresses visits what trees share once. What leads from a block to its children is a
//! tag of the surveyor's choice. Batches that seem to be in the page cache are not asked for: the thread that looks at a
//! block copies it out itself, just before.
//!
//! # Bounds
//!
//! A child's level is its parent's less one, and its keys must lie between its neighbours', so every tree ends
//! and no block is visited twice from one root. Leaves go before more nodes once [`LEAVES_MAX`] are known, so that
//! what waits is bounded, not by the volume. Blocks come from the devices, around the cache: what is looked at is
//! what lies there now.

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

/// When as many leaves are known, they are read before more nodes are.
pub const LEAVES_MAX: usize = 1 << 16;

/// How many bytes of blocks are asked for at once.
const BATCH_BYTES: u32 = 1 << 20;

/// How many batches a thread has under way while it looks at another: enough that the devices have something to do when all
/// threads look at blocks.
const BATCHES_AHEAD: usize = 4;

/// What a survey asks of its blocks.
pub trait Scanner: Sync {
    /// What one thread adds up for itself.
    type Tally: Send;

    /// What leads from a block to its children.
    type Tag: Copy + Send;

    /// A thread begins.
    fn begin(&self) -> Self::Tally;

    /// Whether the block at `pointer`, a child of one with `parent`, is to be read, and under which tag.
    fn wants(&self, tally: &mut Self::Tally, pointer: &BlockPointer, parent: Self::Tag) -> Option<Self::Tag>;

    /// A block.
    fn visit(&self, tally: &mut Self::Tally, pointer: &BlockPointer, block: &TreeBlock, tag: Self::Tag);

    /// A block that cannot be had; what is below it is left out.
    fn failed(&self, tally: &mut Self::Tally, error: Error, tag: Self::Tag);

    /// Asked before each batch: whether to stop here.
    fn is_cancelled(&self) -> bool;
}

/// A block that is wanted.
type Wanted<Tag> = (BlockPointer, Tag);

/// What waits.
struct Waiting<Tag> {
    nodes: Vec<Wanted<Tag>>,
    /// Leaves in falling order of address: the next ones are at the end.
    ordered: Vec<Wanted<Tag>>,
    /// Leaves that came since they were put in order.
    fresh: Vec<Wanted<Tag>>,
    /// Blocks that a thread has taken and not finished.
    taken: usize,
}

struct Survey<'a, S: Scanner> {
    reader: &'a BlockReader,
    surveyor: &'a S,
    waiting: Mutex<Waiting<S::Tag>, ScanLock>,
    changed: Condvar,
    batch_blocks: usize,
}

/// Blocks that a thread will look at.
enum Batch<Tag> {
    /// Under way.
    Asked(Vec<(Wanted<Tag>, PendingExtent)>),
    /// They seem to be in the page cache.
    Cached(Vec<Wanted<Tag>>),
}

impl Forest {
    /// Surveys the trees at `roots`, each with the tag that its root is visited under, on as many threads as there
    /// are cores; on a simulated device, on this one. What each thread added up comes back.
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

    /// As [`Forest::survey`], from any blocks on.
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
            // What is in the page cache need not be taken before its time.
            while ahead.len() <= BATCHES_AHEAD && !matches!(ahead.back(), Some(Batch::Cached(_))) {
                // With a batch of its own a thread does not wait for another's.
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

    /// The next batch, asked for. `None` where there is none just now or, with `wait`, at the end.
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

    /// Looks at blocks as they are copied out of the page cache; those that are not there after all are asked for together.
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

    /// So many blocks were looked at, and these children are wanted.
    fn hand_on(&self, mut children: Children<S::Tag>, count: usize) {
        let mut waiting = self.waiting.lock();
        waiting.nodes.append(&mut children.nodes);
        waiting.fresh.append(&mut children.leaves);
        waiting.taken = waiting.taken.exact_sub(count);
        drop(waiting);
        self.changed.notify_all();
    }
}

/// Children that are wanted.
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
    /// Takes up to `count` blocks: nodes until there are enough leaves, then leaves in order of address.
    fn take(&mut self, count: usize) -> Vec<Wanted<Tag>> {
        let leaves = self.ordered.len().exact_add(self.fresh.len());
        if !self.nodes.is_empty() && leaves < LEAVES_MAX {
            // The lowest levels, which are at the end as a rule, lead to leaves soonest.
            // Clamp: at most all.
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
        // Clamp: at most all.
        let from = self.ordered.len().saturating_sub(count);
        let mut taken = self.ordered.split_off(from);
        taken.reverse();
        self.taken = self.taken.exact_add(taken.len());
        taken
    }
}
