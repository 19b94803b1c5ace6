//! Tree blocks that get other headers in place: other uuids, another type of checksums.
//!
//! The extent tree lists all tree blocks with their generations. A block is read from a copy that
//! passes all checks and has this generation, and all copies get the new bytes. Every run rewrites
//! all blocks, because a cut may have left a block with one new and one old copy.
//!
//! Invariant: only the checksum, the fsid and the uuid of the chunk tree change. They lie in the
//! first 512 bytes of a block, which a device writes whole or not at all.

use super::superblocks::require_no_failure;
use buttress_exact::{Exact as _, usize_of};
use buttress_format::node::RawHeader;
use buttress_format::{
    ByteCount, ChecksumType, Expectation, ExtentFlags, ExtentItem, Generation, ItemType, Key, Logical,
    TreeBlock, TreeId, Uuid,
};
use buttress_fs::Progress;
use buttress_fs::error::{Corruption, Defect, Result};
use buttress_fs::filesystem::Filesystem;
use buttress_tree::ReadAhead;
use buttress_volume::{ExtentRead, ExtentWrite, Rejection};
use bytes::Bytes;
use core::mem::offset_of;
use core::ops::Range;

/// The number of blocks that are read, and written, at once.
const BLOCKS_AT_ONCE: usize = 256;

/// The bytes of a block that a device writes whole.
const SECTOR_BYTES: usize = 512;

const CHECKSUM: Range<usize> = 0..offset_of!(RawHeader, fsid);
const FSID: Range<usize> = offset_of!(RawHeader, fsid)..offset_of!(RawHeader, bytenr);
const CHUNK_TREE_UUID: Range<usize> =
    offset_of!(RawHeader, chunk_tree_uuid)..offset_of!(RawHeader, generation);

const _: () = assert!(CHUNK_TREE_UUID.end <= SECTOR_BYTES);

/// The parts of headers that tree blocks get.
#[derive(Clone, Copy, Debug)]
pub(super) struct Stamp {
    /// The fsid and the uuid of the chunk tree, unless they stay.
    pub(super) uuids: Option<(Uuid, Uuid)>,
    /// The type of the checksums.
    pub(super) checksum_type: ChecksumType,
}

/// A tree block, as its extent item describes it.
#[derive(Clone, Copy, Debug)]
struct Place {
    logical: Logical,
    generation: Generation,
}

/// Reads and verifies all tree blocks. With a stamp, also rewrites them, and flushes.
pub(super) fn rewrite_blocks(
    filesystem: &Filesystem,
    stamp: Option<&Stamp>,
    progress: &Progress,
) -> Result<()> {
    let tree = filesystem.tree(TreeId::EXTENT)?;
    let format = filesystem.volume().block_format();
    let mut places = Vec::with_capacity(BLOCKS_AT_ONCE);
    for item in tree.range(Key::MIN..=Key::MAX, ReadAhead::Forward) {
        let item = item?;
        let key = item.key();
        if !matches!(key.item_type, ItemType::EXTENT_ITEM | ItemType::METADATA_ITEM) {
            continue;
        }
        let extent = ExtentItem::parse(&key, item.data(), format).map_err(|error| Corruption::Item {
            tree: TreeId::EXTENT,
            error,
        })?;
        if extent.flags.contains(ExtentFlags::TREE_BLOCK) {
            places.push(Place {
                logical: extent.start,
                generation: extent.generation,
            });
        }
        if places.len() >= BLOCKS_AT_ONCE {
            rewrite_some(filesystem, &places, stamp, progress)?;
            places.clear();
        }
    }
    rewrite_some(filesystem, &places, stamp, progress)?;
    match stamp {
        Some(_) => {
            filesystem.volume().flush()?;
            require_no_failure(filesystem)
        }
        None => Ok(()),
    }
}

/// Rewrites the root block of the root tree, and flushes.
pub(super) fn rewrite_root(filesystem: &Filesystem, stamp: &Stamp) -> Result<()> {
    let superblock = filesystem.superblock();
    let place = Place {
        logical: superblock.root,
        generation: superblock.generation,
    };
    rewrite_some(filesystem, &[place], Some(stamp), &Progress::new())?;
    filesystem.volume().flush()?;
    require_no_failure(filesystem)
}

fn rewrite_some(
    filesystem: &Filesystem,
    places: &[Place],
    stamp: Option<&Stamp>,
    progress: &Progress,
) -> Result<()> {
    progress.check()?;
    let volume = filesystem.volume();
    let format = volume.block_format();
    let length = usize_of(format.node_bytes);
    let reads: Vec<ExtentRead> = places
        .iter()
        .map(|place| ExtentRead {
            logical: place.logical,
            length,
        })
        .collect();
    let mut writes = Vec::with_capacity(places.len());
    for (place, pending) in places.iter().zip(volume.start_reads(&reads)) {
        let expected = Expectation {
            generation: Some(place.generation),
            ..Expectation::at(place.logical)
        };
        let mut verify =
            |bytes: Bytes| TreeBlock::check(bytes, format, &expected).map_err(|error| Rejection::new(&error));
        let block = pending.wait_verified(volume, &mut verify)?;
        if let Some(stamp) = stamp {
            writes.push(ExtentWrite {
                logical: place.logical,
                bytes: stamp.apply(block.bytes())?,
            });
        }
    }
    let bytes = ByteCount::of(places.len().exact_mul(length));
    if !writes.is_empty() {
        volume.write(&writes)?;
    }
    progress.advance(0, bytes);
    Ok(())
}

impl Stamp {
    /// Returns the bytes of a block with another header.
    fn apply(&self, block: &[u8]) -> Result<Bytes> {
        let short = || Defect::new("a tree block is shorter than its header");
        let mut bytes = block.to_vec();
        if let Some((fsid, chunk_tree_uuid)) = &self.uuids {
            let fields = [(FSID, fsid), (CHUNK_TREE_UUID, chunk_tree_uuid)];
            for (range, uuid) in fields {
                bytes
                    .get_mut(range)
                    .ok_or_else(short)?
                    .copy_from_slice(uuid.as_bytes());
            }
        }
        let covered = bytes.get(CHECKSUM.end..).ok_or_else(short)?;
        let checksum = self.checksum_type.compute(covered);
        let field = bytes.get_mut(CHECKSUM).ok_or_else(short)?;
        field.fill(0);
        field
            .iter_mut()
            .zip(checksum.as_bytes())
            .for_each(|(to, from)| *to = *from);
        Ok(bytes.into())
    }
}
