//! Packed blocks: held back in little memory, compressed with LZ4. LZ4 is fast and shrinks metadata
//! to a fifth or less.

use crate::pointer::BlockPointer;
use crate::reader::BlockReader;
use buttress_exact::Exact as _;
use buttress_format::node::TreeBlock;
use bytes::Bytes;
use core::time::Duration;

/// The simulated cost of packing 4 KiB of a block. A block of 16 KiB takes 16 µs to pack and 10 µs
/// to unpack.
///
/// The costs were measured for lz4_flex with its safe encoder and decoder, on two busy cores, for
/// blocks of 16 KiB. Blocks of the seeds' volume (packed to 790 bytes) took 4 to 9 µs to pack and 4
/// to 7 to unpack. Blocks of a source tree (3,362 bytes) took 14 to 16 µs and 9 to 10 µs. Blocks
/// with inline files of noise (13,353 bytes) took 7 to 9 µs and 4 to 5 µs.
const PACK_COST_PER_4_KIB: Duration = Duration::from_micros(4);
const UNPACK_COST_PER_4_KIB: Duration = Duration::from_nanos(2500);

/// The part of its size to which a block must shrink for packing to be worthwhile.
const WORTH_PARTS: usize = 2;

/// A block in packed form.
#[derive(Debug)]
pub(crate) struct Packed(Box<[u8]>);

impl Packed {
    /// Packs a block. Returns `None` if packing the block gains too little.
    pub(crate) fn new(block: &TreeBlock, reader: &BlockReader) -> Option<Self> {
        let bytes = block.bytes();
        let packed = lz4_flex::block::compress(bytes);
        reader.charge_cpu(cost(PACK_COST_PER_4_KIB, reader));
        let most = bytes.len().quotient(WORTH_PARTS);
        (packed.len() <= most).then(|| Self(packed.into_boxed_slice()))
    }

    /// Returns the size of the packed block in memory.
    pub(crate) const fn len(&self) -> usize {
        self.0.len()
    }

    /// Unpacks the block and checks it again, because its bytes were in memory for long. Returns
    /// `None` if the unpacked block fails its check.
    pub(crate) fn unpack(&self, reader: &BlockReader, pointer: &BlockPointer) -> Option<TreeBlock> {
        reader.charge_cpu(cost(UNPACK_COST_PER_4_KIB, reader));
        let length = usize::try_from(reader.node_bytes()).ok()?;
        let bytes = lz4_flex::block::decompress(&self.0, length).ok()?;
        reader.check_again(Bytes::from(bytes), pointer)
    }
}

/// Returns the simulated cost for one block.
fn cost(per_4_kib: Duration, reader: &BlockReader) -> Duration {
    // Clamp: the cost is a simulated time.
    per_4_kib.saturating_mul(reader.node_bytes().quotient(4096).max(1))
}
