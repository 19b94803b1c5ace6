//! The descent from the roots: the tree blocks of all owners, each with the set of owners that
//! reach it.
//!
//! The trees form a graph without cycles, whose shared parts are read once. The descent reads one
//! level after another. After reading all blocks of a level, the descent knows everything about the
//! blocks one level below. The descent therefore reads each block once, with its final set. All
//! cores read, check and inspect the blocks of a level in order of address
//! ([`buttress_tree::scan`]).
//!
//! If the lowest level has more than `LEAVES_MAX` blocks, the descent returns them in windows of at
//! most that many. For each window, the descent rereads the nodes above, less than a hundredth as
//! many. Each level has at most `NODES_MAX` nodes.

use super::gather::{Gatherer, Record};
use super::owners::Root;
use super::sets::{SetId, Sets};
use super::{FailuresLock, SetsLock};
use buttress_exact::{Exact as _, u64_of};
use buttress_format::{ByteCount, Key, TreeBlock, TreeId};
use buttress_fs::error::{Error, Result};
use buttress_fs::filesystem::Filesystem;
use buttress_fs::progress::Progress;
use buttress_locks::Mutex;
use buttress_tree::{BlockPointer, Scanner};
use std::collections::HashMap;

/// The most leaves in memory at once.
pub(super) const LEAVES_MAX: usize = 1 << 18;

/// The most nodes of one level: enough for some 60 million leaves.
pub(super) const NODES_MAX: usize = 1 << 18;

/// The number of leaves in a batch. A caller can cancel the job between batches.
const LEAVES_AT_ONCE: usize = 1 << 15;

/// The number of records that a thread collects before it merges them into the shared gatherer.
pub(super) const RECORDS_AT_ONCE: usize = 1 << 12;

/// The most errors that the descent keeps; it only counts further errors.
const FAILURES_MAX: usize = 64;

/// A block, and the set of owners that reach it.
#[derive(Clone, Copy)]
pub(super) struct Block {
    pub(super) pointer: BlockPointer,
    pub(super) set: SetId,
}

impl Record for Block {
    fn address(&self) -> u64 {
        self.pointer.logical.get()
    }

    fn rank(&self) -> (u64, u64) {
        (self.pointer.generation.get(), 0)
    }

    fn set(&self) -> SetId {
        self.set
    }

    fn absorb(&mut self, _: &Self) {}

    fn with_set(self, set: SetId) -> Self {
        Self { set, ..self }
    }

    fn same(&self, other: &Self) -> bool {
        self.pointer.generation == other.pointer.generation && self.pointer.level == other.pointer.level
    }
}

/// Errors of tree blocks that could not be read.
#[derive(Debug, Default)]
pub(super) struct Failures {
    pub(super) list: Vec<Error>,
    pub(super) count: u64,
}

impl Failures {
    pub(super) fn add(&mut self, error: Error) {
        self.count = self.count.exact_add(1);
        if self.list.len() < FAILURES_MAX {
            self.list.push(error);
        }
    }
}

/// A visitor of all tree blocks in a descent.
pub(super) trait Visitor: Sync {
    /// The sums of one thread.
    type Tally: Send;

    /// Begins the sums of a thread.
    fn begin(&self) -> Self::Tally;

    /// Visits a leaf that the owners of `set` reach.
    fn leaf(&self, tally: &mut Self::Tally, tree: TreeId, block: &TreeBlock, set: SetId);

    /// Counts a block of any level once, before it is read.
    fn counted(&mut self, set: SetId, bytes: ByteCount);

    /// Takes the sums of a thread at its end.
    fn end(&mut self, tally: Self::Tally) -> Result<()>;
}

/// A descent from the roots.
pub(super) struct Descent<'a> {
    pub(super) filesystem: &'a Filesystem,
    pub(super) roots: &'a [Root],
    pub(super) sets: &'a Mutex<Sets, SetsLock>,
    pub(super) progress: &'a Progress,
    pub(super) failures: &'a Mutex<Failures, FailuresLock>,
    pub(super) leaves_max: usize,
    /// True if this pass reports errors; later passes would report the same errors again.
    pub(super) is_first: bool,
}

impl Descent<'_> {
    /// Visits all blocks.
    pub(super) fn run<V: Visitor>(&self, visitor: &mut V) -> Result<()> {
        // Clamp: without roots there is no block to visit.
        let mut level = self
            .roots
            .iter()
            .map(|root| root.pointer.level)
            .max()
            .unwrap_or(0);
        let mut above: Vec<Block> = Vec::new();
        let node_bytes = ByteCount::new(self.filesystem.forest().block_format().node_bytes.into());
        let mut is_counted = false;
        while level > 0 {
            let (nodes, end) = self.below(&above, level, 0, NODES_MAX)?;
            if end != u64::MAX {
                return Err(Error::AccountingTooBig {
                    what: "nodes of one level",
                    limit: u64_of(NODES_MAX),
                });
            }
            for node in &nodes {
                visitor.counted(node.set, node_bytes);
            }
            above = nodes;
            level = level.exact_sub(1);
        }
        let mut start = 0;
        while start != u64::MAX {
            let (leaves, end) = self.below(&above, 0, start, self.leaves_max)?;
            if !is_counted {
                let known = if end == u64::MAX { leaves.len() } else { 0 };
                let bytes = ByteCount::of(known).get().exact_mul(node_bytes.get());
                self.progress.expect(ByteCount::new(bytes));
                is_counted = true;
            }
            for leaf in &leaves {
                visitor.counted(leaf.set, node_bytes);
            }
            for part in leaves.chunks(LEAVES_AT_ONCE) {
                self.leaves(part, visitor)?;
            }
            start = end;
        }
        Ok(())
    }

    /// Returns the blocks of `level` from `start` on: the roots of that level, and the children of
    /// the blocks above.
    fn below(&self, above: &[Block], level: u8, start: u64, limit: usize) -> Result<(Vec<Block>, u64)> {
        let gatherer = Gatherer::new(self.sets, start, limit);
        let mut roots = Vec::new();
        for root in self.roots.iter().filter(|root| root.pointer.level == level) {
            if gatherer.wants(root.pointer.logical.get()) {
                roots.push(Block {
                    pointer: BlockPointer::root(&root.pointer),
                    set: self.sets.lock().of_one(root.owner)?,
                });
            }
        }
        gatherer.add(&mut roots);
        let nodes = Nodes {
            descent: self,
            gatherer: &gatherer,
            is_first: self.is_first && start == 0,
            dropped: self.dropped()?,
        };
        // The walk takes the last block of the level above first.
        let wanted = above.iter().rev().map(|block| (block.pointer, block.set));
        for mut children in self.filesystem.forest().survey_blocks(wanted, &nodes) {
            gatherer.add(&mut children);
        }
        self.progress.check()?;
        gatherer.finish()
    }

    /// Returns the drop progress of half-dropped trees, by the set of the single owner that reaches
    /// their blocks.
    fn dropped(&self) -> Result<HashMap<SetId, (Key, u8)>> {
        let mut sets = self.sets.lock();
        let mut dropped = HashMap::new();
        for root in self.roots {
            if let Some(progress) = root.dropped {
                dropped.insert(sets.of_one(root.owner)?, progress);
            }
        }
        Ok(dropped)
    }

    fn leaves<V: Visitor>(&self, leaves: &[Block], visitor: &mut V) -> Result<()> {
        let wanted = leaves.iter().map(|block| (block.pointer, block.set));
        let surveyor = Leaves {
            descent: self,
            visitor: &*visitor,
        };
        let tallies = self.filesystem.forest().survey_blocks(wanted, &surveyor);
        self.progress.check()?;
        tallies.into_iter().try_for_each(|tally| visitor.end(tally))
    }

    fn failed(&self, error: Error) {
        self.failures.lock().add(error);
        self.progress.count_error();
    }
}

/// Reads nodes, and collects their children.
struct Nodes<'a> {
    descent: &'a Descent<'a>,
    gatherer: &'a Gatherer<'a, Block>,
    /// True if the descent reads these tree nodes for the first time.
    is_first: bool,
    dropped: HashMap<SetId, (Key, u8)>,
}

impl Nodes<'_> {
    /// Returns whether the child belonged to the part of the tree that was already dropped. If
    /// other trees also reach a node, a tree that is being dropped drops all of the node or
    /// nothing.
    fn is_dropped(&self, child: &BlockPointer, set: SetId) -> bool {
        self.dropped.get(&set).is_some_and(|(progress, level)| {
            // Clamp: the level comes from disk; children of a leaf count as leaves.
            child.level >= level.saturating_sub(1) && child.end_key.is_some_and(|end| end <= *progress)
        })
    }
}

impl Scanner for Nodes<'_> {
    type Tally = Vec<Block>;
    type Tag = SetId;

    fn begin(&self) -> Vec<Block> {
        Vec::with_capacity(RECORDS_AT_ONCE)
    }

    fn wants(&self, children: &mut Vec<Block>, pointer: &BlockPointer, set: SetId) -> Option<SetId> {
        if self.gatherer.wants(pointer.logical.get()) && !self.is_dropped(pointer, set) {
            children.push(Block {
                pointer: *pointer,
                set,
            });
            if children.len() >= RECORDS_AT_ONCE {
                self.gatherer.add(children);
            }
        }
        None
    }

    fn visit(&self, _: &mut Vec<Block>, _: &BlockPointer, _: &TreeBlock, _: SetId) {}

    fn failed(&self, _: &mut Vec<Block>, error: buttress_tree::Error, _: SetId) {
        if self.is_first {
            self.descent.failed(error.into());
        }
    }

    fn is_cancelled(&self) -> bool {
        self.descent.progress.is_cancelled()
    }
}

/// Reads tree leaves for a visitor.
struct Leaves<'a, V> {
    descent: &'a Descent<'a>,
    visitor: &'a V,
}

impl<V: Visitor> Scanner for Leaves<'_, V> {
    type Tally = V::Tally;
    type Tag = SetId;

    fn begin(&self) -> V::Tally {
        self.visitor.begin()
    }

    fn wants(&self, _: &mut V::Tally, _: &BlockPointer, _: SetId) -> Option<SetId> {
        None
    }

    fn visit(&self, tally: &mut V::Tally, pointer: &BlockPointer, block: &TreeBlock, set: SetId) {
        self.visitor.leaf(tally, pointer.tree, block, set);
        let progress = self.descent.progress;
        progress.advance(1, ByteCount::of(block.bytes().len()));
    }

    fn failed(&self, _: &mut V::Tally, error: buttress_tree::Error, _: SetId) {
        if self.descent.is_first {
            self.descent.failed(error.into());
        }
    }

    fn is_cancelled(&self) -> bool {
        self.descent.progress.is_cancelled()
    }
}
