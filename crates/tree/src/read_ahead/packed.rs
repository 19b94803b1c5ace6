//! Blocks held back in little memory: compressed with LZ4, which is fast and takes metadata to a fifth or less.

use crate::pointer::BlockPointer;
use crate::reader::BlockReader;
use buttress_exact::Exact as _;
use buttress_format::node::TreeBlock;
use bytes::Bytes;
use core::time::Duration;

/// What packing and unpacking are taken to cost on a simulated device, for each 4 KiB of the block: 16 and 10 µs for
/// 16 KiB.
///
/// Measured for lz4_flex with its safe encoder and decoder, on two busy cores, in µs for blocks of 16 KiB: those of
/// the seeds' volume (packed to 790 bytes) 4 to 9 and 4 to 7, of a source tree (3,362) 14 to 16 and 9 to 10, of
/// inline files of noise (13,353) 7 to 9 and 4 to 5.
const PACK_COST_PER_4_KIB: Duration = Duration::from_micros(4);
const UNPACK_COST_PER_4_KIB: Duration = Duration::from_nanos(2500);

/// A block that does not pack to this part of its size is not worth it.
const WORTH_PARTS: usize = 2;

/// A block as it is held back.
#[derive(Debug)]
pub(crate) struct Packed(Box<[u8]>);

impl Packed {
    /// Packs a block; `None` when that gains too little.
    pub(crate) fn new(block: &TreeBlock, reader: &BlockReader) -> Option<Self> {
        let bytes = block.bytes();
        let packed = lz4_flex::block::compress(bytes);
        reader.charge_cpu(cost(PACK_COST_PER_4_KIB, reader));
        let most = bytes.len().quotient(WORTH_PARTS);
        (packed.len() <= most).then(|| Self(packed.into_boxed_slice()))
    }

    /// How much memory it takes.
    pub(crate) const fn len(&self) -> usize {
        self.0.len()
    }

    /// The block again. It is checked again too, since bytes that lay in memory for long are worth a look; `None`
    /// when it is not what it was.
    pub(crate) fn unpack(&self, reader: &BlockReader, pointer: &BlockPointer) -> Option<TreeBlock> {
        reader.charge_cpu(cost(UNPACK_COST_PER_4_KIB, reader));
        let length = usize::try_from(reader.node_bytes()).ok()?;
        let bytes = lz4_flex::block::decompress(&self.0, length).ok()?;
        reader.check_again(Bytes::from(bytes), pointer)
    }
}

/// What is charged for one block.
fn cost(per_4_kib: Duration, reader: &BlockReader) -> Duration {
    // Clamp: a simulated time.
    per_4_kib.saturating_mul(reader.node_bytes().quotient(4096).max(1))
}
