//! Decides which reads Linux serves from the device, without its page cache.
//!
//! On Linux's btrfs, a direct read (`O_DIRECT`) counts as an access only if it falls back to the
//! page cache. A direct read falls back if it is not aligned to sectors, or reads inline or
//! compressed content.
//!
//! Left out: direct reads into memory that is not aligned, or not resident. Linux also falls back
//! to buffered reads in these two cases.

use crate::areas::LiveReads;
use buttress_format::{Compression, FileExtent, FileExtentBody, FileOffset, ItemType, Key};
use buttress_fs::error::{Corruption, Result};
use buttress_fs::location::Location;
use buttress_tree::EditableTree;
use core::ops::{ControlFlow, Range};

impl LiveReads<'_> {
    /// Returns whether Linux would serve a direct read of a range without its page cache. A range
    /// at or after the end of the file counts as direct, since it reads nothing. Dirty content
    /// counts as neither inline nor compressed. If a file has one sector, this call writes dirty
    /// content back first.
    ///
    /// # Errors
    /// Fails with [`Error::InodeNotFound`](buttress_fs::Error::InodeNotFound), or with an error of
    /// the tree.
    pub(crate) fn is_read_directly(&self, location: Location, range: &Range<FileOffset>) -> Result<bool> {
        let sector_bytes = self.filesystem.forest().block_format().sector_bytes;
        let size = self.filesystem.contents().size_of(location)?;
        let (start, end) = (range.start.get(), range.end.get());
        if start >= size {
            return Ok(true);
        }
        let sector = u64::from(sector_bytes);
        if !start.is_multiple_of(sector) || !end.is_multiple_of(sector) {
            return Ok(false);
        }
        if size <= sector && self.filesystem.contents().is_waiting(location) {
            self.filesystem.writeback().write_file(location)?;
        }
        let tree = self.tree(location.subvolume.tree())?;
        let found =
            self.read_whole(|| tree.with(|tree| find_kept(tree, location, sector_bytes, &(start..end))))?;
        match found {
            None => Ok(true),
            Some(Kept::Compressed) => Ok(false),
            // Dirty content of a file that has grown replaces the inline extent.
            Some(Kept::Inline) => {
                Ok(size > sector && self.filesystem.contents().has_dirty_in(location, &(0..sector))?)
            }
        }
    }
}

/// The kinds of file content that Linux reads through its page cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kept {
    Inline,
    Compressed,
}

/// Finds the first inline or compressed content in a range.
fn find_kept(
    tree: &EditableTree,
    location: Location,
    sector_bytes: u32,
    range: &Range<u64>,
) -> Result<Option<Kept>> {
    let wanted = FileExtent::key(location.inode, FileOffset::new(range.start));
    let is_extent = |key: &Key| key.objectid == wanted.objectid && key.item_type == ItemType::EXTENT_DATA;
    let mut found = Ok(None);
    // The extent that covers the start of the read may begin before it.
    tree.scan_from_before(&wanted, |key, data| {
        if *key < wanted && !is_extent(key) {
            return ControlFlow::Continue(());
        }
        if !is_extent(key) || key.offset >= range.end {
            return ControlFlow::Break(());
        }
        let parsed = FileExtent::parse(key, data, sector_bytes);
        let tree = location.subvolume.tree();
        found = parsed
            .map_err(|error| Corruption::Item { tree, error }.into())
            .map(|extent| {
                kept_of(&extent).filter(|_| extent.file_end(key, sector_bytes).get() > range.start)
            });
        match found {
            Ok(None) => ControlFlow::Continue(()),
            _ => ControlFlow::Break(()),
        }
    })?;
    found
}

fn kept_of(extent: &FileExtent<'_>) -> Option<Kept> {
    match extent.body {
        FileExtentBody::Inline(_) => Some(Kept::Inline),
        _ => (extent.compression != Compression::None).then_some(Kept::Compressed),
    }
}
