//! A walk over tree blocks by their raw bytes, which continues past damaged blocks.

use crate::block;
use buttress_format::{ItemType, TreeId};
use std::collections::HashSet;

/// The blocks that a walk still visits, and those that it has seen.
#[derive(Debug, Default)]
pub(crate) struct Walk {
    seen: HashSet<u64>,
    waiting: Vec<(u64, u8)>,
}

impl Walk {
    /// Adds a block with its level.
    pub(crate) fn add(&mut self, logical: u64, level: u8) {
        if logical != 0 && level <= block::LEVEL_MAX && self.seen.insert(logical) {
            self.waiting.push((logical, level));
        }
    }

    /// Visits all blocks below those that were added. `read` returns the bytes of a block, if any
    /// copy can be read. Follows root items in leaves of the root tree and of the tree of logs.
    /// Returns the addresses of all blocks in ascending order.
    pub(crate) fn run<B: AsRef<[u8]>>(mut self, mut read: impl FnMut(u64) -> Option<B>) -> Vec<u64> {
        let mut found = Vec::new();
        while let Some((logical, level)) = self.waiting.pop() {
            let Some(block) = read(logical) else { continue };
            let bytes = block.as_ref();
            found.push(logical);
            let fits = block::address(bytes) == Some(logical) && block::level(bytes) == Some(level);
            if !fits {
                continue;
            }
            if let Some(below) = level.checked_sub(1) {
                block::children(bytes).for_each(|child| self.add(child, below));
                continue;
            }
            let has_roots = [Some(TreeId::ROOT), Some(TreeId::TREE_LOG)].contains(&block::owner(bytes));
            let roots = block::items(bytes).filter(|item| item.key.item_type == ItemType::ROOT_ITEM);
            for item in roots.filter(|_| has_roots) {
                let root = bytes.get(item.range).and_then(block::root_of);
                if let Some((root, level)) = root {
                    self.add(root, level);
                }
            }
        }
        found.sort_unstable();
        found
    }
}
