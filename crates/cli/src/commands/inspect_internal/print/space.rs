//! Free space and checksums: items of the free-space and checksum trees, and the headers of the first version of
//! the space cache.
//!
//! Source: on-disk format documentation, sections FREE_SPACE_INFO, FREE_SPACE_EXTENT, FREE_SPACE_BITMAP,
//! EXTENT_CSUM; "Free space cache".

use buttress::unstable::format::Key;

use super::Options;
use super::fields::{Fields, Short};
use super::sink::Sink;
use super::value::HexBytes;

/// Prints the header of a block group's space cache: an item without a type, whose object is
/// FREE_SPACE.
pub(super) fn cache_header(sink: &mut impl Sink, data: &[u8]) -> Result<(), Short> {
    let mut fields = Fields::new(data);
    let location = fields.key()?;
    let (generation, entries, bitmaps) = (fields.u64()?, fields.u64()?, fields.u64()?);
    sink.begin(2);
    sink.field("location", location);
    sink.end();
    sink.begin(2);
    sink.words("cache");
    sink.field("generation", generation);
    sink.field("entries", entries);
    sink.field("bitmaps", bitmaps);
    sink.end();
    Ok(())
}

/// Prints a FREE_SPACE_INFO.
pub(super) fn info(sink: &mut impl Sink, data: &[u8]) -> Result<(), Short> {
    let mut fields = Fields::new(data);
    let (extents, flags) = (fields.u32()?, fields.u32()?);
    sink.begin(2);
    sink.words("free space info");
    sink.field("extent count", extents);
    sink.field("flags", flags);
    sink.end();
    Ok(())
}

/// Largest number of checksum digits on one line.
const CHECKSUM_LINE_DIGITS: usize = 32;

/// Prints an EXTENT_CSUM: the covered range and, on request, each checksum.
pub(super) fn checksums(
    sink: &mut impl Sink,
    key: &Key,
    data: &[u8],
    options: &Options,
) -> Result<(), Short> {
    let size = options.checksum_bytes.max(1);
    let count = data.len().checked_div(size).unwrap_or(0);
    let sector_bytes = u64::from(options.sector_bytes);
    let length = sector_bytes.saturating_mul(count as u64);
    sink.begin(2);
    sink.words("range");
    sink.field("start", key.offset);
    sink.field("end", key.offset.saturating_add(length));
    sink.field("length", length);
    sink.end();
    if !options.checksum_items {
        return Ok(());
    }
    let per_line = CHECKSUM_LINE_DIGITS
        .checked_div(size.saturating_mul(2))
        .unwrap_or(1)
        .max(1);
    sink.begin_list("checksums");
    for (line, checksums) in data.chunks(size.saturating_mul(per_line)).enumerate() {
        sink.begin(2);
        for (place, checksum) in checksums.chunks_exact(size).enumerate() {
            let index = line.saturating_mul(per_line).saturating_add(place) as u64;
            sink.next_entry();
            sink.words("[");
            sink.joined(
                "logical",
                key.offset.saturating_add(index.saturating_mul(sector_bytes)),
            );
            sink.punctuation("]");
            sink.bare("checksum", HexBytes(checksum));
        }
        sink.end();
    }
    sink.end_list();
    Ok(())
}
