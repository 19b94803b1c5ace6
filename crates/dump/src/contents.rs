//! The contents of chosen files in a dump: their data extents as items, and their inline content.
//!
//! An extent is in the dump as it is on the devices, also where only a part of it belongs to the file.
//! Its bytes come from a copy that matches its checksums, else from any copy.

use crate::cluster::ITEM_BYTES_MAX;
use crate::error::Result;
use crate::reading::DumpItem;
use crate::writing::ClusterWriter;
use buttress_exact::{Exact as _, u64_of};
use buttress_format::{ByteCount, FileExtent, FileExtentBody, ItemType, Key, Logical};
use buttress_fs::{Filesystem, Location, Progress};
use buttress_tree::ReadAhead;
use buttress_volume::read::ExtentRead;
use core::ops::Range;
use std::collections::HashSet;

/// The contents of chosen files.
#[derive(Debug, Default)]
pub(crate) struct Contents {
    /// The ranges of extents, in order and apart.
    extents: Vec<Range<u64>>,
    /// The leaves with inline content, each with the inode.
    inline: HashSet<(u64, u64)>,
}

/// The sizes of copied contents.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Copied {
    pub(crate) bytes: u64,
    /// The bytes that no copy has as their checksums say.
    pub(crate) damaged: u64,
}

impl Contents {
    /// Finds the extents of files. Items that are no valid file extents count for nothing.
    pub(crate) fn of(filesystem: &Filesystem, files: &[Location], progress: &Progress) -> Result<Self> {
        let mut found = Self::default();
        for file in files {
            let inode = file.inode.object_id();
            let first = Key::new(inode, ItemType::EXTENT_DATA, 0);
            let last = Key::new(inode, ItemType::EXTENT_DATA, u64::MAX);
            let tree = filesystem.subvolume_tree(file.subvolume)?;
            let mut leaves = tree.leaves(first..=last, ReadAhead::Forward);
            while let Some(leaf) = leaves.next().map_err(buttress_fs::Error::from)? {
                progress.check()?;
                for item in leaf.items() {
                    let extent = FileExtent::parse(&item.key, item.data, filesystem.sector_bytes());
                    match extent.map(|extent| extent.body) {
                        Ok(FileExtentBody::Inline(_)) => {
                            found.inline.insert((leaf.block.logical().get(), inode.get()));
                        }
                        Ok(FileExtentBody::Regular(slice)) if !slice.is_hole() => {
                            let start = slice.disk.get();
                            if let Some(end) = start.checked_add(slice.disk_bytes.get()) {
                                found.extents.push(start..end);
                            }
                        }
                        _ => {}
                    }
                }
            }
        }
        found.extents = joined(found.extents);
        Ok(found)
    }

    /// Returns whether inline content of an inode in a leaf stays.
    pub(crate) fn keeps_inline(&self, leaf: u64, inode: u64) -> bool {
        self.inline.contains(&(leaf, inode))
    }

    /// Returns the number of bytes of all extents.
    pub(crate) fn extent_bytes(&self) -> u64 {
        let lengths = self.extents.iter().map(|range| range.end.exact_sub(range.start));
        // Clamp: extents of a damaged volume may have any length.
        lengths.fold(0, u64::saturating_add)
    }

    /// Copies the extents into the dump, except where they overlap tree blocks. `blocks` has the
    /// addresses of all tree blocks in order.
    pub(crate) fn copy(
        &self,
        filesystem: &Filesystem,
        blocks: &[u64],
        clusters: &mut ClusterWriter<'_>,
        progress: &Progress,
    ) -> Result<Copied> {
        let mut copied = Copied::default();
        for range in &self.extents {
            let mut start = range.start;
            while let Some(part) = self.part(filesystem, start..range.end) {
                progress.check()?;
                start = part.end;
                let has_block = blocks
                    .get(blocks.partition_point(|block| *block < part.start)..)
                    .and_then(<[u64]>::first)
                    .is_some_and(|block| *block < part.end);
                if has_block {
                    continue;
                }
                let (item, damaged) = read(filesystem, &part)?;
                let bytes = item.bytes.len() as u64;
                copied.bytes = copied.bytes.exact_add(bytes);
                copied.damaged = copied.damaged.exact_add(damaged);
                progress.advance(0, ByteCount::new(bytes));
                clusters.push(item)?;
            }
        }
        Ok(copied)
    }

    /// Returns the first part of a range that fits an item and one chunk, or `None` at the end or
    /// outside of all chunks.
    fn part(&self, filesystem: &Filesystem, range: Range<u64>) -> Option<Range<u64>> {
        let chunks = filesystem.volume().chunk_map();
        let chunk = chunks.find(Logical::new(range.start))?;
        let chunk_end = chunk.start().get().checked_add(chunk.length().get())?;
        let end = range.start.checked_add(ITEM_BYTES_MAX as u64)?;
        let end = end.min(range.end).min(chunk_end);
        (range.start < end).then_some(range.start..end)
    }
}

/// Reads a part of an extent. Returns its item, and the number of bytes that no copy has right.
fn read(filesystem: &Filesystem, range: &Range<u64>) -> Result<(DumpItem, u64)> {
    let read = ExtentRead {
        logical: Logical::new(range.start),
        length: range.end.exact_sub(range.start).narrow(),
    };
    let volume = filesystem.volume();
    // A damaged checksum tree is a reason for a report, and none against its data.
    let expected = filesystem
        .expected_checksums(read.logical, read.length)
        .ok()
        .flatten();
    let (bytes, lost) = match &expected {
        Some(expected) => volume.read_data(read, &|data, bad| expected.verify(data, bad))?,
        None => volume.read_unverified(read)?,
    };
    let damaged = lost.iter().map(|lost| u64_of(lost.range.len())).sum();
    let item = DumpItem {
        logical: range.start,
        bytes: bytes.to_vec(),
    };
    Ok((item, damaged))
}

/// Returns ranges in order, with adjacent and overlapping ones joined.
fn joined(mut ranges: Vec<Range<u64>>) -> Vec<Range<u64>> {
    ranges.sort_unstable_by_key(|range| range.start);
    let mut joined: Vec<Range<u64>> = Vec::new();
    for range in ranges {
        match joined.last_mut() {
            Some(last) if range.start <= last.end => last.end = last.end.max(range.end),
            _ => joined.push(range),
        }
    }
    joined
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_joined_where_they_touch() {
        let found = joined(vec![40..50, 0..10, 10..20, 15..30, 41..45]);
        assert_eq!(found, [0..30, 40..50]);
    }
}
