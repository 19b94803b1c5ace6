//! Items to keep.
//!
//! Invariant: the slot of an [`OwnedItem`] exists in its leaf.

use buttress_format::Key;
use buttress_format::node::TreeBlock;

/// An item to keep. A kept item shares its leaf's memory, so the whole leaf stays in memory with
/// the item.
#[derive(Clone, Debug)]
pub struct OwnedItem {
    block: TreeBlock,
    slot: usize,
    key: Key,
}

impl OwnedItem {
    pub(crate) fn new(block: &TreeBlock, slot: usize) -> Option<Self> {
        let key = block.item(slot)?.key;
        Some(Self {
            block: block.clone(),
            slot,
            key,
        })
    }

    /// Returns the item's key.
    #[must_use]
    pub const fn key(&self) -> Key {
        self.key
    }

    /// Returns the item's bytes.
    #[must_use]
    pub fn data(&self) -> &[u8] {
        self.block.item(self.slot).map_or(&[], |item| item.data)
    }

    /// Returns the leaf that holds the item.
    #[must_use]
    pub const fn leaf(&self) -> &TreeBlock {
        &self.block
    }

    /// Returns the item's slot in its leaf.
    #[must_use]
    pub const fn slot(&self) -> usize {
        self.slot
    }
}
