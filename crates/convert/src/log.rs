//! Tree blocks in the metadata chunks, in the order in which they are packed.
//!
//! Every block goes to the device at once. The device's old content does not use its place.

use crate::error::Result;
use crate::layout::Placed;
use buttress_exact::{Defect, Exact as _, u64_of};
use buttress_format::{ByteCount, Key, Logical, TreeBlock, TreeId};
use buttress_mkfs::parts::TreeRoot;
use buttress_packing::{
    BlockFormat, BlockNote, BlockSink, Error as PackingError, PackedRoot, Packer, Places,
};
use buttress_volume::{ExtentWrite, Volume};
use bytes::Bytes;
use core::ops::Range;

/// The number of blocks that are written together.
const BATCH_BLOCKS: usize = 256;

/// The addresses of consecutive blocks.
#[derive(Clone, Debug)]
pub(crate) struct Addresses {
    node_bytes: u64,
    chunks: Vec<Range<u64>>,
}

impl Addresses {
    pub(crate) fn new(chunks: &[Placed], node_bytes: u32) -> Self {
        let range = |chunk: &Placed| {
            let start = chunk.copies.first()?.get();
            Some(start..start.exact_add(chunk.length.get()))
        };
        Self {
            node_bytes: u64::from(node_bytes),
            chunks: chunks.iter().filter_map(range).collect(),
        }
    }

    /// Returns the address of a block by its number, if the chunks have space for it.
    pub(crate) fn get(&self, number: usize) -> Option<Logical> {
        let mut left = u64_of(number);
        for chunk in &self.chunks {
            let blocks = chunk.end.exact_sub(chunk.start).quotient(self.node_bytes);
            if left < blocks {
                return Some(Logical::new(
                    chunk.start.exact_add(left.exact_mul(self.node_bytes)),
                ));
            }
            left = left.exact_sub(blocks);
        }
        None
    }

    /// Returns the number of bytes of each chunk that the first `blocks` blocks use.
    pub(crate) fn used_bytes(&self, blocks: usize) -> Vec<u64> {
        let mut left = u64_of(blocks);
        let used = self.chunks.iter().map(|chunk| {
            let own = left.min(chunk.end.exact_sub(chunk.start).quotient(self.node_bytes));
            left = left.exact_sub(own);
            own.exact_mul(self.node_bytes)
        });
        used.collect()
    }
}

/// Packed blocks.
pub(crate) struct Log<'a> {
    volume: &'a Volume,
    format: BlockFormat,
    addresses: Addresses,
    notes: Vec<BlockNote>,
    batch: Vec<ExtentWrite>,
}

impl<'a> Log<'a> {
    pub(crate) const fn new(volume: &'a Volume, format: BlockFormat, addresses: Addresses) -> Self {
        Self {
            volume,
            format,
            addresses,
            notes: Vec::new(),
            batch: Vec::new(),
        }
    }

    pub(crate) const fn format(&self) -> &BlockFormat {
        &self.format
    }

    pub(crate) const fn addresses(&self) -> &Addresses {
        &self.addresses
    }

    /// Returns the properties of all blocks, in the order of their numbers.
    pub(crate) fn notes(&self) -> &[BlockNote] {
        &self.notes
    }

    /// Packs a tree.
    pub(crate) fn pack(&mut self, id: TreeId, items: Vec<(Key, Vec<u8>)>) -> Result<PackedRoot> {
        let mut packer = Packer::new(id, self.format);
        for (key, data) in items {
            packer.push(self, &key, &data)?;
        }
        Ok(packer.finish(self)?.0)
    }

    /// Writes the blocks that were not written yet.
    pub(crate) fn flush(&mut self) -> Result<()> {
        self.volume.write(&self.batch)?;
        self.batch.clear();
        Ok(())
    }
}

impl Places for Log<'_> {
    fn next(&mut self) -> buttress_packing::Result<Logical> {
        let number = self.notes.len();
        self.addresses.get(number).ok_or_else(|| {
            let defect = Defect::new("the trees need more blocks than the survey found");
            PackingError::Caller(Box::new(defect.with("blocks", u64_of(number))))
        })
    }
}

impl BlockSink for Log<'_> {
    fn put(&mut self, note: &BlockNote, block: &TreeBlock) -> buttress_packing::Result<()> {
        let logical = self.next()?;
        self.notes.push(*note);
        self.batch.push(ExtentWrite {
            logical,
            bytes: Bytes::copy_from_slice(block.bytes()),
        });
        if self.batch.len() >= BATCH_BLOCKS {
            self.flush()
                .map_err(|error| PackingError::Caller(Box::new(error)))?;
        }
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

/// Returns the used bytes of a number of blocks.
pub(crate) fn bytes_of(blocks: usize, node_bytes: u32) -> ByteCount {
    ByteCount::new(u64_of(blocks).exact_mul(u64::from(node_bytes)))
}
