//! Extent trees: a node in the inode, and blocks of nodes below it.

use super::extent::{Budget, ExtExtent};
use crate::bytes::{part, u16_at, u32_at};
use crate::checksum::crc32c;
use crate::error::{ExtError, Place, Problem};
use crate::inode::ExtInode;
use crate::units::{BlockNumber, FileBlock, InodeNumber};
use crate::volume::{Ext, require_checksum};
use buttress_exact::{Exact as _, u64_of};

const MAGIC: u16 = 0xf30a;
/// The size of a header, of an index and of an extent.
const ENTRY_BYTES: usize = 12;
/// The greatest depth of a tree: more extents than 2^32 blocks can have do not exist.
const DEPTH_MAX: u16 = 5;
/// The longest written extent. An extent above this length is unwritten.
const WRITTEN_BLOCKS_MAX: u16 = 32768;
/// The number of blocks that a file can have.
const FILE_BLOCKS: u64 = 1 << 32;

/// A node on the path to the current extent.
struct Node {
    place: Place,
    bytes: Vec<u8>,
    depth: u16,
    entries: u16,
    next: u16,
    /// The lowest block of the file that the next entry can name.
    least: u64,
    /// The block of the file after the node's range.
    end: u64,
}

/// The path to the current extent of a tree.
pub(super) struct Tree {
    inode: InodeNumber,
    seed: Option<u32>,
    /// The bytes of the root, until the first call.
    root: Option<Vec<u8>>,
    path: Vec<Node>,
}

impl Tree {
    pub(super) fn new(inode: &ExtInode) -> Self {
        Self {
            inode: inode.number,
            seed: inode.seed,
            root: Some(inode.map.to_vec()),
            path: Vec::new(),
        }
    }

    pub(super) fn next(&mut self, volume: &Ext, budget: &mut Budget) -> Result<Option<ExtExtent>, ExtError> {
        if let Some(root) = self.root.take() {
            let node = node(Place::Inode(self.inode), root, None, 0, FILE_BLOCKS)?;
            self.path.push(node);
        }
        while let Some(node) = self.path.last_mut() {
            if node.next >= node.entries {
                self.path.pop();
            } else if node.depth == 0 {
                return node.next_extent().map(Some);
            } else {
                let (block, least, end) = node.next_index()?;
                let depth = node.depth.exact_sub(1);
                budget.spend_map_block(block)?;
                let child = self.read(volume, block, depth, least, end)?;
                self.path.push(child);
            }
        }
        Ok(None)
    }

    fn read(
        &self,
        volume: &Ext,
        block: BlockNumber,
        depth: u16,
        least: u64,
        end: u64,
    ) -> Result<Node, ExtError> {
        let place = Place::MapBlock {
            inode: self.inode,
            block,
        };
        let bytes = volume.read_block(place, "the node", block)?.to_vec();
        let child = node(place, bytes, Some(depth), least, end)?;
        if let Some(seed) = self.seed {
            child.check_checksum(seed)?;
        }
        Ok(child)
    }
}

/// Checks the header of a node for the blocks `[least, end)` of a file. `depth` is the depth that
/// the parent requires.
fn node(place: Place, bytes: Vec<u8>, depth: Option<u16>, least: u64, end: u64) -> Result<Node, ExtError> {
    let corrupt = |problem| ExtError::corrupt(place, problem);
    let field = |what, at| u16_at(&bytes, what, at).map_err(corrupt);
    let require = |name, found: u16, least: u16, most: u16| {
        if (least..=most).contains(&found) {
            return Ok(found);
        }
        Err(corrupt(Problem::Field {
            field: name,
            found: u64::from(found),
            least: u64::from(least),
            most: u64::from(most),
        }))
    };
    require("eh_magic", field("eh_magic", 0)?, MAGIC, MAGIC)?;
    let space = bytes
        .len()
        .exact_sub(ENTRY_BYTES)
        .quotient(ENTRY_BYTES)
        .narrow::<u16>();
    let max = require("eh_max", field("eh_max", 4)?, 1, space)?;
    let (least_depth, most_depth) = depth.map_or((0, DEPTH_MAX), |depth| (depth, depth));
    let depth = require("eh_depth", field("eh_depth", 6)?, least_depth, most_depth)?;
    // Only a leaf can be empty: an index without entries has no purpose.
    let entries = require("eh_entries", field("eh_entries", 2)?, u16::from(depth > 0), max)?;
    Ok(Node {
        place,
        bytes,
        depth,
        entries,
        next: 0,
        least,
        end,
    })
}

impl Node {
    fn corrupt(&self, problem: Problem) -> ExtError {
        ExtError::corrupt(self.place, problem)
    }

    /// Returns the entry at `index` of the node.
    fn entry(&self, index: u16) -> Result<&[u8], ExtError> {
        let offset = usize::from(index).exact_add(1).exact_mul(ENTRY_BYTES);
        part(&self.bytes, "the entry", offset, ENTRY_BYTES).map_err(|problem| self.corrupt(problem))
    }

    /// Returns the first block of the file that the entry at `index` names.
    fn first_block(&self, index: u16) -> Result<u64, ExtError> {
        let entry = self.entry(index)?;
        let first = u32_at(entry, "the entry", 0).map_err(|problem| self.corrupt(problem))?;
        Ok(u64::from(first))
    }

    fn require_order(&self, what: &'static str, found: u64, most: u64) -> Result<(), ExtError> {
        let least = self.least;
        if (least..=most).contains(&found) {
            return Ok(());
        }
        Err(self.corrupt(Problem::Order {
            what,
            found,
            least,
            most,
        }))
    }

    /// Returns the block number from a low half of 32 bits and a high half of 16 bits.
    fn block_number(&self, entry: &[u8], low: usize, high: usize) -> Result<BlockNumber, ExtError> {
        let low = u32_at(entry, "the entry", low).map_err(|problem| self.corrupt(problem))?;
        let high = u16_at(entry, "the entry", high).map_err(|problem| self.corrupt(problem))?;
        Ok(BlockNumber::new(u64::from(low) | (u64::from(high) << 32)))
    }

    /// Returns the next child with its range of blocks of the file.
    fn next_index(&mut self) -> Result<(BlockNumber, u64, u64), ExtError> {
        let index = self.next;
        let first = self.first_block(index)?;
        let end = match index.exact_add(1) {
            after if after < self.entries => self.first_block(after)?,
            _ => self.end,
        };
        self.require_order("index of block", first, self.end.exact_sub(1))?;
        if end <= first || end > self.end {
            let (least, most) = (first.exact_add(1), self.end);
            return Err(self.corrupt(Problem::Order {
                what: "index of block",
                found: end,
                least,
                most,
            }));
        }
        let block = self.block_number(self.entry(index)?, 4, 8)?;
        self.least = end;
        self.next = index.exact_add(1);
        Ok((block, first, end))
    }

    fn next_extent(&mut self) -> Result<ExtExtent, ExtError> {
        let entry = self.entry(self.next)?;
        let first = self.first_block(self.next)?;
        let length = u16_at(entry, "ee_len", 4).map_err(|problem| self.corrupt(problem))?;
        let is_unwritten = length > WRITTEN_BLOCKS_MAX;
        let blocks = if is_unwritten {
            length.exact_sub(WRITTEN_BLOCKS_MAX)
        } else {
            length
        };
        if blocks == 0 {
            let (field, most) = ("ee_len", u64::from(u16::MAX));
            return Err(self.corrupt(Problem::Field {
                field,
                found: 0,
                least: 1,
                most,
            }));
        }
        let start = self.block_number(entry, 8, 6)?;
        self.require_order("extent of block", first, self.end.exact_sub(1))?;
        let end = first.exact_add(u64::from(blocks));
        if end > self.end {
            let (least, most) = (first, self.end);
            return Err(self.corrupt(Problem::Order {
                what: "end of the extent",
                found: end,
                least,
                most,
            }));
        }
        self.least = end;
        self.next = self.next.exact_add(1);
        Ok(ExtExtent {
            first: FileBlock::new(first.narrow()),
            blocks: u32::from(blocks),
            start,
            is_unwritten,
        })
    }

    /// Verifies the checksum, which follows the space for entries.
    fn check_checksum(&self, seed: u32) -> Result<(), ExtError> {
        let corrupt = |problem| self.corrupt(problem);
        let max = usize::from(u16_at(&self.bytes, "eh_max", 4).map_err(corrupt)?);
        let end = max.exact_add(1).exact_mul(ENTRY_BYTES);
        let covered = part(&self.bytes, "the entries", 0, end).map_err(corrupt)?;
        let found = u32_at(&self.bytes, "the checksum", end).map_err(corrupt)?;
        debug_assert!(u64_of(end) < u64_of(self.bytes.len()));
        require_checksum(self.place, found, crc32c(seed, covered))
    }
}
