//! A file extent item copied out of its leaf, and parts of it.

use buttress_engine::data_extents::{DataOwner, DataRange};
use buttress_format::{
    ByteCount, Compression, ExtentSlice, FileExtent, FileExtentBody, InodeNumber, Key, Logical, TreeId,
};
use buttress_fs::error::{Corruption, Result};
use core::ops::Range;

/// A copy of a file extent item, without inline content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stored {
    /// The file offset at which the item begins.
    pub(crate) start: u64,
    /// The file offset at which the item ends, a multiple of the sector size.
    pub(crate) end: u64,
    pub(crate) extent: FileExtent<'static>,
    /// The size of inline content; `None` for other items.
    pub(crate) inline_bytes: Option<u64>,
}

impl Stored {
    pub(crate) fn parse(tree: TreeId, key: &Key, data: &[u8], sector_bytes: u32) -> Result<Self> {
        let extent =
            FileExtent::parse(key, data, sector_bytes).map_err(|error| Corruption::Item { tree, error })?;
        let (body, inline_bytes) = match extent.body {
            FileExtentBody::Inline(_) => (FileExtentBody::Inline(&[][..]), Some(extent.ram_bytes.get())),
            FileExtentBody::Regular(slice) => (FileExtentBody::Regular(slice), None),
            FileExtentBody::Preallocated(slice) => (FileExtentBody::Preallocated(slice), None),
        };
        Ok(Self {
            start: key.offset,
            end: extent.file_end(key, sector_bytes).get(),
            extent: FileExtent {
                generation: extent.generation,
                ram_bytes: extent.ram_bytes,
                compression: extent.compression,
                other_encoding: extent.other_encoding,
                body,
            },
            inline_bytes,
        })
    }

    /// Returns the item's part of an extent on disk; `None` for inline content and holes.
    pub(crate) fn slice(&self) -> Option<&ExtentSlice> {
        self.extent.slice().filter(|slice| !slice.is_hole())
    }

    /// Returns the extent on disk, if the item has one.
    pub(crate) fn disk(&self) -> Option<DataRange> {
        self.slice().map(|slice| DataRange {
            logical: slice.disk,
            length: slice.disk_bytes,
        })
    }

    /// Returns the owner of the item's reference to its extent.
    pub(crate) fn owner(&self, tree: TreeId, inode: InodeNumber) -> DataOwner {
        let mut inside = self.extent.slice().map_or(0, |slice| slice.offset.get());
        if buttress_faults::on("data-reference-offset") {
            inside = 0;
        }
        DataOwner {
            root: tree,
            inode,
            offset: self.start.wrapping_sub(inside),
        }
    }

    /// Returns the bytes that the item adds to `nbytes`.
    pub(crate) fn counted_bytes(&self) -> u64 {
        match self.inline_bytes {
            Some(bytes) => bytes,
            None => self.slice().map_or(0, |slice| slice.num_bytes.get()),
        }
    }

    /// Returns a file extent item for a part of this item's range.
    pub(crate) fn part(&self, range: &Range<u64>) -> Self {
        let cut = |slice: ExtentSlice| {
            let skipped = range.start.saturating_sub(self.start);
            ExtentSlice {
                offset: if slice.is_hole() {
                    slice.offset
                } else {
                    ByteCount::new(slice.offset.get().saturating_add(skipped))
                },
                num_bytes: ByteCount::new(range.end.saturating_sub(range.start)),
                ..slice
            }
        };
        let body = match self.extent.body {
            FileExtentBody::Inline(content) => FileExtentBody::Inline(content),
            FileExtentBody::Regular(slice) => FileExtentBody::Regular(cut(slice)),
            FileExtentBody::Preallocated(slice) => FileExtentBody::Preallocated(cut(slice)),
        };
        Self {
            start: range.start,
            end: range.end,
            extent: FileExtent { body, ..self.extent },
            inline_bytes: None,
        }
    }
}

/// Returns whether an item's bytes are those of inline content.
pub(crate) fn is_inline(data: &[u8]) -> bool {
    // The extent type is the last byte of the head that all file extent items have.
    data.get(FileExtent::INLINE_HEAD_BYTES.saturating_sub(1)) == Some(&0)
}

/// Returns the item of a hole, for volumes whose holes have items.
pub(crate) fn hole(range: &Range<u64>, generation: buttress_format::Generation) -> FileExtent<'static> {
    let length = ByteCount::new(range.end.saturating_sub(range.start));
    FileExtent {
        generation,
        ram_bytes: length,
        compression: Compression::None,
        other_encoding: 0,
        body: FileExtentBody::Regular(ExtentSlice {
            disk: Logical::MIN,
            disk_bytes: ByteCount::ZERO,
            offset: ByteCount::ZERO,
            num_bytes: length,
        }),
    }
}
