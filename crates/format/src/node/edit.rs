//! Edits of a tree block's bytes in the on-disk layout.
//!
//! A transaction changes a [`TreeBlock`] whose bytes are not shared. [`TreeBlock::edit_leaf`] and
//! [`TreeBlock::edit_node`] lend the block's bytes as a [`LeafEdit`] or a [`NodeEdit`]. Both
//! methods edit a block's bytes in place if no clone shares them, and otherwise a copy. Edits are
//! not followed by checks, because each edit keeps the layout that [`TreeBlock::check`] proved:
//! item data is packed from the end of the block without gaps, in the order of the heads. The
//! caller ensures the order of keys and the validity of items.
//!
//! A block in memory has no checksum, and may have no address. [`TreeBlock::seal`] makes the bytes
//! to write: with address, children's addresses, zeros in the free space, and checksum.
//!
//! An edit that does not fit, or that names a missing slot, returns `None` or `false` and changes
//! nothing.
//!
//! Source: on-disk format documentation, section "Tree blocks".

mod leaf;
mod pointers;
mod seal;
mod shift;

use buttress_exact::{Exact as _, usize_of};
pub use leaf::{ITEM_HEAD_BYTES, LeafEdit, leaf_data_bytes_max};
pub use pointers::{NodeEdit, node_pointers_max};

use super::{HEADER_BYTES, Header, HeaderFlags, RawHeader, TreeBlock};
use crate::checksum::Checksum;
use crate::units::{Generation, Logical, TreeId};
use bytes::{Bytes, BytesMut};
use uuid::Uuid;
use zerocopy::FromBytes;

/// The header fields of a new block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NewBlock {
    /// The volume's uuid: the superblock's metadata uuid.
    pub fsid: Uuid,
    /// The uuid of the chunk tree.
    pub chunk_tree_uuid: Uuid,
    /// The address of the block, or a placeholder until the address is known.
    pub logical: Logical,
    /// The transaction that creates the block.
    pub generation: Generation,
    /// The tree that owns the block.
    pub owner: TreeId,
    /// The height above the leaves.
    pub level: u8,
}

impl TreeBlock {
    /// Returns a block of `node_bytes` without items or pointers.
    #[must_use]
    pub fn new_empty(node_bytes: u32, new: &NewBlock) -> Self {
        let header = Header {
            checksum: Checksum::EMPTY,
            fsid: new.fsid,
            logical: new.logical,
            flags: HeaderFlags::WRITTEN,
            backref_revision: 1,
            chunk_tree_uuid: new.chunk_tree_uuid,
            generation: new.generation,
            owner: new.owner,
            item_count: 0,
            level: new.level,
        };
        let node_bytes = usize_of(node_bytes).max(HEADER_BYTES);
        Self::new(Bytes::from(vec![0; node_bytes]), header)
    }

    /// Returns an empty block with this block's volume, owner and level.
    #[must_use]
    pub fn new_sibling(&self, logical: Logical, generation: Generation) -> Self {
        let header = self.header();
        let new = NewBlock {
            fsid: header.fsid,
            chunk_tree_uuid: header.chunk_tree_uuid,
            logical,
            generation,
            owner: header.owner,
            level: header.level,
        };
        Self::new_empty(self.bytes().len().narrow(), &new)
    }

    /// Like [`TreeBlock::new_sibling`], but reuses the memory of an unneeded block of the same
    /// size. The free space of the new block holds arbitrary bytes until the block is sealed.
    #[must_use]
    pub fn new_sibling_in(&self, memory: Self, logical: Logical, generation: Generation) -> Self {
        if memory.bytes.len() != self.bytes.len() {
            return self.new_sibling(logical, generation);
        }
        let header = Header {
            checksum: Checksum::EMPTY,
            logical,
            generation,
            flags: HeaderFlags::WRITTEN,
            backref_revision: 1,
            item_count: 0,
            ..*self.header()
        };
        Self::new(memory.bytes, header)
    }

    /// Returns a copy for a later transaction to change, with bytes of its own and a new identity.
    #[must_use]
    pub fn copy_to_edit(&self, logical: Logical, generation: Generation, owner: TreeId) -> Self {
        let header = Header {
            checksum: Checksum::EMPTY,
            logical,
            generation,
            owner,
            flags: HeaderFlags::WRITTEN,
            backref_revision: 1,
            ..*self.header()
        };
        Self::new(Bytes::from(self.bytes().to_vec()), header)
    }

    /// Returns a copy under another address for all trees that refer to this block. The owner of
    /// the relocated block stays the same. The copy keeps the relocation flag of Linux, because
    /// this flag implies full back references.
    #[must_use]
    pub fn copy_to_relocate(&self, logical: Logical, generation: Generation) -> Self {
        let mut copy = self.copy_to_edit(logical, generation, self.header().owner);
        copy.header.flags |= self.header().flags & HeaderFlags::RELOC;
        copy
    }

    /// Changes the address and the generation of this block for a later transaction. The block is
    /// renamed in place only if no reader needs the old block.
    pub fn rename(&mut self, logical: Logical, generation: Generation) {
        self.header.checksum = Checksum::EMPTY;
        self.header.logical = logical;
        self.header.generation = generation;
    }

    /// Returns the same content under another address. The content bytes stay shared between both
    /// blocks. Sealing the block writes the address.
    #[must_use]
    pub fn with_logical(&self, logical: Logical) -> Self {
        let header = Header {
            logical,
            ..*self.header()
        };
        Self::new(self.bytes().clone(), header)
    }

    /// Changes a leaf. For a node, the edit sees no items and has no space. A failed edit changes
    /// nothing, and its caller must not continue as if it had succeeded.
    #[must_use]
    pub fn edit_leaf<Answer>(&mut self, change: impl FnOnce(&mut LeafEdit<'_>) -> Answer) -> Answer {
        let is_leaf = self.is_leaf();
        self.edit(|bytes, count| {
            let bytes = if is_leaf { bytes } else { &mut [] };
            let mut edit = LeafEdit::new(bytes, count);
            let answer = change(&mut edit);
            (answer, edit.count())
        })
    }

    /// Changes a node. For a leaf, the edit sees no pointers and has no space. A failed edit
    /// changes nothing, as with [`edit_leaf`](Self::edit_leaf).
    #[must_use]
    pub fn edit_node<Answer>(&mut self, change: impl FnOnce(&mut NodeEdit<'_>) -> Answer) -> Answer {
        let is_leaf = self.is_leaf();
        self.edit(|bytes, count| {
            let bytes = if is_leaf { &mut [] } else { bytes };
            let mut edit = NodeEdit::new(bytes, count);
            let answer = change(&mut edit);
            (answer, edit.count())
        })
    }

    /// Lends the block's bytes to `change`, in place if they are not shared, and stores the new
    /// count of items.
    fn edit<Answer>(&mut self, change: impl FnOnce(&mut [u8], usize) -> (Answer, usize)) -> Answer {
        let count = self.item_count();
        let mut bytes = match core::mem::take(&mut self.bytes).try_into_mut() {
            Ok(bytes) => bytes,
            Err(shared) => BytesMut::from(&shared[..]),
        };
        let (answer, count) = change(&mut bytes, count);
        self.bytes = bytes.freeze();
        self.header.item_count = count.narrow();
        answer
    }
}

/// Returns the header fields in a block's bytes.
fn header_mut(block: &mut [u8]) -> Option<&mut RawHeader> {
    RawHeader::mut_from_prefix(block).ok().map(|(header, _)| header)
}

#[cfg(test)]
mod tests;
