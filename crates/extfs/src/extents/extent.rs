//! An extent, and the number of blocks that a file can use.

use crate::error::{ExtError, Place, Problem};
use crate::inode::ExtInode;
use crate::units::{BlockNumber, FileBlock, InodeNumber};
use buttress_exact::Exact as _;

/// Consecutive blocks of a file that are also consecutive on the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExtExtent {
    /// The first block in the file.
    pub first: FileBlock,
    /// The number of blocks, above zero.
    pub blocks: u32,
    /// The first block on the device.
    pub start: BlockNumber,
    /// Whether the blocks are allocated but not written. They read as zeros.
    pub is_unwritten: bool,
}

impl ExtExtent {
    /// Returns the number of the block after the last in the file.
    #[must_use]
    pub fn end(&self) -> u64 {
        u64::from(self.first.get()).exact_add(u64::from(self.blocks))
    }
}

/// The number of blocks that a file can still use by the count of its inode.
pub(super) struct Budget {
    inode: InodeNumber,
    counted: u64,
    left: u64,
    /// The blocks of the tree or map that were read since the caller took them.
    map_blocks: Vec<BlockNumber>,
}

impl Budget {
    pub(super) const fn new(inode: &ExtInode) -> Self {
        Self {
            inode: inode.number,
            counted: inode.blocks,
            left: inode.blocks,
            map_blocks: Vec::new(),
        }
    }

    /// Returns the inode as the place of an error.
    pub(super) const fn place(&self) -> Place {
        Place::Inode(self.inode)
    }

    /// Takes a block of the tree or map from the rest.
    pub(super) fn spend_map_block(&mut self, block: BlockNumber) -> Result<(), ExtError> {
        self.spend(1)?;
        self.map_blocks.push(block);
        Ok(())
    }

    /// Returns the blocks of the tree or map that were read since the last call.
    pub(super) fn take_map_blocks(&mut self) -> Vec<BlockNumber> {
        core::mem::take(&mut self.map_blocks)
    }

    /// Takes blocks from the rest.
    pub(super) fn spend(&mut self, blocks: u64) -> Result<(), ExtError> {
        let Some(left) = self.left.checked_sub(blocks) else {
            let counted = self.counted;
            return Err(ExtError::corrupt(
                Place::Inode(self.inode),
                Problem::MoreBlocks { counted },
            ));
        };
        self.left = left;
        Ok(())
    }
}
