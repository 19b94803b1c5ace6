//! The map of a file: which ranges are data, preallocated, or holes, and where their bytes lie.
//!
//! Extent items lie in the order of their file offset. What no item covers is a hole (with the no-holes
//! feature holes have no items, without it they have items with address 0; both look the same here). A range
//! may use only a part of its extent, which other files or other ranges of the same file may use as well.
//!
//! Ranges go to the end of the last sector, so the last may reach beyond the file's size; preallocated ranges
//! may lie beyond it altogether. Holes made up here end at the size. Lengths are up to 2^64: never allocate by
//! them.
//!
//! Invariants of [`FileExtents`]: ranges come in rising order, do not overlap, and leave no gap up to the
//! file's size. An item that breaks this is reported as an error, and the ranges go on behind it.
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
    /// Where it begins.
    pub offset: FileOffset,
    /// Its length in the file; never zero.
    pub length: ByteCount,
    /// The transaction that wrote it; `None` for a hole.
    pub generation: Option<Generation>,
    /// What is there.
    pub kind: RangeKind,
}

/// What a range of a file holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RangeKind {
    /// Nothing; reads as zeros.
    Hole,
    /// Content inside the tree itself, zeros behind it up to the end of its sector.
    Inline(InlineContent),
    /// Content in an extent.
    Data(DiskExtent),
    /// An extent that was reserved but not written; reads as zeros.
    Preallocated(DiskExtent),
}

/// Content inside the tree.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InlineContent {
    /// How it is compressed.
    pub compression: Compression,
    /// Its size when decompressed.
    pub ram_bytes: ByteCount,
    /// The bytes as stored.
    pub stored: Bytes,
}

/// Where the bytes of a range lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DiskExtent {
    /// The address of the extent.
    pub logical: Logical,
    /// Its size on disk.
    pub disk_bytes: ByteCount,
    /// Where the range begins in the extent, counted after decompression.
    pub offset: ByteCount,
    /// The size of the extent after decompression.
    pub ram_bytes: ByteCount,
    /// How it is compressed.
    pub compression: Compression,
}

impl FileRange {
    /// Where it ends (exclusive).
    #[must_use]
    pub const fn end(&self) -> FileOffset {
        // Clamp: never reached, parsing checked the sum; `exact_add` is not const.
        self.offset.saturating_add(self.length)
    }

    /// A hole from `offset` up to `end`.
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

    /// How much memory it takes, roughly.
    pub fn memory_bytes(&self) -> usize {
        let inline = if let RangeKind::Inline(inline) = &self.kind {
            inline.stored.len()
        } else {
            0
        };
        size_of::<Self>().exact_add(inline)
    }

    /// Whether it reads as zeros.
    #[must_use]
    pub const fn is_zero(&self) -> bool {
        matches!(self.kind, RangeKind::Hole | RangeKind::Preallocated(_))
    }
}

/// Turns extent items of one file into ranges, in order.
///
/// For jobs that go over the items of a tree themselves: they hand in each extent item of a file, and get the
/// range that it describes, checked against its extent and against the range before it.
#[derive(Clone, Debug)]
pub struct FileRangeBuilder {
    location: Location,
    sector_bytes: u32,
    next: FileOffset,
}

impl FileRangeBuilder {
    /// A builder for the file `location` of a volume with sectors of `sector_bytes`.
    #[must_use]
    pub fn new(location: Location, sector_bytes: u32) -> Self {
        Self {
            location,
            sector_bytes,
            next: FileOffset::MIN,
        }
    }

    /// The end of the last range.
    pub const fn next(&self) -> FileOffset {
        self.next
    }

    /// Returns a length in whole sectors.
    fn whole_sectors(&self, length: ByteCount) -> ByteCount {
        let aligned = length.checked_align_up(u64::from(self.sector_bytes));
        // Clamp: a length from disk; such a range is refused because it ends past the last offset.
        aligned.unwrap_or(length)
    }

    /// Takes note of a range that was built before.
    fn pass(&mut self, range: &FileRange) {
        let covered = self.whole_sectors(range.length);
        self.next = range.offset.exact_add(covered);
    }

    /// The range of one item, which must not begin before the end of the one before it.
    ///
    /// # Errors
    /// [`Corruption::Item`], [`Corruption::ExtentOverlap`], [`Corruption::ExtentOutOfBounds`] or
    /// [`Corruption::CompressedTooLarge`].
    pub fn range(&mut self, key: &Key, data: &[u8]) -> Result<FileRange> {
        self.build(key, data, Bytes::copy_from_slice)
    }

    /// As [`FileRangeBuilder::range`], of an item of `leaf`: content inside it is not copied, and keeps the leaf in memory
    /// for as long as the range lives.
    ///
    /// # Errors
    /// As there.
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
            // Inline content takes up whole sectors of the file, as seeks to holes show: what is behind its
            // end and before the next sector is zeros, not a hole.
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

    /// A range must lie inside its extent, and a compressed extent must be of a size that fits in memory.
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

/// The ranges of a file from some offset on. See the module for what they promise.
#[derive(Debug)]
pub struct FileExtents {
    source: Source,
    builder: FileRangeBuilder,
    /// A range whose gap before it was just handed out.
    held: Option<FileRange>,
    size_end: FileOffset,
    started_at: FileOffset,
}

#[derive(Debug)]
enum Source {
    Tree(Box<Items>),
    Record(std::vec::IntoIter<FileRange>),
}

/// The keys of a file's extent items from the one on that may cover `start`.
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
            // Clamp: no range begins before.
            .unwrap_or(wanted);
    }
    Ok(first..=last)
}

impl FileExtents {
    /// The ranges that end after `start`, read from the tree.
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

    /// All ranges of a file whose items are known already.
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

    /// The next range that an item describes.
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
