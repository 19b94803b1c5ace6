//! Changing the bytes of a tree block: pure edits in the on-disk layout.
//!
//! A block that a transaction changes is a [`TreeBlock`] whose bytes nobody else has. [`TreeBlock::edit_leaf`] and
//! [`TreeBlock::edit_node`] lend its bytes as a [`LeafEdit`] or a [`NodeEdit`], in place when the bytes are not
//! shared, in a copy when they are: whoever holds a clone keeps what it had. Nothing is checked again, because
//! each edit keeps what [`TreeBlock::check`] found true of the layout: item data is packed from the end of the
//! block without gaps, in the order of the heads. Order of keys and the sense of items are the caller's.
//!
//! A block in memory has no checksum, and may have no address: [`TreeBlock::seal`] makes the bytes that are
//! written, with address, children's addresses, zeros where nothing is stored, and checksum.
//!
//! Edits refuse (with `None` or `false`, nothing changed) what does not fit or does not exist.
//!
//! Source: on-disk format documentation, section "Tree blocks".

mod leaf;
mod pointers;
mod seal;

use buttress_exact::{Exact as _, usize_of};
pub use leaf::{ITEM_HEAD_BYTES, LeafEdit, leaf_data_bytes_max};
pub use pointers::{NodeEdit, node_pointers_max};

use super::{HEADER_BYTES, Header, HeaderFlags, RawHeader, TreeBlock};
use crate::checksum::Checksum;
use crate::units::{Generation, Logical, TreeId};
use bytes::{Bytes, BytesMut};
use uuid::Uuid;
use zerocopy::FromBytes;

/// What the header of a new block says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NewBlock {
    /// The volume: the superblock's metadata uuid.
    pub fsid: Uuid,
    /// The uuid of the chunk tree.
    pub chunk_tree_uuid: Uuid,
    /// Where the block will lie, or a stand-in until that is known.
    pub logical: Logical,
    /// The transaction that makes it.
    pub generation: Generation,
    /// The tree that it is made for.
    pub owner: TreeId,
    /// Height above the leaves.
    pub level: u8,
}

impl TreeBlock {
    /// A block of `node_bytes` without items or pointers.
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

    /// An empty block beside this one: same volume, owner and level.
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

    /// As [`TreeBlock::new_sibling`], in the memory of a block of the same size that nobody needs any more. What lies there where
    /// nothing is stored is anything until the block is sealed.
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

    /// A copy to be changed by a later transaction: bytes of its own, and a new identity.
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

    /// Returns a copy under another address for all trees that have this block. The owner stays, and so does the flag of a
    /// relocation by Linux, which goes with full back references.
    #[must_use]
    pub fn copy_to_relocate(&self, logical: Logical, generation: Generation) -> Self {
        let mut copy = self.copy_to_edit(logical, generation, self.header().owner);
        copy.header.flags |= self.header().flags & HeaderFlags::RELOC;
        copy
    }

    /// The same block, to be changed by a later transaction, where nobody needs it as it was.
    pub fn rename(&mut self, logical: Logical, generation: Generation) {
        self.header.checksum = Checksum::EMPTY;
        self.header.logical = logical;
        self.header.generation = generation;
    }

    /// The same content under another address. The bytes stay shared: an address is put into them when the block
    /// is sealed.
    #[must_use]
    pub fn with_logical(&self, logical: Logical) -> Self {
        let header = Header {
            logical,
            ..*self.header()
        };
        Self::new(self.bytes().clone(), header)
    }

    /// Changes a leaf. For a node the edit sees no items and has no space. An edit that does not succeed changes nothing, and its
    /// caller must not continue as if it had.
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

    /// Changes a node. For a leaf the edit sees no pointers and has no space. As for [`edit_leaf`](Self::edit_leaf).
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

    /// Lends the bytes, in place where nobody else has them, and takes the new count of items.
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

/// The fields of a block's header in its bytes.
fn header_mut(block: &mut [u8]) -> Option<&mut RawHeader> {
    RawHeader::mut_from_prefix(block).ok().map(|(header, _)| header)
}

/// Moves `length` bytes from `from` to `to`, which may overlap. False, and nothing moves, where they lie outside.
fn shift(bytes: &mut [u8], from: usize, to: usize, length: usize) -> bool {
    let fits = |start: usize| start.checked_add(length).is_some_and(|end| end <= bytes.len());
    if !fits(from) || !fits(to) {
        return false;
    }
    bytes.copy_within(from..from.saturating_add(length), to);
    true
}

#[cfg(test)]
mod tests;
