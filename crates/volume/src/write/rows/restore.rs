//! Restores damaged blocks in the parts of a row that are read to compute the row's new parity.
//!
//! New parity over a damaged block would match the damage, and destroy the old parity, which can
//! still restore it. The row write therefore first checks the bytes that it has read. A tree block
//! in a metadata chunk proves its own validity. The write rebuilds a bad block of the row from the
//! old parity. If the rebuilt block is valid, the new parity is computed over it. The row write
//! also writes the restored block, because the new parity restores other columns only together with
//! it. Bytes that are no tree block in either form were never written, or are free, so they are
//! used unchanged.
//!
//! Left out: restoring file data, whose checksums are in a tree above this layer. The writer of a
//! batch passes the checksums for the data that shares a row with its extents
//! ([`super::super::beside`]).

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

/// Returns `bytes`, which were read from `logical` on, with bad tree blocks restored from parity.
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
    // Clamp: the read bytes may contain no whole block.
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

/// Returns the tree block at `at` as rebuilt by one of the ways over parity.
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

/// Returns true if these bytes are a valid tree block of this volume and address.
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
