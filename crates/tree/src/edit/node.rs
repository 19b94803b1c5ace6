//! Nodes: blocks in memory that belong to one tree, with links to their children in memory.

use crate::pointer::BlockPointer;
use buttress_format::node::{KeyPointer, TreeBlock};
use buttress_format::{Generation, Key, Logical, TreeId};
use core::sync::atomic::{AtomicU64, Ordering};
use std::sync::Arc;

/// The first placeholder address. No volume has addresses that large: the kernel's addresses are
/// signed 64-bit offsets.
const FIRST_IDENTITY: u64 = 0xf000_0000_0000_0000;

static NEXT_IDENTITY: AtomicU64 = AtomicU64::new(FIRST_IDENTITY);

/// Returns a placeholder address for a block that may still change. Each version of a block has its
/// own.
pub(super) fn new_identity() -> Logical {
    Logical::new(NEXT_IDENTITY.fetch_add(1, Ordering::Relaxed))
}

/// A block in memory.
///
/// The block's header holds a placeholder for its address, and its bytes hold arbitrary addresses
/// for linked children. Sealing the block writes both its address and its children's addresses into
/// it.
#[derive(Debug)]
pub(crate) struct Node {
    pub(crate) block: TreeBlock,
    /// For each slot of a node, the child node, if it is in memory. Empty for a leaf.
    pub(super) links: Vec<Option<Arc<Node>>>,
    /// The epoch in which the block was made. The block may be changed only during this epoch of
    /// its tree.
    pub(super) epoch: u64,
    /// The address to which the block is or will be written; 0 while it is unknown.
    address: AtomicU64,
    /// The slot after the last insertion. An insertion at this slot continues a sequence of
    /// insertions.
    pub(super) next_slot: usize,
    /// True if the block existed in an earlier epoch. A block that was changed twice will probably
    /// change again.
    pub(super) is_copy: bool,
    /// The number of items or pointers in the earlier epoch.
    pub(super) count_before: usize,
}

/// The value of `next_slot` before any insertion.
pub(super) const NO_SLOT: usize = usize::MAX;

impl Node {
    pub(super) fn new(block: TreeBlock, links: Vec<Option<Arc<Self>>>, epoch: u64) -> Self {
        Self {
            block,
            links,
            epoch,
            address: AtomicU64::new(0),
            next_slot: NO_SLOT,
            is_copy: false,
            count_before: 0,
        }
    }

    /// Returns a copy of a block for a tree's running epoch. `links` are the block's children in
    /// memory.
    pub(super) fn copy_of(
        block: &TreeBlock,
        links: Vec<Option<Arc<Self>>>,
        owner: TreeId,
        generation: Generation,
        epoch: u64,
    ) -> Self {
        Self {
            is_copy: true,
            count_before: block.item_count(),
            ..Self::new(
                block.copy_to_edit(new_identity(), generation, owner),
                links,
                epoch,
            )
        }
    }

    /// Moves an unchanged block into the tree's running epoch. The block must have no other owner.
    pub(super) fn take_over(&mut self, generation: Generation, epoch: u64) {
        self.block.rename(new_identity(), generation);
        *self.address.get_mut() = 0;
        self.epoch = epoch;
        self.is_copy = true;
        self.count_before = self.block.item_count();
    }

    /// Writes the pointer to the child in memory in `slot` into the block's own bytes. The key
    /// stays.
    pub(super) fn point_to_link(&mut self, slot: usize) {
        let Some(pointer) = self.link(slot).map(|child| child.key_pointer()) else {
            return;
        };
        // Clamp: a linked child has a key.
        let key = self.block.key(slot).unwrap_or(pointer.key);
        let pointer = KeyPointer { key, ..pointer };
        let is_set = self.block.edit_node(|node| node.set(slot, &pointer));
        debug_assert!(is_set, "a linked child has a pointer");
    }

    /// Writes the pointers to all children in memory into the block's own bytes.
    pub(super) fn resolve(&mut self) {
        (0..self.links.len()).for_each(|slot| self.point_to_link(slot));
    }

    /// Returns an empty leaf or node beside this one. Reuses the memory of another block, if one is
    /// given.
    pub(super) fn new_sibling(&self, memory: Option<TreeBlock>) -> Self {
        let generation = self.block.header().generation;
        let block = match memory {
            Some(memory) => self.block.new_sibling_in(memory, new_identity(), generation),
            None => self.block.new_sibling(new_identity(), generation),
        };
        Self::new(block, Vec::new(), self.epoch)
    }

    pub(super) fn level(&self) -> u8 {
        self.block.level()
    }

    pub(super) fn generation(&self) -> Generation {
        self.block.header().generation
    }

    /// Returns the address to which the block is or will be written, if it is known.
    pub(crate) fn address(&self) -> Option<Logical> {
        match self.address.load(Ordering::Acquire) {
            0 => None,
            address => Some(Logical::new(address)),
        }
    }

    /// Sets the address to which the frozen block will be written.
    pub(super) fn assign(&self, logical: Logical) {
        self.address.store(logical.get(), Ordering::Release);
    }

    /// Returns address and generation of the child node in `slot`, which is in memory.
    pub(super) fn address_below(&self, slot: usize) -> Option<(Logical, Generation)> {
        let child = self.link(slot)?;
        Some((child.address()?, child.generation()))
    }

    /// Returns the child in memory in `slot`.
    pub(crate) fn link(&self, slot: usize) -> Option<&Arc<Self>> {
        self.links.get(slot)?.as_ref()
    }

    /// Searches like [`TreeBlock::search`], with a shortcut for keys that continue a row of
    /// insertions.
    pub(super) fn search(&self, key: &Key) -> Result<usize, usize> {
        let slot = self.next_slot;
        let continues = slot <= self.block.item_count()
            && slot
                .checked_sub(1)
                .and_then(|before| self.block.key(before))
                .is_some_and(|before| before < *key)
            && self.block.key(slot).is_none_or(|after| *key < after);
        if continues {
            Err(slot)
        } else {
            self.block.search(key)
        }
    }

    /// Returns the first key, or the smallest possible key for an empty leaf.
    pub(super) fn first_key(&self) -> Key {
        // Clamp: an empty leaf is left of every key.
        self.block.key(0).unwrap_or(Key::MIN)
    }

    /// Returns the parent's pointer to this node. The address in the pointer is not final.
    pub(super) fn key_pointer(&self) -> KeyPointer {
        KeyPointer {
            key: self.first_key(),
            logical: self.address().unwrap_or_else(|| self.block.logical()),
            generation: self.generation(),
        }
    }

    /// Returns the block with the known addresses of its children, for callers that read its
    /// pointers.
    pub(super) fn resolved(&self) -> TreeBlock {
        let mut block = self.block.clone();
        let children = self.links.iter().enumerate();
        let known: Vec<(usize, KeyPointer)> = children
            .filter_map(|(slot, child)| Some((slot, child.as_ref()?.key_pointer())))
            .collect();
        if !known.is_empty() {
            let are_set = block.edit_node(|node| {
                let set = known.iter().map(|(slot, pointer)| node.set(*slot, pointer));
                set.filter(|is_set| !is_set).count() == 0
            });
            debug_assert!(are_set, "linked children have pointers");
        }
        block
    }

    /// Returns the pointer to this node for the accounting of blocks, with its address or the
    /// placeholder.
    pub(super) fn pointer(&self, tree: TreeId) -> BlockPointer {
        BlockPointer {
            tree,
            logical: self.address().unwrap_or_else(|| self.block.logical()),
            generation: self.generation(),
            level: self.level(),
            first_key: self.block.key(0),
            end_key: None,
        }
    }
}

/// Clones a node for an editor, while a reader holds the original. The clone and its original have
/// the same address, because only one of them will be written. The placeholders of clone and
/// original differ, because the content of both will differ.
impl Clone for Node {
    fn clone(&self) -> Self {
        Self {
            block: self.block.with_logical(new_identity()),
            links: self.links.clone(),
            epoch: self.epoch,
            address: AtomicU64::new(self.address.load(Ordering::Acquire)),
            next_slot: self.next_slot,
            is_copy: self.is_copy,
            count_before: self.count_before,
        }
    }
}
