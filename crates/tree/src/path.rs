//! The way from a root down to a block: one step a level, and the one place where links are followed.
//!
//! [`Path::enter`] is where a parent's link becomes a child's block: a parent in memory hands over the child that it
//! holds in memory, and everything else comes from the cache or the volume. Everything above (cursors, walks) knows
//! nothing of it. Steps hold their blocks, so a path stays readable whatever the cache evicts.

use crate::edit::Node;
use crate::error::Result;
use crate::forest::Forest;
use crate::pointer::BlockPointer;
use crate::read_ahead::{Ahead, Toward};
use crate::tree::Tree;
use buttress_format::Key;
use buttress_format::node::TreeBlock;
use std::sync::Arc;

/// One block on a path.
#[derive(Clone, Debug)]
pub(crate) struct Step {
    /// What led here.
    pub(crate) pointer: BlockPointer,
    /// The block.
    pub(crate) block: TreeBlock,
    /// The block's links to children in memory, where it is in memory itself.
    pub(crate) node: Option<Arc<Node>>,
    /// In a node, the child that the path goes on to, or would; in a leaf, the item.
    pub(crate) slot: usize,
}

impl Step {
    /// The pointer to the child in `slot`; for one in memory, with the stand-in for its address. Every use of a
    /// step's children goes through here: the bytes of a block in memory do not know where its children are.
    pub(crate) fn child(&self, slot: usize) -> Option<BlockPointer> {
        let pointer = self.pointer.child(&self.block, slot)?;
        Some(match self.link(slot) {
            Some(link) => BlockPointer {
                logical: link.block.logical(),
                generation: link.block.header().generation,
                ..pointer
            },
            None => pointer,
        })
    }

    /// The child in `slot`, where it is in memory.
    pub(crate) fn link(&self, slot: usize) -> Option<&Arc<Node>> {
        self.node.as_ref()?.link(slot)
    }

    /// The number of the last slot; 0 in an empty block.
    pub(crate) fn last_slot(&self) -> usize {
        // Clamp: see above.
        self.block.item_count().saturating_sub(1)
    }

    /// The next slot, if there is one.
    pub(crate) fn next_slot(&self) -> Option<usize> {
        self.slot
            .checked_add(1)
            .filter(|slot| *slot < self.block.item_count())
    }
}

/// Which child to go on to.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Aim<'a> {
    First,
    Last,
    Key(&'a Key),
}

/// Steps from the root (first) down. Empty until the root is read.
#[derive(Debug, Default)]
pub(crate) struct Path {
    steps: Vec<Step>,
}

impl Path {
    pub(crate) fn last(&self) -> Option<&Step> {
        self.steps.last()
    }

    pub(crate) fn last_mut(&mut self) -> Option<&mut Step> {
        self.steps.last_mut()
    }

    /// The leaf, where the path reaches one.
    pub(crate) fn leaf(&self) -> Option<&Step> {
        self.steps.last().filter(|step| step.pointer.level == 0)
    }

    pub(crate) fn leaf_mut(&mut self) -> Option<&mut Step> {
        self.steps.last_mut().filter(|step| step.pointer.level == 0)
    }

    /// The blocks of the path that have an address, the root first.
    pub(crate) fn blocks(&self) -> impl Iterator<Item = BlockPointer> + '_ {
        self.steps.iter().filter_map(|step| match &step.node {
            Some(node) => node.address().map(|logical| BlockPointer {
                logical,
                ..step.pointer
            }),
            None => Some(step.pointer),
        })
    }

    pub(crate) fn at_root(&self) -> bool {
        self.steps.len() <= 1
    }

    pub(crate) fn pop(&mut self) -> Option<Step> {
        self.steps.pop()
    }

    /// Reads the root, if that has not been done.
    pub(crate) fn load_root(&mut self, tree: &Tree) -> Result<()> {
        if self.steps.is_empty() {
            self.steps.push(tree.root_step()?);
        }
        Ok(())
    }

    /// Goes up to the lowest block that `key` belongs under.
    pub(crate) fn ascend_to(&mut self, key: &Key) {
        while !self.at_root() && self.last().is_some_and(|step| !step.pointer.covers(key)) {
            self.pop();
        }
    }

    /// Follows the link in the last step's slot. False when there is none.
    pub(crate) fn enter(&mut self, forest: &Forest, ahead: &mut Ahead, toward: Toward) -> Result<bool> {
        let Some((pointer, node)) = self
            .last()
            .and_then(|step| Some((step.child(step.slot)?, step.link(step.slot).cloned())))
        else {
            return Ok(false);
        };
        let block = match &node {
            Some(node) => node.block.clone(),
            None => ahead.fetch(forest, &self.steps, &pointer, toward)?,
        };
        self.steps.push(Step {
            pointer,
            block,
            node,
            slot: 0,
        });
        Ok(true)
    }

    /// Goes on down to a leaf. On an error the path ends at the parent of the block that could not be had.
    pub(crate) fn descend(
        &mut self,
        forest: &Forest,
        ahead: &mut Ahead,
        toward: Toward,
        aim: Aim<'_>,
    ) -> Result<()> {
        while let Some(step) = self.steps.last_mut().filter(|step| step.pointer.level > 0) {
            step.slot = match aim {
                Aim::First => 0,
                Aim::Last => step.last_slot(),
                Aim::Key(key) => match step.block.search(key) {
                    Ok(slot) => slot,
                    // Clamp: what is left of the first key belongs to the first child.
                    Err(slot) => slot.saturating_sub(1),
                },
            };
            if !self.enter(forest, ahead, toward)? {
                break;
            }
        }
        if let Some(leaf) = self.leaf_mut() {
            leaf.slot = match aim {
                Aim::Last => leaf.last_slot(),
                Aim::First | Aim::Key(_) => 0,
            };
        }
        Ok(())
    }
}
