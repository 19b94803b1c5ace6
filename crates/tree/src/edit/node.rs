//! A block in memory that belongs to one tree, with links to those of its children that are in memory too.

use crate::pointer::BlockPointer;
use buttress_format::node::{KeyPointer, TreeBlock};
use buttress_format::{Generation, Key, Logical, TreeId};
use core::sync::atomic::{AtomicU64, Ordering};
use std::sync::Arc;

/// The first of the numbers that stand in for addresses. No volume is that large: the kernel's addresses are
/// those of a signed 64-bit offset.
const FIRST_IDENTITY: u64 = 0xf000_0000_0000_0000;

static NEXT_IDENTITY: AtomicU64 = AtomicU64::new(FIRST_IDENTITY);

/// A stand-in for the address of a block that may still change: no two versions of a block have the same one.
pub(super) fn new_identity() -> Logical {
    Logical::new(NEXT_IDENTITY.fetch_add(1, Ordering::Relaxed))
}

/// A block in memory.
///
/// The block's header has a stand-in for its address, and its bytes have anything for the addresses of linked
/// children: both are put right when it is sealed.
#[derive(Debug)]
pub(crate) struct Node {
    pub(crate) block: TreeBlock,
    /// For each slot of a node, the child where it is in memory. Empty for a leaf.
    pub(super) links: Vec<Option<Arc<Node>>>,
    /// Between which two freezes of its tree the block was made: it may be changed only in that time.
    pub(super) epoch: u64,
    /// Where it will be, or is, written; 0 until that is known.
    address: AtomicU64,
    /// The slot after that of the last insertion: the next one there is one of a row.
    pub(super) next_slot: usize,
    /// Whether the block was there in an earlier epoch: what was changed twice is likely to be changed again.
    pub(super) is_copy: bool,
    /// How many items or pointers it had then.
    pub(super) count_before: usize,
}

/// No insertion has been seen.
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

    /// A copy of a block for a tree's running epoch. `links` are those of the block's children in memory.
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

    /// Makes the block one of a tree's running epoch as it is: nobody else has it.
    pub(super) fn take_over(&mut self, generation: Generation, epoch: u64) {
        self.block.rename(new_identity(), generation);
        *self.address.get_mut() = 0;
        self.epoch = epoch;
        self.is_copy = true;
        self.count_before = self.block.item_count();
    }

    /// Has the block's own bytes point to the child in memory in `slot`. The key stays.
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

    /// The same for all children in memory.
    pub(super) fn resolve(&mut self) {
        (0..self.links.len()).for_each(|slot| self.point_to_link(slot));
    }

    /// A leaf without items or a node without pointers, beside this one; in the memory of another block, if there is one.
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

    /// Where the block will be or is written, once that is known.
    pub(crate) fn address(&self) -> Option<Logical> {
        match self.address.load(Ordering::Acquire) {
            0 => None,
            address => Some(Logical::new(address)),
        }
    }

    /// Says where the block will be written.
    pub(super) fn assign(&self, logical: Logical) {
        self.address.store(logical.get(), Ordering::Release);
    }

    /// Address and generation of the child in memory in `slot`.
    pub(super) fn address_below(&self, slot: usize) -> Option<(Logical, Generation)> {
        let child = self.link(slot)?;
        Some((child.address()?, child.generation()))
    }

    /// The child in memory in `slot`.
    pub(crate) fn link(&self, slot: usize) -> Option<&Arc<Self>> {
        self.links.get(slot)?.as_ref()
    }

    /// As [`TreeBlock::search`], with a short way where the key continues a row of insertions.
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

    /// The first key; the smallest key there is for an empty leaf.
    pub(super) fn first_key(&self) -> Key {
        // Clamp: an empty leaf is left of everything.
        self.block.key(0).unwrap_or(Key::MIN)
    }

    /// What a parent's bytes say of this node. The address is not final.
    pub(super) fn key_pointer(&self) -> KeyPointer {
        KeyPointer {
            key: self.first_key(),
            logical: self.address().unwrap_or_else(|| self.block.logical()),
            generation: self.generation(),
        }
    }

    /// The block with the addresses of its children, as far as they have any: for whoever looks at its pointers.
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

    /// The pointer to this node for whoever keeps account of blocks: its address, or the stand-in.
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

/// A version of its own for whoever goes on changing it, while a reader holds the other one. The address is the
/// same, because only one of the two will be written; the stand-in is not, because the two will differ.
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
