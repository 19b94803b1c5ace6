//! Moves tree blocks of the volume's own trees: each belongs to one tree, so an edit without change
//! moves it.

use crate::areas::Relocations;
use crate::need::Need;
use crate::running_parts::RelocationStep;
use buttress_accounts::delayed_references::{ExtentKind, Reference};
use buttress_exact::{Exact as _, u64_of};
use buttress_format::{Key, Logical, TreeId};
use buttress_fs::error::Result;
use buttress_tree::NonBlocking;

/// How many blocks move in one edit.
const BLOCKS_AT_ONCE: usize = 16;

impl Relocations<'_> {
    /// Divides tree blocks into those of the volume's own trees and those of subvolumes.
    pub(super) fn divide_blocks(&self, blocks: &[Logical]) -> Result<(Vec<Logical>, Vec<Logical>)> {
        let (mut own, mut shareable) = (Vec::new(), Vec::new());
        let mut handle = self.engine.start_reading();
        for block in blocks {
            let owner;
            (handle, owner) = self
                .engine
                .retry(handle, |handle| handle.relocation_step().only_tree_of(*block))?;
            match owner {
                Some(_) => own.push(*block),
                None => shareable.push(*block),
            }
        }
        Ok((own, shareable))
    }

    /// Moves blocks of the volume's own trees.
    pub(super) fn move_own_blocks(&self, blocks: &[Logical]) -> Result<()> {
        for part in blocks.chunks(BLOCKS_AT_ONCE) {
            let mut rest = part;
            while !rest.is_empty() {
                let handle = self.engine.start(Need::freeing(u64_of(rest.len())))?;
                let (handle, count) = self.engine.retry(handle, |handle| {
                    let mut count = 0_usize;
                    for block in rest {
                        match handle.relocation_step().touch_block(*block) {
                            Ok(()) => count = count.exact_add(1),
                            Err(error) if count > 0 && error.missing_block().is_some() => break,
                            Err(error) => return Err(error),
                        }
                    }
                    Ok(count)
                })?;
                drop(handle);
                // Clamp: at most all of them.
                rest = rest.get(count..).unwrap_or_default();
            }
        }
        Ok(())
    }
}

impl RelocationStep<'_> {
    /// Returns the volume's own tree that has a block. `None` for blocks of subvolumes, and for
    /// freed blocks.
    fn only_tree_of(&mut self, block: Logical) -> Result<Option<TreeId>> {
        let Some(extent) = self.running.core.extent_with_references(block)? else {
            return Ok(None);
        };
        Ok(extent
            .references
            .iter()
            .find_map(|(reference, _)| match reference {
                Reference::TreeBlock { root } if !root.holds_files() => Some(*root),
                _ => None,
            }))
    }

    /// Returns those of the blocks that still exist and that trees of subvolumes refer to.
    pub(super) fn still_shareable(&mut self, blocks: &[Logical]) -> Result<Vec<Logical>> {
        let mut found = Vec::with_capacity(blocks.len());
        for block in blocks {
            let is_there = match self.running.core.extent_with_references(*block) {
                Ok(extent) => extent.is_some_and(|extent| extent.kind() != ExtentKind::Data),
                // The computation of the closure reaches the same block, and reports that the block
                // is missing.
                Err(error) if error.missing_block().is_some() => true,
                Err(error) => return Err(error),
            };
            if is_there {
                found.push(*block);
            }
        }
        Ok(found)
    }

    /// Copies a tree block to a new place, by an edit of its tree. If a block is not in memory, the
    /// method ends before it changes anything.
    fn touch_block(&mut self, block: Logical) -> Result<()> {
        let Some(tree) = self.only_tree_of(block)? else {
            return Ok(());
        };
        let Some(extent) = self.running.core.extent_with_references(block)? else {
            return Ok(());
        };
        let content = self.running.core.forest.read_block(&extent.pointer())?;
        let Some(first_key) = content.key(0) else {
            return self.touch_empty_tree(tree);
        };
        let Some(found) = self.running.at_or_after(tree, &first_key)? else {
            return Ok(());
        };
        let key = found.key();
        drop(found);
        self.running.reach(tree, &key)?;
        NonBlocking::lifted(|| self.running.update(tree, &key, &mut |_| {}).map(drop))
    }

    /// Copies the only leaf of an empty tree. No item can be edited, so the edit inserts an item and
    /// removes it. A volume with small files alone has an empty checksum tree.
    fn touch_empty_tree(&mut self, id: TreeId) -> Result<()> {
        self.running.reach(id, &Key::MIN)?;
        let tree = self.running.open_tree(id)?.tree.clone();
        if tree.at_or_after(&Key::MIN)?.is_some() {
            return Ok(());
        }
        NonBlocking::lifted(|| {
            tree.edit_as_one(|| {
                self.running.insert(id, &Key::MIN, &[])?;
                self.running.remove(id, &Key::MIN).map(drop)
            })
        })
    }
}
