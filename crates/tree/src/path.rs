//! The path from a root down to a block, with one step for each level. Only this module and
//! `step` follow links to child nodes in memory.
//!
//! [`Path::enter`] turns a parent's link into a child's block. The link of a parent in memory leads
//! to a child that is also in memory. A child without a link comes from the cache or the volume.
//! Cursors and walks do not distinguish blocks in memory from other blocks. Steps hold their
//! blocks, so a path stays readable even if the cache evicts these blocks.

use crate::error::Result;
use crate::forest::Forest;
use crate::pointer::BlockPointer;
use crate::read_ahead::{Ahead, Toward};
use crate::step::Step;
use crate::tree::Tree;
use buttress_format::Key;
use buttress_format::node::Header;

/// The choice of the child to descend to.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Aim<'a> {
    First,
    Last,
    Key(&'a Key),
}

/// Steps from the root down. The list of steps is empty until the root is read.
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

    /// Returns the leaf, if the path reaches one.
    pub(crate) fn leaf(&self) -> Option<&Step> {
        self.steps.last().filter(|step| step.pointer.level == 0)
    }

    pub(crate) fn leaf_mut(&mut self) -> Option<&mut Step> {
        self.steps.last_mut().filter(|step| step.pointer.level == 0)
    }

    /// Returns the blocks of the path that have an address, each with its header, from the root
    /// down.
    pub(crate) fn blocks(&self) -> impl Iterator<Item = (BlockPointer, &Header)> + '_ {
        self.steps.iter().filter_map(|step| {
            let header = step.block.header();
            match &step.node {
                Some(node) => node.address().map(|logical| {
                    let pointer = BlockPointer {
                        logical,
                        ..step.pointer
                    };
                    (pointer, header)
                }),
                None => Some((step.pointer, header)),
            }
        })
    }

    pub(crate) fn at_root(&self) -> bool {
        self.steps.len() <= 1
    }

    pub(crate) fn pop(&mut self) -> Option<Step> {
        self.steps.pop()
    }

    /// Reads the root, unless it is already read.
    pub(crate) fn load_root(&mut self, tree: &Tree) -> Result<()> {
        if self.steps.is_empty() {
            self.steps.push(tree.root_step()?);
        }
        Ok(())
    }

    /// Ascends to the lowest block that covers `key`.
    pub(crate) fn ascend_to(&mut self, key: &Key) {
        while !self.at_root() && self.last().is_some_and(|step| !step.pointer.covers(key)) {
            self.pop();
        }
    }

    /// Follows the link of the child in the last step's slot. Returns false if the slot holds no
    /// link.
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

    /// Descends to a leaf. On an error, the path ends at the parent of the unreadable block.
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
                    // Clamp: keys below the node's first key belong to the first child.
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
