//! Blocks held back in little memory: compressed with LZ4, which is fast and takes metadata to a fifth or less.

use crate::pointer::BlockPointer;
use crate::reader::BlockReader;
use buttress_format::node::TreeBlock;
use bytes::Bytes;
use core::time::Duration;

/// What packing and unpacking are taken to cost on a simulated device, for each byte of packed size: LZ4's time
/// goes with what it cannot leave out.
///
/// From measurements of lz4_flex with its safe encoder and decoder, two cores under load: blocks of 16 KiB that
/// pack to 795 bytes took 6.5 and 4.1 µs, those of a source tree that pack to 3,378 bytes took 44 and 23 µs.
const PACK_COST_PER_BYTE: Duration = Duration::from_nanos(13);
const UNPACK_COST_PER_BYTE: Duration = Duration::from_nanos(7);

/// A block that packs to more than this many eighths of its size is not worth it.
const WORTH_EIGHTHS: usize = 7;

/// A block as it is held back.
#[derive(Debug)]
pub(crate) struct Packed(Box<[u8]>);

impl Packed {
    /// Packs a block; `None` when that gains too little.
    pub(crate) fn new(block: &TreeBlock, reader: &BlockReader) -> Option<Self> {
        let bytes = block.bytes();
        let packed = lz4_flex::block::compress(bytes);
        let cost = u32::try_from(packed.len()).unwrap_or(u32::MAX);
        reader.charge_cpu(PACK_COST_PER_BYTE.saturating_mul(cost));
        let most = bytes
            .len()
            .checked_div(8)
            .unwrap_or(0)
            .saturating_mul(WORTH_EIGHTHS);
        (packed.len() <= most).then(|| Self(packed.into_boxed_slice()))
    }

    /// How much memory it takes.
    pub(crate) const fn len(&self) -> usize {
        self.0.len()
    }

    /// The block again. It is checked again too, since bytes that lay in memory for long are worth a look; `None`
    /// when it is not what it was.
    pub(crate) fn unpack(&self, reader: &BlockReader, pointer: &BlockPointer) -> Option<TreeBlock> {
        let cost = u32::try_from(self.len()).unwrap_or(u32::MAX);
        reader.charge_cpu(UNPACK_COST_PER_BYTE.saturating_mul(cost));
        let length = usize::try_from(reader.node_bytes()).ok()?;
        let bytes = lz4_flex::block::decompress(&self.0, length).ok()?;
        reader.check_again(Bytes::from(bytes), pointer)
    }
}
