//! Pointers: the facts about a tree block that are known before it is read.
//!
//! A parent names its child by address and generation. The parent node implies more: the child's
//! level is one less. The child's first key is the pointer's key, and all its keys are below the
//! next pointer's key. The block at a pointer's address must satisfy every expectation that the
//! pointer states.

use buttress_format::node::{Expectation, TreeBlock};
use buttress_format::{Generation, Key, Logical, TreeId};

/// The number of levels that a tree can have. Levels are 0 (leaves) to 7.
///
/// Source: on-disk format documentation, section "Overview" of the B-tree.
pub const LEVELS_MAX: u8 = 8;

/// The root block of a tree, as its root item or the superblock names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RootPointer {
    /// The id of the tree.
    pub tree: TreeId,
    /// Address of the root block.
    pub logical: Logical,
    /// The transaction that wrote the root block.
    pub generation: Generation,
    /// Level of the root block; 0 if the tree is one leaf.
    pub level: u8,
}

/// A pointer to a tree block, with all facts that the parent implies about the block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct BlockPointer {
    /// The tree that the walk reads. A block that a snapshot shares may carry another subvolume's
    /// id.
    pub tree: TreeId,
    /// Address of the block.
    pub logical: Logical,
    /// The transaction that wrote the block.
    pub generation: Generation,
    /// The block's level.
    pub level: u8,
    /// The block's first key; `None` for a root, whose first key is not known in advance.
    pub first_key: Option<Key>,
    /// The exclusive end of the block's keys; `None` if they have no end.
    pub end_key: Option<Key>,
}

impl BlockPointer {
    /// Returns the pointer to a root.
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

    /// Returns the pointer to the child in `slot` of `block`, to which `self` points. Returns
    /// `None` if `block` is a leaf or `slot` is past the last child.
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

    /// Returns the expectation that the check of the block's bytes enforces.
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

    /// Returns true if `key` belongs to the block or to its descendants.
    #[must_use]
    pub fn covers(&self, key: &Key) -> bool {
        self.first_key.is_none_or(|first| first <= *key) && self.end_key.is_none_or(|end| *key < end)
    }

    /// Returns the block's last key and the end that the parent sets, if the key is not below that
    /// end.
    #[must_use]
    pub(crate) fn key_past_end(&self, block: &TreeBlock) -> Option<(Key, Key)> {
        let last = block
            .item_count()
            .checked_sub(1)
            .and_then(|slot| block.key(slot))?;
        self.end_key.filter(|end| last >= *end).map(|end| (last, end))
    }

    /// Returns true if both pointers have the same address and generation.
    #[must_use]
    pub(crate) fn same_block(&self, other: &Self) -> bool {
        self.logical == other.logical && self.generation == other.generation
    }
}
