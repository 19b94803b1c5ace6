//! Content that may be overwritten in place: content of files without copy-on-write, and
//! preallocated extents.
//!
//! Only content that no other file and no snapshot shares qualifies. The extent item of such
//! content is newer than the subvolume's last snapshot, and no other file refers to the extent.
//! Content that cannot be overwritten in place goes to a new extent.

use super::content::Content;
use super::stored::Stored;
use crate::operations::Access;
use crate::operations::areas::FileItems;
use buttress_engine::data_extents::DataRange;
use buttress_format::{ByteCount, Compression, FileExtent, FileExtentBody, InodeFlags, InodeItem, Logical};
use buttress_fs::error::Result;
use buttress_fs::location::Location;
use core::ops::Range;

/// A range of a file that is overwritten in place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct InPlace {
    /// The range of the file to overwrite.
    pub(super) range: Range<u64>,
    /// The logical address of the range's content.
    pub(super) logical: Logical,
    /// Whether the item marks the range as preallocated.
    pub(super) is_preallocated: bool,
}

/// Returns whether a file with these flags may have content that is overwritten in place.
pub(super) fn may_be_in_place(item: &InodeItem) -> bool {
    item.flags
        .intersects(InodeFlags::NODATACOW | InodeFlags::PREALLOC)
}

impl Access<'_> {
    /// Returns the parts of `range` that a write may overwrite in place, in order.
    pub(super) fn in_place_parts(
        &mut self,
        location: Location,
        item: &InodeItem,
        range: &Range<u64>,
    ) -> Result<Vec<InPlace>> {
        let mut parts: Vec<InPlace> = Vec::new();
        if !may_be_in_place(item) {
            return Ok(parts);
        }
        let overwrites = item.flags.contains(InodeFlags::NODATACOW | InodeFlags::NODATASUM);
        let mut at = range.start;
        // Items of one extent are adjacent, so its sharedness is looked up once.
        let mut last: Option<(DataRange, bool)> = None;
        while at < range.end
            && let Some(stored) = self.extent_from(location, at)?
            && stored.start < range.end
        {
            at = stored.end;
            let Some((slice, is_preallocated)) = overwritable(&stored.extent, overwrites) else {
                continue;
            };
            let Some(disk) = stored.disk() else {
                continue;
            };
            // A relocation copies this block group, so its content must not change.
            if self.lookups().core().groups.is_read_only(slice.disk.get()) {
                continue;
            }
            let is_exclusive = match last {
                Some((known, answer)) if known == disk => answer,
                _ => self.is_exclusive(location, &stored)?,
            };
            last = Some((disk, is_exclusive));
            if is_exclusive {
                let part = stored.start.max(range.start)..stored.end.min(range.end);
                let skipped = part.start.saturating_sub(stored.start);
                let inside = slice.offset.get().saturating_add(skipped);
                parts.push(InPlace {
                    range: part,
                    logical: slice.disk.saturating_add(ByteCount::new(inside)),
                    is_preallocated,
                });
            }
        }
        Ok(parts)
    }
}

impl FileItems<'_, '_> {
    /// Turns preallocated ranges whose content was written into regular ones.
    pub(super) fn mark_written(&mut self, location: Location, range: &Range<u64>) -> Result<()> {
        let tree = location.subvolume.tree();
        let generation = self.operation.generation();
        let mut at = range.start;
        while at < range.end
            && let Some(stored) = self.operation.extent_from(location, at)?
            && stored.start < range.end
        {
            at = stored.end;
            if !matches!(stored.extent.body, FileExtentBody::Preallocated(_)) {
                continue;
            }
            let part = stored.start.max(range.start)..stored.end.min(range.end);
            let pieces = [
                (stored.start..part.start, false),
                (part.clone(), true),
                (part.end..stored.end, false),
            ];
            let key = FileExtent::key(location.inode, buttress_format::FileOffset::new(stored.start));
            self.operation.edit().remove(tree, &key)?;
            let mut count = 0_u64;
            for (piece, is_written) in pieces.iter().filter(|(piece, _)| piece.start < piece.end) {
                let mut new = stored.part(piece);
                if *is_written {
                    new = written(&new);
                    new.extent.generation = generation;
                }
                self.insert_extent(location, &new)?;
                count = count.saturating_add(1);
            }
            if let Some(disk) = stored.disk() {
                let owner = stored.owner(tree, location.inode);
                for _ in 1..count {
                    self.operation.edit().core.add_data_reference(disk, owner);
                }
            }
        }
        Ok(())
    }
}

/// Returns the file extent item as a regular item.
fn written(stored: &Stored) -> Stored {
    let body = match stored.extent.body {
        FileExtentBody::Preallocated(slice) => FileExtentBody::Regular(slice),
        other => other,
    };
    Stored {
        extent: FileExtent {
            body,
            ..stored.extent
        },
        ..*stored
    }
}

/// Returns the on-disk part of an item that may be overwritten, and whether it is preallocated.
fn overwritable<'a>(
    extent: &'a FileExtent<'static>,
    overwrites: bool,
) -> Option<(&'a buttress_format::ExtentSlice, bool)> {
    if extent.compression != Compression::None || extent.other_encoding != 0 {
        return None;
    }
    match &extent.body {
        FileExtentBody::Preallocated(slice) if !slice.is_hole() => Some((slice, true)),
        FileExtentBody::Regular(slice) if overwrites && !slice.is_hole() => Some((slice, false)),
        _ => None,
    }
}

impl Content<'_> {
    /// Returns whether all of a range may be overwritten in place.
    pub(super) fn is_in_place(&self, range: &Range<u64>) -> Result<bool> {
        self.filesystem.read_under_lock(|operation| {
            let item = operation.inode(self.location)?;
            let parts = operation.in_place_parts(self.location, &item, range)?;
            let mut at = range.start;
            for part in parts {
                if part.range.start != at {
                    return Ok(false);
                }
                at = part.range.end;
            }
            Ok(at >= range.end)
        })
    }
}
