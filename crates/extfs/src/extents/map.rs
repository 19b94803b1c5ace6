//! Block maps of ext2 and ext3: twelve blocks in the inode, then blocks of block numbers in one, two
//! and three levels. A block number of zero is a hole, of the whole range below it.

use super::extent::{Budget, ExtExtent};
use crate::bytes::u32_at;
use crate::error::{ExtError, Place};
use crate::inode::ExtInode;
use crate::units::{BlockNumber, FileBlock, InodeNumber};
use crate::volume::Ext;
use buttress_exact::{Exact as _, u64_of};

const NUMBER_BYTES: usize = 4;
/// The number of blocks that the inode names directly.
const DIRECT: usize = 12;
/// The number of block numbers in the inode.
const IN_INODE: usize = 15;
/// The number of blocks that a file can have.
const FILE_BLOCKS: u64 = 1 << 32;

/// A block of block numbers on the path to the current block.
struct Level {
    place: Place,
    bytes: Vec<u8>,
    next: usize,
    /// The number of numbers.
    end: usize,
    /// The number of levels below the numbers. Numbers of the inode have their own.
    depth: usize,
}

/// The path to the current block of a map.
pub(super) struct Map {
    inode: InodeNumber,
    path: Vec<Level>,
    /// The next block of the file.
    at: u64,
    /// The extent that the next block can continue.
    open: Option<ExtExtent>,
}

impl Map {
    pub(super) fn new(inode: &ExtInode) -> Self {
        Self {
            inode: inode.number,
            path: vec![Level {
                place: Place::Inode(inode.number),
                bytes: inode.map.to_vec(),
                next: 0,
                end: IN_INODE,
                depth: 0,
            }],
            at: 0,
            open: None,
        }
    }

    pub(super) fn next(&mut self, volume: &Ext, budget: &mut Budget) -> Result<Option<ExtExtent>, ExtError> {
        while let Some(block) = self.next_block(volume, budget)? {
            match self.open.as_mut() {
                Some(open) if continues(open, &block) => open.blocks = open.blocks.exact_add(1),
                _ => {
                    if let Some(open) = self.open.replace(block) {
                        return Ok(Some(open));
                    }
                }
            }
        }
        Ok(self.open.take())
    }

    /// Returns the next block of the file that is not in a hole, as an extent of one block.
    fn next_block(&mut self, volume: &Ext, budget: &mut Budget) -> Result<Option<ExtExtent>, ExtError> {
        let numbers = volume.block_bytes().quotient(NUMBER_BYTES);
        loop {
            let is_inode = self.path.len() == 1;
            let Some(level) = self.path.last_mut() else {
                return Ok(None);
            };
            if level.next >= level.end || self.at >= FILE_BLOCKS {
                self.path.pop();
                continue;
            }
            let depth = match level.next {
                next if is_inode => next.max(DIRECT.exact_sub(1)).exact_sub(DIRECT.exact_sub(1)),
                _ => level.depth,
            };
            let number = u32_at(
                &level.bytes,
                "the block number",
                level.next.exact_mul(NUMBER_BYTES),
            )
            .map_err(|problem| ExtError::corrupt(level.place, problem))?;
            level.next = level.next.exact_add(1);
            let block = BlockNumber::new(u64::from(number));
            if number == 0 {
                self.at = self.at.exact_add(blocks_below(depth, numbers));
            } else if depth == 0 {
                let first = FileBlock::new(self.at.narrow());
                self.at = self.at.exact_add(1);
                return Ok(Some(ExtExtent {
                    first,
                    blocks: 1,
                    start: block,
                    is_unwritten: false,
                }));
            } else {
                budget.spend_map_block(block)?;
                let place = Place::MapBlock {
                    inode: self.inode,
                    block,
                };
                self.path.push(Level {
                    place,
                    bytes: volume.read_block(place, "the block numbers", block)?.to_vec(),
                    next: 0,
                    end: numbers,
                    depth: depth.exact_sub(1),
                });
            }
        }
    }
}

/// Returns the number of blocks of a file below one block number.
fn blocks_below(depth: usize, numbers: usize) -> u64 {
    (0..depth).fold(1, |blocks: u64, _| blocks.exact_mul(u64_of(numbers)))
}

/// Returns true if `block` follows `open` in the file and on the device.
fn continues(open: &ExtExtent, block: &ExtExtent) -> bool {
    open.end() == u64::from(block.first.get())
        && open.start.get().checked_add(u64::from(open.blocks)) == Some(block.start.get())
}
