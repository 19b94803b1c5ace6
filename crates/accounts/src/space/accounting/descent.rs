//! From the roots down: the tree blocks of all owners, each with the set of those that reach it.
//!
//! The trees form a graph without cycles whose shared parts are read once. It is gone through level by level: when all
//! blocks of one level have been read, everything that is known of a block one level below is known, so that it too
//! is read once, with its final set. Within a level blocks are read in order of address, checked and looked at on all
//! cores ([`buttress_tree::scan`]).
//!
//! Blocks of the lowest level are handed out in windows of at most `LEAVES_MAX` where there are more: nodes above
//! them, less than a hundredth as many, are read again for each. Nodes are bounded by `NODES_MAX` on each level.

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

/// How many leaves are known at once.
pub(super) const LEAVES_MAX: usize = 1 << 18;

/// How many nodes of one level there may be: enough for some 60 million leaves.
pub(super) const NODES_MAX: usize = 1 << 18;

/// How many leaves are asked for at once: between batches the job can be stopped.
const LEAVES_AT_ONCE: usize = 1 << 15;

/// How many records a thread keeps for itself.
pub(super) const RECORDS_AT_ONCE: usize = 1 << 12;

/// How many errors are kept; the others are counted.
const FAILURES_MAX: usize = 64;

/// A block and who reaches it.
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

/// What could not be read.
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

/// What is asked of all blocks.
pub(super) trait Visitor: Sync {
    /// What one thread adds up.
    type Tally: Send;

    /// A thread begins.
    fn begin(&self) -> Self::Tally;

    /// A leaf that the owners of `set` reach.
    fn leaf(&self, tally: &mut Self::Tally, tree: TreeId, block: &TreeBlock, set: SetId);

    /// A block of any level, once, before it is read.
    fn counted(&mut self, set: SetId, bytes: ByteCount);

    /// What a thread added up.
    fn end(&mut self, tally: Self::Tally) -> Result<()>;
}

/// A way down from the roots.
pub(super) struct Descent<'a> {
    pub(super) filesystem: &'a Filesystem,
    pub(super) roots: &'a [Root],
    pub(super) sets: &'a Mutex<Sets, SetsLock>,
    pub(super) progress: &'a Progress,
    pub(super) failures: &'a Mutex<Failures, FailuresLock>,
    pub(super) leaves_max: usize,
    /// Whether what cannot be read is to be told: it was not gone over before.
    pub(super) is_first: bool,
}

impl Descent<'_> {
    /// Goes over all blocks.
    pub(super) fn run<V: Visitor>(&self, visitor: &mut V) -> Result<()> {
        // Clamp: without roots there is nothing to go over.
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

    /// The blocks of `level` at `start` or above: the roots of that level, and the children of the blocks above.
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
        // Taken from the end.
        let wanted = above.iter().rev().map(|block| (block.pointer, block.set));
        for mut children in self.filesystem.forest().survey_blocks(wanted, &nodes) {
            gatherer.add(&mut children);
        }
        self.progress.check()?;
        gatherer.finish()
    }

    /// The half dropped trees: by the set of those who reach a block that nobody else does.
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

/// Reads nodes for their children.
struct Nodes<'a> {
    descent: &'a Descent<'a>,
    gatherer: &'a Gatherer<'a, Block>,
    /// Whether these nodes are read for the first time.
    is_first: bool,
    dropped: HashMap<SetId, (Key, u8)>,
}

impl Nodes<'_> {
    /// Whether the child is gone with the part of its tree that was dropped. Of a node that others reach too, a tree
    /// that is being dropped gives up all or nothing.
    fn is_dropped(&self, child: &BlockPointer, set: SetId) -> bool {
        self.dropped.get(&set).is_some_and(|(progress, level)| {
            // Clamp: a level from disk; children of a leaf are leaves.
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

/// Reads leaves for a visitor.
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
