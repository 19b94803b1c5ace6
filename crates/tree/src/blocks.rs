//! A walk over the blocks of a tree, for jobs that inspect trees rather than items.
//!
//! The walk visits parents before their children, and children in key order. For an unreadable
//! block, the walk returns an error that names the block's pointer, and continues with its right
//! neighbour.
//!
//! # Bounds
//!
//! The level of the tree's root bounds the depth of the walk. The number of blocks bounds the
//! number of visits. Two places of one level have disjoint ranges of keys. The walk accepts a block
//! only at the place whose key range begins with the block's first key and holds all its keys. If a
//! hostile tree shares one child between many parents, it has exponentially many paths, but the
//! walk returns errors for all places except one. Memory is one block for each level, plus
//! read-ahead.

use crate::error::Result;
use crate::path::Path;
use crate::pointer::BlockPointer;
use crate::read_ahead::{Ahead, ReadAhead, Toward};
use crate::scope::Scope;
use crate::step::Step;
use crate::tree::Tree;
use buttress_exact::Exact as _;
use buttress_format::node::TreeBlock;
use core::iter::FusedIterator;

/// The order in which the walk visits blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BlockOrder {
    /// Depth first: a block, then all blocks below its first child, then below the next child.
    Depth,
    /// Depth first, but the walk reads no block below this level.
    DepthDownTo(u8),
    /// All blocks of the root's level, then all of the next level, down to the leaves. The walk
    /// visits the upper levels again for each lower level, from the cache. The walk reports a
    /// damaged node once, at the node's own level.
    Breadth,
}

/// A visited block and its pointer.
#[derive(Clone, Debug)]
pub struct Visit {
    /// The pointer to the block.
    pub pointer: BlockPointer,
    /// The content of the visited block.
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

impl Tree {
    /// Returns every node and leaf, parents before their children. The walk over all blocks
    /// continues after unreadable blocks.
    #[must_use]
    pub fn blocks(&self, read_ahead: ReadAhead) -> Blocks {
        Blocks::new(self.clone(), BlockOrder::Depth, read_ahead)
    }

    /// Returns every node and leaf like [`Tree::blocks`], in the given order.
    #[must_use]
    pub fn blocks_in(&self, order: BlockOrder, read_ahead: ReadAhead) -> Blocks {
        Blocks::new(self.clone(), order, read_ahead)
    }
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

    /// Returns the step of the last visited block, with its links to children in memory.
    pub(crate) fn last_step(&self) -> Option<&Step> {
        self.walk.as_ref()?.path.last()
    }

    /// Skips the children of the last visited block.
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

/// A depth-first walk.
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
        // A step's slot is the next child to visit. A step's slot advances when the walk has
        // finished the child in that slot.
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
