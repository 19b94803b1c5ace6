//! The blocks of the chunk tree, at addresses that no sound block has.

use super::error::{Error, Result};
use buttress_exact::Defect;
use buttress_format::{BlockGroupFlags, Key, Logical, TreeBlock, TreeId};
use buttress_packing::{BlockFormat, BlockNote, BlockSink, PackedRoot, Packer, Places, Shape};
use buttress_salvage::IndexReader;
use buttress_volume::excluded_ranges::of_chunk;
use buttress_volume::{ExtentWrite, Volume};
use bytes::Bytes;
use core::ops::Range;

/// The volume that new blocks are written to.
pub(super) struct Target<'a, 'i> {
    pub(super) volume: &'a Volume,
    /// The reader of an index with all sound blocks of the volume.
    pub(super) index: &'a mut IndexReader<'i>,
}

impl Target<'_, '_> {
    /// Returns the first free addresses in system chunks.
    ///
    /// # Errors
    /// Fails if the chunks have too few free addresses, or if the index cannot be read.
    fn free(&mut self, node_bytes: u32, count: usize) -> Result<Vec<Logical>> {
        let node_bytes = u64::from(node_bytes);
        let mut found = Vec::new();
        for chunk in self.volume.chunk_map().chunks() {
            if !chunk.flags().contains(BlockGroupFlags::SYSTEM) {
                continue;
            }
            let excluded = of_chunk(chunk);
            // Linux expects blocks at multiples of their size.
            let mut next = chunk.start().get().checked_next_multiple_of(node_bytes);
            while let Some(at) = next
                && found.len() < count
            {
                let Some(end) = at.checked_add(node_bytes).filter(|end| *end <= chunk.end().get()) else {
                    break;
                };
                next = Some(end);
                let is_excluded = excluded.iter().any(|range| range.start < end && at < range.end);
                if !is_excluded && !self.is_taken(&(at..end), node_bytes)? {
                    found.push(Logical::new(at));
                }
            }
        }
        match found.len() < count {
            true => Err(Error::NoSpace { blocks: count }),
            false => Ok(found),
        }
    }

    /// Returns whether a block has any of these addresses.
    fn is_taken(&mut self, range: &Range<u64>, node_bytes: u64) -> Result<bool> {
        // A block can begin before the address and reach into it.
        let from = range.start.saturating_sub(node_bytes).saturating_add(1); // Clamp: the first address is 0.
        let mut is_taken = false;
        let records = Logical::new(from)..Logical::new(range.end);
        self.index
            .in_range(records, &mut |record| is_taken |= record.is_sound())?;
        Ok(is_taken)
    }
}

/// Packs items into the chunk tree, and writes its blocks to free addresses of system chunks.
///
/// # Errors
/// Fails if the chunks have no free address, if the index cannot be read, or with an error of a
/// device.
pub(super) fn write(
    target: &mut Target<'_, '_>,
    items: &[(Key, Vec<u8>)],
    format: BlockFormat,
) -> Result<PackedRoot> {
    let blocks = Shape::of_items(&format, items).len();
    let places = target.free(format.node_bytes, blocks)?;
    let mut out = Out {
        places: places.into_iter(),
        blocks: Vec::new(),
    };
    let unpacked = |_| buttress_fs::Error::from(Defect::new("the items fit no tree"));
    let mut packer = Packer::new(TreeId::CHUNK, format);
    for (key, data) in items {
        packer.push(&mut out, key, data).map_err(unpacked)?;
    }
    let (root, _) = packer.finish(&mut out).map_err(unpacked)?;
    target.volume.write(&out.blocks)?;
    Ok(root)
}

/// The blocks of a tree in memory.
struct Out {
    places: std::vec::IntoIter<Logical>,
    blocks: Vec<ExtentWrite>,
}

impl Places for Out {
    fn next(&mut self) -> buttress_packing::Result<Logical> {
        let defect = || Defect::new("a packed tree has more blocks than were counted");
        let place = self.places.next();
        place.ok_or_else(|| buttress_packing::Error::Caller(Box::new(defect())))
    }
}

impl BlockSink for Out {
    fn put(&mut self, _: &BlockNote, block: &TreeBlock) -> buttress_packing::Result<()> {
        self.blocks.push(ExtentWrite {
            logical: block.logical(),
            bytes: Bytes::copy_from_slice(block.bytes()),
        });
        Ok(())
    }
}
