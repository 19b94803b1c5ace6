//! The first pass: the used units of the device, and an upper bound on the size of the new trees.
//!
//! Invariant: after the survey, each block of each inode and of the groups' metadata is in use by the
//! bitmaps. Later steps write to free blocks, so a block that is free by mistake would be lost.

use crate::error::{Error, Result};
use crate::inodes::INLINE_BYTES_MAX;
use crate::layout::{EXTENT_BYTES_MAX, Needs, Units};
use crate::zeros;
use buttress_device::Device;
use buttress_exact::{Exact as _, u64_of};
use buttress_extfs::{BlockNumber, Ext, ExtInode, FileKind};
use buttress_format::ByteCount;
use buttress_fs::Progress;
use core::ops::Range;

/// The bytes of an inode with its item's head, and of the parts of a name or attribute.
const INODE_BYTES: u64 = 185;
const NAME_BYTES: u64 = 3 * (25 + 30);
/// A file extent, an extent item with two references, and a third reference, with their heads.
const EXTENT_BYTES: u64 = (25 + 53) + (25 + 24 + 58) + (25 + 28);
/// A chunk: its item, block group, device extents, and free-space information, with their heads.
const CHUNK_BYTES: u64 = 1024;

/// The results of the survey.
pub(crate) struct Survey {
    pub(crate) used: Units,
    pub(crate) needs: Needs,
    /// The bytes in use.
    pub(crate) used_bytes: ByteCount,
    /// The longest free ranges that are holes of the image file.
    pub(crate) zeros: Vec<Range<u64>>,
}

/// Requires that the bitmaps have these blocks of an inode as used. `runs` are the used ranges in bytes,
/// in order.
fn require_used(
    runs: &[Range<u64>],
    inode: &ExtInode,
    first: BlockNumber,
    (blocks, block_bytes): (u64, u64),
) -> Result<()> {
    match first_free(runs, first, blocks, block_bytes) {
        None => Ok(()),
        Some(physical) => Err(Error::FreeBlock {
            inode: inode.number.get(),
            physical,
        }),
    }
}

/// Returns the first byte of these blocks that no used range has.
fn first_free(runs: &[Range<u64>], first: BlockNumber, blocks: u64, block_bytes: u64) -> Option<u64> {
    let start = first.get().exact_mul(block_bytes);
    let end = start.exact_add(blocks.exact_mul(block_bytes));
    let index = runs.partition_point(|run| run.end <= start);
    match runs.get(index) {
        Some(run) if run.start <= start && end <= run.end => None,
        Some(run) if run.start <= start => Some(run.end),
        _ => Some(start),
    }
}

/// Requires that the bitmaps have the metadata of each group as used: bitmaps, inode table, and copies
/// of the superblock and descriptors. `runs` are the used ranges in bytes, in order.
pub(crate) fn require_groups(old: &Ext, runs: &[Range<u64>]) -> Result<()> {
    let block_bytes = u64::from(old.superblock().block_bytes);
    for group in old.groups() {
        let group = group?;
        let table = &group.inode_table;
        let parts = [
            (group.blocks.start, old.copied_blocks(group.number)),
            (group.block_bitmap, 1),
            (group.inode_bitmap, 1),
            (table.start, table.end.get().exact_sub(table.start.get())),
        ];
        for (first, blocks) in parts.into_iter().filter(|(_, blocks)| *blocks > 0) {
            if let Some(physical) = first_free(runs, first, blocks, block_bytes) {
                return Err(Error::FreeMetadata {
                    group: group.number.get(),
                    physical,
                });
            }
        }
    }
    Ok(())
}

/// Returns an upper bound on the size of an inode's items, and requires that all of its blocks are in
/// use.
fn inode_bytes(old: &Ext, inode: &ExtInode, runs: &[Range<u64>]) -> Result<u64> {
    let block_bytes = u64::from(old.superblock().block_bytes);
    let mut bytes = INODE_BYTES;
    if inode.is_inline() {
        bytes = bytes
            .exact_add(EXTENT_BYTES)
            .exact_add(u64::from(old.superblock().inode_bytes));
    } else if inode.size_bytes <= INLINE_BYTES_MAX {
        bytes = bytes.exact_add(EXTENT_BYTES).exact_add(inode.size_bytes);
    }
    for attribute in old.attributes(inode)? {
        let value = u64_of(attribute.value.len());
        bytes = bytes.exact_add(NAME_BYTES).exact_add(256).exact_add(value);
    }
    let mut extents = old.extents(inode);
    while let Some(extent) = extents.next().transpose()? {
        let blocks = (u64::from(extent.blocks), block_bytes);
        require_used(runs, inode, extent.start, blocks)?;
        // An extent of a file can lie in several extents of the saved image.
        let length = u64::from(extent.blocks).exact_mul(block_bytes);
        bytes = bytes.exact_add(EXTENT_BYTES.exact_mul(length.quotient(EXTENT_BYTES_MAX).exact_add(2)));
    }
    for block in extents.take_map_blocks().into_iter().chain(inode.attribute_block) {
        require_used(runs, inode, block, (1, block_bytes))?;
    }
    if inode.kind == FileKind::Directory {
        for entry in old.entries(inode)? {
            bytes = bytes.exact_add(NAME_BYTES.exact_add(u64_of(entry?.name.len()).exact_mul(3)));
        }
    }
    Ok(bytes)
}

/// Surveys a volume whose new sectors have checksums of `checksum_bytes`.
pub(crate) fn survey(
    device: &Device,
    old: &Ext,
    checksum_bytes: u64,
    node_bytes: u64,
    progress: &Progress,
) -> Result<Survey> {
    let superblock = old.superblock();
    let block_bytes = u64::from(superblock.block_bytes);
    let mut used = Units::new(superblock.blocks.exact_mul(block_bytes));
    let mut runs = Vec::new();
    let (mut blocks, mut bytes) = (0_u64, 0_u64);
    for range in old.used_blocks() {
        let range = range?;
        let run = range.start.get().exact_mul(block_bytes)..range.end.get().exact_mul(block_bytes);
        used.mark_bytes(run.clone());
        runs.push(run);
        blocks = blocks.exact_add(range.end.get().exact_sub(range.start.get()));
        bytes = bytes.exact_add(EXTENT_BYTES);
    }
    require_groups(old, &runs)?;
    for inode in old.inodes() {
        let inode = inode?;
        progress.check()?;
        bytes = bytes.exact_add(inode_bytes(old, &inode, &runs)?);
    }
    let chunks = used.device_bytes().quotient(32 << 20).exact_add(8);
    bytes = bytes
        .exact_add(blocks.exact_mul(checksum_bytes))
        .exact_add(chunks.exact_mul(CHUNK_BYTES));
    // Leaves of packed trees are filled, but large items leave space at their ends.
    let metadata = bytes
        .exact_add(bytes / 2)
        .exact_add(node_bytes.exact_mul(64))
        .exact_add(4 << 20);
    let needs = Needs {
        system: ByteCount::new((chunks.exact_mul(CHUNK_BYTES)).max(1 << 20)),
        metadata: ByteCount::new(metadata),
    };
    let used_bytes = ByteCount::new(blocks.exact_mul(block_bytes));
    Ok(Survey {
        zeros: zeros::find(device, &runs, used.device_bytes())?,
        used,
        needs,
        used_bytes,
    })
}
