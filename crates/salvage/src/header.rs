//! Headers of tree blocks in unknown bytes.
//!
//! A scan tests every sector of a device, so the test of a header must be cheap: a comparison of
//! one uuid. Without a known uuid, [`is_plausible`] tests fields whose values hardly occur together
//! in other data.

use buttress_exact::usize_of;
use buttress_format::node::{HEADER_BYTES, HeaderFlags, RawHeader};
use buttress_format::superblock::{HIGHEST_LEVEL, SUPERBLOCK_MAGIC};
use uuid::Uuid;
use zerocopy::FromBytes as _;

/// The distance of possible headers on a device, in bytes: the smallest sector size.
pub(crate) const STEP_BYTES: usize = 4096;

/// The offset of the file system's uuid in the header.
const FSID_AT: usize = 32;

/// The offset of the magic number in a superblock.
const MAGIC_AT: usize = 64;

/// The largest size of a tree block, in bytes.
pub(crate) const NODE_BYTES_MAX: usize = 64 << 10;

/// The smallest size of an item's or pointer's head, in bytes.
const HEAD_BYTES_MIN: usize = 25;

/// Returns the uuid at the place of a header's file-system uuid.
pub(crate) fn fsid(sector: &[u8]) -> Option<Uuid> {
    let bytes = sector.get(FSID_AT..)?.first_chunk::<16>()?;
    Some(Uuid::from_bytes(*bytes))
}

/// Returns true if bytes are a superblock, which has the uuid at the same offset as a tree block. In
/// a volume whose tree blocks have 4 KiB, its checksum is that of a block, too.
pub(crate) fn is_superblock(sector: &[u8]) -> bool {
    sector
        .get(MAGIC_AT..)
        .is_some_and(|rest| rest.starts_with(&SUPERBLOCK_MAGIC))
}

/// Returns true if bytes look like the header of a written tree block of any file system.
pub(crate) fn is_plausible(sector: &[u8]) -> bool {
    const ITEMS_MAX: usize = (NODE_BYTES_MAX - HEADER_BYTES) / HEAD_BYTES_MIN;
    let Ok((raw, _)) = RawHeader::ref_from_prefix(sector) else {
        return false;
    };
    let [first, middle @ ..] = raw.flags;
    let known = HeaderFlags::WRITTEN.union(HeaderFlags::RELOC).bits();
    !is_superblock(sector)
        && raw.backref_revision == 1
        && u64::from(first) & HeaderFlags::WRITTEN.bits() != 0
        && u64::from(first) & !known == 0
        && middle.iter().all(|byte| *byte == 0)
        && raw.level <= HIGHEST_LEVEL
        && usize_of(raw.nritems.get()) <= ITEMS_MAX
        && raw.generation.get() != 0
        && raw.owner.get() != 0
        && raw.bytenr.get() != 0
        && raw.bytenr.get().is_multiple_of(STEP_BYTES as u64)
        && raw.fsid != [0; 16]
        && raw.chunk_tree_uuid != [0; 16]
}
