//! The blocks of packed trees at consecutive addresses.
//!
//! The blocks of one tree are adjacent, at addresses that belong to metadata alone. A [`BlockLog`]
//! keeps the finished blocks, on disk if they exceed the memory. The builder places the blocks on
//! devices when all blocks exist.

use crate::error::Result;
use buttress_exact::Exact as _;
use buttress_format::{ByteCount, Logical, TreeBlock, TreeId};
use buttress_mkfs::parts::TreeRoot;
use buttress_packing::{
    BlockFormat, BlockNote, BlockSink, PackedRoot, Places, Spool, SpoolFolder, Spooled, Top,
};
use std::collections::BTreeMap;

/// The properties of finished blocks at consecutive addresses.
#[derive(Clone, Debug)]
pub(crate) struct Listing {
    base: Logical,
    node_bytes: u32,
    notes: Vec<BlockNote>,
    /// The other trees that refer to a shared block, by the block's number.
    shared: BTreeMap<usize, Vec<TreeId>>,
}

impl Listing {
    pub(crate) fn notes(&self) -> &[BlockNote] {
        &self.notes
    }

    /// Returns the address of a block by its number.
    pub(crate) fn address(&self, number: usize) -> Logical {
        let offset = (number as u64).saturating_mul(u64::from(self.node_bytes));
        self.base.saturating_add(ByteCount::new(offset))
    }

    /// Returns the trees, besides its owner, that refer to a block directly.
    pub(crate) fn shared_with(&self, number: usize) -> &[TreeId] {
        self.shared.get(&number).map_or(&[], Vec::as_slice)
    }
}

/// Finished blocks at consecutive addresses.
#[derive(Debug)]
pub(crate) struct BlockLog {
    pub(crate) format: BlockFormat,
    listing: Listing,
    blocks: Spool,
}

impl BlockLog {
    pub(crate) fn new(format: BlockFormat, base: Logical, folder: &SpoolFolder, memory: usize) -> Self {
        Self {
            format,
            listing: Listing {
                base,
                node_bytes: format.node_bytes,
                notes: Vec::new(),
                shared: BTreeMap::new(),
            },
            blocks: Spool::new(folder.clone(), memory),
        }
    }

    pub(crate) const fn listing(&self) -> &Listing {
        &self.listing
    }

    pub(crate) fn notes(&self) -> &[BlockNote] {
        &self.listing.notes
    }

    pub(crate) const fn base(&self) -> Logical {
        self.listing.base
    }

    /// Writes a copy of a root for a tree that shares all blocks below it.
    pub(crate) fn copy_root(&mut self, of: &PackedRoot, top: &Top, owner: TreeId) -> Result<PackedRoot> {
        if let Top::Node(children) = top {
            for (_, child) in children {
                let offset = child.checked_distance_from(self.listing.base).unwrap_or_default();
                let number = offset.get().checked_div(u64::from(self.format.node_bytes));
                let number = number.unwrap_or(0).narrow::<usize>();
                self.listing.shared.entry(number).or_default().push(owner);
            }
        }
        let format = self.format;
        Ok(top.copy_for(self, &format, of, owner)?)
    }

    /// Returns all blocks for writing.
    pub(crate) fn finish(self) -> Spooled {
        self.blocks.finish()
    }
}

impl Places for BlockLog {
    fn next(&mut self) -> buttress_packing::Result<Logical> {
        Ok(self.listing.address(self.listing.notes.len()))
    }
}

impl BlockSink for BlockLog {
    fn put(&mut self, note: &BlockNote, block: &TreeBlock) -> buttress_packing::Result<()> {
        self.blocks.append(block.bytes())?;
        self.listing.notes.push(*note);
        Ok(())
    }
}

/// Returns a packed tree in the form of the items that lead to it.
pub(crate) const fn tree_of(root: &PackedRoot) -> TreeRoot {
    TreeRoot {
        id: root.id,
        generation: root.generation,
        logical: root.logical,
        level: root.level,
        blocks: root.blocks,
    }
}
