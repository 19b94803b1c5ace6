//! A survey: the blocks of many trees, in no order, on all cores. For jobs that ask the same of every block, and
//! add up what they find.
//!
//! Each thread takes a batch of pointers, has the batch read in order of address while it looks at the one before,
//! checks its blocks and hands them to the [`Surveyor`], which is asked of every child whether it is wanted: a
//! job that keeps book of addresses visits what trees share once. What leads from a block to its children is a
//! tag of the surveyor's choice.
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
use buttress_format::node::TreeBlock;
use buttress_volume::PendingExtent;
use parking_lot::{Condvar, Mutex};
use std::sync::Arc;

/// When as many leaves are known, they are read before more nodes are.
pub const LEAVES_MAX: usize = 1 << 16;

/// How many bytes of blocks are asked for at once.
const BATCH_BYTES: u32 = 1 << 20;

/// What a survey asks of its blocks.
pub trait Surveyor: Sync {
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

struct Survey<'a, S: Surveyor> {
    reader: &'a BlockReader,
    surveyor: &'a S,
    waiting: Mutex<Waiting<S::Tag>>,
    changed: Condvar,
    batch_blocks: usize,
}

/// Pointers whose blocks are under way.
type Batch<Tag> = Vec<(Wanted<Tag>, PendingExtent)>;

impl Forest {
    /// Surveys the trees at `roots`, each with the tag that its root is visited under, on as many threads as there
    /// are cores; on a simulated device, on this one. What each thread added up comes back.
    pub fn survey<S: Surveyor>(
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
    pub fn survey_blocks<S: Surveyor>(
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
            batch_blocks: usize::try_from(BATCH_BYTES.checked_div(reader.node_bytes()).unwrap_or(1))
                .unwrap_or(1)
                .max(1),
        };
        let others = if reader.is_simulated() {
            0
        } else {
            std::thread::available_parallelism().map_or(0, |cores| cores.get().saturating_sub(1))
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

impl<S: Surveyor> Survey<'_, S> {
    fn work(&self) -> S::Tally {
        let mut tally = self.surveyor.begin();
        let mut current: Batch<S::Tag> = Vec::new();
        loop {
            // With a batch of its own a thread does not wait for another's.
            let Some(next) = self.take(current.is_empty()) else {
                break;
            };
            if current.is_empty() {
                current = next;
                continue;
            }
            self.look_at(&mut tally, core::mem::replace(&mut current, next));
        }
        tally
    }

    /// The next batch, asked for. Empty where there is none just now; `None` at the end.
    fn take(&self, wait: bool) -> Option<Batch<S::Tag>> {
        let mut waiting = self.waiting.lock();
        let taken = loop {
            if self.surveyor.is_cancelled() {
                waiting.nodes.clear();
                waiting.ordered.clear();
                waiting.fresh.clear();
            }
            let taken = waiting.take(self.batch_blocks);
            if !taken.is_empty() || !wait {
                break taken;
            }
            if waiting.taken == 0 {
                self.changed.notify_all();
                return None;
            }
            self.changed.wait(&mut waiting);
        };
        drop(waiting);
        let reads = self.reader.start(taken.iter().map(|(pointer, _)| pointer));
        Some(taken.into_iter().zip(reads).collect())
    }

    fn look_at(&self, tally: &mut S::Tally, batch: Batch<S::Tag>) {
        let count = batch.len();
        let (mut nodes, mut leaves) = (Vec::new(), Vec::new());
        for ((pointer, tag), read) in batch {
            let block = match self.reader.finish(read, &pointer) {
                Ok(block) => block,
                Err(error) => {
                    self.surveyor.failed(tally, error, tag);
                    continue;
                }
            };
            self.surveyor.visit(tally, &pointer, &block, tag);
            let children = if pointer.level == 1 {
                &mut leaves
            } else {
                &mut nodes
            };
            for slot in 0..if pointer.level > 0 { block.item_count() } else { 0 } {
                let Some(child) = pointer.child(&block, slot) else {
                    continue;
                };
                if let Some(tag) = self.surveyor.wants(tally, &child, tag) {
                    children.push((child, tag));
                }
            }
        }
        let mut waiting = self.waiting.lock();
        waiting.nodes.append(&mut nodes);
        waiting.fresh.append(&mut leaves);
        waiting.taken = waiting.taken.saturating_sub(count);
        drop(waiting);
        self.changed.notify_all();
    }
}

impl<Tag: Copy> Waiting<Tag> {
    /// Takes up to `count` blocks: nodes until there are enough leaves, then leaves in order of address.
    fn take(&mut self, count: usize) -> Vec<Wanted<Tag>> {
        let leaves = self.ordered.len().saturating_add(self.fresh.len());
        if !self.nodes.is_empty() && leaves < LEAVES_MAX {
            // The lowest levels, which are at the end as a rule, lead to leaves soonest.
            let from = self.nodes.len().saturating_sub(count);
            let mut taken = self.nodes.split_off(from);
            taken.sort_unstable_by_key(|(pointer, _)| pointer.logical);
            self.taken = self.taken.saturating_add(taken.len());
            return taken;
        }
        if self.ordered.is_empty() {
            core::mem::swap(&mut self.ordered, &mut self.fresh);
            self.ordered
                .sort_unstable_by_key(|(pointer, _)| core::cmp::Reverse(pointer.logical));
        }
        let from = self.ordered.len().saturating_sub(count);
        let mut taken = self.ordered.split_off(from);
        taken.reverse();
        self.taken = self.taken.saturating_add(taken.len());
        taken
    }
}
