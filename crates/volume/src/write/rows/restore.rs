//! Damage in the parts of a row that are read to compute its new parity.
//!
//! New parity over a damaged block would fit the damage, and the block, which the old parity could still give back, would
//! be lost. So what is read is inspected first. Tree blocks tell by themselves whether they are whole: in chunks of
//! metadata, a block that is not is asked of the old parity. If that gives a whole one, the new parity is computed over
//! it, and it is written with the row: the new parity gives back other columns only beside it. What is no tree block
//! either way was never written, or is free: it counts as it is.
//!
//! Left out: file data, whose checksums are in a tree above this layer. The writer passes them for the data that
//! shares a row with what is written ([`super::super::beside`]).

use crate::Volume;
use crate::chunk_map::MappedChunk;
use crate::read::ExtentRead;
use buttress_exact::{Defect, Exact as _, copy_into, usize_of};
use buttress_format::block_group::BlockGroupFlags;
use buttress_format::checksum::{CHECKSUM_FIELD_BYTES, Checksum};
use buttress_format::node::RawHeader;
use buttress_format::{BlockFormat, ByteCount, Logical};
use bytes::{Bytes, BytesMut};
use zerocopy::FromBytes;

/// `bytes`, which were read from `logical` on, with the tree blocks among them that only parity still has.
pub(super) fn restore(
    volume: &Volume,
    chunk: &MappedChunk,
    logical: Logical,
    bytes: Bytes,
) -> Result<Bytes, Defect> {
    if !chunk
        .flags()
        .intersects(BlockGroupFlags::METADATA | BlockGroupFlags::SYSTEM)
    {
        return Ok(bytes);
    }
    let format = volume.block_format();
    let node_bytes = usize_of(format.node_bytes);
    let aligned = ByteCount::new(logical.get()).checked_align_up(u64::from(format.node_bytes));
    let first = aligned.and_then(|aligned| Logical::new(aligned.get()).checked_distance_from(logical));
    let Some(first) = first.and_then(ByteCount::to_usize) else {
        return Ok(bytes);
    };
    let mut restored: Option<BytesMut> = None;
    // Clamp: what was read may hold no whole block.
    let blocks = bytes.get(first..).unwrap_or_default().chunks_exact(node_bytes);
    for (number, block) in blocks.enumerate() {
        let start = first.exact_add(number.exact_mul(node_bytes));
        let at = logical.exact_add(ByteCount::of(start));
        if is_block(block, at, format) || block.iter().all(|byte| *byte == 0) {
            continue;
        }
        let Some(good) = from_parity(volume, chunk, at, format) else {
            continue;
        };
        let restored = restored.get_or_insert_with(|| BytesMut::from(&bytes[..]));
        let place = start..start.exact_add(node_bytes);
        copy_into(
            restored,
            place,
            &good,
            "a block from parity does not fit its place",
        )?;
    }
    Ok(restored.map_or(bytes, BytesMut::freeze))
}

/// The tree block at `at` as one of the ways over parity gives it.
fn from_parity(volume: &Volume, chunk: &MappedChunk, at: Logical, format: &BlockFormat) -> Option<Bytes> {
    let read = ExtentRead {
        logical: at,
        length: usize_of(format.node_bytes),
    };
    (2..=chunk.layout().ways())
        .filter_map(|copy| volume.read_current_copy(read, copy).ok())
        .find(|block| is_block(block, at, format))
        .map(buttress_device::Buffer::into_bytes)
}

/// Whether these bytes are a whole tree block of this volume and this address.
fn is_block(block: &[u8], at: Logical, format: &BlockFormat) -> bool {
    let Ok((header, _)) = RawHeader::ref_from_prefix(block) else {
        return false;
    };
    let size = format.checksum_type.size_bytes();
    header.bytenr.get() == at.get()
        && header.csum.get(..size).is_some_and(|stored| {
            let computed = format
                .checksum_type
                // Clamp: a header is longer than its checksum.
                .compute(block.get(CHECKSUM_FIELD_BYTES..).unwrap_or_default());
            Checksum::of(stored) == computed
        })
}
