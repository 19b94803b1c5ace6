//! The path from memory to the volume: addresses, freezing, sealing, and releasing written blocks.
//!
//! A freeze costs nothing: it increments the tree's epoch. From then on, no block of earlier epochs
//! changes; the next edit copies the blocks that it changes. Frozen blocks keep their memory until
//! they are written and [`EditableTree::forget_written`] replaces links by plain pointers. Memory
//! is therefore bounded by the blocks changed since the last freeze, and the blocks being written.

use super::editable::EditableTree;
use super::node::Node;
use crate::error::{Cause, ContextError, Error, Result};
use crate::forest::Forest;
use crate::pointer::{BlockPointer, RootPointer};
use buttress_exact::{Exact as _, usize_of};
use buttress_format::checksum::ChecksumType;
use buttress_format::node::{Header, KeyPointer, TreeBlock};
use buttress_format::{Generation, Key, Logical, TreeId};
use std::sync::Arc;

/// The number of kept blocks at which all of them are released.
const KEPT_MAX: u64 = 1024;

/// The number of released blocks whose memory is kept for new blocks.
const RECYCLED_MAX: usize = 8;

/// A leaf with less free space than this counts as full.
const KEPT_FREE_BYTES: usize = 256;

/// All blocks of a tree that a freeze found in memory and that are to be written.
#[derive(Debug)]
pub struct Frozen {
    tree: TreeId,
    epoch: u64,
    root: Arc<Node>,
    nodes: u64,
}

/// A frozen block.
#[derive(Clone, Debug)]
pub struct FrozenBlock {
    logical: Logical,
    node: Arc<Node>,
}

impl EditableTree {
    /// Assigns an address to every block in memory without one, as `assign(level, first key)`
    /// returns it. Proceeds level by level, leaves first, each level in key order.
    ///
    /// # Errors
    /// Fails if `assign` fails. The blocks before the failed assignment keep their addresses.
    pub fn for_each_unassigned(
        &mut self,
        assign: &mut dyn FnMut(u8, Key) -> Result<Logical, ContextError>,
    ) -> Result<()> {
        let Some(root) = self.root.node.clone().filter(|_| self.unassigned > 0) else {
            return Ok(());
        };
        if root.epoch != self.epoch {
            return Ok(());
        }
        let mut given: u64 = 0;
        let result = (0..=root.level()).try_for_each(|level| assign_level(&root, level, &mut given, assign));
        let counted = self.unassigned;
        // Clamp: the check below reports a count that is too high.
        self.unassigned = counted.saturating_sub(given);
        self.assigned = self.assigned.exact_add(given);
        result.map_err(|error| Error::new(&root.pointer(self.tree), Cause::Context(Arc::new(error))))?;
        // The walk has visited all blocks, so the number of assigned addresses must equal the count
        // of unassigned blocks.
        if given != counted {
            return Err(self.miscounted(&root, "blocks without an address", counted, given));
        }
        Ok(())
    }

    fn miscounted(&self, at: &Node, what: &'static str, count: u64, found: u64) -> Error {
        Error::new(&at.pointer(self.tree), Cause::Miscounted { what, count, found })
    }

    /// Freezes the current state: the blocks of this epoch no longer change. Returns `None` if no
    /// blocks changed in this epoch.
    ///
    /// # Errors
    /// Fails if a block has no address. [`EditableTree::for_each_unassigned`] must run before the
    /// freeze.
    pub fn freeze(&mut self) -> Result<Option<Frozen>> {
        let Some(root) = self.root.node.as_ref().filter(|root| root.epoch == self.epoch) else {
            return Ok(None);
        };
        if self.unassigned > 0 {
            let cause = Cause::Broken("a tree is frozen before all of its blocks have an address");
            return Err(Error::new(&root.pointer(self.tree), cause));
        }
        if cfg!(debug_assertions) {
            let (with, without) = count(root);
            if without > 0 {
                return Err(self.miscounted(root, "blocks without an address", 0, without));
            }
            // Some blocks were dropped after they had got an address.
            if with > self.assigned {
                return Err(self.miscounted(root, "blocks with an address", self.assigned, with));
            }
        }
        let frozen = Frozen {
            tree: self.tree,
            epoch: self.epoch,
            root: Arc::clone(root),
            nodes: core::mem::take(&mut self.assigned),
        };
        self.epoch = self.epoch.exact_add(1);
        Ok(Some(frozen))
    }

    /// Replaces links to frozen and written blocks by plain pointers. The cost is proportional to
    /// the children in memory of the running epoch's blocks. Forgetting the written blocks of an
    /// unchanged tree costs nothing. Dropping `frozen` and the readers' views frees the memory.
    pub fn forget_written(&mut self, frozen: &Frozen) {
        let Some(node) = &mut self.root.node else {
            return;
        };
        if node.epoch > frozen.epoch {
            forget(node, frozen.epoch);
        } else if let Some(logical) = node.address() {
            self.root.pointer = RootPointer {
                tree: self.tree,
                logical,
                generation: node.generation(),
                level: node.level(),
            };
            self.root.node = None;
        }
    }
}

impl EditableTree {
    /// Releases a tree's written blocks like [`forget_written`](Self::forget_written), for a tree
    /// that changes with every commit. Blocks that the next edits will probably change stay in
    /// memory, up to about a thousand. The next edit uses these kept blocks without a copy.
    pub fn keep_written(&mut self, frozen: Frozen) {
        self.kept = self.kept.exact_add(frozen.nodes);
        if self.kept > KEPT_MAX {
            self.kept = 0;
            return self.forget_written(&frozen);
        }
        let epoch = frozen.epoch;
        // Other owners of a frozen block see it unchanged.
        drop(frozen);
        if let Some(root) = self.root.node.as_mut().and_then(Arc::get_mut) {
            forget_full(root, epoch, &mut self.recycled);
        }
    }
}

/// Returns true if the next edits probably change a block: a leaf with free space, or a leaf whose
/// items were changed in place.
fn is_likely_to_change_soon(node: &Node) -> bool {
    let has_same_items = node.is_copy && node.count_before == node.block.item_count();
    node.level() > 0 || node.block.free_space() >= KEPT_FREE_BYTES || has_same_items
}

/// Releases the leaves of an epoch that will probably not change soon. Keeps the memory of some
/// leaves for new blocks.
fn forget_full(node: &mut Node, epoch: u64, recycled: &mut Vec<TreeBlock>) {
    if node.epoch != epoch {
        return;
    }
    for (slot, link) in node.links.iter_mut().enumerate() {
        let Some(child) = link.as_mut().filter(|child| child.epoch == epoch) else {
            continue;
        };
        if is_likely_to_change_soon(child) {
            if let Some(child) = Arc::get_mut(child) {
                forget_full(child, epoch, recycled);
            }
        } else if child.address().is_some() {
            let pointer = child.key_pointer();
            if !set_pointer(&mut node.block, slot, &pointer) {
                continue;
            }
            let child = link.take().and_then(Arc::into_inner);
            if let Some(child) = child.filter(|_| recycled.len() < RECYCLED_MAX) {
                recycled.push(child.block);
            }
        }
    }
}

/// Writes the pointer to a written child into a node's own bytes. If this write fails, the child's
/// link must stay, because no other path leads to the child.
fn set_pointer(node: &mut TreeBlock, slot: usize, pointer: &KeyPointer) -> bool {
    let is_set = node.edit_node(|node| node.set(slot, pointer));
    debug_assert!(is_set, "a linked child has a pointer");
    is_set
}

/// Assigns addresses to the unassigned blocks of one level.
fn assign_level(
    node: &Node,
    level: u8,
    given: &mut u64,
    assign: &mut dyn FnMut(u8, Key) -> Result<Logical, ContextError>,
) -> Result<(), ContextError> {
    if node.level() == level {
        if node.address().is_none() {
            node.assign(assign(level, node.first_key())?);
            *given = given.exact_add(1);
        }
        return Ok(());
    }
    let children = node.links.iter().flatten();
    for child in children.filter(|child| child.epoch == node.epoch) {
        assign_level(child, level, given, assign)?;
    }
    Ok(())
}

/// Releases the children of `node` that were frozen up to `epoch`, and their descendants.
fn forget(link: &mut Arc<Node>, epoch: u64) {
    if link.links.iter().all(Option::is_none) {
        return;
    }
    let node = Arc::make_mut(link);
    for (slot, link) in node.links.iter_mut().enumerate() {
        let Some(child) = link else {
            continue;
        };
        if child.epoch > epoch {
            forget(child, epoch);
        } else if let Some(logical) = child.address() {
            let pointer = KeyPointer {
                key: child.first_key(),
                logical,
                generation: child.generation(),
            };
            if set_pointer(&mut node.block, slot, &pointer) {
                *link = None;
            }
        }
    }
}

impl Frozen {
    /// Returns the id of the tree.
    #[must_use]
    pub const fn tree(&self) -> TreeId {
        self.tree
    }

    /// Returns the frozen root. The root item or the superblock must name the frozen root.
    #[must_use]
    pub fn root(&self) -> Option<RootPointer> {
        Some(RootPointer {
            tree: self.tree,
            logical: self.root.address()?,
            generation: self.root.generation(),
            level: self.root.level(),
        })
    }

    /// Returns the number of assigned addresses: the blocks to write, and the few blocks that were
    /// dropped since.
    #[must_use]
    pub const fn nodes(&self) -> u64 {
        self.nodes
    }

    /// Returns the root block in the form that will be written.
    #[must_use]
    pub fn root_block(&self, checksum_type: ChecksumType) -> TreeBlock {
        seal(&self.root, checksum_type)
    }

    /// Returns the blocks in address order. This call needs no lock.
    ///
    /// # Errors
    /// Fails if a block has no address, because it would never be written.
    pub fn blocks(&self) -> Result<Vec<FrozenBlock>> {
        let mut blocks = Vec::new();
        gather(&self.root, &mut blocks).map_err(|node| {
            let cause = Cause::Broken("a block was frozen without an address");
            Error::new(&node.pointer(self.tree), cause)
        })?;
        blocks.sort_unstable_by_key(|block| block.logical);
        Ok(blocks)
    }
}

/// Returns how many blocks of a node's epoch its subtree has, with and without an address.
fn count(node: &Node) -> (u64, u64) {
    let children = node.links.iter().flatten();
    let own = u64::from(node.address().is_some());
    children
        .filter(|child| child.epoch == node.epoch)
        .map(|child| count(child))
        .fold((own, 1_u64.exact_sub(own)), |sum, below| {
            (sum.0.exact_add(below.0), sum.1.exact_add(below.1))
        })
}

/// Fails with a node that has no address.
fn gather<'a>(node: &'a Arc<Node>, blocks: &mut Vec<FrozenBlock>) -> core::result::Result<(), &'a Node> {
    let children = node.links.iter().flatten();
    for child in children.filter(|child| child.epoch == node.epoch) {
        gather(child, blocks)?;
    }
    let logical = node.address().ok_or(&**node)?;
    blocks.push(FrozenBlock {
        logical,
        node: Arc::clone(node),
    });
    Ok(())
}

impl FrozenBlock {
    /// Returns the address to which the block is to be written.
    #[must_use]
    pub const fn logical(&self) -> Logical {
        self.logical
    }

    /// Returns the transaction that made the block.
    #[must_use]
    pub fn generation(&self) -> Generation {
        self.node.generation()
    }

    /// Lets a test detect when the block's memory is freed.
    #[cfg(test)]
    pub(super) fn watch(&self) -> std::sync::Weak<Node> {
        Arc::downgrade(&self.node)
    }

    /// Returns the height above the leaves.
    #[must_use]
    pub fn level(&self) -> u8 {
        self.node.level()
    }

    /// Returns true if the block will probably be changed again, and therefore read. The result is
    /// true for nodes, and for blocks that were changed twice. The result is false for leaves that
    /// a sequence of insertions filled.
    #[must_use]
    pub fn is_likely_to_change(&self) -> bool {
        self.node.is_copy || self.node.level() > 0
    }

    /// Returns the bytes to write, with address and checksum. Sealing copies the bytes, so any
    /// thread may call it. After the write, [`Forest::keep_written`] puts the sealed copy into the
    /// cache.
    #[must_use]
    pub fn seal(&self, checksum_type: ChecksumType) -> TreeBlock {
        seal(&self.node, checksum_type)
    }

    /// Seals the block like [`FrozenBlock::seal`], but into the buffer `place`. Returns the header,
    /// for [`TreeBlock::of_sealed`]. If `place` does not have the block's size, returns `None` and
    /// leaves arbitrary bytes in `place`.
    pub fn seal_into(&self, place: &mut [u8], checksum_type: ChecksumType) -> Option<Header> {
        place.get_mut(..self.bytes().len())?.copy_from_slice(self.bytes());
        self.seal_copy(place, checksum_type)
    }

    /// Returns the block's bytes in their current form in memory.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        self.node.block.bytes()
    }

    /// Seals the block like [`FrozenBlock::seal_into`], but in a copy of [`FrozenBlock::bytes`].
    pub fn seal_copy(&self, place: &mut [u8], checksum_type: ChecksumType) -> Option<Header> {
        let node = &self.node;
        node.block.seal_copy(place, self.logical, checksum_type, |slot| {
            node.address_below(slot)
        })
    }
}

/// Returns the bytes of a frozen block, with its own and its children's addresses.
fn seal(node: &Node, checksum_type: ChecksumType) -> TreeBlock {
    // A freeze ensures that each frozen block has an address.
    let logical = node.address().unwrap_or_else(|| node.block.logical());
    node.block
        .seal(logical, checksum_type, |slot| node.address_below(slot))
}

impl Forest {
    /// Returns true if the cache accepts one more block that no reader has requested.
    #[must_use]
    pub fn has_room_for_block(&self) -> bool {
        let node_bytes = self.block_format().node_bytes;
        self.cache().has_space_for(usize_of(node_bytes))
    }

    /// Puts a written block into the cache, in place of the block that the cache held for this
    /// address.
    pub fn keep_written(&self, tree: TreeId, block: TreeBlock) {
        let header = *block.header();
        let pointer = BlockPointer {
            tree,
            logical: header.logical,
            generation: header.generation,
            level: header.level,
            first_key: block.key(0),
            end_key: None,
        };
        self.cache().insert(&pointer, block);
    }
}
