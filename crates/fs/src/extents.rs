//! The map of a file: its ranges of data, preallocated space and holes, and the location of their
//! bytes.
//!
//! A file's extent items are stored in the order of their file offset. A file range that no item
//! covers is a hole. With the no-holes feature, holes have no items; otherwise they have items with
//! address 0. Both forms of holes yield the same ranges. A range may use only a part of its extent,
//! which other files or other ranges of the same file may also use.
//!
//! A file's ranges end with the last sector, so the last range may extend beyond the file's size.
//! Preallocated ranges may lie entirely beyond the size. A hole that no item records ends at the
//! file's size. Lengths of file ranges are up to 2^64, so no code may allocate memory by such a
//! length.
//!
//! Invariants of [`FileExtents`]: ranges are in ascending order, do not overlap, and leave no gap
//! up to the file's size. The iterator returns an item that violates these invariants as an error,
//! and continues after that item.
//!
//! Source: on-disk format documentation, section "EXTENT_DATA".

use crate::error::{Corruption, Result};
use crate::location::Location;
use buttress_exact::Exact as _;
use buttress_format::node::TreeBlock;
use buttress_format::{
    ByteCount, Compression, ExtentSlice, FileExtent, FileExtentBody, FileOffset, Generation, ItemType, Key,
    Logical,
};
use buttress_tree::{Items, ReadAhead, Tree};
use bytes::Bytes;
use core::ops::RangeInclusive;

/// The largest compressed extent, on disk and in memory, that btrfs makes.
pub const COMPRESSED_EXTENT_LIMIT: ByteCount = ByteCount::new(128 << 10);

/// A range of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileRange {
    /// The offset of the range in the file.
    pub offset: FileOffset,
    /// The length of the range in the file; never zero.
    pub length: ByteCount,
    /// The transaction that wrote the range; `None` for a hole.
    pub generation: Option<Generation>,
    /// The content of the range.
    pub kind: RangeKind,
}

/// The content of a range of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RangeKind {
    /// No content; the range reads as zeros.
    Hole,
    /// Content inside the tree itself, followed by zeros up to the end of its sector.
    Inline(InlineContent),
    /// Content in an extent.
    Data(DiskExtent),
    /// A preallocated extent without content; it reads as zeros.
    Preallocated(DiskExtent),
}

/// Content inside the tree.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InlineContent {
    /// The compression of the content.
    pub compression: Compression,
    /// The size of the content after decompression.
    pub ram_bytes: ByteCount,
    /// The bytes of the extent as stored on disk.
    pub stored: Bytes,
}

/// The location of the bytes of a range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DiskExtent {
    /// The logical address of the extent on the volume.
    pub logical: Logical,
    /// The extent's size on disk.
    pub disk_bytes: ByteCount,
    /// The offset in the decompressed extent at which the file range begins.
    pub offset: ByteCount,
    /// The size of the extent after decompression.
    pub ram_bytes: ByteCount,
    /// The compression of the extent.
    pub compression: Compression,
}

impl FileRange {
    /// Returns the exclusive end of the range.
    #[must_use]
    pub const fn end(&self) -> FileOffset {
        // Clamp: cannot overflow, because parsing checked the sum; `exact_add` is not const.
        self.offset.saturating_add(self.length)
    }

    /// Makes a hole from `offset` up to `end`.
    #[must_use]
    pub fn hole(offset: FileOffset, end: FileOffset) -> Option<Self> {
        let length = end
            .checked_distance_from(offset)
            .filter(|length| *length != ByteCount::ZERO)?;
        Some(Self {
            offset,
            length,
            generation: None,
            kind: RangeKind::Hole,
        })
    }

    /// Returns the approximate memory of the range.
    pub fn memory_bytes(&self) -> usize {
        let inline = if let RangeKind::Inline(inline) = &self.kind {
            inline.stored.len()
        } else {
            0
        };
        size_of::<Self>().exact_add(inline)
    }

    /// Returns true if the range reads as zeros.
    #[must_use]
    pub const fn is_zero(&self) -> bool {
        matches!(self.kind, RangeKind::Hole | RangeKind::Preallocated(_))
    }
}

/// Turns the extent items of one file into ranges, in order.
///
/// The builder of ranges serves jobs that walk the items of a tree themselves. Such jobs pass each
/// extent item of a file, and receive the range that it describes. The range is checked against its
/// extent and against the previous range.
#[derive(Clone, Debug)]
pub struct FileRangeBuilder {
    location: Location,
    sector_bytes: u32,
    next: FileOffset,
}

impl FileRangeBuilder {
    /// Makes a builder for the file `location` of a volume with sectors of `sector_bytes`.
    #[must_use]
    pub fn new(location: Location, sector_bytes: u32) -> Self {
        Self {
            location,
            sector_bytes,
            next: FileOffset::MIN,
        }
    }

    /// Returns the end of the file's last range.
    pub const fn next(&self) -> FileOffset {
        self.next
    }

    /// Returns a length in whole sectors.
    fn whole_sectors(&self, length: ByteCount) -> ByteCount {
        let aligned = length.checked_align_up(u64::from(self.sector_bytes));
        // Clamp: the extent's length comes from disk. Such a range is refused because it ends
        // beyond the last offset.
        aligned.unwrap_or(length)
    }

    /// Records a range that was built before.
    fn pass(&mut self, range: &FileRange) {
        let covered = self.whole_sectors(range.length);
        self.next = range.offset.exact_add(covered);
    }

    /// Returns the range of one item, which must not begin before the end of the previous range.
    ///
    /// # Errors
    /// Returns [`Corruption::Item`], [`Corruption::ExtentOverlap`],
    /// [`Corruption::ExtentOutOfBounds`] or [`Corruption::CompressedTooLarge`].
    pub fn range(&mut self, key: &Key, data: &[u8]) -> Result<FileRange> {
        self.build(key, data, Bytes::copy_from_slice)
    }

    /// Returns the range of an item of `leaf`, like [`FileRangeBuilder::range`]. Inline content is
    /// not copied, and keeps the leaf in memory for as long as the range lives.
    ///
    /// # Errors
    /// Fails as [`FileRangeBuilder::range`] does.
    pub fn range_in(&mut self, key: &Key, data: &[u8], leaf: &TreeBlock) -> Result<FileRange> {
        self.build(key, data, |stored| leaf.shared(stored))
    }

    fn build(&mut self, key: &Key, data: &[u8], keep: impl FnOnce(&[u8]) -> Bytes) -> Result<FileRange> {
        let tree = self.location.subvolume.tree();
        let extent = FileExtent::parse(key, data, self.sector_bytes)
            .map_err(|error| Corruption::Item { tree, error })?;
        let range = self.range_of(FileOffset::new(key.offset), &extent, keep)?;
        let covered = self.whole_sectors(range.length);
        let previous_end = self.next;
        match range.offset.checked_add(covered) {
            Some(end) if range.offset >= previous_end => {
                self.next = end;
                Ok(range)
            }
            _ => Err(Corruption::ExtentOverlap {
                location: self.location,
                offset: range.offset,
                length: range.length,
                previous_end,
            }
            .into()),
        }
    }

    fn range_of(
        &self,
        offset: FileOffset,
        extent: &FileExtent<'_>,
        keep: impl FnOnce(&[u8]) -> Bytes,
    ) -> Result<FileRange> {
        let generation = Some(extent.generation);
        let (length, kind) = match extent.body {
            // In the file, inline content occupies whole sectors, as seeks to holes show. The bytes
            // between the end of inline content and the next sector are zeros, not a hole.
            FileExtentBody::Inline(stored) => (
                self.whole_sectors(extent.ram_bytes),
                RangeKind::Inline(InlineContent {
                    compression: extent.compression,
                    ram_bytes: extent.ram_bytes,
                    stored: keep(stored),
                }),
            ),
            FileExtentBody::Regular(slice) | FileExtentBody::Preallocated(slice) if slice.is_hole() => {
                (slice.num_bytes, RangeKind::Hole)
            }
            FileExtentBody::Regular(slice) => (
                slice.num_bytes,
                RangeKind::Data(self.on_disk(offset, extent, slice)?),
            ),
            FileExtentBody::Preallocated(slice) => (
                slice.num_bytes,
                RangeKind::Preallocated(self.on_disk(offset, extent, slice)?),
            ),
        };
        let generation = if kind == RangeKind::Hole { None } else { generation };
        Ok(FileRange {
            offset,
            length,
            generation,
            kind,
        })
    }

    fn on_disk(&self, offset: FileOffset, extent: &FileExtent<'_>, slice: ExtentSlice) -> Result<DiskExtent> {
        let on_disk = DiskExtent {
            logical: slice.disk,
            disk_bytes: slice.disk_bytes,
            offset: slice.offset,
            ram_bytes: extent.ram_bytes,
            compression: extent.compression,
        };
        self.check_bounds(offset, slice.num_bytes, &on_disk)?;
        Ok(on_disk)
    }

    /// Checks that a range lies inside its extent, and that the size of a compressed extent fits in
    /// memory.
    fn check_bounds(&self, offset: FileOffset, length: ByteCount, extent: &DiskExtent) -> Result<()> {
        let location = self.location;
        let compressed = extent.compression != Compression::None;
        let inside = if compressed {
            extent.ram_bytes
        } else {
            extent.disk_bytes
        };
        let limit = COMPRESSED_EXTENT_LIMIT;
        if compressed && (extent.disk_bytes > limit || extent.ram_bytes > limit) {
            return Err(Corruption::CompressedTooLarge {
                location,
                offset,
                disk_bytes: extent.disk_bytes,
                ram_bytes: extent.ram_bytes,
                limit,
            }
            .into());
        }
        match extent.offset.checked_add(length) {
            Some(end) if end <= inside => Ok(()),
            _ => Err(Corruption::ExtentOutOfBounds {
                location,
                offset,
                extent_offset: extent.offset,
                length,
                ram_bytes: inside,
            }
            .into()),
        }
    }
}

/// The ranges of a file from an offset on; see the module's documentation for their invariants.
#[derive(Debug)]
pub struct FileExtents {
    source: Source,
    builder: FileRangeBuilder,
    /// A data range that follows the hole returned last.
    held: Option<FileRange>,
    size_end: FileOffset,
    started_at: FileOffset,
}

#[derive(Debug)]
enum Source {
    Tree(Box<Items>),
    Record(std::vec::IntoIter<FileRange>),
}

/// Returns the keys of a file's extent items, from the first one that may cover `start`.
pub fn extent_keys(tree: &Tree, location: Location, start: FileOffset) -> Result<RangeInclusive<Key>> {
    let object_id = location.inode.object_id();
    let wanted = Key::new(object_id, ItemType::EXTENT_DATA, start.get());
    let last = Key::new(object_id, ItemType::EXTENT_DATA, u64::MAX);
    // The range that covers `start` may begin before it.
    let mut first = wanted;
    if start > FileOffset::MIN {
        let mut cursor = tree.cursor(ReadAhead::None);
        cursor.seek_at_or_before(&wanted)?;
        first = cursor
            .key()
            .filter(|key| key.objectid == object_id && key.item_type == ItemType::EXTENT_DATA)
            // Clamp: no range begins before `wanted`.
            .unwrap_or(wanted);
    }
    Ok(first..=last)
}

impl FileExtents {
    /// Returns the ranges that end after `start`, read from the tree.
    pub(crate) fn in_tree(
        tree: &Tree,
        location: Location,
        sector_bytes: u32,
        size: ByteCount,
        start: FileOffset,
    ) -> Result<Self> {
        let keys = extent_keys(tree, location, start)?;
        Ok(Self {
            source: Source::Tree(Box::new(tree.range(keys, ReadAhead::Forward))),
            builder: FileRangeBuilder::new(location, sector_bytes),
            held: None,
            size_end: FileOffset::new(size.get()),
            started_at: start,
        })
    }

    /// Returns all ranges of a file from its inode record, whose items are already known.
    pub(crate) fn of_record(
        ranges: Vec<FileRange>,
        location: Location,
        sector_bytes: u32,
        size: ByteCount,
    ) -> Self {
        Self {
            source: Source::Record(ranges.into_iter()),
            builder: FileRangeBuilder::new(location, sector_bytes),
            held: None,
            size_end: FileOffset::new(size.get()),
            started_at: FileOffset::MIN,
        }
    }

    /// Returns the next range that an item describes.
    fn next_item(&mut self) -> Option<Result<FileRange>> {
        loop {
            let range = match &mut self.source {
                Source::Record(ranges) => {
                    let range = ranges.next()?;
                    self.builder.pass(&range);
                    return Some(Ok(range));
                }
                Source::Tree(items) => match items.next()? {
                    Ok(item) => self.builder.range(&item.key(), item.data()),
                    Err(error) => return Some(Err(error.into())),
                },
            };
            match range {
                Ok(range) if range.length == ByteCount::ZERO || range.end() <= self.started_at => {}
                other => return Some(other),
            }
        }
    }
}

impl Iterator for FileExtents {
    type Item = Result<FileRange>;

    fn next(&mut self) -> Option<Self::Item> {
        if let Some(range) = self.held.take() {
            return Some(Ok(range));
        }
        let expected = self.builder.next().max(self.started_at);
        match self.next_item() {
            Some(Ok(range)) => match FileRange::hole(expected, range.offset) {
                Some(hole) => {
                    self.held = Some(range);
                    Some(Ok(hole))
                }
                None => Some(Ok(range)),
            },
            Some(Err(error)) => Some(Err(error)),
            None => {
                let hole = FileRange::hole(expected, self.size_end)?;
                self.builder.next = self.size_end;
                Some(Ok(hole))
            }
        }
    }
}
