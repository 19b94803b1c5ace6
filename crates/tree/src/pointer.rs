//! What is known about a tree block before it is read.
//!
//! A parent names its child by address and generation, and by its own shape promises more: the child's level is
//! one less, its first key is the pointer's key, and all of its keys are below the next pointer's key. All of
//! that is demanded of the block that is found there.

use buttress_format::node::{Expectation, TreeBlock};
use buttress_format::{Generation, Key, Logical, TreeId};

/// One more than the highest level that a block can have. Levels are 0 (leaves) to 7.
///
/// Source: on-disk format documentation, section "Overview" of the B-tree.
pub const LEVELS_MAX: u8 = 8;

/// Where a tree begins, as its root item or the superblock says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RootPointer {
    /// The tree.
    pub tree: TreeId,
    /// Address of the root block.
    pub logical: Logical,
    /// The transaction that wrote the root block.
    pub generation: Generation,
    /// Level of the root block; 0 when the tree is one leaf.
    pub level: u8,
}

/// A pointer to a tree block, with everything that is promised about the block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct BlockPointer {
    /// The tree that is being walked. Blocks shared with a snapshot may carry another subvolume's id.
    pub tree: TreeId,
    /// Address of the block.
    pub logical: Logical,
    /// The transaction that wrote the block.
    pub generation: Generation,
    /// The block's level.
    pub level: u8,
    /// The block's first key; `None` for a root, whose first key nobody promises.
    pub first_key: Option<Key>,
    /// All keys of the block are below this one; `None` where there is no bound.
    pub end_key: Option<Key>,
}

impl BlockPointer {
    /// The pointer to a root.
    #[must_use]
    pub const fn root(root: &RootPointer) -> Self {
        let RootPointer {
            tree,
            logical,
            generation,
            level,
        } = *root;
        Self {
            tree,
            logical,
            generation,
            level,
            first_key: None,
            end_key: None,
        }
    }

    /// The pointer to child number `slot` of `block`, which `self` points to; `None` past the last child, and
    /// for leaves.
    #[must_use]
    pub fn child(&self, block: &TreeBlock, slot: usize) -> Option<Self> {
        let level = self.level.checked_sub(1)?;
        let pointer = block.pointer(slot)?;
        let end_key = slot
            .checked_add(1)
            .and_then(|next| block.key(next))
            .or(self.end_key);
        Some(Self {
            tree: self.tree,
            logical: pointer.logical,
            generation: pointer.generation,
            level,
            first_key: Some(pointer.key),
            end_key,
        })
    }

    /// What the check of the block's bytes is to demand.
    #[must_use]
    pub const fn expectation(&self) -> Expectation {
        Expectation {
            logical: self.logical,
            level: Some(self.level),
            generation: Some(self.generation),
            owner: Some(self.tree),
            first_key: self.first_key,
        }
    }

    /// Whether `key` belongs to the block or to what is below it.
    #[must_use]
    pub fn covers(&self, key: &Key) -> bool {
        self.first_key.is_none_or(|first| first <= *key) && self.end_key.is_none_or(|end| *key < end)
    }

    /// The block's last key, where it is not below the bound that the parent sets.
    #[must_use]
    pub(crate) fn key_past_end(&self, block: &TreeBlock) -> Option<(Key, Key)> {
        let last = block
            .item_count()
            .checked_sub(1)
            .and_then(|slot| block.key(slot))?;
        self.end_key.filter(|end| last >= *end).map(|end| (last, end))
    }

    /// Whether both name the same block: same address, same generation.
    #[must_use]
    pub(crate) fn same_block(&self, other: &Self) -> bool {
        self.logical == other.logical && self.generation == other.generation
    }
}
