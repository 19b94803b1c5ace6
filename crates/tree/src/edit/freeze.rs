//! From the memory to the volume: addresses, freezing, sealing, and letting go of what was written.
//!
//! A freeze costs nothing: the tree's epoch moves on, and from then on no block of the epochs before is changed; the
//! next edit copies what it touches. What was frozen keeps its memory until it is written and
//! [`EditableTree::forget_written`] puts plain pointers in the place of links. So memory is bounded by what a
//! transaction changed since the last freeze, and what is being written.

use super::node::Node;
use super::{EditableTree, Root};
use crate::error::{Cause, ContextError, Error, Result};
use crate::forest::Forest;
use crate::pointer::{BlockPointer, RootPointer};
use buttress_exact::{Exact as _, usize_of};
use buttress_format::checksum::ChecksumType;
use buttress_format::node::{Header, KeyPointer, TreeBlock};
use buttress_format::{Generation, Key, Logical, TreeId};
use std::sync::Arc;

/// When so many blocks were kept, all of them are let go of.
const KEPT_MAX: u64 = 1024;

/// The memory of so many blocks that were let go of is kept for new ones.
const RECYCLED_MAX: usize = 8;

/// Leaves that have less room have none for another item.
const KEPT_FREE_BYTES: usize = 256;

/// All blocks of a tree that a freeze found in memory and that are to be written.
#[derive(Debug)]
pub struct Frozen {
    tree: TreeId,
    epoch: u64,
    root: Arc<Node>,
    nodes: u64,
}

/// One of them.
#[derive(Clone, Debug)]
pub struct FrozenBlock {
    logical: Logical,
    node: Arc<Node>,
}

impl EditableTree {
    /// Gives every block in memory that has no address one, as `assign(level, first key)` says: level by level,
    /// leaves first, each level in order of keys.
    ///
    /// # Errors
    /// What `assign` fails with; the blocks before it have their addresses then.
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
        // Clamp: more than were counted are reported below.
        self.unassigned = counted.saturating_sub(given);
        self.assigned = self.assigned.exact_add(given);
        result.map_err(|error| Error::new(&root.pointer(self.tree), Cause::Context(Arc::new(error))))?;
        // All of them were gone over: this is the recount.
        if given != counted {
            return Err(self.miscounted(&root, "blocks without an address", counted, given));
        }
        Ok(())
    }

    fn miscounted(&self, at: &Node, what: &'static str, count: u64, found: u64) -> Error {
        Error::new(&at.pointer(self.tree), Cause::Miscounted { what, count, found })
    }

    /// Freezes the tree as it is: its blocks of this epoch are no longer changed. `None` when there are none.
    ///
    /// # Errors
    /// When a block has no address: [`EditableTree::for_each_unassigned`] comes first.
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
            // Some that had one were dropped since.
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

    /// Puts plain pointers in the place of links to what was frozen, which has been written since. Costs as much as
    /// the blocks of the running epoch have children in memory; a tree that was not changed since costs nothing.
    /// The memory goes with `frozen`, and with the views that readers hold.
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
    /// As [`forget_written`](Self::forget_written), for a tree that is changed and written over and over: blocks that the next
    /// changes are likely to come to stay in memory, and the next edit takes them over without a copy. At most about a thousand
    /// blocks stay so.
    pub fn keep_written(&mut self, frozen: Frozen) {
        self.kept = self.kept.exact_add(frozen.nodes);
        if self.kept > KEPT_MAX {
            self.kept = 0;
            return self.forget_written(&frozen);
        }
        let epoch = frozen.epoch;
        // Whoever else has a block sees it as it is.
        drop(frozen);
        if let Some(root) = self.root.node.as_mut().and_then(Arc::get_mut) {
            forget_full(root, epoch, &mut self.recycled);
        }
    }
}

/// Whether the next changes are likely to come to a block: to a leaf that has room for more items, or whose items were changed in
/// place.
fn is_likely_to_change_soon(node: &Node) -> bool {
    let has_same_items = node.is_copy && node.count_before == node.block.item_count();
    node.level() > 0 || node.block.free_space() >= KEPT_FREE_BYTES || has_same_items
}

/// Lets go of the leaves of an epoch that are not likely to be changed soon. The memory of some is for those that come.
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

/// Has a node's own bytes point to a child that was written. Without that the child's link must stay: it is the only way to it.
fn set_pointer(node: &mut TreeBlock, slot: usize, pointer: &KeyPointer) -> bool {
    let is_set = node.edit_node(|node| node.set(slot, pointer));
    debug_assert!(is_set, "a linked child has a pointer");
    is_set
}

/// Gives addresses to the blocks of one level that have none.
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

/// Lets go of the children of `node` that were frozen up to `epoch`, and of those further down.
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

impl Root {
    /// The pointer to the root as it is now: its address, or a stand-in while it may still change.
    pub(super) fn pointer(&self, tree: TreeId, epoch: u64) -> RootPointer {
        match &self.node {
            None => self.pointer,
            Some(node) => RootPointer {
                tree,
                logical: match node.address() {
                    Some(address) if node.epoch < epoch => address,
                    _ => node.block.logical(),
                },
                generation: node.generation(),
                level: node.level(),
            },
        }
    }
}

impl Frozen {
    /// The tree.
    #[must_use]
    pub const fn tree(&self) -> TreeId {
        self.tree
    }

    /// The root that was frozen; the root item or the superblock is to name it.
    #[must_use]
    pub fn root(&self) -> Option<RootPointer> {
        Some(RootPointer {
            tree: self.tree,
            logical: self.root.address()?,
            generation: self.root.generation(),
            level: self.root.level(),
        })
    }

    /// How many blocks were given addresses for it: those that are to be written, and the few that were dropped since.
    #[must_use]
    pub const fn nodes(&self) -> u64 {
        self.nodes
    }

    /// The root block, as it is going to be written.
    #[must_use]
    pub fn root_block(&self, checksum_type: ChecksumType) -> TreeBlock {
        seal(&self.root, checksum_type)
    }

    /// The blocks, in order of address. Needs no lock.
    ///
    /// # Errors
    /// When one has no address: it would never be written.
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

/// How many blocks of a node's epoch there are from it on down, with an address and without one.
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
    /// Where it is to be written.
    #[must_use]
    pub const fn logical(&self) -> Logical {
        self.logical
    }

    /// The transaction that made it.
    #[must_use]
    pub fn generation(&self) -> Generation {
        self.node.generation()
    }

    /// To see in a test whether the block's memory is gone.
    #[cfg(test)]
    pub(super) fn watch(&self) -> std::sync::Weak<Node> {
        Arc::downgrade(&self.node)
    }

    /// Height above the leaves.
    #[must_use]
    pub fn level(&self) -> u8 {
        self.node.level()
    }

    /// Whether the block is likely to be changed again, and so to be read: nodes, and what has been changed twice. Leaves
    /// that a row of insertions filled are not.
    #[must_use]
    pub fn is_likely_to_change(&self) -> bool {
        self.node.is_copy || self.node.level() > 0
    }

    /// The bytes to be written, with address and checksum: a copy, which may be made on any thread. When it is
    /// written, [`Forest::keep_written`] puts it into the cache.
    #[must_use]
    pub fn seal(&self, checksum_type: ChecksumType) -> TreeBlock {
        seal(&self.node, checksum_type)
    }

    /// As [`FrozenBlock::seal`], into memory for as many bytes as a block has; gives the header, for
    /// [`TreeBlock::of_sealed`]. `None`, and nothing useful in `place`, when it has another size.
    pub fn seal_into(&self, place: &mut [u8], checksum_type: ChecksumType) -> Option<Header> {
        place.get_mut(..self.bytes().len())?.copy_from_slice(self.bytes());
        self.seal_copy(place, checksum_type)
    }

    /// The block's bytes as they are in memory.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        self.node.block.bytes()
    }

    /// As [`FrozenBlock::seal_into`], in a copy of [`FrozenBlock::bytes`].
    pub fn seal_copy(&self, place: &mut [u8], checksum_type: ChecksumType) -> Option<Header> {
        let node = &self.node;
        node.block.seal_copy(place, self.logical, checksum_type, |slot| {
            node.address_below(slot)
        })
    }
}

/// The bytes of a frozen block, with its own and its children's addresses.
fn seal(node: &Node, checksum_type: ChecksumType) -> TreeBlock {
    // A freeze makes sure that there is an address.
    let logical = node.address().unwrap_or_else(|| node.block.logical());
    node.block
        .seal(logical, checksum_type, |slot| node.address_below(slot))
}

impl Forest {
    /// Whether the cache has room for one more block that nobody asked for.
    #[must_use]
    pub fn has_room_for_block(&self) -> bool {
        let node_bytes = self.block_format().node_bytes;
        self.cache().has_space_for(usize_of(node_bytes))
    }

    /// Puts a block that was written into the cache, in the place of whatever was at its address before.
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
