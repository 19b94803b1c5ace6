//! A walk over the blocks of a tree, for jobs that look at trees rather than at items.
//!
//! Parents come before their children, children in order of their keys. A block that cannot be had is reported
//! in its place as an error that names its pointer, and the walk goes on with its right neighbour.
//!
//! # Bounds
//!
//! Depth is bounded by the root's level. The number of visits is bounded by the number of blocks: two places of
//! one level have disjoint ranges of keys, and a block is accepted only at the place whose range begins with
//! its first key and holds all its keys. So a tree that shares one child between many parents, which would have
//! exponentially many paths, gets errors for all places but one. Memory is one block a level, and read-ahead.

use crate::error::Result;
use crate::path::{Path, Step};
use crate::pointer::BlockPointer;
use crate::read_ahead::{Ahead, ReadAhead, Toward};
use crate::scope::Scope;
use crate::tree::Tree;
use buttress_exact::Exact as _;
use buttress_format::node::TreeBlock;
use core::iter::FusedIterator;

/// In which order blocks are visited.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BlockOrder {
    /// A block, then everything below its first child, and so on.
    Depth,
    /// As [`BlockOrder::Depth`], but nothing below this level is read.
    DepthDownTo(u8),
    /// All blocks of the root's level, then all of the next one, down to the leaves. Upper levels are walked
    /// again for each lower one; they come from the cache. A damaged node is reported once, at its own level.
    Breadth,
}

/// A block and what led to it.
#[derive(Clone, Debug)]
pub struct Visit {
    /// The pointer.
    pub pointer: BlockPointer,
    /// The block.
    pub block: TreeBlock,
}

/// Iterator over the blocks of a tree; see the module's documentation.
#[derive(Debug)]
pub struct Blocks {
    tree: Tree,
    read_ahead: ReadAhead,
    order: BlockOrder,
    walk: Option<Walk>,
}

impl Blocks {
    pub(crate) fn new(tree: Tree, order: BlockOrder, read_ahead: ReadAhead) -> Self {
        let floor = match order {
            BlockOrder::Depth => 0,
            BlockOrder::DepthDownTo(level) => level.min(tree.root().level),
            BlockOrder::Breadth => tree.root().level,
        };
        let walk = Some(Walk::new(floor, read_ahead));
        Self {
            tree,
            read_ahead,
            order,
            walk,
        }
    }

    /// The block that came last, with its links to children in memory.
    pub(crate) fn last_step(&self) -> Option<&Step> {
        self.walk.as_ref()?.path.last()
    }

    /// Does not go below the block that came last: its children are left out.
    pub fn skip_children(&mut self) {
        if let Some(walk) = &mut self.walk {
            walk.skip_children();
        }
    }
}

impl Iterator for Blocks {
    type Item = Result<Visit>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            let walk = self.walk.as_mut()?;
            let Some(visit) = walk.next(&self.tree) else {
                let floor = walk.floor;
                self.walk = match self.order {
                    BlockOrder::Depth | BlockOrder::DepthDownTo(_) => None,
                    BlockOrder::Breadth => floor
                        .checked_sub(1)
                        .map(|floor| Walk::new(floor, self.read_ahead)),
                };
                continue;
            };
            let level = match &visit {
                Ok(visit) => visit.pointer.level,
                Err(error) => error.pointer().level,
            };
            if self.order != BlockOrder::Breadth || level == walk.floor {
                return Some(visit);
            }
        }
    }
}

impl FusedIterator for Blocks {}

/// One walk in order of depth.
#[derive(Debug)]
struct Walk {
    path: Path,
    ahead: Ahead,
    floor: u8,
    started: bool,
}

impl Walk {
    fn new(floor: u8, read_ahead: ReadAhead) -> Self {
        Self {
            path: Path::default(),
            ahead: Ahead::new(read_ahead, floor, Scope::default()),
            floor,
            started: false,
        }
    }

    fn skip_children(&mut self) {
        if let Some(step) = self.path.last_mut() {
            step.slot = step.block.item_count();
        }
    }

    fn next(&mut self, tree: &Tree) -> Option<Result<Visit>> {
        if !self.started {
            self.started = true;
            if let Err(error) = self.path.load_root(tree) {
                return Some(Err(error));
            }
            return self.last_visit();
        }
        // A step's slot is the child to go to next; it moves on when that child is done.
        while let Some(step) = self.path.last() {
            if step.pointer.level > self.floor && step.slot < step.block.item_count() {
                match self.path.enter(tree.forest(), &mut self.ahead, Toward::Higher) {
                    Ok(true) => return self.last_visit(),
                    Ok(false) => {}
                    Err(error) => {
                        self.child_done();
                        return Some(Err(error));
                    }
                }
            }
            self.path.pop();
            self.child_done();
        }
        None
    }

    fn child_done(&mut self) {
        if let Some(step) = self.path.last_mut() {
            step.slot = step.slot.exact_add(1);
        }
    }

    fn last_visit(&self) -> Option<Result<Visit>> {
        self.path.last().map(|step| {
            Ok(Visit {
                pointer: step.pointer,
                block: step.block.clone(),
            })
        })
    }
}
