//! The first pass: the used units of the device, and an upper bound on the size of the new trees.
//!
//! Invariant: after the survey, each block of each inode is in use by the bitmaps. Later steps write
//! to free blocks, so a block that is free by mistake would be lost.

use crate::error::{Error, Result};
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
    let start = first.get().exact_mul(block_bytes);
    let end = start.exact_add(blocks.exact_mul(block_bytes));
    let index = runs.partition_point(|run| run.end <= start);
    let physical = match runs.get(index) {
        Some(run) if run.start <= start && end <= run.end => return Ok(()),
        Some(run) if run.start <= start => run.end,
        _ => start,
    };
    Err(Error::FreeBlock {
        inode: inode.number.get(),
        physical,
    })
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
    for inode in old.inodes() {
        let inode = inode?;
        progress.check()?;
        bytes = bytes.exact_add(INODE_BYTES).exact_add(2048);
        for attribute in old.attributes(&inode)? {
            let value = u64_of(attribute.value.len());
            bytes = bytes.exact_add(NAME_BYTES).exact_add(256).exact_add(value);
        }
        let mut extents = old.extents(&inode);
        while let Some(extent) = extents.next().transpose()? {
            require_used(
                &runs,
                &inode,
                extent.start,
                (u64::from(extent.blocks), block_bytes),
            )?;
            // An extent of a file can lie in several extents of the saved image.
            let length = u64::from(extent.blocks).exact_mul(block_bytes);
            bytes = bytes.exact_add(EXTENT_BYTES.exact_mul(length.quotient(EXTENT_BYTES_MAX).exact_add(2)));
        }
        for block in extents.take_map_blocks().into_iter().chain(inode.attribute_block) {
            require_used(&runs, &inode, block, (1, block_bytes))?;
        }
        if inode.kind == FileKind::Directory {
            for entry in old.entries(&inode)? {
                bytes = bytes.exact_add(NAME_BYTES.exact_add(u64_of(entry?.name.len()).exact_mul(3)));
            }
        }
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
